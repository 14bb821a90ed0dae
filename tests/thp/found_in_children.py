"""Pages that a process has together with children and their children: who looks for all that map them finds each one.

Who moves a page to another node or splits it takes it from all that map it (rmap_walk_anon() in mm/rmap.c): a child is
found by what fork() links of its parent, and of all before, also when these have unmapped it.
"""

from collections.abc import Iterator
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.debugfs import expect_split
from hugepage_qa.cases.fragmentation import expect_no_shortage
from hugepage_qa.cases.khugepaged_clock import let_rest
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.memory_policy import MOVE_ALL, move_pages
from hugepage_qa.cases.pages_of_a_node import need_memory
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.cases.thp_policy import base_pages, huge_pages, mapped_in_parts, set_policy
from hugepage_qa.plugins.avocado_test import LiveTest

FOUND = Area("thp/found-in-children", sizes=Sizes.ONCE)

_FORKED = "fork(2); mm/rmap.c anon_vma_fork(), anon_vma_clone()"
_PAGES, _GENERATIONS = 2, 4
#: which generations have unmapped the pages when they are looked for
_GONE = (), (0,), (1,), (0, 1), (0, 2), (0, 1, 2)
#: somebody may have a hold of a page for a moment, which is long on a busy machine
_SECONDS = 60.0


@FOUND.case(
    "huge pages, whole ones and such as are mapped in parts, and base pages that a process has together with its"
    " children, and theirs, whichever of them have unmapped them, move to another node for all of them, with what they"
    " hold",
    f"{_FORKED}; move_pages(2) MPOL_MF_MOVE_ALL; mm/rmap.c try_to_migrate()",
    nodes=2,
)
def moved(live: Live) -> None:
    need_memory(live, live.nodes[:2], 2 * _PAGES * pmd_size(live))
    for views, what in _families(live):
        with live.about(what):
            one = views[-1]
            addresses = range(one.address, one.address + one.length, live.base_page)
            for node in live.nodes[:2]:
                nodes = [node] * len(addresses)
                live.host.wait_until(partial(_are_moved, one, addresses, nodes), _SECONDS)
                found = one.numa_maps().nodes
                if found.keys() != {node}:
                    expect_no_shortage(live, pmd_size(live), _PAGES, node)
                    # each of the others would be waited for, too
                    live.fail("base pages of each node", {node: len(nodes)}, found)
                for view in views:
                    live.expect("base pages of each node", {node: len(nodes)}, view.numa_maps().nodes)
                    view.expect_filled()


@FOUND.case(
    "huge pages, whole ones and such as are mapped in parts, that a process has together with its children, and theirs,"
    " whichever of them have unmapped them, are split for all of them, and hold what they held",
    f"{_FORKED}; mm/huge_memory.c split_huge_pages_pid(), unmap_folio()",
    since="5.13",
)
def split(live: Live) -> None:
    for views, what in _families(live, of_base_pages=False):
        with live.about(what):
            one = views[-1]
            expect_split(live, f"{one.actor.pid},{one.address:#x},{one.address + one.length:#x}", _PAGES)
            for view in views:
                view.expect_filled()


def _families(live: Live, *, of_base_pages: bool = True) -> Iterator[tuple[list[Memory], str]]:
    """Have processes fork one after the other, and some unmap the memory; yield it as each of the others has it."""
    let_rest(live)
    set_policy(live, "madvise")
    for make, gone in product((huge_pages, mapped_in_parts, *[base_pages] * of_base_pages), _GONE):
        views = [make(live, _PAGES)]
        while len(views) < _GENERATIONS:
            views.append(views[0].seen_by(views[-1].actor.fork()))
        for generation in gone:
            views[generation].unmap()
        left = [view for generation, view in enumerate(views) if generation not in gone]
        yield left, f"{make.__name__}, unmapped by generations {gone}"
        views[0].actor.end()


def _are_moved(memory: Memory, addresses: range, nodes: list[int]) -> bool:
    return move_pages(memory.actor, addresses, nodes, MOVE_ALL) == nodes


class ThpFoundInChildren(LiveTest):
    def test_found_in_children(self) -> None:
        self.run_area(FOUND)
