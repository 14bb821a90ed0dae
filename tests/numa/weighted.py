"""Pages that come from nodes by weight: MPOL_WEIGHTED_INTERLEAVE, and the weights that an administrator gives."""

import errno
import mmap
from collections.abc import Mapping, Sequence

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.fragmentation import compact_if_short
from hugepage_qa.cases.hugetlb_files import new_memfd
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.memory_policy import Mode, give_policy, node_of, nodes_of, policy_of, set_policy
from hugepage_qa.cases.pages_of_a_node import need_memory
from hugepage_qa.cases.thp_memory import need_blocks, pmd_size
from hugepage_qa.cases.thp_policy import advised
from hugepage_qa.cases.thp_policy import set_policy as set_thp_policy
from hugepage_qa.kernel.interleave_weights import AUTOMATIC, weight_files
from hugepage_qa.kernel.tree import read_integer
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE, MADV_NOHUGEPAGE
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.oracle.node_policies import node_by_weight
from hugepage_qa.plugins.avocado_test import LiveTest

WEIGHTED = Area("numa/weighted")

DOCUMENT = (
    "Documentation/admin-guide/mm/numa_memory_policy.rst MPOL_WEIGHTED_INTERLEAVE;"
    " Documentation/ABI/testing/sysfs-kernel-mm-mempolicy-weighted-interleave"
)
#: fa3bea4e1f82
_SINCE = "6.9"
#: of two nodes, one after the other: a table is used as a whole, and what one said last is no longer
_WEIGHTS = ((1, 1), (3, 1), (1, 2), (2, 3))
_LARGEST = 255
_PAGES = 6
_BASE_PAGES = 24


@WEIGHTED.case(
    "pages of weighted interleaving come from the nodes in rows as long as their weights are then, each from the one"
    " that its place in the file says, whatever part of it is mapped, private or shared, in whichever order pages are"
    " touched, and by whose policy; of one node alone from that",
    f"{DOCUMENT}; mm/mempolicy.c weighted_interleave_nid(), huge_node()",
    nodes=2,
    since=_SINCE,
    sizes=Sizes.BUDDY,  # it would take minutes to clear gigantic pages again and again
)
def by_their_place_in_the_file(live: Live) -> None:
    nodes = live.nodes[:2]
    for node in nodes:
        live.reserve(1, node)
    file = new_memfd(live, pages=2 * _PAGES)
    for number, weights in enumerate((*_WEIGHTS, {nodes[1]: 2})):
        chosen = weights if isinstance(weights, Mapping) else dict(zip(nodes, weights, strict=True))
        _give_weights(live, chosen)
        for shared, first in ((False, 0), (True, 1), (number % 2 == 0, 4)):
            memory = file.map(_PAGES, shared=shared, noreserve=True, first=first)
            of_process = (number + first) % 2 == 0
            with live.about(f"weights {chosen}, from page {first} on, shared {shared}, policy of process {of_process}"):
                if of_process:
                    set_policy(file.actor, Mode.WEIGHTED_INTERLEAVE, chosen)
                else:
                    give_policy(memory, Mode.WEIGHTED_INTERLEAVE, chosen)
                    live.expect("policy", (Mode.WEIGHTED_INTERLEAVE, [*chosen]), policy_of(memory))
                # some after one another, and some in front of another one
                for page in (0, 1, 3, 2, 5, 4):
                    memory.touch(page)
                    found = node_of(memory, page)
                    live.expect(f"node of page {page}", node_by_weight(chosen, first + page), found)
                    _give_back(memory, page, shared=shared)
                memory.unmap()
                set_policy(file.actor, Mode.DEFAULT, [])
                file.truncate(0)
                file.truncate(2 * _PAGES)
    file.actor.end()
    live.expect_pool(nr=2, free=2)


def _give_back(memory: Memory, page: int, *, shared: bool) -> None:
    memory.advise(mmap.MADV_REMOVE if shared else mmap.MADV_DONTNEED, page, 1)


@WEIGHTED.case(
    "pages of weighted interleaving, huge ones and base pages, come from the nodes in rows as long as their weights"
    " are then, by their place in memory, in whichever order they are touched, and by whose policy",
    f"{DOCUMENT}; mm/mempolicy.c weighted_interleave_nid(), get_vma_policy()",
    nodes=2,
    since=_SINCE,
    sizes=Sizes.ONCE,
)
def by_their_place_in_memory(live: Live) -> None:
    nodes, size = live.nodes[:2], pmd_size(live)
    need_memory(live, nodes, 2 * _PAGES * size)
    set_thp_policy(live, "madvise")
    for number, weights in enumerate(_WEIGHTS):
        chosen = dict(zip(nodes, weights, strict=True))
        _give_weights(live, chosen)
        for advice in (MADV_HUGEPAGE, MADV_NOHUGEPAGE):
            of_process = number % 2 == 0
            compact_if_short(live, size, 2 * _PAGES)
            memory = advised(live, _PAGES, advice)
            if of_process:
                set_policy(memory.actor, Mode.WEIGHTED_INTERLEAVE, chosen)
            else:
                give_policy(memory, Mode.WEIGHTED_INTERLEAVE, chosen)
            if advice == MADV_NOHUGEPAGE:
                memory = Memory(live, memory.actor, memory.address, _BASE_PAGES, live.base_page)
            with live.about(f"weights {chosen}, pages of {memory.size >> 10}K, policy of process {of_process}"):
                order = [*range(1, memory.pages, 2), *range(0, memory.pages, 2)]
                for page in order:
                    memory.touch(page)
                if advice == MADV_HUGEPAGE:
                    for node in nodes:
                        need_blocks(live, memory, node)
                places = [memory.at(page) for page in range(memory.pages)]
                wanted = [node_by_weight(chosen, place // memory.size) for place in places]
                live.expect("nodes of the pages", wanted, nodes_of(memory.actor, places))
                each = memory.size // live.base_page
                counted = {node: each * wanted.count(node) for node in wanted}
                live.expect("base pages of each node in numa_maps", counted, memory.numa_maps().nodes)
            memory.actor.end()


@WEIGHTED.case(
    "the weight of a node is the number of 1 to 255 that was written last; a number above 255 or below 0, and what is"
    " no number, is EINVAL and leaves what was there, of this node and of others; so is 0 since Linux 6.16, and before"
    " it makes the weight 1",
    f"{DOCUMENT}; mm/mempolicy.c node_store()",
    nodes=2,
    since=_SINCE,
    sizes=Sizes.ONCE,
)
def weights_that_are_taken(live: Live) -> None:
    first, second = live.nodes[:2]
    for weights in ((1, _LARGEST), (_LARGEST, 1), (7, 9)):
        chosen = dict(zip((first, second), weights, strict=True))
        _give_weights(live, chosen)
        live.expect("weights", chosen, _weights(live, [first, second]))
        for word in (f"{_LARGEST + 1}", "-1", "one", "1 2"):
            with live.about(f"{word!r} in place of {chosen[first]}"):
                live.expect_errno(errno.EINVAL, live.host.write, weight_files(live.host)[first], word)
                live.expect("weights", chosen, _weights(live, [first, second]))
        with live.about(f"0 in place of {chosen[first]}"):
            if live.host.read(AUTOMATIC) is None:
                # where the kernel cannot choose the weights it stands for its default (get_il_weight())
                live.host.write(weight_files(live.host)[first], "0")
                chosen[first] = 1
            else:
                live.expect_errno(errno.EINVAL, live.host.write, weight_files(live.host)[first], "0")
            live.expect("weights", chosen, _weights(live, [first, second]))


def _give_weights(live: Live, weights: Mapping[int, int]) -> None:
    """Give nodes their weights until the case ends. Raises CannotRun where they have none."""
    files = weight_files(live.host)
    if not weights.keys() <= files.keys():
        raise CannotRun("this kernel has no weights of nodes (CONFIG_SYSFS)")
    # to write one ends that, and where the kernel does not know the bandwidth it does not begin again: ENODEV
    if not live.host.is_thrown_away() and (live.host.read(AUTOMATIC) or "").strip() == "true":
        raise CannotRun(f"the kernel chooses the weights of this machine: /{AUTOMATIC}")
    for node, weight in weights.items():
        live.set_knob(files[node], str(weight))


def _weights(live: Live, nodes: Sequence[int]) -> dict[int, int | None]:
    files, tree = weight_files(live.host), ObservedTree(live.host)
    return {node: read_integer(tree, files[node]) for node in nodes}


class Weighted(LiveTest):
    def test_weighted(self) -> None:
        self.run_area(WEIGHTED)
