"""Processes that want a huge page at the same moment, again and again: what a kernel counts must not depend on it."""

import mmap

from hugepage_qa.cases.hugetlb_files import HugeFile
from hugepage_qa.cases.live import Live
from hugepage_qa.kernel.uapi import MAP_HUGETLB

#: processes: twice as many as a throwaway machine has processors
RACERS = 4
#: some hundred rounds on a machine that has nothing else to do
_SECONDS = 1.5


def race(live: Live, file: HugeFile | None = None, *, noreserve: bool = False, one_page: bool = False) -> set[int]:
    """Have RACERS processes map a page each at the same moment, write to it at the same moment, and give it back.

    They do so many times; returned is how many of them got a page in a round, of all rounds. Pages are anonymous, or
    those of an empty ``file``: one for each process, or ``one_page`` for all.
    """
    actor = file.actor if file else live.actor()
    flags = mmap.MAP_SHARED if file else mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_HUGETLB | live.size_flag
    flags |= live.host.uapi.map_noreserve if noreserve else 0
    step = 0 if one_page else live.size
    return actor.race(RACERS, _SECONDS, live.size, flags, file.descriptor if file else -1, step)
