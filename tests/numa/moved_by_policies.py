"""Where mbind(2) moves huge pages to: a node of the policy that it gives, whichever node its process runs on."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import permutations, product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.memory_policy import (
    MOVE,
    MOVE_ALL,
    Mode,
    give_policy,
    modes_of_several_nodes,
    move_page,
    node_of,
    processors_near,
    run_on_node,
    set_policy,
)
from hugepage_qa.cases.thp_memory import let_nothing_be_balanced, map_aligned, mapped_huge, need_blocks, pmd_size
from hugepage_qa.cases.thp_nodes import two_nodes_with_room
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE
from hugepage_qa.plugins.avocado_test import LiveTest

BY_POLICIES = Area("numa/moved-by-policies")

#: the one that moves, and room for it on the other node
_PAGES = 2
FOLLOW = (
    "that mbind(2) is to move goes to a node of the policy, bound, preferred, one of several, in turn or local,"
    " whichever node its process runs on and whichever has pages, and stays where it is on one of them; with the"
    " default policy it goes where the policy of the process says"
)
SOURCES = (
    "mbind(2) MPOL_MF_MOVE_ALL; Documentation/admin-guide/mm/numa_memory_policy.rst; mm/mempolicy.c do_mbind(),"
    " alloc_migration_target_by_mpol()"
)


@BY_POLICIES.case(
    f"a page of a pool {FOLLOW}",
    f"{SOURCES}; mm/hugetlb.c alloc_hugetlb_folio_vma(), alloc_hugetlb_folio_nodemask()",
    since="5.15",  # MPOL_PREFERRED_MANY, and MPOL_LOCAL as it is told
    nodes=2,
    sizes=Sizes.BUDDY,  # it would take minutes to copy gigantic pages again and again
)
def pages_of_a_pool(live: Live) -> None:
    for shared in (False, True):
        with live.about(f"shared {shared}"):
            # the one in use, and a free one on each node: none is there for want of another
            for node in live.nodes:
                live.reserve(2, node)
            memory = live.map(1, shared=shared)
            memory.fill()
            _expect_to_follow(live, memory, lambda: None)
            memory.actor.end()
            live.expect_pool(nr=2 * len(live.nodes), free=2 * len(live.nodes))


@BY_POLICIES.case(
    f"a transparent huge page, anonymous, locked or not, or of a tmpfs, {FOLLOW}; it is not split",
    SOURCES,
    since="6.1",
    nodes=2,
    sizes=Sizes.ONCE,
)
def transparent_pages(live: Live) -> None:
    let_nothing_be_balanced(live)
    for shared, locked in ((False, False), (False, True), (True, False)):
        with live.about(f"shared {shared}, locked {locked}"):
            two_nodes_with_room(live, _PAGES)
            memory = map_aligned(live, 1, pmd_size(live), shared=shared, advice=MADV_HUGEPAGE)
            memory.fill()
            if locked:
                memory.lock()

            def expect_whole(memory: Memory = memory) -> None:
                # what finds no free block where it goes is split
                for node in live.nodes[:2]:
                    need_blocks(live, memory, node)
                live.expect("bytes in huge pages", memory.length, mapped_huge(memory))

            expect_whole()
            _expect_to_follow(live, memory, expect_whole)
            memory.actor.end()


def _expect_to_follow(live: Live, memory: Memory, expect_also: Callable[[], None]) -> None:
    """Expect the page of ``memory`` to move as each policy says, and what ``expect_also`` does of it then."""
    actor, nears = memory.actor, processors_near(live, live.nodes[:2])
    for near, (here, there) in product(nears, permutations(live.nodes[:2])):
        run_on_node(actor, near, nears[near])
        for (mode, nodes, node), of_process in product(list(_policies(live, here, there, near)), (False, True)):
            if of_process and len(nodes) > 1:
                # with the default policy no page is where it may be: it goes to either
                continue
            with live.about(f"{mode.name} of {nodes}, of the process {of_process}, on the processors of node {near}"):
                give = partial(give_policy, memory, mode, nodes, MOVE_ALL)
                if of_process:
                    set_policy(actor, mode, nodes)
                    give = partial(give_policy, memory, Mode.DEFAULT, (), MOVE_ALL)
                # somebody may have a hold of it for a moment
                found = live.host.last_attempt(partial(_moved, memory, here, give), (here, node).__eq__)
                live.expect("nodes before and after", (here, node), found)
                for flags in (MOVE, MOVE_ALL) if here in nodes and not of_process else ():
                    give = partial(give_policy, memory, mode, nodes, flags)
                    moves = live.host.last_attempt(partial(_moves, memory, give), (False).__eq__)
                    live.expect(f"whether it moves from where it may be, flags {flags}", False, moves)
                memory.expect_filled()
                expect_also()
            set_policy(actor, Mode.DEFAULT, [])
            give_policy(memory, Mode.DEFAULT, [])


def _moved(memory: Memory, here: int, give: Callable[[], None]) -> tuple[int, int]:
    """Have the page on ``here`` and ``give`` a policy that moves it; return the nodes that it is on before and then."""
    before = move_page(memory, 0, here, MOVE_ALL)
    give()
    return before, node_of(memory)


def _moves(memory: Memory, give: Callable[[], None]) -> bool:
    """Tell whether the page of ``memory`` is in another place, of whichever node, once its policy is given."""
    frame = memory.frame()
    give()
    return memory.frame() != frame


def _policies(live: Live, here: int, there: int, near: int) -> Iterator[tuple[Mode, Sequence[int], int]]:
    """Yield modes, the nodes of each, and where a page on ``here`` is when its process, on ``near``, has moved it."""
    for mode in modes_of_several_nodes(live.kernel_version):
        yield mode, (there,), there
        yield mode, (here,), here
    yield Mode.PREFERRED, (there,), there
    yield Mode.PREFERRED, (), near
    yield Mode.LOCAL, (), near
    # where it may be it stays
    yield Mode.BIND, (here, there), here
    yield Mode.PREFERRED_MANY, (here, there), here


class MovedByPolicies(LiveTest):
    def test_moved_by_policies(self) -> None:
        self.run_area(BY_POLICIES)
