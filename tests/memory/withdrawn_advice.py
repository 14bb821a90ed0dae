"""Advice on huge pages of a pool that is taken back, for all of a mapping or for a part of it."""

import errno
import mmap
from itertools import product

from hugepage_qa.cases.case import Area
from hugepage_qa.cases.hugetlb_of_a_process import forked
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.kernel.ksm import has_ksm
from hugepage_qa.kernel.uapi import (
    MADV_DODUMP,
    MADV_DONTDUMP,
    MADV_KEEPONFORK,
    MADV_MERGEABLE,
    MADV_UNMERGEABLE,
    MADV_WIPEONFORK,
)
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest

WITHDRAWN_ADVICE = Area("memory/withdrawn-advice")
SOURCE = "mm/madvise.c madvise_vma_behavior()"
#: of two pages: from which on it is taken back, and of how many
_PARTS = (0, 2), (0, 1), (1, 1)
#: words of VmFlags (Documentation/filesystems/proc.rst): not for a child, not for a core
_NOT_COPIED, _NOT_DUMPED = "dc", "dd"


@WITHDRAWN_ADVICE.case(
    "MADV_DOFORK takes MADV_DONTFORK back, for a whole mapping and for any part: a child has these pages again, and"
    " what they hold",
    # 7.0 refuses it to VM_SPECIAL in place of VM_IO
    f"madvise(2) MADV_DOFORK; kernel/fork.c dup_mmap(); {SOURCE}",
    pages=2,
)
def inherited_again(live: Live) -> None:
    found: dict[str, object] = {}
    wanted: dict[str, object] = {}
    known: dict[str, object] = {}
    for shared, (first, pages) in product((False, True), _PARTS):
        memory = live.map(2, shared=shared)
        memory.advise(mmap.MADV_DONTFORK)
        there = [*range(first, first + pages)]
        name = f"pages {there}, shared {shared}"
        part, whole = _give(memory.part(first, pages)), _inherited(memory)
        found[name] = part, whole, _give(memory), _inherited(memory)
        kept = [page for page in range(2) if page not in there]
        wanted[name] = 0, (kept, there), 0, ([], [0, 1])
        known[name] = (-errno.EINVAL, ([0, 1], [])) * 2
        memory.actor.end()
    what = "what MADV_DOFORK returns for a part, pages with dc and pages of a child, and then for all"
    live.expect(what, wanted, found, {Quirk.DOFORK_REFUSED: known})
    for shared in (False, True):
        memory = live.map(2, shared=shared)
        memory.fill(7)
        memory.advise(mmap.MADV_DONTFORK)
        memory.advise(mmap.MADV_DOFORK)
        child = memory.fork() if shared else forked(live, memory, 2)
        child.expect_filled(7)
        live.expect_pool(nr=2, free=0)
        child.actor.end()
        memory.expect_filled(7)
        memory.actor.end()
        live.expect_pool(nr=2, free=2)


def _give(memory: Memory) -> int:
    """Give MADV_DOFORK on all of ``memory`` and return 0, or the error with a minus sign."""
    return memory.actor.result("madvise", memory.address, memory.length, mmap.MADV_DOFORK)


def _inherited(memory: Memory) -> tuple[list[int], list[int]]:
    """Return which pages VmFlags tell to be kept from children, and which ones a child has."""
    child = memory.fork()
    ranges = [(mapping.start, mapping.end) for mapping in child.all_mappings()]
    there = [page for page in range(memory.pages) if any(start <= memory.at(page) < end for start, end in ranges)]
    child.actor.end()
    return _with_flag(memory, _NOT_COPIED), there


def _with_flag(memory: Memory, flag: str) -> list[int]:
    return [page for page in range(memory.pages) if flag in memory.smaps(page).flags]


@WITHDRAWN_ADVICE.case(
    "MADV_DODUMP takes MADV_DONTDUMP back, for a whole mapping and for any part, as VmFlags tell; MADV_KEEPONFORK and"
    " MADV_UNMERGEABLE are taken where there is nothing to take back, and leave all as it was",
    f"madvise(2) MADV_DODUMP, MADV_KEEPONFORK, MADV_UNMERGEABLE; mm/ksm.c ksm_madvise(); {SOURCE}",
    pages=2,
)
def withdrawn(live: Live) -> None:
    ignored = MADV_KEEPONFORK, *((MADV_MERGEABLE, MADV_UNMERGEABLE) if has_ksm(live.host) else ())
    for shared, (first, pages) in product((False, True), _PARTS):
        with live.about(f"{pages} pages from page {first} on, shared {shared}"):
            memory = live.map(2, shared=shared)
            memory.fill(7)
            before = [memory.smaps(page).flags for page in range(2)]
            live.expect_errno(errno.EINVAL, memory.advise, MADV_WIPEONFORK, first, pages)
            for advice in ignored:
                live.expect_success(memory.advise, advice, first, pages)
                live.expect(f"VmFlags after {advice}", before, [memory.smaps(page).flags for page in range(2)])
            live.expect_success(memory.advise, MADV_DONTDUMP)
            live.expect("pages with dd", [0, 1], _with_flag(memory, _NOT_DUMPED))
            live.expect_success(memory.advise, MADV_DODUMP, first, pages)
            kept = [page for page in range(2) if not first <= page < first + pages]
            live.expect("pages with dd where a part is taken back", kept, _with_flag(memory, _NOT_DUMPED))
            live.expect_success(memory.advise, MADV_DODUMP)
            live.expect("VmFlags where all is taken back", before, [memory.smaps(page).flags for page in range(2)])
            memory.expect_filled(7)
            memory.unmap()
            live.expect_pool(nr=2, free=2)


class WithdrawnAdvice(LiveTest):
    def test_withdrawn_advice(self) -> None:
        self.run_area(WITHDRAWN_ADVICE)
