"""Advice that a mapping keeps: what VmFlags of smaps tell of it, whatever was advised before, and of what it is given.

A model of flags: what each advice sets, and what it takes away.
"""

import errno
import mmap
from collections.abc import Callable, Mapping
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.khugepaged_clock import let_nobody_else_act
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.thp_memory import mapped_huge, room_for
from hugepage_qa.cases.thp_policy import huge_pages
from hugepage_qa.cases.thp_shared_memory import shared_huge_pages
from hugepage_qa.kernel.ksm import has_ksm
from hugepage_qa.kernel.uapi import (
    MADV_DODUMP,
    MADV_DONTDUMP,
    MADV_HUGEPAGE,
    MADV_KEEPONFORK,
    MADV_MERGEABLE,
    MADV_NOHUGEPAGE,
    MADV_NORMAL,
    MADV_SEQUENTIAL,
    MADV_UNMERGEABLE,
    MADV_WIPEONFORK,
)
from hugepage_qa.plugins.avocado_test import LiveTest

KEPT = Area("memory/kept-advice")

SOURCE = (
    "madvise(2); Documentation/filesystems/proc.rst VmFlags; mm/madvise.c madvise_vma_behavior();"
    " mm/khugepaged.c hugepage_madvise()"
)
_PAGES = 3
_VALUE = 5

#: what is advised -> the flag that it sets, if any, and those that it takes away
_Flags = Mapping[int, tuple[str | None, frozenset[str]]]
_OF_ALL: _Flags = {
    MADV_NORMAL: (None, frozenset({"rr", "sr"})),
    mmap.MADV_RANDOM: ("rr", frozenset({"sr"})),
    MADV_SEQUENTIAL: ("sr", frozenset({"rr"})),
    MADV_DONTDUMP: ("dd", frozenset()),
    MADV_DODUMP: (None, frozenset({"dd"})),
}
_OF_TRANSPARENT: _Flags = {
    MADV_HUGEPAGE: ("hg", frozenset({"nh"})),
    MADV_NOHUGEPAGE: ("nh", frozenset({"hg"})),
    mmap.MADV_DONTFORK: ("dc", frozenset()),
    mmap.MADV_DOFORK: (None, frozenset({"dc"})),
}
_OF_PRIVATE: _Flags = {
    MADV_WIPEONFORK: ("wf", frozenset()),
    MADV_KEEPONFORK: (None, frozenset({"wf"})),
}
_OF_MERGED: _Flags = {
    MADV_MERGEABLE: ("mg", frozenset()),
    MADV_UNMERGEABLE: (None, frozenset({"mg"})),
}
_EVERY = frozenset({"rr", "sr", "dc", "dd", "hg", "nh", "wf", "mg"})


@KEPT.case(
    "each piece of advice on transparent huge pages sets its flag in VmFlags and takes away that of the one that it"
    " ends, and no other, whatever was advised before, in the range that it is given for alone; a child has the same,"
    " and so they have where they are moved to; they stay huge, and hold what they held",
    SOURCE,
    sizes=Sizes.ONCE,
)
def transparent_memory(live: Live) -> None:
    let_nobody_else_act(live)
    of_private = {**_OF_TRANSPARENT, **_OF_PRIVATE, **(_OF_MERGED if has_ksm(live.host) else {})}
    kinds: tuple[tuple[Callable[[Live, int], Memory], _Flags], ...] = (
        (huge_pages, {**_OF_ALL, **of_private}),
        (shared_huge_pages, {**_OF_ALL, **_OF_TRANSPARENT}),
    )
    for make, advices in kinds:
        with live.about(make.__name__):
            memory = make(live, _PAGES)
            if make is shared_huge_pages:
                live.expect_errno(errno.EINVAL, memory.advise, MADV_WIPEONFORK)
            kept = _expect_kept(live, memory, advices)
            moved = memory.moved_to(room_for(memory.actor, _PAGES, memory.size))
            live.expect("VmFlags where it was moved to", kept, _flags(moved))
            live.expect("huge pages", moved.length, mapped_huge(moved))
            moved.expect_filled()
            memory.actor.end()


@KEPT.case(
    "each piece of advice on pages of a pool sets its flag in VmFlags and takes away that of the one that it ends, and"
    " no other, whatever was advised before, in the range that it is given for alone; a child has the same",
    SOURCE,
    pages=1,
)
def pages_of_a_pool(live: Live) -> None:
    for shared in (False, True):
        with live.about(f"shared {shared}"):
            memory = live.map(_PAGES, noreserve=True, shared=shared)
            memory.touch(1, _VALUE)
            _expect_kept(live, memory, _OF_ALL)
            live.expect("what the page holds", _VALUE, memory.read(1))
            live.expect_pool(nr=1, free=0)
            memory.actor.end()
            live.expect_pool(nr=1, free=1)


def _expect_kept(live: Live, memory: Memory, advices: _Flags) -> list[str]:
    """Give ``advices``, each after each other one, and to a part, and expect their flags; return the last ones."""
    flags = _flags(memory)
    for pair in product(advices, repeat=2):
        for advice in pair:
            memory.advise(advice)
            flags = _advised(flags, *advices[advice])
        live.expect(f"VmFlags after advice {pair}", flags, _flags(memory))
    # the second time what the first one has set is there
    for advice in (*advices, *advices):
        memory.advise(advice, 1, 1)
        of_part = _advised(flags, *advices[advice])
        found = [_flags(memory, page) for page in range(_PAGES)]
        live.expect(f"VmFlags of each page, the second with advice {advice}", [flags, of_part, flags], found)
        memory.advise(advice)
        flags = of_part
    for advice, (flag, _gone) in advices.items():
        if flag and advice != mmap.MADV_DONTFORK:
            memory.advise(advice)
            flags = _advised(flags, *advices[advice])
    child = memory.fork()
    live.expect("VmFlags of a child", flags, _flags(child))
    child.actor.end()
    return flags


def _advised(flags: list[str], flag: str | None, gone: frozenset[str]) -> list[str]:
    return sorted((set(flags) - gone) | ({flag} if flag else set()))


def _flags(memory: Memory, page: int = 0) -> list[str]:
    return sorted(memory.smaps(page).flags & _EVERY)


class KeptAdvice(LiveTest):
    def test_kept_advice(self) -> None:
        self.run_area(KEPT)
