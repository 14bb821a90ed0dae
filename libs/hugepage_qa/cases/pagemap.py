"""Pages as Documentation/admin-guide/mm/pagemap.rst has it: /proc/kpageflags, and the ioctl PAGEMAP_SCAN (Linux 6.7).

The flags tell which pages are heads and tails, and so how large folios are.
"""

import mmap
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntFlag
from itertools import groupby

from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import PAGEMAP, WORD, Memory, read_entries
from hugepage_qa.kernel.uapi import iowr
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.process.actor import Actor, Refused

# include/uapi/linux/kernel-page-flags.h
COMPOUND_HEAD, COMPOUND_TAIL, HUGE, TRANSPARENT = 1 << 15, 1 << 16, 1 << 17, 1 << 22
#: what the actor reads at once
_AT_ONCE = 2048


def kpageflags(live: Live, actor: Actor, frames: Iterable[int]) -> list[int]:
    """Return what /proc/kpageflags shows of ``frames``. Raises CannotRun for a kernel without the file."""
    descriptor = _open(live, actor)
    found = [read_entries(actor, descriptor, frame, 1)[0] for frame in frames]
    actor.call("close", descriptor)
    return found


def flags_from(live: Live, actor: Actor, first: int, count: int) -> list[int]:
    """Return what /proc/kpageflags shows of ``count`` frames from ``first`` on. Raises CannotRun without the file."""
    descriptor = _open(live, actor)
    found = list[int]()
    while len(found) < count:
        found += read_entries(actor, descriptor, first + len(found), min(_AT_ONCE, count - len(found)))
    actor.call("close", descriptor)
    return found


def largest_folio(live: Live, actor: Actor, frames: Sequence[int]) -> int:
    """Return of how many base pages the largest folio is that has any of ``frames``, which lie as their file has them.

    A head begins a folio, and each tail goes on with it. Raises CannotRun for a kernel without /proc/kpageflags.
    """
    largest = pages = 0
    for first, count in _runs(frames):
        for flags in flags_from(live, actor, first, count):
            pages = pages + 1 if flags & COMPOUND_TAIL else 1
            largest = max(largest, pages)
    return largest


def _runs(frames: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first of frames that follow each other, and how many they are."""
    for _key, run in groupby(enumerate(frames), lambda placed: placed[1] - placed[0]):
        found = [frame for _place, frame in run]
        yield found[0], len(found)


def _open(live: Live, actor: Actor) -> int:
    try:
        return live.open(actor, "/proc/kpageflags", os.O_RDONLY)
    except Refused as error:
        raise CannotRun(f"/proc/kpageflags cannot be opened: {error.strerror}") from error


#: struct pm_scan_arg, and where walk_end is in it
_LAYOUT, _WALK_END = "12Q", 4
_WORDS_OF_A_REGION = 3


class Is(IntFlag):
    """What pages are: PAGE_IS_*."""

    WPALLOWED = 1
    WRITTEN = 2
    FILE = 4
    PRESENT = 8
    SWAPPED = 16
    PFNZERO = 32
    HUGE = 64


class Do(IntFlag):
    """What is done besides: PM_SCAN_*."""

    WP_MATCHING = 1
    CHECK_WPASYNC = 2


_NOTHING, _NOTHING_MORE = Is(0), Do(0)


@dataclass(frozen=True)
class Region:
    """Adjacent pages of which the same is told; ``start`` and ``end`` in bytes from the start of the memory."""

    start: int
    end: int
    categories: Is


@dataclass(frozen=True)
class Scan:
    """What one call told: ``end`` is where it ended, in bytes from the start of the memory."""

    regions: list[Region]
    end: int


def scan(
    live: Live,
    memory: Memory,
    need: Is,
    tell: Is,
    *,
    do: Do = _NOTHING_MORE,
    without: Is = _NOTHING,
    most: int = 0,
    start: int = 0,
    regions: int = 64,
) -> Scan:
    """Return what ``memory`` has that is all of ``need`` and nothing of ``without``, and what it is of ``tell``.

    At most so many ``regions``, of at most ``most`` base pages together (0: any number), from ``start`` bytes on.
    Raises Refused.
    """
    actor, uapi = memory.actor, memory.actor.uapi
    length = -(-regions * _WORDS_OF_A_REGION * WORD // live.base_page) * live.base_page
    found = actor.mmap(length, READ_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    pagemap = live.open(actor, PAGEMAP, os.O_RDONLY)
    size = len(uapi.pack(_LAYOUT, *range(12)))
    words = size, do, memory.address + start, memory.address + memory.length, 0, found, regions, most
    argument = uapi.pack(_LAYOUT, *words, without, need | without, 0, tell)
    try:
        count, (answer,) = actor.call_with_buffers("ioctl", pagemap, iowr(ord("f"), 16, size), argument)
        told = [[actor.read(found + (3 * number + word) * WORD) for word in range(3)] for number in range(count)]
        walk_end = uapi.unpack(_LAYOUT, answer)[_WALK_END]
    finally:
        actor.call("close", pagemap)
        actor.call("munmap", found, length)
    return Scan(
        [Region(first - memory.address, last - memory.address, Is(categories)) for first, last, categories in told],
        walk_end - memory.address,
    )
