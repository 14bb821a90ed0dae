"""Threads that use one huge page at the same moment, while its mapping or its file changes under them."""

import errno
import mmap

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.hugetlb_files import new_memfd, open_again
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.memory_policy import moving
from hugepage_qa.cases.race import RACERS, at_once, clash, use_while_it_moves
from hugepage_qa.cases.userfaultfd import Feature, Mode, Userfault
from hugepage_qa.kernel.uapi import FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, MAP_FIXED, MAP_HUGETLB
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor_threads import Action, Came

#: a gigantic page takes so long to clear that there would be next to no rounds
RACING = Area("memory/racing", sizes=Sizes.BUDDY)
FAULT = "mm/hugetlb.c hugetlb_fault(), hugetlb_no_page(), hugetlb_fault_mutex_table"
DISCARD = "madvise(2) MADV_DONTNEED; mm/hugetlb.c __hugetlb_zap_begin() (2820b0f09be9)"
LEFT_OR_GONE = Came.DONE | Came.GONE


@RACING.case("threads that touch a private page at the same moment get one page, and all of them", FAULT, pages=1)
def touch_of_a_private_page(live: Live) -> None:
    clash(live)
    live.expect_pool(nr=1, free=1)


@RACING.case("threads that touch a shared page at the same moment get one page, and all of them", FAULT, pages=1)
def touch_of_a_shared_page(live: Live) -> None:
    clash(live, shared=True)
    live.expect_pool(nr=1, free=1)
    clash(live, file=new_memfd(live))
    live.expect_pool(nr=1, free=1)


@RACING.case(
    "threads that write while their mapping is replaced find what they wrote, or a fresh page, and never none",
    f"mmap(2) MAP_FIXED; {FAULT}",
    pages=1,
)
def replaced_mapping(live: Live) -> None:
    clash(live, Action.REPLACE, may_come=LEFT_OR_GONE)
    live.expect_pool(nr=1, free=1)
    # the page of a shared mapping goes with its file, which mmap(2) closes last
    live.reserve(2)
    clash(live, Action.REPLACE, may_come=LEFT_OR_GONE, shared=True)
    live.expect_pool(nr=2, free=2)


@RACING.case(
    "threads that touch many private pages while the mapping of all is replaced find what they wrote, or fresh pages",
    f"mmap(2) MAP_FIXED; {FAULT}, region_chg(), region_add()",
    pages=8,
)
def replaced_mapping_of_many_pages(live: Live) -> None:
    memory = live.map(8)
    fixed = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_FIXED | MAP_HUGETLB | live.size_flag
    with at_once(live, memory.actor) as threads:
        for _thread in range(RACERS - 1):
            threads.use(memory, LEFT_OR_GONE)
        threads.call("mmap", memory.address, memory.length, READ_WRITE, fixed, -1, 0)
    memory.actor.end()
    live.expect_pool(nr=8, free=8)


@RACING.case(
    "threads that write to a page that is given back find what they wrote, or a fresh page, and never none",
    DISCARD,
    since="6.7",
    pages=1,
)
def discarded_page(live: Live) -> None:
    clash(live, Action.DISCARD, may_come=LEFT_OR_GONE)
    live.expect_pool(nr=1, free=1)


@RACING.case(
    "a shared page that is given back while threads write to it stays in its file with all that they wrote",
    "madvise(2) MADV_DONTNEED; mm/hugetlb.c __unmap_hugepage_range()",
    since="5.18",
    pages=1,
)
def discarded_shared_page(live: Live) -> None:
    clash(live, Action.DISCARD, shared=True)
    live.expect_pool(nr=1, free=1)


@RACING.case(
    "threads that write while the page is punched out of the file find what they wrote, or a fresh page",
    "fallocate(2) FALLOC_FL_PUNCH_HOLE; fs/hugetlbfs/inode.c hugetlbfs_punch_hole(), remove_inode_hugepages()",
    # the old page is free only after a new one may have been taken
    pages=2,
)
def punched_page(live: Live) -> None:
    clash(live, Action.PUNCH, may_come=LEFT_OR_GONE, file=new_memfd(live))
    live.expect_pool(nr=2, free=2)


@RACING.case(
    "threads that write while the page moves away and back find what they wrote, or no mapping for a moment",
    "mremap(2); mm/hugetlb.c move_hugetlb_page_tables()",
    since="5.16",
    pages=1,
)
def moved_page(live: Live) -> None:
    for shared in (False, True):
        clash(live, Action.MOVE, may_come=Came.DONE | Came.SIGSEGV, shared=shared)
        live.expect_pool(nr=1, free=1)


@RACING.case(
    "threads that write while writes are forbidden for a moment find what they wrote, or SIGSEGV",
    "mprotect(2); mm/hugetlb.c hugetlb_change_protection()",
    pages=1,
)
def protected_page(live: Live) -> None:
    for shared in (False, True):
        clash(live, Action.PROTECT, may_come=Came.DONE | Came.SIGSEGV, shared=shared)
        live.expect_pool(nr=1, free=1)


@RACING.case(
    "threads that write while one of them forks find all that they wrote, with a page for a copy and without",
    "fork(2); mm/hugetlb.c copy_hugetlb_page_range(), hugetlb_wp()",
    pages=1,
)
def forked_page(live: Live) -> None:
    for pages in (1, 2):
        live.reserve(pages)
        clash(live, Action.FORK)
        live.expect_pool(nr=pages, free=pages)


@RACING.case(
    "nobody else maps a page that is given back while threads write to it: it stays reserved for them",
    f"{DISCARD}; mm/hugetlb.c __unmap_hugepage_range() (df7a6d1f6405)",
    since="6.10",
    pages=1,
)
def mapping_of_a_discarded_page(live: Live) -> None:
    clash(live, Action.DISCARD, Action.MAP_MORE, may_come=LEFT_OR_GONE)
    live.expect_pool(nr=1, free=1)


@RACING.case(
    "threads that write private copies of a file at the same moment have a page each, and the file stays as it was",
    "mmap(2) MAP_PRIVATE; mm/hugetlb.c hugetlb_wp()",
    pages=RACERS + 1,
)
def copies_of_a_file(live: Live) -> None:
    clash(live, by=Action.COPY, file=new_memfd(live))
    live.expect_pool(nr=RACERS + 1, free=RACERS + 1)


@RACING.case(
    "threads that touch a page while another one fills it, and it is given back, find what it is filled with",
    "Documentation/admin-guide/mm/userfaultfd.rst UFFDIO_COPY; mm/hugetlb.c hugetlb_mfill_atomic_pte()",
    since="6.7",
    pages=4,
)
def page_filled_by_others(live: Live) -> None:
    for shared, give_back in ((False, mmap.MADV_DONTNEED), (True, mmap.MADV_REMOVE)):
        source = live.map(1)
        source.fill()
        memory = live.map(1, source.actor, shared=shared)
        fault = Userfault(memory, Mode.MISSING, Feature.MISSING_HUGETLBFS, waits=True)
        with at_once(live, memory.actor) as threads:
            threads.call("ioctl", *fault.copying(source, 0, live.size), may_fail=(errno.EEXIST, errno.EAGAIN))
            for _thread in range(2):
                threads.watch(memory)
            threads.call("madvise", memory.address, memory.length, give_back)
        memory.actor.end()
        live.expect_pool(nr=4, free=4)


@RACING.case(
    "threads that write to pages while these move from node to node find what they wrote",
    f"move_pages(2); mm/migrate.c migrate_pages(); {FAULT}",
    nodes=2,
)
def used_while_they_move(live: Live) -> None:
    for node in live.nodes[:2]:
        live.reserve(4, node)
    for shared in (False, True):
        memory = live.map(2, shared=shared)
        use_while_it_moves(live, memory)
        memory.actor.end()
        live.expect_pool(nr=8, free=8)


@RACING.case(
    "pages that their owner and another one move from node to node while they are unmapped and mapped anew are all"
    " given back",
    "move_pages(2); mm/migrate.c add_folio_for_migration() (e66f17ff7177)",
    nodes=2,
)
def unmapped_while_they_move(live: Live) -> None:
    quirk = Quirk.UNMAP_PASSES_OVER_A_MOVE
    if live.has_bug(quirk):
        # "hugepage-qa reproduce" shows it, on a machine that is thrown away
        raise CannotRun(
            f"{quirk.value}, a known bug of this kernel, takes pages out of the pool until the machine is rebooted"
        )
    for node in live.nodes[:2]:
        live.reserve(2, node)
    memory = live.map(1)
    # the other pages of a node may both be in use for a moment, each by one who moves
    may_fail = errno.ENOENT, errno.ENOMEM
    with at_once(live, memory.actor) as threads, at_once(live, live.actor(), 0) as others:
        for node in live.nodes[:2]:
            threads.call("move_pages", *moving(memory, node), may_fail=may_fail)
            others.call("move_pages", *moving(memory, node, by_another=True), may_fail=may_fail)
        threads.use(memory, LEFT_OR_GONE | Came.SIGSEGV | Came.SIGBUS)
        threads.call("munmap", memory.address, memory.length)
        fixed = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_FIXED | MAP_HUGETLB | live.size_flag
        threads.call("mmap", memory.address, memory.length, READ_WRITE, fixed, -1, 0, may_fail=(errno.ENOMEM,))
    memory.actor.end()
    live.expect_pool(nr=4, free=4)


@RACING.case(
    "threads that use a file while others allocate it, punch it, map it and make it shorter find what they wrote, a"
    " fresh page or its end, and every page is given back",
    "fallocate(2); ftruncate(2); fs/hugetlbfs/inode.c hugetlbfs_fallocate(), remove_inode_hugepages()",
    pages=12,
)
def stressed_file(live: Live) -> None:
    # a fault in what ftruncate() cuts off is truncation-passes-over-a-fault, which spoils the pool now and then
    cuts_only_untouched = live.has_bug(Quirk.TRUNCATION_PASSES_OVER_A_FAULT)
    lengths = (4, 5) if cuts_only_untouched else (2, 4)
    file = new_memfd(live, pages=4)
    memory = file.map(4, noreserve=True)
    # of the same pages from the first: what a thread stored elsewhere would be other words
    other, descriptor, actor = file.map(2, first=1, noreserve=True), file.descriptor, file.actor
    punch = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
    fixed = mmap.MAP_SHARED | MAP_FIXED | live.host.uapi.map_noreserve
    comes = LEFT_OR_GONE if cuts_only_untouched else LEFT_OR_GONE | Came.SIGBUS
    with at_once(live, actor) as threads:
        for _thread in range(2):
            threads.use(memory, comes)
        threads.call("fallocate", descriptor, 0, 0, lengths[1] * live.size, may_fail=(errno.ENOSPC,))
        threads.call("fallocate", descriptor, punch, live.size, 2 * live.size)
        for pages in lengths:
            threads.call("ftruncate", descriptor, pages * live.size)
        threads.call("mmap", other.address, other.length, READ_WRITE, fixed, descriptor, live.size)
        threads.use(other, comes)
    actor.end()
    live.expect_pool(nr=12, free=12)


@RACING.case(
    "threads that use a file whose pages are reserved while others allocate it, punch it and map it anew find what they"
    " wrote or a fresh page, and every page and reservation is given back",
    "fallocate(2); fs/hugetlbfs/inode.c hugetlbfs_fallocate(), remove_inode_hugepages(); mm/hugetlb.c"
    " hugetlb_unreserve_pages(), region_add()",
    pages=12,
)
def stressed_file_of_reserved_pages(live: Live) -> None:
    file = new_memfd(live)
    memory, other = file.map(4), file.map(2, first=1)
    descriptor = file.descriptor
    with at_once(live, file.actor) as threads:
        for _thread in range(2):
            threads.use(memory, LEFT_OR_GONE)
        threads.call("fallocate", descriptor, 0, 0, 3 * live.size)
        punch = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
        threads.call("fallocate", descriptor, punch, live.size, 2 * live.size)
        where = other.address, other.length, READ_WRITE, mmap.MAP_SHARED | MAP_FIXED, descriptor, live.size
        threads.call("mmap", *where)
        threads.use(other, LEFT_OR_GONE)
    file.actor.end()
    live.expect_pool(nr=12, free=12)


@RACING.case(
    "a process that reads, writes and gives back pages of a private mapping of a file finds what it wrote, or a fresh"
    " page, while another one allocates and punches the file",
    "fallocate(2) FALLOC_FL_PUNCH_HOLE; fs/hugetlbfs/inode.c hugetlb_unmap_file_folio(); mm/hugetlb.c"
    " hugetlb_vma_trylock_write() (bf4916922c60)",
    since="5.18",
    pages=8,
)
def private_mapping_of_a_punched_file(live: Live) -> None:
    quirk = Quirk.PRIVATE_LOCK_MISTAKEN
    if live.has_bug(quirk):
        # "hugepage-qa reproduce" shows it, on a machine that is thrown away
        raise CannotRun(f"{quirk.value}, a known bug of this kernel, changes memory of others and locks it up")
    file = new_memfd(live)
    file.allocate(2)
    puncher = open_again(live, file, live.actor())
    memory = file.map(2, shared=False)
    written, read = memory.part(1), memory.part(0)
    with at_once(live, file.actor) as threads, at_once(live, puncher.actor, 0) as others:
        threads.use(written, LEFT_OR_GONE)
        threads.watch(read, 0)
        threads.call("madvise", written.address, written.length, mmap.MADV_DONTNEED)
        others.call("fallocate", puncher.descriptor, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 2 * live.size)
        others.call("fallocate", puncher.descriptor, 0, 0, 2 * live.size)
    for actor in (file.actor, puncher.actor):
        actor.end()
    live.expect_pool(nr=8, free=8)


class Racing(LiveTest):
    def test_racing(self) -> None:
        self.run_area(RACING)
