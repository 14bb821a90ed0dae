"""Pages that move from one node to another, and the places in pools and mounts that they take along."""

import errno
from collections.abc import Callable, Mapping

from hugepage_qa.cases.added_up import add_up_counters, tells_of_pages_in_use
from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.hugetlb_files import open_file
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.memory_policy import (
    MOVE_ALL,
    MOVE_STRICTLY,
    STRICT,
    bind,
    migrate,
    move_page,
    node_of,
    pages_told,
)
from hugepage_qa.cases.pages_of_a_node import expect_left, expect_on_node, filled_page_on, require_no_free_page
from hugepage_qa.kernel.counters import read_vmstat
from hugepage_qa.kernel.nodes import node_directories
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.oracle.rules import HUGETLB_DOC
from hugepage_qa.plugins.avocado_test import LiveTest

MOVING = Area("numa/moved-pages")

PER_NODE = f"{HUGETLB_DOC} Per Node Hugepages Attributes"


@MOVING.case(
    "nr_hugetlb of the nodes counts a page that moved where it is, and its memory once",
    "mm/hugetlb.c alloc_migrate_hugetlb_folio(), alloc_hugetlb_folio_nodemask(): NR_HUGETLB, since 05d4532b60e3",
    since="6.13",
    nodes=2,
    sizes=Sizes.BUDDY,
)
def a_moved_page_in_nr_hugetlb(live: Live) -> None:
    nodes = here, there = live.nodes[:2]
    for node in nodes:
        live.reserve(2, node)
    moving, _stays = (filled_page_on(live, node) for node in nodes)
    before = [_nr_hugetlb(live, node) for node in nodes]
    if not tells_of_pages_in_use(live, before):
        raise CannotRun("nr_hugetlb reads 0 with a page in use: other pages that moved, or were not had, are out of it")
    live.expect("status of move_pages", there, move_page(moving, 0, there))
    more = tuple(_nr_hugetlb(live, node) - count for node, count in zip(nodes, before, strict=True))
    lost = {Quirk.MOVED_PAGE_UNCOUNTED: (-live.size, 0)}
    live.expect("how nr_hugetlb of the nodes changed", (-live.size, live.size), more, lost)
    moving.unmap()
    live.expect("nr_hugetlb of the node that it came from", before[0] - live.size, _nr_hugetlb(live, here))
    live.expect("nr_hugetlb of the node that it went to", before[1], _nr_hugetlb(live, there))


def _nr_hugetlb(live: Live, node: int) -> int:
    """Return what a node counts as in use by huge pages, in bytes."""
    add_up_counters(live)
    path = f"{node_directories(live.host)[node]}/vmstat"
    return read_vmstat(ObservedTree(live.host), path)["nr_hugetlb"] * live.base_page


@MOVING.case(
    "move_pages, mbind and migrate_pages move a page to a free one of another node, with its content",
    f"{PER_NODE}; move_pages(2); mm/hugetlb.c alloc_hugetlb_folio_nodemask(), move_hugetlb_state()",
    nodes=2,
)
def a_page_moves_to_a_free_page(live: Live) -> None:
    here, there = live.nodes[:2]
    live.reserve(1, here)
    live.reserve(1, there)
    memory = filled_page_on(live, here)
    live.expect("status of move_pages", there, move_page(memory, 0, there))
    _expect_moved(live, memory, here, there)
    bind(memory, [here], MOVE_STRICTLY)
    # a page that seems shared is left where it is, which is no failure of mbind()
    stays = {Quirk.SMAPS_SHOWS_SHARED: {there: 1}} if live.mmu.may_seem_shared(live.size) else None
    _expect_moved(live, memory, there, here, stays)
    migrate(memory.actor, here, there)
    _expect_moved(live, memory, here, there)
    memory.unmap()
    for node in (here, there):
        live.expect_pool(node=node, nr=1, free=1)


@MOVING.case(
    "a page that moves to a node without a free page takes its place in the pool along, by whichever call, and no free"
    " page of another node",
    f"{PER_NODE}; mm/hugetlb.c alloc_migrate_hugetlb_folio(), move_hugetlb_state()",
    nodes=2,
    sizes=Sizes.BUDDY,
)
def a_page_moves_with_its_place_in_the_pool(live: Live) -> None:
    here, there = live.nodes[:2]
    require_no_free_page(live, there)
    for move in (_by_move_pages, _by_mbind, _by_migrate_pages):
        # the memory for it is there
        live.reserve(1, there)
        live.set_nr(0, there)
        live.reserve(2, here)
        memory = filled_page_on(live, here)
        with live.about(move.__name__.strip("_").replace("_", " ")):
            move(live, memory, here, there)
            expect_on_node(live, memory, there)
            live.expect_pool(nr=2, free=1)
            live.expect_pool(node=here, nr=1, free=1)
            live.expect_pool(node=there, nr=1, free=0)
            memory.unmap()
            live.expect_pool(nr=2, free=2)
            live.expect_pool(node=there, nr=1, free=1)


@MOVING.case(
    "a page that moves leaves a free page to those who have reserved it, by whichever call, and takes its place in the"
    " pool along",
    f"{PER_NODE}; mm/hugetlb.c alloc_hugetlb_folio_nodemask(), available_huge_pages()",
    nodes=2,
    sizes=Sizes.BUDDY,
)
def a_page_moves_beside_a_reserved_one(live: Live) -> None:
    here, there = live.nodes[:2]
    for move in (_by_move_pages, _by_mbind, _by_migrate_pages):
        # the memory for both is there
        live.reserve(2, there)
        live.set_nr(1, there)
        live.reserve(1, here)
        memory, owner = filled_page_on(live, here), live.map(1)
        with live.about(move.__name__.strip("_").replace("_", " ")):
            live.expect_pool(nr=2, free=1, resv=1)
            move(live, memory, here, there)
            expect_on_node(live, memory, there)
            live.expect_pool(nr=2, free=1, resv=1)
            live.expect_pool(node=here, nr=0, free=0)
            live.expect_pool(node=there, nr=2, free=1)
            owner.touch()
            live.expect_pool(nr=2, free=0)
        for each in (memory, owner):
            each.unmap()
        live.expect_pool(node=there, nr=2, free=2)


@MOVING.case(
    "a gigantic page stays where it is when the node that it is to move to has no free page, or only one that is"
    " reserved: whichever call is to move it fails",
    f"{PER_NODE}; mm/hugetlb.c alloc_hugetlb_folio_nodemask(), alloc_migrate_hugetlb_folio()",
    nodes=2,
    sizes=Sizes.GIGANTIC,
)
def a_gigantic_page_finds_none(live: Live) -> None:
    here, there = live.nodes[:2]
    for node in (here, there):
        require_no_free_page(live, node)
    live.reserve(1, here)
    memory = filled_page_on(live, here)
    _expect_no_room(live, memory, here, there, reserved=0)
    live.reserve(1, there)
    owner = live.map(1)
    # a third node may have free pages from before
    bind(owner, [there])
    _expect_no_room(live, memory, here, there, reserved=1)
    owner.touch()
    live.expect("node in numa_maps", {there: 1}, owner.numa_maps().nodes)


def _expect_no_room(live: Live, memory: Memory, here: int, there: int, *, reserved: int) -> None:
    """Expect a page to stay on its node, and the free pages of the other one, all ``reserved``, as they are."""
    live.expect_errno(errno.ENOMEM, move_page, memory, 0, there)
    live.expect_errno(errno.ENOMEM, migrate, memory.actor, here, there)
    live.expect_errno(errno.EIO, bind, memory, [there], STRICT | MOVE_ALL)
    expect_on_node(live, memory, here)
    live.expect_pool(nr=1 + reserved, free=reserved, resv=reserved)
    live.expect_pool(node=here, nr=1, free=0)
    live.expect_pool(node=there, nr=reserved, free=reserved)


def _by_move_pages(live: Live, memory: Memory, _here: int, there: int) -> None:
    live.expect("status of move_pages", there, move_page(memory, 0, there))


def _by_mbind(_live: Live, memory: Memory, _here: int, there: int) -> None:
    # a page that seems shared moves with those of all alone
    bind(memory, [there], STRICT | MOVE_ALL)


def _by_migrate_pages(live: Live, memory: Memory, here: int, there: int) -> None:
    expect_left(live, memory.actor, here, there, 0)


@MOVING.case(
    "a private page of a mount that has size=, min_size= or both moves as one of another mount does, by whichever"
    " call, with its content and its place in both; unmapped, it is free for the mount again, which keeps what"
    " min_size= says",
    f"{HUGETLB_DOC} size, min_size; Documentation/mm/page_migration.rst; mm/migrate.c migrate_hugetlbs();"
    " mm/hugetlb.c move_hugetlb_state()",
    nodes=2,
    sizes=Sizes.BUDDY,
)
def a_private_page_of_a_mount_moves(live: Live) -> None:
    here, there = live.nodes[:2]
    for node in (here, there):
        live.reserve(1, node)
    limit, kept = {"size": live.size}, {"min_size": live.size}
    for options in (limit, kept, limit | kept):
        for move in (_by_move_pages_untold, _by_move_pages, _by_mbind, _by_migrate_pages):
            with live.about(f"{', '.join(options)}, {move.__name__.strip('_').replace('_', ' ')}"):
                _expect_moved_in_mount(live, options, here, there, move)


def _by_move_pages_untold(live: Live, memory: Memory, here: int, there: int) -> None:
    """Move the page by a call that may leave it, and store nothing of it (move_pages(2)). Raises KnownBug."""
    pages_told(memory.actor, [memory.address], [there])
    live.expect("node of the page", there, node_of(memory), {Quirk.PRIVATE_PAGE_OF_MOUNT_STAYS: here})


def _expect_moved_in_mount(
    live: Live,
    options: Mapping[str, int],
    here: int,
    there: int,
    move: Callable[[Live, Memory, int, int], None],
) -> None:
    """Expect the only private page of a mount to move, and its place in what the mount has."""
    kept = 1 if "min_size" in options else 0
    point = live.mount(**options)
    file = open_file(live, f"{point}/file")
    live.expect_pool(nr=2, free=2, resv=kept)
    memory = file.map(1, shared=False)
    bind(memory, [here])
    memory.fill()
    expect_on_node(live, memory, here)
    left = live.host.file_system(point).free_blocks
    move(live, memory, here, there)
    _expect_moved(live, memory, here, there)
    live.expect("blocks that are left", left, live.host.file_system(point).free_blocks)
    memory.unmap()
    live.expect_pool(nr=2, free=2, resv=kept)
    file.actor.end()
    live.unmount(point)
    live.expect_pool(nr=2, free=2)


@MOVING.case(
    "a surplus page that moves to another node is surplus there",
    f"{PER_NODE} surplus_hugepages; mm/hugetlb.c move_hugetlb_state()",
    nodes=2,
    sizes=Sizes.BUDDY,
)
def a_surplus_page_moves(live: Live) -> None:
    here, there = live.nodes[:2]
    for node in (here, there):
        require_no_free_page(live, node)
        live.let_grow(1, node)
    memory = live.map(1, noreserve=True)
    bind(memory, [here])
    memory.fill()
    live.expect_pool(node=here, nr=1, free=0, surplus=1)
    live.expect("status of move_pages", there, move_page(memory, 0, there))
    memory.expect_filled()
    live.expect_pool(nr=1, free=0, surplus=1)
    live.expect_pool(node=here, nr=0, free=0)
    live.expect_pool(node=there, nr=1, free=0, surplus=1)
    memory.unmap()
    for node in (here, there):
        live.expect_pool(node=node, nr=0, free=0)


def _expect_moved(
    live: Live, memory: Memory, source: int, target: int, known: Mapping[Quirk, dict[int, int]] | None = None
) -> None:
    expect_on_node(live, memory, target, known)
    live.expect_pool(nr=2, free=1)
    live.expect_pool(node=source, nr=1, free=1)
    live.expect_pool(node=target, nr=1, free=0)


class MovedPages(LiveTest):
    def test_moved_pages(self) -> None:
        self.run_area(MOVING)
