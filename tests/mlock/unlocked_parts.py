"""Huge pages, of a PMD and smaller, that are locked as a whole and unlocked part by part."""

import mmap
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.changed_counters import expect_change
from hugepage_qa.cases.fragmentation import expect_no_shortage, with_blocks
from hugepage_qa.cases.frames import COMPOUND_TAIL, MLOCKED, UNEVICTABLE, kpageflags
from hugepage_qa.cases.khugepaged_clock import let_rest
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.locked_bytes import expect_locked
from hugepage_qa.cases.lru_batches import drain_lru_batches
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.thp_memory import map_aligned, pmd_size, room_for
from hugepage_qa.cases.thp_policy import set_policy, some_smaller_sizes
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.tree import size_name
from hugepage_qa.kernel.uapi import MADV_DONTNEED, MADV_DONTNEED_LOCKED, MREMAP_FIXED, MREMAP_MAYMOVE
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.sizes import MIB

UNLOCKED_PARTS = Area("mlock/unlocked-parts", sizes=Sizes.ONCE)

_DOC = "Documentation/mm/unevictable-lru.rst munlock()/munlockall() System Call Handling"

#: bytes of huge pages that are locked at once, or one page
_AT_ONCE = 32 * MIB

#: what unlocks all of a huge page, and what it is called
_Way = tuple[str, Callable[[Memory], None]]


@UNLOCKED_PARTS.case(
    "a huge page, of a PMD or smaller, that was locked as a whole and is unlocked part by part, in whichever order, by"
    " munlock(), munlockall(), munmap(), MADV_DONTNEED_LOCKED or where mremap() has put it, is neither locked nor"
    " unevictable when the last part is, and Mlocked, Unevictable and VmLck count none of it",
    f"{_DOC}; mm/mlock.c allow_mlock_munlock(), munlock_folio(); mm/internal.h munlock_vma_folio()",
    since="6.8",
)
def unlocked_in_parts(live: Live) -> None:
    let_rest(live)
    for size in _each_size(live):
        ways = [*_by_one_call(live, size), *_by_several(size)]
        at_once = max(1, _AT_ONCE // size)
        for first in range(0, len(ways), at_once):
            with live.about(f"pages of {size >> 10} kB"):
                _expect_unlocked(live, size, ways[first : first + at_once])


@UNLOCKED_PARTS.case(
    "of a huge page of which a base page was given back, the first one, the last one or one between them, nothing is"
    " locked when what is there of its memory is (MLOCK_ONFAULT), and neither Mlocked nor Unevictable counts any of it:"
    " it can be split, and what was given back can be had",
    f"{_DOC}; mlock2(2) MLOCK_ONFAULT; mm/mlock.c allow_mlock_munlock()",
    since="6.8",
)
def with_a_hole(live: Live) -> None:
    let_rest(live)
    for size in _each_size(live):
        pages = size // live.base_page
        for hole in sorted({0, pages // 2, pages - 1}):
            with live.about(f"pages of {size >> 10} kB without base page {hole}"):
                _expect_none_locked(live, size, hole)


def _expect_none_locked(live: Live, size: int, hole: int) -> None:
    def prepare() -> Memory:
        memory = _huge_memory(live, size, 1)
        memory.actor.call("madvise", memory.address + hole * live.base_page, live.base_page, MADV_DONTNEED)
        return memory

    memory = expect_change(live, {"Mlocked": 0, "Unevictable": 0}, prepare, Memory.lock_on_fault)
    found = [flags & (MLOCKED | UNEVICTABLE) for flags in kpageflags(live, memory.actor, memory.present_frames(1))]
    live.expect("MLOCKED and UNEVICTABLE of what is left", [0] * (size // live.base_page - 1), found)
    memory.actor.end()


def _expect_unlocked(live: Live, size: int, ways: Sequence[_Way]) -> None:
    """Expect huge pages that are unlocked, each in one of these ways, to be so, and to be counted no more."""
    length = len(ways) * size

    def unlock_each(memory: Memory) -> None:
        for page, (_what, unlock) in enumerate(ways):
            unlock(memory.part(page))

    fall = {"Mlocked": -length, "Unevictable": -length}
    memory = expect_change(live, fall, partial(_locked_whole, live, size, len(ways)), unlock_each)
    expect_locked(live, memory.actor, 0)
    for page, (what, _unlock) in enumerate(ways):
        left = [flags & (MLOCKED | UNEVICTABLE) for flags in _some_flags(live, memory.part(page))]
        live.expect(f"MLOCKED and UNEVICTABLE of base pages after {what}", [0] * len(left), left)
    memory.actor.end()


def _each_size(live: Live) -> Iterator[int]:
    """Have all new memory in huge pages of one size after the other, and yield it."""
    set_policy(live, "never", pmd="never")
    largest = pmd_size(live)
    # base pages that others have unlocked are counted until their CPU is asked
    drain_lru_batches(live)
    for size, path in (*some_smaller_sizes(live), (largest, f"{DIRECTORY}/{size_name(largest)}")):
        live.set_knob(f"{path}/enabled", "always")
        yield size
        live.set_knob(f"{path}/enabled", "never")


def _locked_whole(live: Live, size: int, pages: int) -> Memory:
    """Return filled memory of huge pages that are locked. Raises CannotRun where memory is too fragmented for them.

    They are not to be moved then: one that was is locked again when somebody wants to reclaim it (mm/rmap.c).
    """
    memory = _huge_memory(live, size, pages)
    memory.actor.call("mlock", memory.address, memory.length)
    return memory


def _huge_memory(live: Live, size: int, pages: int) -> Memory:
    """Return filled memory of huge pages. Raises CannotRun where memory is too fragmented for them."""
    with_blocks(live, size, pages)
    memory = map_aligned(live, pages, size)
    memory.fill()
    for page in range(pages):
        tails = [bool(flags & COMPOUND_TAIL) for flags in _some_flags(live, memory.part(page))]
        expected = [False, True, True, True]
        if tails != expected:
            expect_no_shortage(live, size, pages)
        live.expect(f"whether base pages of huge page {page} are tails", expected, tails)
    return memory


def _some_flags(live: Live, page: Memory) -> list[int]:
    """Return what kpageflags shows of the first and second, the middle and last base page of what is there."""
    frames = page.present_frames(1)
    count = len(frames)
    return kpageflags(live, page.actor, [frames[at] for at in (0, 1, count // 2, count - 1)] if count > 1 else frames)


def _by_one_call(live: Live, size: int) -> Iterator[_Way]:
    """Yield ways to unlock each part by the same system call."""
    base, half, quarter = live.base_page, size // 2, size // 4
    for name in ("munlock", "munmap"):
        for starts in (
            (0, half),
            (half, 0),
            (quarter, 3 * quarter, 0, half),
            (0, base),
            (size - base, 0),
        ):
            yield f"{name} from {', '.join(map(str, starts))} on", partial(_unlock_parts, name, starts)


def _unlock_parts(name: str, starts: tuple[int, ...], memory: Memory) -> None:
    """Make the system call ``name`` for what begins at each of ``starts``, up to the next one."""
    ends = dict(pairwise((*sorted(starts), memory.size)))
    for start in starts:
        memory.actor.call(name, memory.address + start, ends[start] - start)


def _by_several(size: int) -> Iterator[_Way]:
    """Yield ways to unlock parts by different system calls."""
    half, quarter = size // 2, size // 4

    def all_at_last(memory: Memory) -> None:
        memory.actor.call("munlock", memory.address, half)
        memory.actor.call("munlockall")

    def unmapped_at_last(memory: Memory) -> None:
        memory.actor.call("munlock", memory.address + quarter, half)
        memory.unmap()

    def protected(memory: Memory) -> None:
        memory.actor.call("mprotect", memory.address + half, half, mmap.PROT_READ)
        memory.actor.call("munlock", memory.address, size)

    def given_back(memory: Memory) -> None:
        memory.actor.call("madvise", memory.address + half, half, MADV_DONTNEED_LOCKED)
        memory.actor.call("munlock", memory.address, size)

    def moved_apart(memory: Memory) -> None:
        place = room_for(memory.actor, 1, size)
        memory.actor.call("mremap", memory.address, half, half, MREMAP_MAYMOVE | MREMAP_FIXED, place)
        memory.actor.call("munlock", memory.address + half, half)
        memory.actor.call("munlock", place, half)

    yield "munlock of its midst, and munmap", unmapped_at_last
    yield "munlock when a half is read only", protected
    yield "munlock when a half was given back", given_back
    yield "munlock of halves that mremap has moved apart", moved_apart
    # nothing else is left then
    yield "munlock of a half, and munlockall", all_at_last


class ThpUnlockedParts(LiveTest):
    def test_unlocked_parts(self) -> None:
        self.run_area(UNLOCKED_PARTS)
