"""Memory that is said to be broken: madvise(2) MADV_SOFT_OFFLINE and MADV_HWPOISON on huge pages."""

import errno
import mmap
import os
from itertools import product

from hugepage_qa.cases.broken_memory import (
    break_page,
    expect_broken,
    expect_flag,
    hard_offline,
    is_taken_out_of_use,
    mended_at_the_end,
    need_memory_failure,
    need_mending,
    out_of_use,
    soft_offline,
)
from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.hugetlb_files import HugeFile, new_memfd
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import WORD
from hugepage_qa.cases.memory_policy import moving
from hugepage_qa.cases.pinned_pages import in_a_pipe
from hugepage_qa.cases.race import at_once
from hugepage_qa.kernel.uapi import MADV_HWPOISON, MADV_SOFT_OFFLINE
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest

HWPOISON = Area("hwpoison/hwpoison")
SOFT = "madvise(2) MADV_SOFT_OFFLINE; mm/memory-failure.c soft_offline_page()"
# not of files without mending: the page stays in use and counted in the pool until the machine boots again
HARD = "madvise(2) MADV_HWPOISON; mm/memory-failure.c memory_failure(), try_memory_failure_hugetlb()"
#: there is always one for a page that moves, and one for a page that is replaced
_ON_EACH_NODE = 6
MEND = "Documentation/mm/hwpoison.rst unpoison-pfn; mm/memory-failure.c unpoison_memory()"


@HWPOISON.case(
    "a page that will break, a private one and one of a file, is replaced by a free one, and nobody notices; of it the"
    " base page that will break is taken out of use, and no other",
    SOFT,
    sizes=Sizes.BUDDY,
    pages=4,
)
def soft_offline_takes_a_free_page(live: Live) -> None:
    for shared, offset, left in ((False, 5 * live.base_page, 3), (True, live.size - live.base_page, 2)):
        memory = live.map(1, shared=shared)
        memory.fill()
        before = out_of_use(live)
        frame = memory.frame(offset)
        break_page(live, memory, offset, MADV_SOFT_OFFLINE)
        expect_flag(live, memory, frame)
        live.expect_pool(nr=left, free=left - 1)
        live.expect_sysctl(left)
        memory.expect_filled()
        live.expect("base pages out of use", 1, out_of_use(live) - before)
        memory.actor.end()
        live.expect_pool(nr=left, free=left)


@HWPOISON.case("without a free page the one that will break gets a new one", SOFT, sizes=Sizes.BUDDY, pages=1)
def soft_offline_without_a_free_page(live: Live) -> None:
    # the memory for it is there
    live.reserve(2)
    live.set_nr(1)
    memory = live.map(1)
    memory.fill()
    before = out_of_use(live)
    break_page(live, memory, 0, MADV_SOFT_OFFLINE)
    live.expect_pool(nr=1, free=0)
    live.expect_sysctl(1)
    memory.expect_filled()
    live.expect("base pages out of use", 1, out_of_use(live) - before)
    memory.unmap()
    live.expect_pool(nr=1, free=1)


@HWPOISON.case(
    "a free page that is reserved is not taken out of use, EBUSY: who reserved it gets it; one more page, and it goes",
    "Documentation/ABI/testing/sysfs-memory-page-offline; mm/hugetlb.c dissolve_free_hugetlb_folio()",
    sizes=Sizes.BUDDY,
    pages=1,
)
def soft_offline_of_a_reserved_page(live: Live) -> None:
    memory = live.map(1)
    memory.touch()
    frame = memory.frames().pop()
    memory.unmap()
    memory = live.map(1)
    before = out_of_use(live)
    live.expect_errno(errno.EBUSY, soft_offline, live, frame)
    live.expect_pool(nr=1, free=1, resv=1)
    live.expect("base pages out of use", 0, out_of_use(live) - before)
    memory.fill()
    memory.expect_filled()
    live.expect_pool(nr=1, free=0)
    memory.unmap()
    soft_offline(live, frame)
    live.expect_pool(nr=0, free=0)
    live.expect("base pages out of use", 1, out_of_use(live) - before)


@HWPOISON.case(
    "a page that somebody holds stays where it is, EBUSY: it is in use as before, moves and is taken out of use when"
    " nobody holds it any more, or is free again when it is unmapped",
    f"{SOFT}; madvise(2) EBUSY",
    sizes=Sizes.BUDDY,
    pages=2,
)
def soft_offline_of_a_held_page(live: Live) -> None:
    need_memory_failure(live)
    live.set_knob_if_there("proc/sys/vm/enable_soft_offline", "1")
    for is_replaced in (False, True):
        memory = live.map(1)
        memory.fill()
        before, frame = out_of_use(live), memory.frame()
        with in_a_pipe(live, memory):
            will_break = ("madvise", memory.address, live.base_page, MADV_SOFT_OFFLINE)
            live.expect_errno(errno.EBUSY, memory.actor.call, *will_break)
            live.expect("its frame", frame, memory.frame())
            live.expect_pool(nr=2, free=1)
        if is_replaced:
            break_page(live, memory, 0, MADV_SOFT_OFFLINE)
            live.expect("whether it has another frame", True, memory.frame() != frame)
        memory.expect_filled()
        live.expect("base pages out of use", is_replaced, out_of_use(live) - before)
        memory.actor.end()
        left = 2 - is_replaced
        live.expect_pool(nr=left, free=left)


@HWPOISON.case(
    "with enable_soft_offline=0 no page is taken out of use before it breaks, and who asks for it is told EOPNOTSUPP",
    "Documentation/admin-guide/sysctl/vm.rst enable_soft_offline; mm/memory-failure.c soft_offline_page()",
    sizes=Sizes.BUDDY,
    since="6.11",
    pages=2,
)
def soft_offline_disabled(live: Live) -> None:
    memory = live.map(1)
    memory.fill()
    before = out_of_use(live)
    live.set_knob("proc/sys/vm/enable_soft_offline", "0")
    will_break = ("madvise", memory.address, live.base_page, MADV_SOFT_OFFLINE)
    live.expect_errno(errno.EOPNOTSUPP, memory.actor.call, *will_break)
    live.expect("base pages out of use", 0, out_of_use(live) - before)
    memory.expect_filled()
    live.expect_pool(nr=2, free=1)


@HWPOISON.case(
    "pages that will break are taken out of use while they move from node to node, and lose nothing of what threads"
    " write to them",
    f"{SOFT}; move_pages(2); mm/migrate.c migrate_pages()",
    sizes=Sizes.BUDDY,
    nodes=2,
)
def soft_offline_of_pages_that_move(live: Live) -> None:
    nodes, taken, before = live.nodes[:2], 0, out_of_use(live)
    for node in nodes:
        live.reserve(_ON_EACH_NODE, node)
    for shared in (False, True):
        memory = live.map(2, shared=shared)
        with at_once(live, memory.actor) as threads:
            for node in nodes:
                threads.use(memory)
                threads.call("move_pages", *moving(memory, node))
            taken += sum(is_taken_out_of_use(live, memory, page * live.size) for page in range(2))
        memory.actor.end()
    if not taken:
        raise CannotRun("each time one was to be taken out of use it was on its way to another node")
    live.expect("base pages out of use", taken, out_of_use(live) - before)
    left = _ON_EACH_NODE * len(nodes) - taken
    live.expect_pool(nr=left, free=left)


@HWPOISON.case("a broken page ends its user and no other, and leaves the pool", HARD, sizes=Sizes.BUDDY, pages=3)
def broken_private_page(live: Live) -> None:
    memory, other = live.map(2), live.map(1)
    memory.fill()
    other.fill()
    before = out_of_use(live)
    frame = memory.frame()
    break_page(live, memory, 0, MADV_HWPOISON)
    expect_broken(live, memory)
    expect_flag(live, memory, frame)
    memory.expect_filled(first=1)
    other.expect_filled()
    live.expect("base pages out of use", 1, out_of_use(live) - before)
    memory.unmap()
    live.expect_pool(nr=2, free=1)
    live.expect_sysctl(2)


@HWPOISON.case(
    "a base page that broke, or was taken out of use before, at the start of a page or inside, of a page in use or a"
    " free one, and is mended is in use again, and the pool gets back the page that it had lost",
    MEND,
    sizes=Sizes.BUDDY,
    pages=1,
)
def mended_page(live: Live) -> None:
    need_mending(live)
    places = 0, live.size // 2 + live.base_page
    for advice, is_free, place in product((MADV_HWPOISON, MADV_SOFT_OFFLINE), (False, True), places):
        with live.about(f"advice {advice}, free {is_free}, place {place}"):
            memory, before = live.map(1), out_of_use(live)
            memory.fill()
            frame = memory.frame(place)
            if is_free:
                memory.unmap()
                (hard_offline if advice == MADV_HWPOISON else soft_offline)(live, frame)
            else:
                break_page(live, memory, place, advice)
            # once more, of what is free: that does nothing
            with mended_at_the_end(live, frame, memory.unmap):
                live.expect("base pages out of use", 1, out_of_use(live) - before)
                expect_flag(live, memory, frame)
            live.expect("base pages out of use after mending", 0, out_of_use(live) - before)
            expect_flag(live, memory, frame, is_set=False)
            live.reserve(1)
            again = live.map(1, memory.actor)
            again.fill()
            again.expect_filled()
            live.expect_pool(nr=1, free=0)
            again.unmap()
            live.expect_pool(nr=1, free=1)


@HWPOISON.case(
    "read(2) of a file with a broken page gives what is before it and behind it, wherever in a page of the pool it is"
    " and wherever in a base page the read begins, and EIO at it, and the next one begins where it ended; mended, the"
    " page is the pool's again",
    "read(2) EIO; fs/hugetlbfs/inode.c hugetlbfs_read_iter(), adjust_range_hwpoison() (38c1ddbde6c6)",
    sizes=Sizes.BUDDY,
    since="6.6",
    pages=1,
)
def read_of_a_broken_page(live: Live) -> None:
    need_mending(live)
    base, before = live.base_page, out_of_use(live)
    for broken in (0, base, live.size // 2, live.size - 2 * base, live.size - base):
        with live.about(f"broken at byte {broken}"):
            file = new_memfd(live)
            file.truncate(1)
            memory = file.map(1)
            memory.fill()
            frame = memory.frames().pop()
            break_page(live, memory, broken, MADV_HWPOISON)
            with mended_at_the_end(live, frame, file.actor.end):
                live.expect("base pages out of use", 1, out_of_use(live) - before)
                expect_flag(live, memory, frame)
                _expect_read_but_for(live, file, broken)
                memory.unmap()
                file.truncate(0)
                live.expect_pool(nr=1, free=0)
            live.expect_pool(nr=1, free=1)
            live.expect("base pages out of use after mending", 0, out_of_use(live) - before)


def _expect_read_but_for(live: Live, file: HugeFile, broken: int) -> None:
    """Expect a file of one page, with the words of ``Memory.fill()``, to be read up to the base page at ``broken``."""
    base = live.base_page
    buffer = file.actor.mmap(3 * base, READ_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    starts = broken - 2 * base, broken - 2 * base + WORD, broken - base - WORD, broken - WORD
    ranges = [*((start, broken - start) for start in starts), (broken + base, min(3 * base, live.size - broken - base))]
    for start, length in ranges:
        if start < 0 or not length:
            continue
        read = file.actor.call("pread64", file.descriptor, buffer, 3 * base, start)
        live.expect(f"bytes read at {start}", length, read)
        wrong = file.actor.check(buffer, length, WORD, 1 + start)
        live.expect(f"words that are wrong at {start}", 0, wrong)
        live.expect("where lseek(2) went", start, _go_to(file, start))
        live.expect("bytes of read(2)", length, file.actor.call("read", file.descriptor, buffer, 3 * base))
        live.expect("where the next read begins", start + length, _place(file))
    live.expect_errno(errno.EIO, file.actor.call, "pread64", file.descriptor, buffer, base, broken)
    live.expect("where lseek(2) went", broken, _go_to(file, broken))
    live.expect_errno(errno.EIO, file.actor.call, "read", file.descriptor, buffer, base)
    live.expect("where the next read begins after EIO", broken, _place(file))


def _go_to(file: HugeFile, place: int) -> int:
    return file.actor.call("lseek", file.descriptor, place, os.SEEK_SET)


def _place(file: HugeFile) -> int:
    return file.actor.call("lseek", file.descriptor, 0, os.SEEK_CUR)


@HWPOISON.case(
    "a child gets SIGBUS where the memory of its parent broke before, and its parent, too; the rest is there for both",
    f"{HARD}; mm/hugetlb.c copy_hugetlb_page_range()",
    sizes=Sizes.BUDDY,
    pages=3,
)
def child_of_a_broken_page(live: Live) -> None:
    memory = live.map(2)
    memory.fill()
    break_page(live, memory, 0, MADV_HWPOISON)
    child = memory.fork()
    # a known bug of the child ends the case
    for seen, known in ((memory, {}), (child, {Quirk.BROKEN_PAGE_LOST_AT_FORK: None})):
        expect_broken(live, seen, known=known)
        seen.expect_filled(first=1)
    live.expect_pool(nr=2, free=1)
    memory.actor.end()
    live.expect_pool(nr=2, free=2)


@HWPOISON.case(
    "who maps a file with a broken page gets SIGBUS at it, before it broke or after, and read(2) there is EIO",
    f"{HARD}; mm/hugetlb.c hugetlb_no_page(); fs/hugetlbfs/inode.c hugetlbfs_read_iter()",
    sizes=Sizes.BUDDY,
    since="6.1",  # 8625147cafaa: before, a broken page was taken out of its file
    pages=2,
)
def broken_page_of_a_file(live: Live) -> None:
    need_mending(live)
    file = new_memfd(live)
    file.truncate(2)
    memory = file.map(2)
    memory.fill()
    frame = memory.frame()
    break_page(live, memory, 0, MADV_HWPOISON)
    with mended_at_the_end(live, frame, file.actor.end):
        for mapped in (memory, file.map(2)):
            expect_broken(live, mapped)
            mapped.expect_filled(first=1)
        words = bytes(WORD), WORD, 0
        live.expect_errno(errno.EIO, file.actor.call, "pread64", file.descriptor, *words)
        file.truncate(0)
    live.expect_pool(nr=2, free=2)


class HwpoisonTest(LiveTest):
    def test_hwpoison(self) -> None:
        self.run_area(HWPOISON)
