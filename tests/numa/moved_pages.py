"""Pages that move from one node to another, with what they hold and how they are counted."""

import errno
import mmap
import signal
from collections.abc import Callable, Mapping
from itertools import product

from hugepage_qa.cases.added_up import add_up_counters
from hugepage_qa.cases.balanced_pages import waited_for
from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.hugetlb_files import open_file
from hugepage_qa.cases.hugetlb_of_a_process import forked
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.memory_policy import (
    MOVE,
    MOVE_ALL,
    MOVE_STRICTLY,
    STRICT,
    Mode,
    bind,
    migrate,
    move_page,
    move_pages,
    node_of,
    nodes_of,
    pages_told,
    set_policy,
)
from hugepage_qa.cases.pages_of_a_node import expect_left, expect_on_node, filled_page_on, require_no_free_page
from hugepage_qa.cases.places import free_place
from hugepage_qa.kernel.counters import read_vmstat
from hugepage_qa.kernel.nodes import node_directories
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.oracle.page_moves import status_of_absent
from hugepage_qa.oracle.rules import HUGETLB_DOC
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor
from hugepage_qa.process.actor_threads import Came

MOVING = Area("numa/moved-pages")

_WORDS_OF_A_FILE = 0x5EED
_TIMES = 5

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
    if not all(before):
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
    "a page of a file moves with its content, and with its place in the limit of the mount",
    "mm/migrate.c migrate_huge_page_move_mapping(); fs/hugetlbfs/inode.c hugetlbfs_migrate_folio()",
    nodes=2,
)
def a_page_of_a_file_moves(live: Live) -> None:
    here, there = live.nodes[:2]
    live.reserve(1, here)
    live.reserve(1, there)
    point = live.mount(size=2 * live.size)
    file = open_file(live, f"{point}/file")
    memory = file.map(1)
    bind(memory, [here])
    # no other case stores these words: a page that is moved without them may hold what another one left
    memory.fill(_WORDS_OF_A_FILE)
    live.expect("node in numa_maps", {here: 1}, memory.numa_maps().nodes)
    live.expect("status of move_pages", there, move_page(memory, 0, there))
    live.expect("node in numa_maps", {there: 1}, memory.numa_maps().nodes)
    memory.expect_filled(_WORDS_OF_A_FILE)
    live.expect_pool(nr=2, free=1)
    live.expect("blocks that are left", 1, live.host.file_system(point).free_blocks)
    memory.unmap()
    file.truncate(0)
    live.expect("blocks that are left", 2, live.host.file_system(point).free_blocks)
    live.expect_pool(nr=2, free=2)


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
    "a page that several processes have, a private one or one of a file, stays where it is unless it is to move for all"
    " of them; moved, each has of it what it had, and writes what was its own to write",
    "move_pages(2) EACCES, MPOL_MF_MOVE_ALL; mbind(2); mm/mempolicy.c queue_folios_hugetlb(); mm/migrate.c"
    " remove_migration_pte()",
    nodes=2,
    sizes=Sizes.BUDDY,
)
def a_page_of_several_processes_moves(live: Live) -> None:
    here, there = live.nodes[:2]
    for node in (here, there):
        live.reserve(2, node)
    for shared in (True, False):
        ours = filled_page_on(live, here, shared=shared)
        theirs = ours.fork() if shared else forked(live, ours)
        theirs.expect_filled()
        live.expect("status of move_pages for the one", -errno.EACCES, move_page(ours, 0, there))
        bind(ours, [there], MOVE)
        for each in (ours, theirs):
            expect_on_node(live, each, here)
        bind(ours, [there], MOVE_ALL)
        for each in (ours, theirs):
            expect_on_node(live, each, there)
        live.expect("status of move_pages for all", here, move_page(theirs, 0, here, MOVE_ALL))
        for each in (ours, theirs):
            expect_on_node(live, each, here)
        live.expect_pool(nr=4, free=3)
        ours.fill(7)
        theirs.expect_filled(7 if shared else 1)
        theirs.fill(8)
        ours.expect_filled(8 if shared else 7)
        live.expect_pool(nr=4, free=3 if shared else 2)
        theirs.actor.end()
        ours.actor.end()
        live.expect_pool(nr=4, free=4)


@MOVING.case(
    "a page that may only be read, and one that may not be accessed, stays so when it moves, and holds what it held",
    "mprotect(2); move_pages(2); mm/migrate.c remove_migration_pte()",
    nodes=2,
    sizes=Sizes.BUDDY,
)
def a_protected_page_moves(live: Live) -> None:
    here, there = live.nodes[:2]
    for node in (here, there):
        live.reserve(1, node)
    for shared in (True, False):
        memory = filled_page_on(live, here, shared=shared)
        memory.protect(mmap.PROT_READ)
        live.expect("status of move_pages", there, move_page(memory, 0, there))
        live.expect_signal(signal.SIGSEGV, memory.touch)
        memory.expect_filled()
        memory.protect(0)
        live.expect("status of move_pages", here, move_page(memory, 0, here))
        live.expect_signal(signal.SIGSEGV, memory.read)
        memory.protect(READ_WRITE)
        memory.expect_filled()
        memory.fill(7)
        memory.expect_filled(7)
        live.expect_pool(nr=2, free=1)
        memory.unmap()
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


@MOVING.case(
    "of each page that it is given move_pages(2) tells where it is, in their order, and moves it if it is there: ENOENT"
    " of one that is not, which stays so, and EFAULT of memory that is not mapped; another process is told the same",
    "move_pages(2) ENOENT, EFAULT; mm/migrate.c do_pages_stat_array(), add_page_for_migration()",
    nodes=2,
    sizes=Sizes.BUDDY,
)
def pages_that_are_not_there(live: Live) -> None:
    here, there = live.nodes[:2]
    for node in (here, there):
        live.reserve(2, node)
    told = status_of_absent(live.kernel_version)
    for shared in (False, True):
        memory = live.map(3, shared=shared)
        bind(memory, [here])
        for page in (0, 2):
            memory.touch(page, 5 + page)
        addresses = [*map(memory.at, range(3)), free_place(live, memory.actor, 1)]
        for target in (there, here):
            moved = move_pages(memory.actor, addresses, [target] * len(addresses))
            expected = [target, told, target, -errno.EFAULT]
            live.expect("status of each page that is to move", expected, moved)
            # more than the kernel takes at once (DO_PAGES_STAT_CHUNK_NR)
            for actor, process in ((memory.actor, 0), (live.actor(), memory.actor.pid)):
                found = nodes_of(actor, _TIMES * addresses, process)
                live.expect("status of each page", _TIMES * expected, found)
            live.expect("what two pages hold", (5, 7), (memory.read(0), memory.read(2)))
            live.expect_pool(nr=4, free=2, resv=1)
            for node in (here, there):
                live.expect_pool(node=node, nr=2, free=0 if node == target else 2)
        memory.actor.end()
        live.expect_pool(nr=4, free=4)


@MOVING.case(
    "NUMA balancing passes over pages of the pool, near and far, private and shared: their process, of which other"
    " memory is marked meanwhile, reads and writes them on, a child, too, and they stay where they are",
    "Documentation/admin-guide/sysctl/kernel.rst numa_balancing; kernel/sched/fair.c task_numa_work()",
    nodes=2,
    sizes=Sizes.BUDDY,
)
def pages_that_balancing_passes_over(live: Live) -> None:
    for node in live.nodes[:2]:
        # one of each kind, and one more for what a child writes
        live.reserve(3, node)
    kept: list[tuple[Memory, int]] = []

    def map_on_each(actor: Actor) -> None:
        for node, shared in product(live.nodes[:2], (False, True)):
            # memory that has a policy of its own is not balanced (vma_policy_mof() in mm/mempolicy.c)
            set_policy(actor, Mode.BIND, [node])
            memory = live.map(1, actor, shared=shared)
            memory.fill()
            kept.append((memory, node))
        set_policy(actor, Mode.DEFAULT, [])

    huge, _node = waited_for(live, 1, map_on_each)
    for memory, _where in kept:
        memory.actor.threads.watch(memory.address, memory.length, live.base_page, 1)
    # who waits for ever is seen by the threads, and would be the actor itself else
    came = [found.came for found in huge.actor.threads.stop(0)]
    if came != [Came.DONE] * len(kept):
        live.fail("what came of reading pages of the pool", [Came.DONE] * len(kept), came)
    for memory, where in kept:
        memory.expect_filled()
        live.expect("node of the page", where, node_of(memory))
        memory.fill(7)
    live.expect_pool(nr=6, free=2)
    child = huge.actor.fork()
    for memory, where in kept:
        memory.seen_by(child).expect_filled(7)
        memory.seen_by(child).fill(8)
        live.expect("node of the page that the parent has", where, node_of(memory))
    live.expect_pool(nr=6, free=0)
    huge.expect_filled()


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
