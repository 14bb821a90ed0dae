"""Which memory of a process is in huge pages by its page frames: Documentation/admin-guide/mm/pagemap.rst."""

import os
import struct
from collections.abc import Iterable

from hugepage_qa.actor.process import Actor, Refused
from hugepage_qa.live.live import Live

PAGEMAP = "/proc/self/pagemap"
FLAGS = "/proc/kpageflags"

_WORD = 8
_PRESENT = 1 << 63
_FRAME = (1 << 55) - 1
_HEAD, _TAIL = 1 << 15, 1 << 16


def in_huge_pages(live: Live, actor: Actor, addresses: Iterable[int], size: int) -> int | None:
    """Return how many bytes at the aligned ``addresses`` are in pages of ``size`` bytes, mapped as such or not.

    None where the kernel has no such files (CONFIG_PROC_PAGE_MONITOR).
    """
    try:
        frames, flags = (live.open(actor, path, os.O_RDONLY) for path in (PAGEMAP, FLAGS))
    except Refused:
        return None
    count = size // live.base_page
    return sum(size for address in addresses if _is_huge(actor, frames, flags, address // live.base_page, count))


def _is_huge(actor: Actor, frames: int, flags: int, page: int, count: int) -> bool:
    """Tell whether ``count`` pages from ``page`` on are a compound page: its head, and nothing but tails."""
    present = [entry & _FRAME for entry in _words(actor, frames, page, count) if entry & _PRESENT]
    if not present or present != list(range(present[0], present[0] + count)):
        return False
    head, *tails = _words(actor, flags, present[0], count)
    return bool(head & _HEAD) and all(flag & _TAIL for flag in tails)


def _words(actor: Actor, descriptor: int, first: int, count: int) -> tuple[int, ...]:
    size = count * _WORD
    length, (read,) = actor.call_with_buffers("pread64", descriptor, bytes(size), size, first * _WORD)
    return struct.unpack(f"={length // _WORD}Q", read[:length])
