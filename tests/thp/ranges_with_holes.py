"""Ranges over huge pages and over what is not mapped: how far advice and protection go, and what is refused."""

import errno
import mmap
import os
import signal
from collections.abc import Callable
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.khugepaged_clock import let_rest
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.cases.thp_policy import huge_pages
from hugepage_qa.kernel.uapi import MADV_DONTDUMP, MADV_NOHUGEPAGE, MAP_FIXED, MS_SYNC
from hugepage_qa.plugins.avocado_test import LiveTest

HOLES = Area("thp/ranges-with-holes", sizes=Sizes.ONCE)

_PAGES = 5
_NEW_VALUE = 77
_NO_SUCH_ADVICE = 999
#: the advice, and the flag of VmFlags in smaps of what has it
_FLAGS = {MADV_DONTDUMP: "dd", MADV_NOHUGEPAGE: "nh"}
_PROT_GROWSDOWN, _PROT_GROWSUP = 0x01000000, 0x02000000
#: no architecture has it
_NO_SUCH_PROT = 0x40000000

Part = tuple[int, int]


@HOLES.case(
    "advice for a range of which parts are not mapped is ENOMEM, and is given to all of it that is mapped, before,"
    " between and behind the holes, to the base page, and to nothing beside it",
    "madvise(2) ENOMEM; mm/madvise.c madvise_walk_vmas()",
)
def advised_around_holes(live: Live) -> None:
    let_rest(live)
    for advice, (start, end) in product((mmap.MADV_DONTNEED, *_FLAGS), _ranges(pmd_size(live), live.base_page)):
        memory, mapped = _with_holes(live)
        parts = [(max(start, first), min(end, last)) for first, last in mapped if first < end and start < last]
        has_hole = sum(last - first for first, last in parts) < end - start
        with live.about(f"advice {advice} from {start} to {end}"):
            act = partial(memory.actor.call, "madvise", memory.address + start, end - start, advice)
            _expect_outcome(live, errno.ENOMEM if has_hole else 0, act)
            if advice in _FLAGS:
                found = _mapped_with(memory, _FLAGS[advice])
                live.expect(f"ranges with {_FLAGS[advice]} of VmFlags", parts, found)
            gone = parts if advice == mmap.MADV_DONTNEED else []
            _expect_held(live, memory, mapped, gone)
        memory.actor.end()


@HOLES.case(
    "who asks with mincore(2) for a range of which parts are not mapped, or has msync(2) or munlock(2) go through it,"
    " gets ENOMEM, wherever they lie, and no error where all of it is mapped; nothing of it changes",
    "mincore(2), msync(2), mlock(2) ENOMEM; mm/mincore.c do_mincore(); mm/msync.c; mm/mlock.c apply_vma_lock_flags()",
)
def asked_around_holes(live: Live) -> None:
    let_rest(live)
    memory, mapped = _with_holes(live)
    actor = memory.actor
    told = actor.mmap(memory.length // live.base_page, READ_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for start, end in _ranges(pmd_size(live), live.base_page):
        has_hole = sum(max(min(end, last) - max(start, first), 0) for first, last in mapped) < end - start
        place = memory.address + start, end - start
        for call, further in (("mincore", (told,)), ("msync", (MS_SYNC,)), ("munlock", ())):
            with live.about(f"{call} from {start} to {end}"):
                _expect_outcome(live, errno.ENOMEM if has_hole else 0, partial(actor.call, call, *place, *further))
    _expect_held(live, memory, mapped, [])


@HOLES.case(
    "advice for a range that begins inside a base page, that goes on behind the end of all addresses, or that is none"
    " is EINVAL and changes nothing; for no bytes it is no error, and a length is rounded up to base pages",
    "madvise(2) EINVAL; mm/madvise.c do_madvise(), madvise_behavior_valid()",
)
def advised_wrongly(live: Live) -> None:
    let_rest(live)
    memory = huge_pages(live, 2)
    base, start, advice = live.base_page, memory.address, mmap.MADV_DONTNEED
    end_of_all = -base
    rows = (
        (errno.EINVAL, (start + 1, base, advice), 0),
        (errno.EINVAL, (start + base - 1, 0, advice), 0),
        (errno.EINVAL, (start, -1, advice), 0),
        (errno.EINVAL, (start, 1 - base, advice), 0),
        (errno.EINVAL, (start, end_of_all, advice), 0),
        (errno.EINVAL, (start, base, _NO_SUCH_ADVICE), 0),
        (errno.EINVAL, (start, 0, _NO_SUCH_ADVICE), 0),
        (errno.EINVAL, (start, base, -1), 0),
        (0, (start, 0, advice), 0),
        (0, (start, 1, advice), 1),
        (0, (start, base + 1, advice), 2),
        (0, (start, 3 * base - 1, advice), 3),
    )
    for number, (error, arguments, pages) in enumerate(rows):
        with live.about(f"row {number}"):
            _expect_outcome(live, error, partial(memory.actor.call, "madvise", *arguments))
            _expect_held(live, memory, [(0, memory.length)], [(0, pages * base)] if pages else [])
            live.expect("AnonHugePages", (1 if pages else 2) * memory.size, _huge(memory))


@HOLES.case(
    "a protection for a range of which parts are not mapped, or may not have it, is refused, ENOMEM or EACCES: what"
    " comes before the first of these has it, to the base page, and nothing behind it",
    "mprotect(2) ENOMEM, EACCES; mm/mprotect.c do_mprotect_pkey()",
)
def protected_up_to_holes(live: Live) -> None:
    let_rest(live)
    for (start, end), is_file in product(_ranges(pmd_size(live), live.base_page), (False, True)):
        memory, mapped = _with_holes(live)
        allowed = READ_WRITE if is_file else mmap.PROT_READ
        if is_file:
            _put_read_only_file(live, memory)
            for first, last in mapped:
                memory.actor.call("mprotect", memory.address + first, last - first, mmap.PROT_READ)
        parts = [(start, min(end, last)) for first, last in mapped if first <= start < last]
        refusal = errno.EACCES if is_file else errno.ENOMEM
        has_all = parts == [(start, end)]
        with live.about(f"from {start} to {end}, {'a file' if is_file else 'nothing'} in between"):
            act = partial(memory.actor.call, "mprotect", memory.address + start, end - start, allowed)
            _expect_outcome(live, 0 if has_all else refusal, act)
            found = _mapped_with(memory, "wr", is_file)
            live.expect("ranges that have it", parts, found)
            _expect_held(live, memory, mapped, [])
            for part in parts:
                for place in (part[0], part[1] - WORD):
                    _expect_written(live, memory, place, is_file)
                if any(first <= part[1] < last for first, last in mapped):
                    _expect_written(live, memory, part[1], not is_file)
        memory.actor.end()


@HOLES.case(
    "a protection that is none, that is to grow in both directions, or where memory does not grow, or for a range that"
    " begins inside a base page is EINVAL, one for a range behind the end of all addresses ENOMEM, and changes nothing;"
    " for no bytes it is no error",
    "mprotect(2) EINVAL; mm/mprotect.c do_mprotect_pkey()",
)
def protected_wrongly(live: Live) -> None:
    let_rest(live)
    memory = huge_pages(live, 2)
    base, start, end = live.base_page, memory.address, memory.at(2)
    for number, (error, arguments) in enumerate(
        (
            (errno.EINVAL, (start + 1, base, mmap.PROT_READ)),
            (errno.EINVAL, (end - 1, 0, mmap.PROT_READ)),
            (errno.EINVAL, (start, base, mmap.PROT_READ | _NO_SUCH_PROT)),
            (errno.EINVAL, (start, base, mmap.PROT_READ | _PROT_GROWSDOWN | _PROT_GROWSUP)),
            (errno.EINVAL, (start, base, mmap.PROT_READ | _PROT_GROWSDOWN)),
            (errno.EINVAL, (end - base, base, mmap.PROT_READ | _PROT_GROWSUP)),
            (errno.ENOMEM, (start, -1, mmap.PROT_READ)),
            (errno.ENOMEM, (start, -start, mmap.PROT_READ)),
            (0, (start, 0, mmap.PROT_READ)),
        )
    ):
        with live.about(f"row {number}"):
            _expect_outcome(live, error, partial(memory.actor.call, "mprotect", *arguments))
            memory.expect_huge()
    memory.expect_filled()
    memory.fill(_NEW_VALUE)
    memory.expect_filled(_NEW_VALUE)


def _with_holes(live: Live) -> tuple[Memory, list[Part]]:
    """Return filled huge pages of which the second and the fourth are unmapped, and what is mapped of them."""
    memory = huge_pages(live, _PAGES)
    for page in range(1, _PAGES, 2):
        memory.unmap(page, 1)
    return memory, [(page * memory.size, (page + 1) * memory.size) for page in range(0, _PAGES, 2)]


def _ranges(size: int, base: int) -> list[Part]:
    """Return where ranges start and end: over all, within a part, from or into a hole, over one, and in one."""
    half = size // 2
    return [
        (0, _PAGES * size),
        (base, _PAGES * size - base),
        (half, 2 * size + half),
        (size - base, 2 * size + base),
        (size, 2 * size + base),
        (size + half, 5 * size),
        (half, size + base),
        (0, 2 * size),
        (size, 2 * size),
        (2 * size, 3 * size),
        (2 * size + base, 3 * size - base),
    ]


def _put_read_only_file(live: Live, memory: Memory) -> None:
    """Map a file that was opened to be read alone, shared, where ``memory`` is not mapped."""
    actor = memory.actor
    writable = actor.call("memfd_create", "hugepage-qa", 0)
    actor.call("ftruncate", writable, memory.size)
    file = live.open(actor, f"/proc/self/fd/{writable}", os.O_RDONLY)
    for page in range(1, _PAGES, 2):
        actor.mmap(memory.size, mmap.PROT_READ, mmap.MAP_SHARED | MAP_FIXED, file, address=memory.at(page))


def _expect_outcome(live: Live, error: int, act: Callable[[], int]) -> None:
    if error:
        live.expect_errno(error, act)
    else:
        live.expect_success(act)


def _mapped_with(memory: Memory, flag: str, has_it: bool = True) -> list[Part]:
    """Return the ranges of private ``memory`` that are mapped with a flag of VmFlags, or without it, joined."""
    found: list[Part] = []
    for mapping in memory.all_mappings():
        if mapping.is_shared or (flag in mapping.flags) != has_it:
            continue
        start, end = max(mapping.start - memory.address, 0), min(mapping.end - memory.address, memory.length)
        if found and found[-1][1] == start:
            start = found.pop()[0]
        found.append((start, end))
    return found


def _huge(memory: Memory) -> int:
    return sum(mapping.anon_huge_pages for mapping in memory.all_mappings())


def _expect_held(live: Live, memory: Memory, mapped: list[Part], gone: list[Part]) -> None:
    """Expect what is ``mapped`` to be as it was filled, and zero where it has ``gone``."""
    wrong = kept = 0
    for first, last in mapped:
        at = first
        inside = [(max(first, start), min(last, end)) for start, end in gone if start < last and first < end]
        for start, end in [*inside, (last, last)]:
            wrong += memory.wrong(at, start - at)
            kept += memory.nonzero(start, end - start)
            at = end
    live.expect("words that changed", 0, wrong)
    live.expect("words that were given back and are not zero", 0, kept)


def _expect_written(live: Live, memory: Memory, offset: int, may: bool) -> None:
    """Expect that a word may be written, which holds what it held then, or not."""
    write = partial(memory.actor.write, memory.address + offset, 1 + offset)
    if may:
        write()
    else:
        live.expect_signal(signal.SIGSEGV, write)


class ThpRangesWithHoles(LiveTest):
    def test_ranges_with_holes(self) -> None:
        self.run_area(HOLES)
