"""How many pages of a range of a file the page cache has, and in which state (cachestat(2))."""

import errno
from typing import NamedTuple

from hugepage_qa.cases.live import Live
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.process.actor import Actor, Refused

CACHESTAT = "mm/filemap.c filemap_cachestat()"
CACHESTAT_SINCE = "6.5"
#: struct cachestat_range, struct cachestat (include/uapi/linux/mman.h)
_RANGE, _COUNTS, _COUNTS_SIZE = "2Q", "5Q", 40


class CachedPages(NamedTuple):
    """Pages in the cache, those of them that are dirty or under writeback, and such as are there no more."""

    cached: int
    dirty: int
    written: int
    evicted: int
    recently_evicted: int


def cached_pages(
    live: Live, actor: Actor, descriptor: int, start: int = 0, length: int = 0, *, flags: int = 0
) -> CachedPages:
    """Return what cachestat(2) counts in ``length`` bytes of an open file, or in all from ``start`` on.

    Raises Refused, and CannotRun on a kernel without it.
    """
    span = live.host.uapi.pack(_RANGE, start, length)
    try:
        found = actor.call_with_buffers("cachestat", descriptor, span, bytes(_COUNTS_SIZE), flags)[1][-1]
    except Refused as refusal:
        if refusal.errno == errno.ENOSYS:
            raise CannotRun("this kernel has no CONFIG_CACHESTAT_SYSCALL") from refusal
        raise
    return CachedPages(*live.host.uapi.unpack(_COUNTS, found))
