"""Shared memory that MADV_COLLAPSE cannot make huge, or only in part: all of it is as before, for everybody."""

import errno
import mmap
import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from enum import Enum
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.fragmentation import expect_no_node_short
from hugepage_qa.cases.hugetlb_files import HugeFile, open_file
from hugepage_qa.cases.khugepaged_clock import let_rest
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.madv_collapse import collapse, collapse_memory
from hugepage_qa.cases.mapped_memory import WORD, Memory, runs
from hugepage_qa.cases.race import at_once
from hugepage_qa.cases.swapped import need_swap, page_all_out
from hugepage_qa.cases.thp_memory import map_aligned, pmd_size, room_for
from hugepage_qa.cases.thp_policy import leave_dirt, set_policy
from hugepage_qa.cases.thp_shared_memory import let_only_pmd_inherit, map_file, remount_tmpfs
from hugepage_qa.cases.userfaultfd import Feature, Mode, Userfault, protected_pages
from hugepage_qa.kernel.uapi import MADV_COLLAPSE, MADV_DONTNEED, MAP_FIXED
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Refused

GIVEN_UP = Area("thp/collapse-given-up", sizes=Sizes.ONCE, uncleared=True)

COLLAPSE_FILE = "madvise(2) MADV_COLLAPSE; mm/khugepaged.c collapse_file()"
SINCE = "6.1"
_NEW_VALUE = 77


@GIVEN_UP.case(
    "where a tmpfs has no room for the holes of a file MADV_COLLAPSE is EINVAL: its pages hold what they held, holes"
    " are holes, and it takes no more room than before; with room it is huge",
    f"{COLLAPSE_FILE}, shmem_charge()",
    since=SINCE,
)
def no_room_for_holes(live: Live) -> None:
    _have_khugepaged_rest(live)
    every = pmd_size(live) // live.base_page
    for pages in ([0, 1, 5, every // 2, every - 1], [3, 4, every - 2], [0], [every - 1]):
        with live.about(f"a file with its pages {pages}"):
            _expect_given_up(live, pages, every)


def _expect_given_up(live: Live, pages: list[int], every: int) -> None:
    point, file, memory = _file_of_base_pages(live, pages, room=every // 2)
    before = _found(live, point, file, pages)
    # twice: what the first one has left would be in the way of the second
    for _time in range(2):
        live.expect_errno(errno.EINVAL, collapse, live, partial(memory.advise, MADV_COLLAPSE))
        live.expect("st_blocks, free blocks and data of the file", before, _found(live, point, file, pages))
    live.expect("ShmemPmdMapped", 0, memory.smaps().shmem_pmd_mapped)
    _expect_pages(live, memory, pages)
    remount_tmpfs(file.actor, point, f"size={memory.size}")
    collapse_memory(live, memory)
    live.expect("ShmemPmdMapped with room", memory.size, memory.smaps().shmem_pmd_mapped)
    live.expect("st_blocks, free blocks", (memory.size, 0), _found(live, point, file)[:2])
    _expect_pages(live, memory, pages)
    live.expect("pages that are not zero", len(pages), _pages_with_words(live, memory))
    file.actor.end()


@GIVEN_UP.case(
    "pages that fallocate(2) gave to a file and nobody has written are zero in the huge page that MADV_COLLAPSE makes,"
    " though memory held words before, and what was written is there",
    f"{COLLAPSE_FILE}, shmem_get_folio(); fallocate(2)",
    since=SINCE,
)
def allocated_and_never_written(live: Live) -> None:
    _have_khugepaged_rest(live)
    every = pmd_size(live) // live.base_page
    written = [0, 7, every // 2 + 1]
    set_policy(live, "madvise")
    leave_dirt(live)
    point, file, memory = _file_of_base_pages(live, written, room=2 * every)
    file.actor.call("fallocate", file.descriptor, 0, 0, memory.size)
    live.expect("st_blocks when it was allocated", memory.size, file.blocks)
    collapse_memory(live, memory)
    live.expect("ShmemPmdMapped", memory.size, memory.smaps().shmem_pmd_mapped)
    _expect_pages(live, memory, written)
    live.expect("pages that are not zero", len(written), _pages_with_words(live, memory))
    live.expect("st_blocks, free blocks", (memory.size, every), _found(live, point, file)[:2])


@GIVEN_UP.case(
    "shared memory of which a part is in swap is brought back by MADV_COLLAPSE, holds what it held, and is huge",
    f"{COLLAPSE_FILE}, shmem_get_folio()",
    since=SINCE,
)
def in_swap(live: Live) -> None:
    _have_khugepaged_rest(live)
    every = pmd_size(live) // live.base_page
    need_swap(live, pmd_size(live))
    point, file, memory = _file_of_base_pages(live, range(every), room=every)
    half = memory.size // 2
    page_all_out(live, Memory(live, memory.actor, memory.address + half, 1, half), half)
    collapse_memory(live, memory)
    live.expect("ShmemPmdMapped", memory.size, memory.smaps().shmem_pmd_mapped)
    live.expect("st_blocks, free blocks", (memory.size, 0), _found(live, point, file)[:2])
    _expect_pages(live, memory, range(every))


@GIVEN_UP.case(
    "when one process has MADV_COLLAPSE make a file huge, private copies of it stay what they are, what is mapped"
    " elsewhere in a page table shows the file, and what userfaultfd protects stays protected",
    "madvise(2) MADV_COLLAPSE; mm/khugepaged.c retract_page_tables(); mmap(2) MAP_PRIVATE",
    since=SINCE,
)
def mapped_by_others(live: Live) -> None:
    _have_khugepaged_rest(live)
    every = pmd_size(live) // live.base_page
    _point, file, memory = _file_of_base_pages(live, range(every), room=2 * every)
    size, page = memory.size, live.base_page
    private, shifted, watched = (
        _mapped_again(live, file, flags, shift)
        for flags, shift in ((mmap.MAP_PRIVATE, 0), (mmap.MAP_SHARED, page), (mmap.MAP_SHARED, 0))
    )
    for one in (private, shifted, watched):
        one.expect_filled()
    copied = [0, 9, every - 1]
    for number in copied:
        private.actor.write(private.address + number * page, _NEW_VALUE)
    fault = Userfault(watched, Mode.WRITE_PROTECTED, Feature.PAGEFAULT_FLAG_WP | Feature.WP_HUGETLBFS_SHMEM)
    fault.write_protect(offset=5 * page, length=page)
    collapse_memory(live, memory)
    live.expect("ShmemPmdMapped of the one that asked", size, memory.smaps().shmem_pmd_mapped)
    for number in copied:
        found = private.actor.read(private.address + number * page)
        live.expect(f"the private copy of base page {number}", _NEW_VALUE, found)
    live.expect("words of the private mapping that changed", len(copied), private.wrong(0, size))
    live.expect("base pages that are protected", [5], protected_pages(watched))
    live.expect_signal(signal.SIGBUS, watched.actor.write, watched.address + 5 * page, _NEW_VALUE)
    # what one writes all see, but for private copies
    memory.actor.write(memory.at(0) + 8 * page, _NEW_VALUE)
    memory.actor.write(memory.at(0) + 9 * page + WORD, _NEW_VALUE)
    for one in (private, shifted, watched, memory):
        # of the private mapping one is its own copy, and one the file's
        live.expect("words that differ from what was filled", 2, one.wrong(page, size - 2 * page))


@GIVEN_UP.case(
    "base pages of a file that userfaultfd protects in one mapping, wherever in a huge page they are, there or not"
    " yet, stay protected there when MADV_COLLAPSE of that mapping, of another one or of another process makes the file"
    " huge; others map the huge page and write it, and what is protected no more is written",
    "Documentation/admin-guide/mm/userfaultfd.rst Write Protect Notifications; madvise(2) MADV_COLLAPSE;"
    " mm/khugepaged.c retract_page_tables(), collapse_pte_mapped_thp()",
    since=SINCE,
)
def protected_in_one_mapping(live: Live) -> None:
    _have_khugepaged_rest(live)
    every = pmd_size(live) // live.base_page
    parts = (range(1), range(3, 4), range(every - 1, every), range(every // 2, every), range(every))
    for part, is_there, asks in product(parts, (True, False), _Asks):
        with live.about(f"base pages {part.start} to {part.stop}, there {is_there}, asked by {asks.value}"):
            _expect_still_protected(live, part, every, asks, is_there=is_there)


class _Asks(Enum):
    """Who gives MADV_COLLAPSE first."""

    WATCHED = "the mapping that is watched"
    OTHER = "another mapping"
    PROCESS = "another process"


def _expect_still_protected(live: Live, part: range, every: int, asks: _Asks, *, is_there: bool) -> None:
    """Have ``part`` of a file protected before it is collapsed, and expect it to be so then."""
    base = live.base_page
    # of what is not there at least one page is: of holes alone nothing is made
    filled = [number for number in range(every) if is_there or number not in part or len(part) == every == number + 1]
    _point, file, memory = _file_of_base_pages(live, filled, room=2 * every)
    watched = _mapped_again(live, file, mmap.MAP_SHARED, 0)
    fault = Userfault(watched, Mode.WRITE_PROTECTED, Feature.PAGEFAULT_FLAG_WP | Feature.WP_HUGETLBFS_SHMEM)
    fault.write_protect(offset=part.start * base, length=len(part) * base)
    if asks is _Asks.WATCHED:
        # it makes the file huge, and is an error or not: this mapping cannot be huge
        with suppress(Refused):
            watched.advise(MADV_COLLAPSE)
        live.expect("base pages that are protected", [*part], protected_pages(watched))
    other = memory.fork() if asks is _Asks.PROCESS else memory
    # where a process has no page table Linux 6.1 maps nothing, and it is EINVAL
    other.actor.read(other.address + filled[0] * base)
    collapse_memory(live, other)
    live.expect("ShmemPmdMapped of another mapping", other.size, other.smaps().shmem_pmd_mapped)
    live.expect("base pages that are protected", [*part], protected_pages(watched))
    for number in {part[0], part[-1]}:
        live.expect_signal(signal.SIGBUS, watched.actor.write, watched.address + number * base, _NEW_VALUE)
    _expect_pages(live, watched, filled)
    other.actor.fill(other.address, other.size, base, _NEW_VALUE)
    wrong = watched.actor.check(watched.address, watched.size, base, _NEW_VALUE)
    live.expect("words that others have written and are not seen", 0, wrong)
    fault.write_protect(on=False, offset=part.start * base, length=len(part) * base)
    watched.actor.write(watched.address + part[-1] * base, 1)
    live.expect("what is read elsewhere", 1, other.actor.read(other.address + part[-1] * base))
    other.actor.end()
    file.actor.end()


@GIVEN_UP.case(
    "MADV_COLLAPSE fills no hole of a file, wherever in it, for which a userfaultfd waits, in the mapping that asks, in"
    " another one, in that of another process, or in one of the hole alone: it is refused, a touch of the hole is the"
    " program's to handle, and when it has filled the hole the file is huge",
    "Documentation/admin-guide/mm/userfaultfd.rst UFFDIO_REGISTER_MODE_MISSING; madvise(2) MADV_COLLAPSE;"
    " mm/khugepaged.c collapse_file()",
    since="6.4",
)
def holes_that_are_watched(live: Live) -> None:
    _have_khugepaged_rest(live)
    every = pmd_size(live) // live.base_page
    holes = range(1), range(3, 5), range(every // 2, every), range(every - 1, every), range(1, every)
    for hole, watches in product(holes, _Watches):
        with live.about(f"hole of base pages {hole.start} to {hole.stop}, watched in {watches.value}"):
            _expect_hole_kept(live, hole, every, watches)


class _Watches(Enum):
    """Where a userfaultfd waits for a hole."""

    ASKS = "the mapping that asks"
    OTHER = "another mapping"
    PROCESS = "another process"
    HOLE = "a mapping of the hole alone"


def _expect_hole_kept(live: Live, hole: range, every: int, watches: _Watches) -> None:
    base = live.base_page
    filled = [number for number in range(every) if number not in hole]
    point, file, memory = _file_of_base_pages(live, filled, room=every)
    watched, first = memory, 0
    match watches:
        case _Watches.OTHER:
            watched = _mapped_again(live, file, mmap.MAP_SHARED, 0)
        case _Watches.PROCESS:
            watched = memory.fork()
        case _Watches.HOLE:
            first = hole.start
            address = file.actor.mmap(len(hole) * base, READ_WRITE, mmap.MAP_SHARED, file.descriptor, first * base)
            watched = Memory(live, file.actor, address, 1, len(hole) * base)
        case _Watches.ASKS:
            pass
    fault = Userfault(watched, Mode.MISSING, Feature.MISSING_SHMEM)
    before = _found(live, point, file, filled[:1])
    for _time in range(2):
        found = live.host.last_look(
            lambda: -memory.actor.result("madvise", memory.address, memory.size, MADV_COLLAPSE),
            lambda number: number != errno.EAGAIN,
        )
        if found == errno.ENOMEM:
            expect_no_node_short(live, memory.size, 1)
        if not found:
            live.fail("errno of MADV_COLLAPSE", "one: it is refused", "none: it is done")
        live.expect("st_blocks, free blocks and data of the file", before, _found(live, point, file, filled[:1]))
    for number in {hole[0], hole[-1]}:
        live.expect_signal(signal.SIGBUS, watched.actor.read, watched.address + (number - first) * base)
    source = map_aligned(live, 1, memory.size, actor=watched.actor)
    source.fill()
    start = Memory(live, watched.actor, source.address + first * base, 1, watched.size)
    copied = fault.copy(start, offset=(hole.start - first) * base, length=len(hole) * base)
    live.expect("bytes copied", len(hole) * base, copied)
    collapse_memory(live, memory)
    live.expect("ShmemPmdMapped when the hole is filled", memory.size, memory.smaps().shmem_pmd_mapped)
    memory.expect_filled()
    watched.actor.end()
    file.actor.end()


@GIVEN_UP.case(
    "memory that MADV_COLLAPSE makes huge while another thread reads it again and again holds what it held, and nothing"
    " of it stays isolated",
    "madvise(2) MADV_COLLAPSE; mm/khugepaged.c __collapse_huge_page_isolate(), release_pte_pages()",
    since=SINCE,
)
def read_meanwhile(live: Live) -> None:
    set_policy(live, "madvise")
    both = map_aligned(live, 2, pmd_size(live))
    actor = both.actor
    memory, target = (both.part(page) for page in range(2))
    memory.fill()
    target.fill()
    half, page = memory.size // 2, live.base_page
    remote = live.host.uapi.pack("2Q", memory.address + half, half)
    local = live.host.uapi.pack("2Q", target.address, half)
    with at_once(live, actor) as threads:
        threads.call("process_vm_readv", actor.pid, local, 1, remote, 1, 0)
        threads.attempt("madvise", memory.address, memory.size, MADV_COLLAPSE)
        # a huge page is mapped in parts then, and can be collapsed again
        threads.call("madvise", memory.address, page, MADV_DONTNEED)
        threads.watch(Memory(live, actor, memory.address + half, 1, half), 1 + half)
    if not threads.was_done(1):
        raise CannotRun("each time that the memory was to be collapsed it was being read")
    collapse_memory(live, memory)
    memory.expect_huge()
    live.expect("words that changed", 0, memory.wrong(page, memory.size - page))
    live.expect("words of the page that was given back", 0, actor.nonzero(memory.address, page))
    live.expect("words that were read and are wrong", 0, actor.check(target.address, half, WORD, 1 + half))


def _have_khugepaged_rest(live: Live) -> None:
    """Have khugepaged not make the files huge before MADV_COLLAPSE is asked to."""
    let_only_pmd_inherit(live)
    let_rest(live)


def _file_of_base_pages(live: Live, pages: Iterable[int], room: int) -> tuple[str, HugeFile, Memory]:
    """Map a file of one huge page in a tmpfs with ``room`` base pages; ``pages`` of it are filled, in base pages.

    Returned are the mount, which gives huge pages by now, the file and its memory.
    """
    let_only_pmd_inherit(live)
    point = live.mount_other(f"huge=never,size={room * live.base_page},mode=0700", "tmpfs")
    actor = live.actor()
    file = open_file(live, f"{point}/file", actor)
    actor.call("ftruncate", file.descriptor, pmd_size(live))
    memory = map_file(live, actor, file.descriptor, 1)
    for run in runs(set(pages)):
        offset = run.start * live.base_page
        actor.fill(memory.address + offset, len(run) * live.base_page, WORD, 1 + offset)
    remount_tmpfs(live.actor(), point, "huge=always")
    return point, file, memory


def _mapped_again(live: Live, file: HugeFile, flags: int, shift: int) -> Memory:
    """Map ``file`` once more, ``shift`` bytes behind where huge pages fit."""
    size = pmd_size(live)
    address = room_for(file.actor, 2, size) + shift
    file.actor.mmap(size, READ_WRITE, flags | MAP_FIXED, file.descriptor, address=address)
    return Memory(live, file.actor, address, 1, size)


def _found(live: Live, point: str, file: HugeFile, pages: Iterable[int] = ()) -> tuple[int, int, list[int | None]]:
    """Return the st_blocks of ``file`` in bytes, the free blocks of its mount, and where data and holes are next.

    They are looked for from the start and the end of ``pages`` on.
    """
    starts = [(number + behind) * live.base_page for number in pages for behind in (0, 1)]
    borders = [_next(file, start, whence) for start in starts for whence in (os.SEEK_DATA, os.SEEK_HOLE)]
    return file.blocks, live.host.file_system(point).free_blocks, borders


def _next(file: HugeFile, start: int, whence: int) -> int | None:
    """Return where data or a hole begins (lseek(2)), None where there is none before the end."""
    try:
        return file.actor.call("lseek", file.descriptor, start, whence)
    except Refused as refusal:
        if refusal.errno != errno.ENXIO:
            raise
        return None


def _expect_pages(live: Live, memory: Memory, pages: Iterable[int]) -> None:
    wrong = sum(memory.wrong(run.start * live.base_page, len(run) * live.base_page) for run in runs(set(pages)))
    live.expect("words of the pages that were filled and changed", 0, wrong)


def _pages_with_words(live: Live, memory: Memory) -> int:
    """Return how many base pages the words are that are not zero."""
    return memory.nonzero(0, memory.size) * WORD // live.base_page


class ThpCollapseGivenUp(LiveTest):
    def test_collapse_given_up(self) -> None:
        self.run_area(GIVEN_UP)
