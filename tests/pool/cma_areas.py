"""Gigantic pages out of an area of hugetlb_cma=, which others may use until they are taken."""

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.contiguous_area import ContiguousArea
from hugepage_qa.cases.demotion import demote, smaller_pool
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.movable_kinds import movable_memory
from hugepage_qa.cases.pinned_pages import Pin, pipe_with, word_from
from hugepage_qa.cases.struct_pages import optimize_struct_pages
from hugepage_qa.kernel.counters import read_meminfo
from hugepage_qa.kernel.memory_layout import read_zones
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.oracle.rules import HUGETLB_DOC
from hugepage_qa.plugins.avocado_test import LiveTest

_NODE, _PAGES = 1, 3
#: more than half of the free memory of the node, so that what can be moved comes from there first (16867664936e)
AREAS = Area("pool/cma-areas", sizes=Sizes.GIGANTIC, words=f"hugetlb_cma={_NODE}:{_PAGES}G")
#: hugetlb_cma= has counts for nodes
SINCE = "5.16"
DOC = "Documentation/admin-guide/kernel-parameters.txt hugetlb_cma"
_TAKEN = f"{DOC}; mm/hugetlb.c alloc_gigantic_folio(), free_gigantic_folio(); mm/cma.c cma_alloc(), cma_release()"
_MOVED = f"{DOC}; mm/page_alloc.c alloc_contig_range(); mm/migrate.c migrate_pages()"
_ROUNDS = 3
#: pages of a smaller size, of which a quarter is used and another one reserved
_SMALLER = 64


@AREAS.case(
    "nr_hugepages of a node takes its pages out of the area, and gives them back to it, one by one or at once, again"
    " and again",
    _TAKEN,
    nodes=2,
    since=SINCE,
)
def taken_and_given_back(live: Live) -> None:
    area = _empty_area(live)
    for _round in range(_ROUNDS):
        for pages in (1, _PAGES - 1, _PAGES, 1, 0, _PAGES, 0):
            area.take(pages)


@AREAS.case(
    "a page of another node is not taken out of the area, and its use changes nothing there",
    _TAKEN,
    nodes=2,
    since=SINCE,
)
def page_of_another_node(live: Live) -> None:
    area = _empty_area(live)
    other = next(node for node in live.nodes if node != _NODE)
    live.reserve(1, other)
    live.expect_pool(nr=1, free=1)
    live.expect_pool(nr=1, free=1, node=other)
    area.expect_taken(0)
    memory = live.map(1)
    memory.touch()
    memory.unmap()
    live.set_nr(0, other)
    area.expect_taken(0)


@AREAS.case(
    "the size of the area in /proc/zoneinfo is the same whatever is taken out of it, used or given back: all zones have"
    " CmaTotal of /proc/meminfo together, and those of its node what they had",
    f"{DOC}; mm/vmstat.c zoneinfo_show_print(); mm/cma.c cma_alloc()",
    nodes=2,
    since=SINCE,
)
def size_of_the_area(live: Live) -> None:
    area = _empty_area(live)
    sizes = _sizes_in_zones(live)
    for pages in (1, _PAGES, 0):
        area.take(pages)
        with live.about(f"{pages} pages are taken"):
            live.expect("areas of all zones", read_meminfo(live.host)["CmaTotal"], sum(_sizes_in_zones(live).values()))
            live.expect("areas of each zone", sizes, _sizes_in_zones(live))
        if pages == 1:
            memory = live.map(1)
            memory.touch()
            live.expect("areas of each zone, the page being used", sizes, _sizes_in_zones(live))
            memory.unmap()


def _sizes_in_zones(live: Live) -> dict[tuple[int, str], int]:
    """Return how many bytes of areas /proc/zoneinfo says that each zone has, by node and name."""
    zones = read_zones(live.host)
    return {(zone.node, zone.name): zone.cma * live.base_page for zone in zones if zone.cma is not None}


@AREAS.case(
    "all pages can be used at once, shared with a child, and go back to the area when nr_hugepages went down meanwhile",
    _TAKEN,
    nodes=2,
    since=SINCE,
)
def used_when_the_pool_shrinks(live: Live) -> None:
    area = _empty_area(live)
    live.set_nr(2, _NODE)
    memory = live.map(2, shared=True)
    for page in range(2):
        memory.touch(page, page + 1)
    child = memory.fork()
    live.set_nr(0, _NODE)
    live.expect_pool(nr=2, free=0, surplus=2)
    area.expect_taken(2)
    memory.unmap()
    live.expect("what the child reads", (1, 2), tuple(child.read(page) for page in range(2)))
    area.expect_taken(2)
    live.expect_pool(nr=2, free=0, surplus=2)
    child.actor.end()
    memory.actor.end()
    live.expect_pool(nr=0, free=0)
    area.expect_whole()


@AREAS.case(
    "a surplus page comes out of the area, and goes back to it when it is no longer used",
    f"{HUGETLB_DOC} nr_overcommit_hugepages; {_TAKEN}",
    nodes=2,
    # gigantic pages have a surplus
    since="6.19",
)
def surplus_page(live: Live) -> None:
    area = _empty_area(live)
    live.overcommit(1)
    memory = live.map(1)
    memory.touch()
    live.expect_pool(nr=1, free=0, surplus=1)
    area.expect_taken(1)
    memory.unmap()
    live.expect_pool(nr=0, free=0)
    area.expect_whole()


@AREAS.case(
    "what became of a demoted page goes back to the area, from where gigantic pages can be had again",
    f"{HUGETLB_DOC} demote; {_TAKEN}",
    nodes=2,
    since=SINCE,
)
def demoted_page(live: Live) -> None:
    area = _empty_area(live)
    smaller = smaller_pool(live)
    live.set_nr(_PAGES, _NODE)
    demote(live, 1, _NODE)
    parts = live.size // smaller.size
    live.expect_pool(nr=_PAGES - 1, free=_PAGES - 1)
    smaller.expect_pool(nr=parts, free=parts, node=_NODE)
    area.expect_taken(_PAGES)
    memory = smaller.map(2)
    memory.fill()
    memory.expect_filled()
    memory.unmap()
    smaller.set_nr(0)
    smaller.expect_pool(nr=0, free=0)
    area.expect_taken(_PAGES - 1)
    live.set_nr(0, _NODE)
    area.expect_whole()


@AREAS.case(
    "pages that gave back their struct pages go back to the area with all of them",
    f"Documentation/admin-guide/sysctl/vm.rst hugetlb_optimize_vmemmap; {_TAKEN}",
    nodes=2,
    since="6.0",
)
def optimised_pages(live: Live) -> None:
    area = _empty_area(live)
    optimize_struct_pages(live)
    for _round in range(_ROUNDS):
        area.take(_PAGES)
        memory = live.map(1)
        memory.touch()
        memory.unmap()
        area.take(0)


@AREAS.case(
    "memory of others that lies in the area moves out of it when its pages are taken, holds what it held, and can be"
    " written",
    _MOVED,
    nodes=2,
    since=SINCE,
)
def memory_of_others_moves(live: Live) -> None:
    area = _empty_area(live)
    each = _memory_inside(live, area)
    area.take(_PAGES)
    for name, memory in each.items():
        with live.about(name):
            memory.expect_filled()
            there = len(memory.present_frames(memory.pages))
            live.expect("base pages that are there", memory.length // live.base_page, there)
            memory.fill(2)
            memory.expect_filled(2)
    live.set_nr(0, _NODE)
    for name, memory in each.items():
        with live.about(name):
            memory.expect_filled(2)
            memory.actor.end()
    area.expect_whole()


@AREAS.case(
    "free pages of a smaller size that lie in the area, reserved ones too, are replaced by others of their node when it"
    " is taken: their pool has as many",
    f"{DOC}; mm/hugetlb.c isolate_or_dissolve_huge_folio(), alloc_and_dissolve_hugetlb_folio()",
    nodes=2,
    # since 369fa227c219, which is older
    since=SINCE,
)
def smaller_pages_are_replaced(live: Live) -> None:
    _expect_to_be_replaced(live, used_pages=0)


@AREAS.case(
    "pages of a smaller size that are used in the area move out of it when it is taken, hold what they held, and their"
    " pool has as many as before",
    f"{DOC}; mm/hugetlb.c isolate_or_dissolve_huge_folio(), replace_free_hugepage_folios()",
    nodes=2,
    # they move since ae37c7ff79f1, and before 04f13d241b8b what they had left went to their pool, and was in the way
    since="6.14",
)
def smaller_pages_that_are_used_move(live: Live) -> None:
    _expect_to_be_replaced(live, used_pages=_SMALLER // 4)


def _expect_to_be_replaced(live: Live, used_pages: int) -> None:
    area = _empty_area(live)
    smaller = live.of_size(min(live.sizes))
    smaller.reserve(_SMALLER, _NODE)
    if area.used < _SMALLER * smaller.size // 2:
        raise CannotRun("next to no page of the smaller size came to lie in the area")
    memories = [smaller.map(_SMALLER // 4, shared=True)]
    if used_pages:
        memories.append(smaller.map(used_pages))
        memories[-1].fill()
    free = _SMALLER - used_pages
    for _round in range(_ROUNDS):
        area.take(_PAGES)
        smaller.expect_pool(nr=_SMALLER, free=free, resv=_SMALLER // 4)
        smaller.expect_pool(nr=_SMALLER, free=free, node=_NODE)
        smaller.expect_sysctl(_SMALLER)
        for memory in memories[1:]:
            memory.expect_filled()
        live.set_nr(0, _NODE)
        # those that come next may lie in the area again
        smaller.set_nr(_SMALLER // 2, _NODE)
        smaller.set_nr(_SMALLER, _NODE)
    memories[0].fill()
    for memory in memories:
        memory.expect_filled()
        memory.unmap()
    smaller.expect_pool(nr=_SMALLER, free=_SMALLER)
    smaller.set_nr(0, _NODE)
    area.expect_whole()


@AREAS.case(
    "memory that is pinned for long leaves the area first, and all pages of that can be taken meanwhile",
    "Documentation/core-api/pin_user_pages.rst FOLL_LONGTERM; mm/gup.c check_and_migrate_movable_pages()",
    nodes=2,
    since=SINCE,
)
def pinned_memory_leaves(live: Live) -> None:
    area = _empty_area(live)
    each = _memory_inside(live, area)
    pins = {}
    for name, memory in each.items():
        pins[name] = Pin(live, memory)
        pins[name].hold((0, memory.length))
    frames = {name: memory.present_frames(memory.pages) for name, memory in each.items()}
    area.take(_PAGES)
    for name, memory in each.items():
        with live.about(name):
            live.expect(
                "whether it lies where it was pinned", True, memory.present_frames(memory.pages) == frames[name]
            )
            memory.touch(value=2)
            live.expect("what is read through the pin", 2, pins[name].read())
            memory.touch()
            memory.expect_filled()
            pins[name].let_go()
            memory.actor.end()
    live.set_nr(0, _NODE)
    area.expect_whole()


@AREAS.case(
    "pages that pipes hold keep the gigantic page in the area that they are in, and no other: nothing is lost of"
    " either, and it can be taken when the pipes are empty",
    f"vmsplice(2); {_MOVED}",
    nodes=2,
    since=SINCE,
)
def held_pages_stay(live: Live) -> None:
    area = _empty_area(live)
    # the page that came last is the first to be used
    for pages in range(1, _PAGES + 1):
        live.set_nr(pages, _NODE)
    page = live.map(1)
    page.touch()
    # what comes now does not lie there, and a page behind it is left to be taken
    live.set_nr(1, _NODE)
    each = _memory_inside(live, area)
    page.unmap()
    area.take(0)
    pipes = {name: pipe_with(live, memory) for name, memory in each.items()}
    for _round in range(_ROUNDS):
        live.set_nr(_PAGES, _NODE)
        area.expect_taken(_PAGES - 1)
        for name, memory in each.items():
            with live.about(name):
                memory.expect_filled()
        area.take(0)
    for name, memory in each.items():
        with live.about(name):
            live.expect("what the pipe holds", 1, word_from(live, memory.actor, pipes[name]))
    area.expect_whole()
    for name, memory in each.items():
        with live.about(name):
            memory.expect_filled()
            memory.actor.end()


def _empty_area(live: Live) -> ContiguousArea:
    return ContiguousArea(live, _NODE, _PAGES)


def _memory_inside(live: Live, area: ContiguousArea) -> dict[str, Memory]:
    """Return memory of each kind that came to lie in the area, by name, filled.

    Raises CannotRun where none did.
    """
    inside, free = {}, area.free
    for name, memory in movable_memory(live, _NODE):
        came, free = free - area.free, area.free
        # lists of processors have base pages from elsewhere
        if came > memory.length // 2:
            inside[name] = memory
    if not inside:
        raise CannotRun("no memory came to lie in the area")
    return inside


class CmaAreas(LiveTest):
    def test_cma_areas(self) -> None:
        self.run_area(AREAS)
