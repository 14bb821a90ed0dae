"""Ranges of memory that are free as a whole: of such a one the kernel can make a gigantic page."""

import os
from collections.abc import Iterator

from hugepage_qa.cases.mapped_memory import read_entries
from hugepage_qa.kernel.memory_layout import Zone, read_zones
from hugepage_qa.kernel.uapi import AT_FDCWD
from hugepage_qa.machine.host import Host
from hugepage_qa.process.actor import Actor, Refused

FLAGS = "/proc/kpageflags"
#: include/uapi/linux/kernel-page-flags.h: each base page of a free block has it
BUDDY = 1 << 10
#: what the actor reads at once
_AT_ONCE = 2048
#: where gigantic pages do not come from: memory for what can be moved, and that of devices
_OTHER_ZONES = ("Movable", "Device")


def has_free_range(host: Host, size: int, node: int | None) -> bool:
    """Tell whether ``size`` bytes at a multiple of it are free on ``node``, or on any (alloc_contig_pages()).

    Memory of CMA is not looked at: who has an area takes pages out of it (mm/page_isolation.c has_unmovable_pages()).
    Nor is what the spans of two zones have in common, as where nodes interleave: no file tells whose it is.
    A kernel without /proc/kpageflags has no range that is known to be free.
    """
    actor = host.start_actor()
    try:
        flags = actor.call("openat", AT_FDCWD, FLAGS, os.O_RDONLY, 0)
        zones = read_zones(host)
        pages = size // host.base_page
        return any(
            _is_free(actor, flags, start, pages)
            for zone in zones
            if node is None or zone.node == node
            for start in _starts(zone, pages)
            if not any(_reaches(other, start, pages) for other in zones if other is not zone)
        )
    except Refused:
        return False
    finally:
        actor.end()


def _starts(zone: Zone, pages: int) -> Iterator[int]:
    """Yield the first frames of the ranges of ``pages`` that lie in ``zone``."""
    if zone.start_pfn is None or zone.cma or zone.name in _OTHER_ZONES:
        return
    first = -(-zone.start_pfn // pages) * pages
    yield from range(first, zone.start_pfn + zone.spanned - pages + 1, pages)


def _reaches(zone: Zone, start: int, pages: int) -> bool:
    """Tell whether any of ``pages`` from ``start`` on is in the span of ``zone``."""
    first = zone.start_pfn
    return first is not None and zone.spanned > 0 and first < start + pages and start < first + zone.spanned


def _is_free(actor: Actor, flags: int, start: int, pages: int) -> bool:
    return all(
        entry & BUDDY
        for first in range(start, start + pages, _AT_ONCE)
        for entry in (read_entries(actor, flags, first, _AT_ONCE) or (0,))
    )
