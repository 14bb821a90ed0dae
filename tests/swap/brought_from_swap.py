"""Shared memory that is wanted back from swap: by a program, before it touches it or by any part, or by khugepaged."""

import mmap
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.control_group import ControlGroup, Version, new_group
from hugepage_qa.cases.fragmentation import expect_no_node_short, with_blocks
from hugepage_qa.cases.group_memory import actor_in, give_what_is_in_swap, leave_memory
from hugepage_qa.cases.hugetlb_files import HugeFile
from hugepage_qa.cases.khugepaged_clock import KHUGEPAGED, PATIENT_SCANS, await_khugepaged, await_scans
from hugepage_qa.cases.khugepaged_work import COLLAPSE_SINCE, beyond_limit, expect_beyond_limit, put_to_work
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.lru_batches import drain_lru_batches
from hugepage_qa.cases.madv_collapse import collapse
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.pages_in_memory import base_pages_in_memory
from hugepage_qa.cases.swapped import need_swap, parts_out, swap_to_a_device, swapped
from hugepage_qa.cases.thp_memory import map_aligned, pmd_size, room_for
from hugepage_qa.cases.thp_policy import some_smaller_sizes
from hugepage_qa.cases.thp_shared_memory import expect_mapped_whole, let_only_pmd_inherit, shared_base_pages
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.uapi import (
    MADV_COLLAPSE,
    MADV_HUGEPAGE,
    MADV_NOHUGEPAGE,
    MADV_PAGEOUT,
    MADV_WILLNEED,
    MAP_FIXED,
)
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.oracle.rules import THP_DOC
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor

BROUGHT = Area("swap/brought-from-swap", sizes=Sizes.ONCE)

#: files, of a huge page each, and huge pages of swap: more, as what comes back in parts leaves no whole ones of it
_FILES, _ROOM = 3, 12

#: what memory holds in its first word: the words of Memory.fill()
_VALUE = 1
#: gets a file, what it is mapped in, and the offset of a base page of that; returns what it has and what it got
_Want = Callable[[HugeFile, Memory, int], tuple[object, object]]


def _load(_file: HugeFile, memory: Memory, offset: int) -> tuple[object, object]:
    return _VALUE + offset, memory.actor.read(memory.address + offset)


def _store(_file: HugeFile, memory: Memory, offset: int) -> tuple[object, object]:
    """Store the first word of a base page as it is."""
    memory.actor.write(memory.address + offset, _VALUE + offset)
    return None, None


def _read_file(file: HugeFile, memory: Memory, offset: int) -> tuple[object, object]:
    return file.actor.uapi.pack("Q", _VALUE + offset), file.read(offset % memory.size, WORD)


def _write_file(file: HugeFile, memory: Memory, offset: int) -> tuple[object, object]:
    """Write the first word of a base page as it is."""
    word = file.actor.uapi.pack("Q", _VALUE + offset)
    return WORD, file.actor.call("pwrite64", file.descriptor, word, WORD, offset % memory.size)


def _allocate(file: HugeFile, memory: Memory, offset: int) -> tuple[object, object]:
    return 0, file.actor.call("fallocate", file.descriptor, 0, offset % memory.size, WORD)


def _call(name: str, *arguments: int) -> _Want:
    return lambda _file, memory, offset: (0, memory.actor.call(name, memory.address + offset, WORD, *arguments))


_WAYS: tuple[tuple[str, _Want], ...] = (
    ("load", _load),
    ("store", _store),
    ("pread()", _read_file),
    ("pwrite()", _write_file),
    ("fallocate()", _allocate),
    ("mlock()", _call("mlock")),
    ("MADV_WILLNEED", _call("madvise", MADV_WILLNEED)),
)


@BROUGHT.case(
    "MADV_WILLNEED brings each base page of its range from swap, of shared memory and of private, the first and the"
    " last, too, wherever others of the range are in memory already",
    "madvise(2) MADV_WILLNEED; mm/madvise.c madvise_willneed(), swapin_walk_pmd_entry(), shmem_swapin_range()",
    since="5.4",
)
def each_page_of_a_range(live: Live) -> None:
    size = pmd_size(live)
    need_swap(live, 2 * size)
    live.set_knob_if_there(f"{DIRECTORY}/shmem_enabled", "never")
    # an actor that is in swap itself would bring what lies there beside it when it looks
    live.set_knob("proc/sys/vm/page-cluster", "0")
    group = new_group(live, "memory", Version.TWO)
    actor, last = actor_in(live, group), size // live.base_page - 1
    ranges = ((0, 1), (3, 5), (last - 1, 2), (1, last // 2))
    already = (({3}, (3, 5)), ({5}, (3, 5)), ({6, 7}, (3, 5)), ({0, last // 2, last}, (0, last + 1)))
    for shared in (True, False):
        memory = map_aligned(live, 1, size, shared=shared, actor=actor, advice=MADV_NOHUGEPAGE)
        memory.fill()
        for there, (first, count) in (*product((set[int](),), ranges), *already):
            with live.about(f"shared {shared}, base pages {there or 'none'} in memory"):
                _expect_brought(live, group, memory, there, range(first, first + count))
        memory.expect_filled()
        memory.unmap()


def _expect_brought(live: Live, group: ControlGroup, memory: Memory, there: set[int], wanted: range) -> None:
    """Expect the base pages ``wanted`` to come to memory, where ``there`` are of all that are in swap before."""
    base = live.base_page

    def in_memory() -> set[int]:
        return base_pages_in_memory(live, memory.actor, memory.address, range(memory.length // base))

    def left() -> set[int]:
        memory.advise(MADV_PAGEOUT)
        give_what_is_in_swap(group)
        if found := in_memory():
            # what another CPU has in a batch was passed over
            drain_lru_batches(live, memory.actor)
        return found

    # what is still being written to swap is in memory as long as that takes
    if stays := live.host.last_look(left, lambda found: not found):
        if live.host.has_others:
            raise CannotRun("what was swapped out stays in memory")
        live.fail("base pages that stay in memory", set(), stays)
    for page in there:
        live.expect("what is read", _VALUE + page * base, memory.actor.read(memory.address + page * base))
    memory.actor.call("madvise", memory.address + wanted.start * base, len(wanted) * base, MADV_WILLNEED)
    if missing := live.host.last_look(lambda: set(wanted) - in_memory(), lambda found: not found):
        # each of the others would be waited for as long
        live.fail(f"base pages of {wanted} that are not in memory", set(), missing)


@BROUGHT.case(
    "a huge page of shared memory, of a PMD or smaller, that was swapped to a device as a whole comes back with what it"
    " held, each base page in its place, whichever of them is wanted first and how: read or written by a mapping or by"
    " system calls, allocated, locked, or by MADV_WILLNEED; so does what is beside it",
    "mm/shmem.c shmem_swapin_folio(), shmem_split_large_entry(); madvise(2) MADV_PAGEOUT, MADV_WILLNEED",
    since="5.4",  # MADV_PAGEOUT; as a whole since Linux 6.12
)
def whichever_is_first(live: Live) -> None:
    swap_to_a_device(live, _ROOM * pmd_size(live))
    group = new_group(live, "memory", Version.TWO)
    actor = actor_in(live, group)
    for size in _sizes_in_turn(live):
        places = sorted({0, live.base_page, size // 2 - live.base_page, size // 2, size - live.base_page})
        ways = [*product(_WAYS, places)]
        at_once = _FILES * pmd_size(live) // size
        for first in range(0, len(ways), at_once):
            with live.about(f"pages of {size >> 10} kB"):
                _expect_each(live, actor, group, size, ways[first : first + at_once])


def _expect_each(
    live: Live, actor: Actor, group: ControlGroup, size: int, ways: Sequence[tuple[tuple[str, _Want], int]]
) -> None:
    """Have each huge page of ``size`` bytes come back in one of these ways, and expect all of them as they were."""
    files, memory = _filled_files(live, actor, size)
    leave_memory(live, memory, group)
    for page, ((name, want), place) in enumerate(ways):
        offset = page * size + place
        live.expect(f"what {name} at {place} got", *want(files[offset // memory.size], memory, offset))
        if wrong := memory.wrong(offset, live.base_page):
            # what is in the place of something else may be looked for without end, by who reads all of it
            live.fail(f"words that changed at {place}, which {name} wanted first", 0, wrong)
    memory.expect_filled(_VALUE)
    memory.unmap()
    for file in files:
        file.close()


@BROUGHT.case(
    "max_ptes_swap, and not max_ptes_shared, is how many base pages of shared memory khugepaged brings from swap to"
    " make it huge, wherever they are in it; with one more it leaves all of them there, and counts it, and"
    " MADV_COLLAPSE makes it huge nevertheless; it holds what it held",
    f"{THP_DOC} Khugepaged controls max_ptes_swap, max_ptes_shared, thp_scan_exceed_swap_pte; madvise(2) MADV_COLLAPSE;"
    " mm/khugepaged.c collapse_file(), hpage_collapse_scan_file(), collapse_scan_file()",
    since="5.8",  # max_ptes_shared
)
def as_much_as_khugepaged_may(live: Live) -> None:
    put_to_work(live)
    let_only_pmd_inherit(live)
    need_swap(live, pmd_size(live))
    pages = pmd_size(live) // live.base_page
    for count in (1, pages // 8):
        for places, over in product(_places_of(count, pages), (False, True)):
            # the other limit is wrong for both
            limits = {"swap": count - over, "shared": pages - 1 if over else 0}
            for name, limit in limits.items():
                live.set_knob(f"{KHUGEPAGED}/max_ptes_{name}", str(limit))
            with live.about(f"{count} in swap from {min(places)} on, limits {limits}"):
                _expect_collapse_from_swap(live, places, over)


def _places_of(count: int, pages: int) -> tuple[range, ...]:
    """Return ranges of ``count`` of some base pages: at their start, at their end, and all over them."""
    return range(count), range(pages - count, pages), range(pages // count // 2, pages, pages // count)


def _expect_collapse_from_swap(live: Live, places: range, over: bool) -> None:
    """Have khugepaged find shared memory with base pages at ``places`` in swap, which are ``over`` its limit or not."""
    memory = shared_base_pages(live)
    base = live.base_page
    parts = [(place * base, base) for place in places]
    length = len(places) * base
    if live.host.last_look(partial(_out, live, memory, parts), length.__eq__) != length:
        raise CannotRun("others have a hold of what is to be swapped out, or need memory")
    live.set_knob(f"{DIRECTORY}/shmem_enabled", "advise")
    before = beyond_limit(live, "swap")
    with_blocks(live, memory.size, 1)
    for _time in range(2):
        # by the first advice it may not come to khugepaged's list (mm/shmem.c reads the flags from before)
        memory.advise(MADV_HUGEPAGE)
    present = next(place for place in range(memory.size // base) if place not in places) * base

    def is_huge() -> bool:
        # khugepaged leaves it to the next access to map what it made
        live.expect("a word that was in memory", _VALUE + present, memory.actor.read(memory.address + present))
        return memory.smaps().shmem_pmd_mapped == memory.length

    if over:
        await_scans(live)
        live.expect("ShmemPmdMapped of what has too much in swap", False, is_huge())
        _need_no_more_in_swap(memory, length)
        live.expect("memory in swap", length, swapped(memory))
        expect_beyond_limit(live, "swap", before, "too much is in swap")
        if live.kernel_version >= COLLAPSE_SINCE:
            collapse(live, partial(memory.advise, MADV_COLLAPSE))
    elif not await_khugepaged(live, is_huge, PATIENT_SCANS):
        expect_no_node_short(live, memory.size, 1)
        _need_no_more_in_swap(memory, length)
    if not over or live.kernel_version >= COLLAPSE_SINCE:
        live.expect("whether it is huge", True, is_huge())
        live.expect("memory in swap when it is huge", 0, swapped(memory))
    memory.expect_filled()
    memory.actor.end()


def _need_no_more_in_swap(memory: Memory, length: int) -> None:
    """Raise CannotRun where somebody needs so much memory that more is in swap than the ``length`` put there."""
    if swapped(memory) > length:
        raise CannotRun("more is in swap than was put there: others need memory")


def _out(live: Live, memory: Memory, parts: Sequence[tuple[int, int]]) -> int:
    """Swap ``parts`` of shared memory out, all of which is brought back before, and return the bytes in swap."""
    memory.expect_filled()
    parts_out(live, memory, parts, lambda: swapped(memory) == len(parts) * live.base_page)
    return swapped(memory)


def _sizes_in_turn(live: Live) -> Iterator[int]:
    """Yield the bytes of a PMD-sized page, and of some smaller ones, while shared memory gets pages of that size."""
    let_only_pmd_inherit(live)
    live.set_knob(f"{DIRECTORY}/shmem_enabled", "always")
    yield pmd_size(live)
    live.set_knob(f"{DIRECTORY}/shmem_enabled", "never")
    for size, path in some_smaller_sizes(live):
        if live.host.read(f"{path}/shmem_enabled") is not None:  # since Linux 6.11
            live.set_knob(f"{path}/shmem_enabled", "always")
            yield size
            live.set_knob(f"{path}/shmem_enabled", "never")


def _filled_files(live: Live, actor: Actor, size: int) -> tuple[list[HugeFile], Memory]:
    """Return files that ``actor`` has filled, in pages of ``size`` bytes, and mapped side by side.

    Each has the bytes of a PMD-sized page. Raises CannotRun where memory is too fragmented for such pages.
    """
    length = pmd_size(live)
    memory = Memory(live, actor, room_for(actor, _FILES, length), _FILES, length)
    files = [HugeFile(live, actor, actor.call("memfd_create", "brought", 0)) for _number in range(_FILES)]
    for number, file in enumerate(files):
        actor.call("ftruncate", file.descriptor, length)
        actor.mmap(length, READ_WRITE, mmap.MAP_SHARED | MAP_FIXED, file.descriptor, address=memory.at(number))
    whole = size == length
    with_blocks(live, length, _FILES * whole)
    memory.fill(_VALUE)
    for number in range(_FILES):
        expect_mapped_whole(live, memory.part(number), int(whole), "shmem_enabled=always")
    return files, memory


class ThpBroughtFromSwap(LiveTest):
    def test_brought_from_swap(self) -> None:
        self.run_area(BROUGHT)
