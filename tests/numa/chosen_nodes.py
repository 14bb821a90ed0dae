"""Whose pages a policy takes: those of a node that it chooses, or of another one where that has none."""

import errno
from collections.abc import Iterator, Sequence, Set

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.hugetlb_files import HugeFile, new_memfd
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory, value_or_signal
from hugepage_qa.cases.memory_policy import Mode, give_policy, node_of, set_policy
from hugepage_qa.cases.pages_of_a_node import require_no_free_page
from hugepage_qa.oracle.node_policies import node_in_turn, nodes_of_next_page
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Refused
from hugepage_qa.version import KernelVersion

CHOSEN = Area("numa/chosen-nodes")

DOCUMENT = "Documentation/admin-guide/mm/numa_memory_policy.rst"
_IN_TURN = Mode.INTERLEAVE, Mode.WEIGHTED_INTERLEAVE
#: fa3bea4e1f82
_WEIGHTED_SINCE = KernelVersion(6, 9)
#: how a page is had: shared, without a reservation, by the policy of the process, by fallocate(2)
_WAYS = (
    (False, False, False, False),
    (False, True, True, False),
    (True, False, True, False),
    (True, True, False, False),
    (True, True, True, True),
)


@CHOSEN.case(
    "a page comes from a node that the policy chooses, one or several, preferred, bound, local or in turn, and where"
    " none of these has any, from another one, but for bound memory: SIGBUS, and ENOSPC of fallocate(2); so it is with"
    " the policy of memory and of a process, private and shared, reserved and not",
    f"{DOCUMENT} Components of Memory Policies; mm/mempolicy.c policy_nodemask(); mm/hugetlb.c"
    " dequeue_hugetlb_folio_vma() (cfcaa66f8032)",
    since="5.15",
    nodes=2,
    sizes=Sizes.BUDDY,  # it would take minutes to clear gigantic pages again and again
)
def whose_pages_a_policy_takes(live: Live) -> None:
    nodes = live.nodes[:2]
    # a policy that chooses no node, or none with a page, takes one of any
    for node in live.nodes:
        require_no_free_page(live, node)
    actor = live.actor()
    for free in (nodes, nodes[:1], nodes[1:]):
        for node in nodes:
            live.reserve(int(node in free), node)
        for mode, wanted in _modes(nodes, live.kernel_version):
            chosen = [node_in_turn(wanted, 0)] if mode in _IN_TURN else wanted
            expected = nodes_of_next_page(chosen, free, is_bound=mode is Mode.BIND)
            for shared, noreserve, of_process, by_allocation in _WAYS:
                way = f"shared {shared}, noreserve {noreserve}, of the process {of_process}, allocated {by_allocation}"
                with live.about(f"pages on {free}, {mode.name} of {wanted}, {way}"):
                    file = new_memfd(live, actor, pages=1)
                    memory = file.map(1, shared=shared, noreserve=noreserve)
                    if of_process:
                        set_policy(actor, mode, wanted)
                    else:
                        give_policy(memory, mode, wanted)
                    outcomes: Set[int | str] = expected or {"ENOSPC" if by_allocation else "SIGBUS"}
                    found = _node_or_refusal(file, memory, by_allocation=by_allocation)
                    live.expect(f"whether node, or error, {found} is one of {set(outcomes)}", True, found in outcomes)
                    set_policy(actor, Mode.DEFAULT, [])
                    memory.unmap()
                    file.close()
            live.expect_pool(nr=len(free), free=len(free))


@CHOSEN.case(
    "surplus pages for a reservation come from the nodes that the policy of the process is bound to: it is granted,"
    " whichever node that is, and the pages are there",
    f"{DOCUMENT} MPOL_BIND; mm/hugetlb.c gather_surplus_pages() (003af997c8a9)",
    since="6.11",
    nodes=2,
    sizes=Sizes.BUDDY,
)
def surplus_pages_of_bound_nodes(live: Live) -> None:
    for node in live.nodes:
        require_no_free_page(live, node)
        live.let_grow(2, node)
        for shared in (False, True):
            actor = live.actor()
            set_policy(actor, Mode.BIND, [node])
            with live.about(f"bound to node {node}, shared {shared}"):
                memory = live.map(2, actor, shared=shared)
                live.expect_pool(nr=2, free=2, resv=2, surplus=2)
                live.expect("pages of the node", 2, live.pool(node).surplus)
                memory.touch(0)
                memory.touch(1)
                live.expect("nodes in numa_maps", {node: 2}, memory.numa_maps().nodes)
            actor.end()
            live.expect_pool(nr=0, free=0)


def _node_or_refusal(file: HugeFile, memory: Memory, *, by_allocation: bool) -> int | str:
    """Return the node of the first page, brought now, or the name of an errno or a signal."""
    try:
        if by_allocation:
            file.allocate(1)
        refused = value_or_signal(memory.touch)
    except Refused as refusal:
        return errno.errorcode[refusal.errno or 0]
    return refused or node_of(memory)


def _modes(nodes: Sequence[int], version: KernelVersion) -> Iterator[tuple[Mode, Sequence[int]]]:
    """Yield each mode with one node, with the other one, and with both where it can have them, or with none."""
    yield from ((mode, []) for mode in (Mode.DEFAULT, Mode.LOCAL))
    for wanted in (nodes[:1], nodes[1:], nodes):
        yield from ((mode, wanted) for mode in (Mode.BIND, Mode.INTERLEAVE, Mode.PREFERRED_MANY))
        if len(wanted) == 1:
            yield Mode.PREFERRED, wanted
        if version >= _WEIGHTED_SINCE:
            yield Mode.WEIGHTED_INTERLEAVE, wanted


class ChosenNodes(LiveTest):
    def test_chosen_nodes(self) -> None:
        self.run_area(CHOSEN)
