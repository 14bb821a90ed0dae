"""Memory of huge pages that is in swap when parts of it are given back, cut off, or brought back."""

import errno
import mmap
import os
import signal
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.cpu_time import cpu_seconds
from hugepage_qa.cases.hugetlb_files import HugeFile
from hugepage_qa.cases.khugepaged_clock import let_rest
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.process_counters import expect_process_swap
from hugepage_qa.cases.swapped import (
    need_swap,
    only_swap,
    page_all_out,
    page_out,
    parts_out,
    swap_out,
    swap_to_a_device,
    swapped,
)
from hugepage_qa.cases.thp_memory import pmd_size, room_for
from hugepage_qa.cases.thp_policy import base_pages, huge_pages
from hugepage_qa.cases.thp_shared_memory import let_only_pmd_inherit, map_filled_file
from hugepage_qa.cases.userfaultfd import Feature, Mode, Userfault, protected_pages
from hugepage_qa.kernel.uapi import FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, MAP_FIXED
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor_threads import Came

SWAPPED_PARTS = Area("swap/swapped-parts", sizes=Sizes.ONCE)

HOLES = "fallocate(2) FALLOC_FL_PUNCH_HOLE; ftruncate(2); mm/shmem.c shmem_undo_range(), shmem_free_swap()"
SINCE = "5.4"  # MADV_PAGEOUT
_PAGES = 2
_ROOM = 12
_NEW_VALUE = 77
#: a file is cut off in some milliseconds, also by an emulated processor
_CPU_SECONDS, _MOST_SECONDS = 5.0, 120.0


@SWAPPED_PARTS.case(
    "a hole in a file of a tmpfs that is in swap is zero, and so is what was cut off, wherever they begin and end; the"
    " rest holds what it held, and the file and its mount have the room of no page more or less",
    HOLES,
    since=SINCE,
)
def cut(live: Live) -> None:
    size, page = pmd_size(live), live.base_page
    length = _PAGES * size
    need_swap(live, length)
    _expect_cut(live, (*_holes(size, page), (size + page, length), (size // 2, length), (0, length)))


@SWAPPED_PARTS.case(
    "a hole in a file of a tmpfs that was swapped to a device, where huge pages can be swapped out as a whole, is zero,"
    " and so is all when it was cut off; the rest holds what it held",
    HOLES,
    since=SINCE,
)
def cut_on_a_device(live: Live) -> None:
    size = pmd_size(live)
    swap_to_a_device(live, _ROOM * size)
    _expect_cut(live, (*_holes(size, live.base_page), (0, _PAGES * size)))


@SWAPPED_PARTS.case(
    "a file of a tmpfs that was swapped to a device ends where it is cut off, within a huge page that was swapped out"
    " as a whole, too, and has room for what is left of it alone",
    f"ftruncate(2); {HOLES}",
    since=SINCE,
)
def cut_off_on_a_device(live: Live) -> None:
    swap_off = swap_to_a_device(live, _ROOM * pmd_size(live))
    let_only_pmd_inherit(live)
    for end in (pmd_size(live) + live.base_page, pmd_size(live) // 2):
        point, file, memory = _huge_file(live)
        with live.about(f"cut off at byte {end} of {memory.length}"):
            page_all_out(live, memory)
            _expect_room_of_an_end(live, point, file, end, swap_off)
            live.expect("words before the end that changed", 0, memory.wrong(0, end))
            file.actor.call("ftruncate", file.descriptor, memory.length)
            behind = memory.actor.nonzero(memory.address + end, memory.length - end)
            live.expect("words behind the end that are not zero", 0, behind)
            memory.actor.end()


def _expect_room_of_an_end(live: Live, point: str, file: HugeFile, end: int, swap_off: Callable[[], None]) -> None:
    """Cut ``file`` off at ``end``, and expect the mount at ``point`` to have the room of all others free.

    Where it has not, ``swap_off`` brings back what the kernel may look for again and again, as nothing ends a process
    in that. Raises KnownBug, and CannotRun where the process is not let run.
    """

    def occupied() -> int:
        return live.host.file_system(point).taken_bytes

    def seconds() -> float:
        return cpu_seconds(live, str(cutter.pid))

    before = occupied()
    cutter = file.actor.fork()
    cutter.threads.attempt("ftruncate", file.descriptor, end)
    live.host.wait_until(lambda: occupied() == end or seconds() > _CPU_SECONDS, _MOST_SECONDS)
    found, used = occupied(), seconds()
    if found != end:
        swap_off()
    (cut,) = cutter.threads.stop(0)
    cutter.end()
    if found != end and used <= _CPU_SECONDS:
        raise CannotRun(f"a process that cuts a file off had {used:g} s of a CPU in {_MOST_SECONDS:g} s")
    live.expect("bytes that the file occupies", end, found, {Quirk.CUT_WITHIN_SWAP_NEVER_ENDS: before})
    live.expect("what came of ftruncate(2)", Came.DONE, cut.came)


def _holes(size: int, page: int) -> tuple[tuple[int, int], ...]:
    """Return where holes in two huge pages of ``size`` bytes begin and end; a base page has ``page``."""
    return (
        (page, 3 * page),
        (0, size),
        (size - page, size + page),
        (size // 2 + WORD, size - WORD),
        (page // 2, size + page // 2),
    )


def _expect_cut(live: Live, ranges: Sequence[tuple[int, int]]) -> None:
    let_only_pmd_inherit(live)
    for start, end in ranges:
        with live.about(f"bytes {start} to {end} of {_PAGES * pmd_size(live)}"):
            _expect_cut_out(live, start, end)


def _cut_out(live: Live, start: int, end: int) -> tuple[str, HugeFile, Memory]:
    """Make a hole in a file that is in swap, or cut it off and make it as long again; return it as ``_huge_file``."""
    point, file, memory = _huge_file(live)
    page_all_out(live, memory)
    if end == memory.length:
        file.actor.call("ftruncate", file.descriptor, start)
        file.actor.call("ftruncate", file.descriptor, end)
    else:
        mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
        file.actor.call("fallocate", file.descriptor, mode, start, end - start)
    return point, file, memory


def _expect_cut_out(live: Live, start: int, end: int) -> None:
    page = live.base_page
    left = _PAGES * pmd_size(live) - max(end // page - -(-start // page), 0) * page
    # a huge page that somebody has a hold of in that moment cannot be split, and keeps its room: another one is cut
    cut_one = partial(_cut_out, live, start, end)
    point, file, memory = live.host.last_attempt(cut_one, lambda cut: cut[1].blocks == left)
    room = live.host.file_system(point).blocks
    live.expect("st_blocks", left, file.blocks)
    live.expect("free blocks of the mount", room - left // page, live.host.file_system(point).free_blocks)
    wrong = memory.wrong(0, start) + memory.wrong(end, memory.length - end)
    live.expect("words beside it that changed", 0, wrong)
    live.expect("words of it that are not zero", 0, memory.actor.nonzero(memory.address + start, end - start))
    memory.fill(_NEW_VALUE)
    memory.expect_filled(_NEW_VALUE)
    file.actor.call("unlinkat", -1, f"{point}/file", 0)
    live.host.wait_until(partial(page_out, live, memory))
    memory.actor.end()
    found = live.host.last_look(lambda: live.host.file_system(point).free_blocks, room.__eq__)
    if found != room:
        # each of the others would be waited for as long
        live.fail("free blocks of the mount when the file is gone", room, found)


@SWAPPED_PARTS.case(
    "fallocate(2) that finds no room for all leaves a file as it was: what was in swap, what was not, and holes",
    "fallocate(2) ENOSPC; mm/shmem.c shmem_fallocate(), shmem_undo_range()",
    since="5.15",  # 050dcb5c85bb: before, huge pages stay that were allocated until there was no room
)
def allocation_fails(live: Live) -> None:
    need_swap(live, _PAGES * pmd_size(live))
    let_only_pmd_inherit(live)
    point, file, memory = _huge_file(live)
    size = memory.size
    room = _ROOM // 2 * size
    file.actor.call("ftruncate", file.descriptor, room)
    # so that the mount has room for all but one huge page: of more than all of it nothing is tried
    other = live.open(file.actor, f"{point}/other")
    file.actor.call("fallocate", other, 0, 0, size)
    page_all_out(live, Memory(live, memory.actor, memory.address, 1, size), size)
    before = file.blocks, live.host.file_system(point).free_blocks
    # behind what there is, and from its middle on, in holes and pages
    for start in (0, size // 2, _PAGES * size):
        live.expect_errno(errno.ENOSPC, file.actor.call, "fallocate", file.descriptor, 0, start, room)
        found = file.blocks, live.host.file_system(point).free_blocks
        live.expect(f"st_blocks, free blocks after an allocation from {start} on", before, found)
        live.expect("length of the file", room, file.size)
        data = file.actor.call("lseek", file.descriptor, 0, os.SEEK_HOLE)
        live.expect("where the first hole is", _PAGES * size, data)
    memory.expect_filled()


@SWAPPED_PARTS.case(
    "shared memory that comes back from swap and is only read holds what it held when it is swapped out again, as often"
    " as that is, whichever way it comes back",
    "madvise(2) MADV_PAGEOUT, MADV_WILLNEED; mm/shmem.c shmem_swapin_folio(), shmem_writepage()",
    since=SINCE,
)
def out_and_back(live: Live) -> None:
    size = pmd_size(live)
    need_swap(live, _PAGES * size)
    let_only_pmd_inherit(live)
    for huge in ("never", "always"):
        _point, file, memory = _filled_file(live, huge)
        buffer = file.actor.mmap(size, READ_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

        def read_file(file: HugeFile = file, buffer: int = buffer) -> None:
            for offset in range(0, _PAGES * size, size):
                live.expect("bytes read", size, file.actor.call("pread64", file.descriptor, buffer, size, offset))
                live.expect("words read that are wrong", 0, file.actor.check(buffer, size, WORD, 1 + offset))

        prefetch = partial(memory.advise, mmap.MADV_WILLNEED)
        ways: tuple[Callable[[], None], ...] = (memory.expect_filled, prefetch, read_file, memory.expect_filled)
        for number, come_back in enumerate(ways):
            with live.about(f"huge={huge}, swapped out for time {number + 1}"):
                page_all_out(live, memory)
                come_back()
        memory.actor.end()


@SWAPPED_PARTS.case(
    "smaps shows as Swap of each mapping of a file of a tmpfs what is in swap of the part that it maps alone, wherever"
    " it begins and ends, behind the end of the file too, whether it is shared and may be written or not",
    "Documentation/filesystems/proc.rst Swap; mm/shmem.c shmem_swap_usage(), shmem_partial_swap_usage();"
    " fs/proc/task_mmu.c smap_gather_stats(), smaps_pte_hole()",
    since=SINCE,
)
def swap_of_each_mapping(live: Live) -> None:
    let_rest(live)
    need_swap(live, _PAGES * pmd_size(live))
    let_only_pmd_inherit(live)
    for huge in ("never", "always"):
        with live.about(f"huge={huge}"):
            _expect_swap_of_each(live, huge)


def _expect_swap_of_each(live: Live, huge: str) -> None:
    """Expect smaps to show of each mapping the swap of its part: of all of a file, and of what is left of it there."""
    _point, file, memory = _filled_file(live, huge)
    # what was swapped out as a whole is in swap as such
    unit = pmd_size(live) if huge == "always" else live.base_page
    whole = memory.length
    mappings = _mapped_in_parts(live, file, whole, unit)

    def is_out() -> bool:
        if parts_out(live, memory, [(0, memory.length)], lambda: swapped(memory) == memory.length):
            return True
        # what is not mapped any more, and not in swap either, is passed over
        memory.expect_filled()
        return False

    live.host.wait_until(is_out)
    # what is read comes back: of a large part of swap more than that may
    for back in (0, memory.length // 4, memory.length // 2 + unit) if huge == "never" else (0,):
        parts = [(what, max(min(end, whole) - max(start, back), 0), part) for what, start, end, part in mappings]
        if not _is_shown(live, memory, back, parts):
            # each of the others would be waited for as long
            break
    memory.actor.end()


def _is_shown(live: Live, memory: Memory, back: int, parts: list[tuple[str, int, Memory]]) -> bool:
    """Expect smaps to show so many bytes of each part in swap, ``back`` bytes being read, and tell if it does."""

    def wrong() -> list[tuple[str, int, int]]:
        live.expect("words that changed", 0, memory.wrong(0, back))
        return [(what, left, shown) for what, left, mapping in parts if left != (shown := swapped(mapping))]

    untold = [(what, left, 0) for what, left, _mapping in parts if left and what.endswith("private, rw")]
    found = live.host.last_look(wrong, lambda found: found in ([], untold))
    known = {Quirk.PRIVATE_SWAP_UNTOLD: untold}
    live.expect(f"what mappings have in swap and smaps shows, {back} bytes brought back", [], found, known)
    return not found


def _mapped_in_parts(live: Live, file: HugeFile, whole: int, unit: int) -> list[tuple[str, int, int, Memory]]:
    """Map ``whole`` bytes of a file and parts of them, in units; return of each what it is, its start, end, memory."""
    half, mappings = whole // 2, list[tuple[str, int, int, Memory]]()
    parts = (
        *((0, whole), (0, 2 * whole), (0, half), (0, unit), (0, whole - unit)),
        *((half, whole), (half, half + whole), (unit, whole), (unit, whole + unit), (half - unit, half + unit)),
        *((whole - unit, whole), (whole - unit, 2 * whole), (whole, 2 * whole)),
    )
    for (start, end), shared, prot in product(parts, (True, False), (mmap.PROT_READ, READ_WRITE)):
        # apart from each other: two that meet would be one
        address = room_for(file.actor, -(-(end - start) // pmd_size(live)), pmd_size(live))
        flags = (mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE) | MAP_FIXED
        file.actor.mmap(end - start, prot, flags, file.descriptor, start, address)
        what = f"bytes {start} to {end}, {'shared' if shared else 'private'}, {'r' if prot == mmap.PROT_READ else 'rw'}"
        mappings.append((what, start, end, Memory(live, file.actor, address, 1, end - start)))
    return mappings


@SWAPPED_PARTS.case(
    "what is given back of memory that is in swap, huge pages or base pages, by MADV_DONTNEED or MADV_FREE, is in swap"
    " no more, of the mapping and of the process, and zero at the next touch, and the rest is in swap and holds what it"
    " held",
    "madvise(2) MADV_DONTNEED, MADV_FREE; mm/madvise.c madvise_free_pte_range(); mm/memory.c zap_pte_range()",
    since=SINCE,
)
def given_back(live: Live) -> None:
    let_rest(live)
    need_swap(live, _PAGES * pmd_size(live))
    for make, advice in product((huge_pages, base_pages), (mmap.MADV_DONTNEED, mmap.MADV_FREE)):
        memory = make(live, _PAGES)
        swap_out(live, memory, memory.length)
        size, page = memory.size, live.base_page
        parts = ((page, page), (size // 2, size), (memory.length - page, page))
        left = memory.length
        for offset, length in parts:
            memory.actor.call("madvise", memory.address + offset, length, advice)
            left -= length
            live.expect("memory in swap", left, swapped(memory))
            expect_process_swap(live, memory, left)
        for offset, length in parts:
            live.expect("words that are not zero", 0, memory.actor.nonzero(memory.address + offset, length))
        for start, end in ((0, page), (2 * page, size // 2), (size // 2 + size, memory.length - page)):
            live.expect("words of the rest that changed", 0, memory.wrong(start, end - start))
        live.expect("memory in swap after it was read", 0, swapped(memory))
        if make is base_pages:
            live.expect("AnonHugePages of base pages", 0, memory.smaps().anon_huge_pages)
        memory.actor.end()


@SWAPPED_PARTS.case(
    "swapoff(2) brings back the half of a huge page that is in swap, and what was protected of it stays so, as it is"
    " for a child that has it, too",
    "swapoff(2); mm/swapfile.c unuse_pte_range(), unuse_pte(); Documentation/admin-guide/mm/userfaultfd.rst",
    since="5.13",
)
def swapoff_of_a_half(live: Live) -> None:
    let_rest(live)
    swap_off = only_swap(live, 4 * pmd_size(live))
    memory = huge_pages(live, _PAGES)
    half, page = memory.size // 2, live.base_page
    fault = Userfault(memory, Mode.WRITE_PROTECTED, Feature.PAGEFAULT_FLAG_WP)
    protected = [*range(4, 9), *range(half // page - 2, half // page + 2)]
    fault.write_protect(offset=4 * page, length=5 * page)
    fault.write_protect(offset=half - 2 * page, length=4 * page)
    swap_out(live, memory, half)
    child = memory.seen_by(memory.actor.fork())
    swap_off()
    for one in (memory, child):
        live.expect("memory in swap after swapoff(2)", 0, swapped(one))
        live.expect("Rss", memory.length, one.smaps().rss)
        live.expect("AnonHugePages of the page behind it", memory.size, one.smaps().anon_huge_pages)
        one.expect_filled()
    live.expect("base pages that are protected", protected, protected_pages(memory))
    child.fill(_NEW_VALUE)
    memory.expect_filled()
    for number in (protected[0], protected[-1]):
        live.expect_signal(signal.SIGBUS, memory.actor.write, memory.address + number * page, _NEW_VALUE)
    fault.write_protect(on=False)
    memory.fill(_NEW_VALUE + 1)
    memory.expect_filled(_NEW_VALUE + 1)
    child.expect_filled(_NEW_VALUE)


def _huge_file(live: Live) -> tuple[str, HugeFile, Memory]:
    """Return a tmpfs, and a file of it that is filled, in huge pages, and mapped. Raises CannotRun."""
    return _filled_file(live, "always")


def _filled_file(live: Live, huge: str) -> tuple[str, HugeFile, Memory]:
    """Return the same of a tmpfs with ``huge``. Raises CannotRun."""
    point = live.mount_other(f"huge={huge},size={_ROOM // 2 * pmd_size(live)},mode=0700", "tmpfs")
    return point, *map_filled_file(live, point, huge, _PAGES)


class ThpSwappedParts(LiveTest):
    def test_swapped_parts(self) -> None:
        self.run_area(SWAPPED_PARTS)
