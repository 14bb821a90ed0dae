"""PAGEMAP_SCAN (Linux 6.7), the ioctl of /proc/PID/pagemap: Documentation/admin-guide/mm/pagemap.rst."""

import mmap
import os
from dataclasses import dataclass
from enum import IntFlag

from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import PAGEMAP, WORD, Memory
from hugepage_qa.cases.userfaultfd import Feature, Mode, Userfault
from hugepage_qa.kernel.uapi import iowr
from hugepage_qa.process.actor_threads import Came

#: struct pm_scan_arg, and where walk_end is in it
_LAYOUT, _WALK_END = "12Q", 4
_SIZE = 12 * WORD
_SCAN = iowr(ord("f"), 16, _SIZE)
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
    ACCESSED = 512


class Do(IntFlag):
    """What is done besides: PM_SCAN_*."""

    WP_MATCHING = 1
    CHECK_WPASYNC = 2


#: what is written from then on is told by the next scan
PROTECT = Do.WP_MATCHING | Do.CHECK_WPASYNC
_NOTHING, _NOTHING_MORE = Is(0), Do(0)
_TRACKED = Feature.WP_ASYNC | Feature.WP_UNPOPULATED | Feature.PAGEFAULT_FLAG_WP | Feature.WP_HUGETLBFS_SHMEM


@dataclass(frozen=True)
class Masks:
    """Which pages a scan tells, and what of them.

    What a page is, with the bits of ``inverted`` the other way round, has all of ``all_of`` and, where there is any of
    it, one of ``any_of``. What it is of ``told`` is told.
    """

    inverted: Is
    all_of: Is
    any_of: Is
    told: Is

    def tell(self, categories: Is) -> bool:
        """Tell whether a page that is ``categories`` is told."""
        seen = categories ^ self.inverted
        return seen & self.all_of == self.all_of and (not self.any_of or bool(seen & self.any_of))


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


def track_writes(memory: Memory) -> Userfault:
    """Have scans tell what is written to ``memory``, of which nothing is protected yet. Raises Refused."""
    return Userfault(memory, Mode.WRITE_PROTECTED, _TRACKED)


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
    masks = Masks(without, need | without, _NOTHING, tell)
    return scan_with(live, memory, masks, start, memory.length, do=do, most=most, regions=regions)


def protect(live: Live, memory: Memory, need: Is) -> None:
    """Write-protect what tracked ``memory`` has that is all of ``need``, and ask to be told nothing. Raises Refused."""
    masks = Masks(_NOTHING, need, _NOTHING, Is.WRITTEN)
    scan_with(live, memory, masks, 0, memory.length, do=PROTECT, regions=0)


def told_as_written(live: Live, memory: Memory, do: Do = _NOTHING_MORE) -> list[Region]:
    """Return what of ``memory`` was written since it was protected. Raises Refused."""
    return scan(live, memory, Is.WRITTEN, Is.WRITTEN, do=do).regions


def scan_with(
    live: Live,
    memory: Memory,
    masks: Masks,
    start: int,
    end: int,
    *,
    do: Do = _NOTHING_MORE,
    most: int = 0,
    regions: int = 64,
) -> Scan:
    """Return what ``memory`` has from ``start`` to ``end``, in bytes from its start, that ``masks`` choose.

    At most so many ``regions``, of at most ``most`` base pages together (0: any number). Raises Refused.
    """
    actor, uapi = memory.actor, memory.actor.uapi
    found, room = _room(live, memory, regions)
    pagemap = live.open(actor, PAGEMAP, os.O_RDONLY)
    words = _words(memory, masks, start, end, do, found, regions, most)
    try:
        count, (answer,) = actor.call_with_buffers("ioctl", pagemap, _SCAN, uapi.pack(_LAYOUT, *words))
        told = [[actor.read(found + (3 * number + word) * WORD) for word in range(3)] for number in range(count)]
        walk_end = uapi.unpack(_LAYOUT, answer)[_WALK_END]
    finally:
        actor.call("close", pagemap)
        if room:
            actor.call("munmap", found, room)
    return Scan(
        [Region(first - memory.address, last - memory.address, Is(categories)) for first, last, categories in told],
        walk_end - memory.address,
    )


def store_around_a_scan(live: Live, memory: Memory, masks: Masks, place: int, *, regions: int = 64) -> Came:
    """Store at ``place`` in tracked ``memory``, protect what ``masks`` choose, and store there again at once.

    Returned is what came of the last store. Raises Refused.
    """
    actor = memory.actor
    found, room = _room(live, memory, regions)
    asked = actor.mmap(live.base_page, READ_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for number, word in enumerate(_words(memory, masks, 0, memory.length, PROTECT, found, regions, 0)):
        actor.write(asked + number * WORD, word)
    pagemap = live.open(actor, PAGEMAP, os.O_RDONLY)
    # the place is to be given as so many bytes behind the first argument of the call, whatever that is
    came = actor.late_store(memory.address + place - pagemap, "ioctl", pagemap, _SCAN, asked)
    actor.call("close", pagemap)
    actor.call("munmap", asked, live.base_page)
    if room:
        actor.call("munmap", found, room)
    return came


def _room(live: Live, memory: Memory, regions: int) -> tuple[int, int]:
    """Return where there is room for ``regions``, and how much: without it a scan is asked to tell none (vec_len)."""
    room = -(-regions * _WORDS_OF_A_REGION * WORD // live.base_page) * live.base_page
    return memory.actor.mmap(room, READ_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) if room else 0, room


def _words(
    memory: Memory, masks: Masks, start: int, end: int, do: Do, found: int, regions: int, most: int
) -> tuple[int, ...]:
    """Return a struct pm_scan_arg."""
    words = _SIZE, do, memory.address + start, memory.address + end, 0, found, regions, most
    return *words, masks.inverted, masks.all_of, masks.any_of, masks.told
