"""Frames in /proc/kpageflags, kpagecount and kpagecgroup, as Documentation/admin-guide/mm/pagemap.rst has them.

The flags tell which pages are heads and tails, and so how large folios are; the count, how often a page is mapped; the
group, who is charged for it.
"""

import os
from collections.abc import Iterable, Iterator, Sequence

from hugepage_qa.cases.free_ranges import FLAGS
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import FRAME, PRESENT, Memory, read_entries
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.process.actor import Actor, Refused

# include/uapi/linux/kernel-page-flags.h
LOCKED, UPTODATE, DIRTY, LRU, UNEVICTABLE, MLOCKED = 1 << 0, 1 << 3, 1 << 4, 1 << 5, 1 << 18, 1 << 33
REFERENCED, ACTIVE, WRITEBACK, SWAP_CACHE = 1 << 2, 1 << 6, 1 << 8, 1 << 13
MAPPED, ANONYMOUS, SWAP_BACKED, ZERO, IDLE = 1 << 11, 1 << 12, 1 << 14, 1 << 24, 1 << 25
COMPOUND_HEAD, COMPOUND_TAIL, HUGE, TRANSPARENT = 1 << 15, 1 << 16, 1 << 17, 1 << 22
#: what the actor reads at once
_AT_ONCE = 2048
#: frames whose flags are a page of the file together
_NEIGHBOURS = 512


def kpageflags(live: Live, actor: Actor, frames: Iterable[int]) -> list[int]:
    """Return what /proc/kpageflags shows of ``frames``. Raises CannotRun for a kernel without the file."""
    return _of_frames(live, actor, FLAGS, frames)


def flags_of_folios(live: Live, actor: Actor, frames: Iterable[int]) -> list[int]:
    """Return what /proc/kpageflags shows of the heads of the folios that have ``frames``. Raises CannotRun."""
    descriptor, found = _open(live, actor, FLAGS), list[int]()
    for frame in frames:
        # frame 0 is no tail
        found.append(next(flags for flags in _flags_back_from(actor, descriptor, frame) if not flags & COMPOUND_TAIL))
    actor.call("close", descriptor)
    return found


def unwritten_places(live: Live, memory: Memory, offsets: Sequence[int]) -> list[int]:
    """Return those ``offsets`` into ``memory`` at which a folio is dirty or being written back. Raises CannotRun."""
    entries = memory.pagemap(memory.address + offset for offset in offsets)
    there = [(offset, entry & FRAME) for offset, entry in zip(offsets, entries, strict=True) if entry & PRESENT]
    flags = flags_of_folios(live, memory.actor, [frame for _offset, frame in there])
    return [offset for (offset, _frame), found in zip(there, flags, strict=True) if found & (DIRTY | WRITEBACK)]


def _flags_back_from(actor: Actor, descriptor: int, frame: int) -> Iterator[int]:
    """Yield the flags of ``frame``, and of each one before it."""
    for group in range(frame // _NEIGHBOURS, -1, -1):
        entries = read_entries(actor, descriptor, group * _NEIGHBOURS, _NEIGHBOURS)
        yield from reversed(entries[: frame - group * _NEIGHBOURS + 1])


def kpagecgroup(live: Live, actor: Actor, frames: Iterable[int]) -> list[int]:
    """Return the number of the inode of the group of ``frames``, as /proc/kpagecgroup shows it. Raises CannotRun."""
    return _of_frames(live, actor, "/proc/kpagecgroup", frames)


def kpagecount(live: Live, actor: Actor, frames: Iterable[int]) -> list[int]:
    """Return in how many places ``frames`` are mapped, as /proc/kpagecount shows it. Raises CannotRun without it."""
    return _of_frames(live, actor, "/proc/kpagecount", frames)


def flags_from(live: Live, actor: Actor, first: int, count: int) -> list[int]:
    """Return what /proc/kpageflags shows of ``count`` frames from ``first`` on. Raises CannotRun without the file."""
    descriptor = _open(live, actor, FLAGS)
    found = list[int]()
    while len(found) < count:
        found += read_entries(actor, descriptor, first + len(found), min(_AT_ONCE, count - len(found)))
    actor.call("close", descriptor)
    return found


def largest_folio(live: Live, actor: Actor, frames: Sequence[int]) -> int:
    """Return of how many base pages the largest folio is that has any of ``frames``, which lie as their file has them.

    A head begins a folio, and each tail goes on with it. Raises CannotRun for a kernel without /proc/kpageflags.
    """
    groups = _neighbours(live, actor, frames)
    largest = pages = 0
    for frame in frames:
        pages = pages + 1 if groups[frame // _NEIGHBOURS][frame % _NEIGHBOURS] & COMPOUND_TAIL else 1
        largest = max(largest, pages)
    return largest


def zeroes_among(live: Live, actor: Actor, frames: Iterable[int]) -> set[int]:
    """Return which of ``frames`` are pages of zeroes, huge or not. Raises CannotRun as above."""
    return _with_flag(live, actor, frames, ZERO)


def tails_among(live: Live, actor: Actor, frames: Iterable[int]) -> set[int]:
    """Return which of ``frames`` go on with a folio that began before them. Raises CannotRun as above."""
    return _with_flag(live, actor, frames, COMPOUND_TAIL)


def never_freed(live: Live, actor: Actor, frames: Iterable[int]) -> set[int]:
    """Return which of ``frames`` are private memory that nobody has mapped, and not in swap either: nobody frees it.

    Raises CannotRun as above.
    """
    wanted, shown = set(frames), ANONYMOUS | LRU | MAPPED | SWAP_CACHE
    groups = _neighbours(live, actor, wanted)
    return {frame for frame in wanted if groups[frame // _NEIGHBOURS][frame % _NEIGHBOURS] & shown == ANONYMOUS | LRU}


def _with_flag(live: Live, actor: Actor, frames: Iterable[int], flag: int) -> set[int]:
    wanted = set(frames)
    groups = _neighbours(live, actor, wanted)
    return {frame for frame in wanted if groups[frame // _NEIGHBOURS][frame % _NEIGHBOURS] & flag}


def _neighbours(live: Live, actor: Actor, frames: Iterable[int]) -> dict[int, tuple[int, ...]]:
    """Return the flags of ``frames`` and of those beside them: read one by one they would be a thousand requests."""
    descriptor = _open(live, actor, FLAGS)
    groups = {
        group: read_entries(actor, descriptor, group * _NEIGHBOURS, _NEIGHBOURS)
        for group in sorted({frame // _NEIGHBOURS for frame in frames})
    }
    actor.call("close", descriptor)
    return groups


def _of_frames(live: Live, actor: Actor, file: str, frames: Iterable[int]) -> list[int]:
    descriptor = _open(live, actor, file)
    found = [read_entries(actor, descriptor, frame, 1)[0] for frame in frames]
    actor.call("close", descriptor)
    return found


def _open(live: Live, actor: Actor, file: str) -> int:
    try:
        return live.open(actor, file, os.O_RDONLY)
    except Refused as error:
        raise CannotRun(f"{file} cannot be opened: {error.strerror}") from error
