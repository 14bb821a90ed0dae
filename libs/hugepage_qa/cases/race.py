"""Processes, and threads, that want something at the same moment, again and again: what a kernel counts and what memory
holds must not depend on who comes first.
"""

import mmap
from collections.abc import Mapping
from functools import reduce
from operator import or_

from hugepage_qa.cases.hugetlb_files import HugeFile
from hugepage_qa.cases.live import Live
from hugepage_qa.kernel.uapi import MAP_HUGETLB
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.process.actor import Came, Deed

#: processes, or threads: twice as many as a throwaway machine has processors
RACERS = 4
#: some hundred rounds on a machine that has nothing else to do
_SECONDS = 1.5


def race(live: Live, file: HugeFile | None = None, *, noreserve: bool = False, one_page: bool = False) -> set[int]:
    """Have RACERS processes map a page each at the same moment, write to it at the same moment, and give it back.

    They do so many times; returned is how many of them got a page in a round, of all rounds. Pages are anonymous, or
    those of an empty ``file``: one for each process, or ``one_page`` for all.
    """
    actor = file.actor if file else live.actor()
    flags = _flags(live, file, shared=file is not None) | (live.host.uapi.map_noreserve if noreserve else 0)
    step = 0 if one_page else live.size
    return actor.race(RACERS, _SECONDS, live.size, flags, file.descriptor if file else -1, step)


def clash(
    live: Live,
    *rivals: Deed,
    may_come: Came = Came.DONE,
    by: Deed = Deed.TOUCH,
    file: HugeFile | None = None,
    shared: bool = False,
    known: Mapping[Quirk, Came] | None = None,
) -> None:
    """Have threads write to one page at the same moment, and one more for each of ``rivals`` do that, again and again.

    Expected is that nothing comes of writing, ``by`` touching the page or a copy, but ``may_come``, and that the rivals
    succeed; who maps more finds no page left. The page is anonymous, or that of an empty ``file``. ``known`` tells what
    comes of writing besides with a known bug. Raises KnownBug.
    """
    deeds = [*rivals, *(by for _thread in range(RACERS - len(rivals)))]
    actor = file.actor if file else live.actor()
    flags = _flags(live, file, shared=shared or file is not None)
    came = actor.clash(deeds, _SECONDS, live.size, flags, file.descriptor if file else -1)
    for rival, found in zip(rivals, came, strict=False):
        live.expect(f"what came of {rival.name}", Came.REFUSED if rival is Deed.MAP_MORE else Came.DONE, found)
    beyond = reduce(or_, came[len(rivals) :]) & ~may_come
    live.expect("what came of writing that may not", Came(0), beyond, known)


def _flags(live: Live, file: HugeFile | None, *, shared: bool) -> int:
    flags = mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE
    return flags if file else flags | mmap.MAP_ANONYMOUS | MAP_HUGETLB | live.size_flag
