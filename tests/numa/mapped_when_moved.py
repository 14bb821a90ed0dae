"""Pages of files, of several processes, or protected, that move from one node to another, and those that are not to."""

import errno
import mmap
import signal
from itertools import product

from hugepage_qa.cases.balanced_pages import waited_for
from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.hugetlb_files import open_file
from hugepage_qa.cases.hugetlb_of_a_process import forked
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.memory_policy import (
    MOVE,
    MOVE_ALL,
    Mode,
    bind,
    move_page,
    move_pages,
    node_of,
    nodes_of,
    set_policy,
)
from hugepage_qa.cases.pages_of_a_node import expect_on_node, filled_page_on
from hugepage_qa.cases.places import free_place
from hugepage_qa.oracle.page_moves import status_of_absent
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor
from hugepage_qa.process.actor_threads import Came

MAPPED = Area("numa/mapped-when-moved")

_WORDS_OF_A_FILE = 0x5EED
_TIMES = 5


@MAPPED.case(
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


@MAPPED.case(
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


@MAPPED.case(
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


@MAPPED.case(
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


@MAPPED.case(
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
    child = live.fork(huge.actor)
    for memory, where in kept:
        memory.seen_by(child).expect_filled(7)
        memory.seen_by(child).fill(8)
        live.expect("node of the page that the parent has", where, node_of(memory))
    live.expect_pool(nr=6, free=0)
    huge.expect_filled()


class MappedWhenMoved(LiveTest):
    def test_mapped_when_moved(self) -> None:
        self.run_area(MAPPED)
