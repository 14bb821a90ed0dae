"""Parts of huge pages: moved over others, forbidden, guarded, unmapped by one of several processes."""

import errno
import mmap
import os
import signal
from collections.abc import Mapping
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.clear_refs import keeps_use_when_split
from hugepage_qa.cases.fragmentation import with_blocks
from hugepage_qa.cases.khugepaged_clock import let_rest
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.madv_collapse import collapse
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.swapped import need_swap
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.cases.thp_policy import advised, fill_in_huge_pages, huge_pages
from hugepage_qa.kernel.ksm import has_ksm
from hugepage_qa.kernel.uapi import (
    MADV_COLD,
    MADV_COLLAPSE,
    MADV_DONTDUMP,
    MADV_GUARD_INSTALL,
    MADV_GUARD_REMOVE,
    MADV_HUGEPAGE,
    MADV_MERGEABLE,
    MADV_PAGEOUT,
    MAP_FIXED,
    MREMAP_FIXED,
    MREMAP_MAYMOVE,
    PROT_NONE,
)
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest

PARTS = Area("thp/parts", sizes=Sizes.ONCE)

GUARDS = "madvise(2) MADV_GUARD_INSTALL; mm/madvise.c madvise_guard_install()"
_NEW_VALUE = 77


@PARTS.case(
    "mremap() from any address to any other, over huge pages that are there, moves what it must and nothing beside it",
    "mremap(2) MREMAP_FIXED; mm/mremap.c move_page_tables(); mm/huge_memory.c move_huge_pmd()",
)
def moved_over_others(live: Live) -> None:
    let_rest(live)
    base = live.base_page
    for source, target in ((0, 0), (base, base), (base, 0), (0, base), (3 * base, 5 * base)):
        memory = huge_pages(live, 4)
        there = advised(live, 4, actor=memory.actor)
        there.fill(_NEW_VALUE)
        length = 2 * memory.size
        flags = MREMAP_MAYMOVE | MREMAP_FIXED
        places = memory.address + source, length, length, flags, there.address + target
        memory.actor.call("mremap", *places)
        live.expect_signal(signal.SIGSEGV, memory.actor.read, memory.address + source)
        where = f"moved from {source} to {target} beside a huge page"
        moved = memory.actor.check(there.address + target, length, WORD, 1 + source)
        live.expect(f"words that changed, {where}", 0, moved)
        beside = memory.wrong_beside(source, source + length)
        live.expect(f"words beside the old place that changed, {where}", 0, beside)
        beside = there.wrong(0, target, _NEW_VALUE)
        beside += there.wrong(target + length, there.length - target - length, _NEW_VALUE)
        live.expect(f"words beside the new place that changed, {where}", 0, beside)
        memory.actor.end()


@PARTS.case(
    "a part of a huge page, and all of one that was split, that may not be accessed gives SIGSEGV, in a child, too,"
    " though it may be merged; allowed again, it holds what it held",
    "mprotect(2); madvise(2) MADV_MERGEABLE; fork(2); mm/huge_memory.c __split_huge_pmd(), mm/mprotect.c",
)
def forbidden(live: Live) -> None:
    memory = huge_pages(live, 3)
    half, actor = memory.size // 2, memory.actor
    actor.call("mprotect", memory.address + half, memory.size, PROT_NONE)
    _let_merge(live, memory)
    child = memory.seen_by(actor.fork())
    for each in (memory, child):
        for offset in (half, memory.size - WORD, memory.size, memory.size + half - WORD):
            live.expect_signal(signal.SIGSEGV, each.actor.read, each.address + offset)
            live.expect_signal(signal.SIGSEGV, each.actor.write, each.address + offset, _NEW_VALUE)
        live.expect("words of the rest that changed", 0, each.wrong_beside(half, 3 * half))
    live.expect("AnonHugePages", memory.size, memory.smaps(2).anon_huge_pages)
    child.fill_part(0, half, _NEW_VALUE)
    for each in (memory, child):
        each.actor.call("mprotect", each.address + half, each.size, READ_WRITE)
    memory.expect_filled()
    live.expect("words that the child wrote and changed", 0, child.wrong(0, half, _NEW_VALUE))
    live.expect("words of the child that changed", 0, child.wrong(half, child.length - half))
    _expect_split_while_forbidden(live)


def _expect_split_while_forbidden(live: Live) -> None:
    """Expect a huge page that nobody may access to be mapped as base pages that nobody may access, in a child, too."""
    memory = huge_pages(live, 2)
    memory.protect(PROT_NONE)
    # a base page with other flags is a mapping of its own
    memory.actor.call("madvise", memory.address + live.base_page, live.base_page, MADV_DONTDUMP)
    behind = memory.smaps(1).anon_huge_pages
    child = memory.fork()
    for each in (memory, child):
        for offset in (0, live.base_page, memory.size - WORD, memory.length - WORD):
            live.expect_signal(signal.SIGSEGV, each.actor.read, each.address + offset)
        each.protect(READ_WRITE)
        each.expect_filled()
    child.fill(_NEW_VALUE)
    memory.expect_filled()
    child.expect_filled(_NEW_VALUE)
    live.expect("AnonHugePages of the mapping behind it", memory.size, behind, {Quirk.BALANCED_PAGES_MISSED: 0})


@PARTS.case(
    "what is given back of a huge page is what was named, to the base page: the first or the last, all but one of them,"
    " the end of one and the start of the next, and no word beside it changes",
    "madvise(2) MADV_DONTNEED; munmap(2); mm/memory.c zap_pmd_range(), zap_pte_range(); mm/huge_memory.c",
)
def given_back_to_the_page(live: Live) -> None:
    let_rest(live)
    size, base = pmd_size(live), live.base_page
    places = (
        *((0, base), (base, base), (size - base, base), (0, size - base), (base, size - base), (base, size - 2 * base)),
        *((size - base, 2 * base), (base, 2 * size - 2 * base), (0, 2 * size - base), (0, size)),
    )
    for (offset, length), call in product(places, ("madvise", "munmap")):
        memory = huge_pages(live, 3)
        advice = (mmap.MADV_DONTNEED,) if call == "madvise" else ()
        end = offset + length
        memory.actor.call(call, memory.address + offset, length, *advice)
        with live.about(f"{call}() of {length} bytes at {offset}"):
            live.expect("words in front of it that changed", 0, memory.wrong(0, offset))
            live.expect("words behind it that changed", 0, memory.wrong(end, memory.length - end))
            for place in (offset, end - base):
                if advice:
                    live.expect("words in it that are not zero", 0, memory.nonzero(place, base))
                else:
                    live.expect_signal(signal.SIGSEGV, memory.actor.read, memory.address + place)
        memory.actor.end()


@PARTS.case(
    "mprotect(2) forbids what was named of huge pages, to the base page: beside it is written as before, and nothing"
    " that it holds changes",
    "mprotect(2); mm/mprotect.c change_pmd_range(); mm/huge_memory.c __split_huge_pmd(), change_huge_pmd()",
)
def forbidden_to_the_page(live: Live) -> None:
    let_rest(live)
    size, base = pmd_size(live), live.base_page
    places = (0, base), (size - base, base), (0, size - base), (base, size - base), (size - base, 2 * base), (0, size)
    for offset, length in places:
        memory = huge_pages(live, 3)
        actor, first, last = memory.actor, memory.at(0) + offset, memory.at(0) + offset + length - WORD
        actor.call("mprotect", first, length, mmap.PROT_READ)
        with live.about(f"{length} bytes at {offset}"):
            memory.expect_filled()
            for place in (first, last):
                live.expect_signal(signal.SIGSEGV, actor.write, place, _NEW_VALUE)
            for place in (first - WORD, last + WORD):
                if memory.address <= place:
                    actor.write(place, 1 + place - memory.address)
            actor.call("mprotect", first, length, READ_WRITE)
            memory.fill(_NEW_VALUE)
            memory.expect_filled(_NEW_VALUE)
        actor.end()


@PARTS.case(
    "a part of huge pages that is a mapping of its own, since it was advised otherwise, has none that begins or ends"
    " outside of it: those are mapped as base pages, the others stay whole",
    "madvise(2) MADV_DONTDUMP; mm/huge_memory.c vma_adjust_trans_huge()",
)
def mapping_of_its_own(live: Live) -> None:
    let_rest(live)
    size, base = pmd_size(live), live.base_page
    for offset, length, whole in (
        (0, base, 2),
        (0, size // 2, 2),
        (size - base, base, 2),
        (base, size - 2 * base, 2),
        (size - base, 2 * base, 1),
        (base, 2 * size - base, 2),
        (size, size, 3),
    ):
        memory = huge_pages(live, 3)
        memory.actor.call("madvise", memory.address + offset, length, MADV_DONTDUMP)
        parts = [Memory(live, memory.actor, memory.address + at, 1, base) for at in (0, offset, offset + length)]
        found = {(mapping := part.smaps()).start: mapping for part in parts}.values()
        with live.about(f"{length} bytes at {offset}"):
            live.expect("AnonHugePages of all", whole * size, sum(mapping.anon_huge_pages for mapping in found))
            live.expect("Rss of all", memory.length, sum(mapping.rss for mapping in found))
            memory.expect_filled()
        memory.actor.end()


@PARTS.case(
    "a child that unmaps a part of a huge page keeps the rest, and its parent keeps all of it, mapped as a whole,"
    " though it may be merged",
    "fork(2); munmap(2); madvise(2) MADV_MERGEABLE; mm/huge_memory.c __split_huge_pmd(), zap_huge_pmd()",
)
def unmapped_by_a_child(live: Live) -> None:
    parent = huge_pages(live, 2)
    _let_merge(live, parent)
    child = parent.fork()
    half = parent.size // 2
    child.actor.call("munmap", child.address + half, half + live.base_page)
    live.expect_signal(signal.SIGSEGV, child.actor.read, child.address + half)
    behind = 2 * half + live.base_page
    rest = child.wrong_beside(half, behind)
    live.expect("words of the child's rest that changed", 0, rest)
    parent.expect_huge(about="of the parent")
    parent.expect_filled()
    child.fill_part(0, half, _NEW_VALUE)
    parent.expect_filled()
    parent.fill(_NEW_VALUE + 1)
    live.expect("words that the child wrote and changed", 0, child.wrong(0, half, _NEW_VALUE))


@PARTS.case(
    "who writes a huge page that nobody else has any more after a fork, parent or child, keeps it mapped as a whole,"
    " whether the other one ended or unmapped it",
    "fork(2); mm/huge_memory.c do_huge_pmd_wp_page()",
    since="5.18",  # before, what the LRU had in hand made it seem to be shared
)
def written_by_the_last_one(live: Live) -> None:
    let_rest(live)
    for is_child in (False, True):
        parent = huge_pages(live, 2)
        frames = parent.frames()
        child = parent.fork()
        last, other = (child, parent) if is_child else (parent, child)
        if is_child:
            other.unmap()
        else:
            other.actor.end()
        last.fill(_NEW_VALUE)
        with live.about("the child" if is_child else "the parent"):
            last.expect_huge()
            live.expect("frames", frames, last.frames())
            last.expect_filled(_NEW_VALUE)
        parent.actor.end()


@PARTS.case(
    "a private mapping of /dev/zero gets huge pages as other memory does, and each process keeps what it wrote there",
    "zero(4); fork(2); mm/huge_memory.c do_huge_pmd_anonymous_page()",
)
def zero_device(live: Live) -> None:
    memory = huge_pages(live, 2)
    actor = memory.actor
    device = live.open(actor, "/dev/zero", os.O_RDWR)
    actor.mmap(memory.length, READ_WRITE, mmap.MAP_PRIVATE | MAP_FIXED, device, address=memory.address)
    memory.advise(MADV_HUGEPAGE)
    with_blocks(live, memory.size, 2)
    fill_in_huge_pages(live, memory)
    memory.expect_huge(about="of /dev/zero")
    child = memory.seen_by(actor.fork())
    child.unmap(1)
    child.fill_part(0, child.size, _NEW_VALUE)
    memory.expect_filled()
    live.expect("words that the child wrote and changed", 0, child.wrong(0, child.size, _NEW_VALUE))


@PARTS.case(
    "MADV_COLD and MADV_PAGEOUT of a range that begins or ends in a huge page, at its ends, too, make that range"
    " unused, or swap it out, and nothing beside it: huge pages that are in it in part are mapped as base pages, the"
    " others stay whole",
    "madvise(2) MADV_COLD, MADV_PAGEOUT; Documentation/filesystems/proc.rst Referenced, Swap; mm/madvise.c"
    " madvise_cold_or_pageout_pte_range()",
    since="5.4",
)
def unused_in_part(live: Live) -> None:
    let_rest(live)
    size, base = pmd_size(live), live.base_page
    need_swap(live, 3 * size)
    keeps_use = keeps_use_when_split(live)
    ranges = (
        (0, base),
        (size - base, base),
        (0, size // 2),
        (base, size - 2 * base),
        (size - base, 2 * base),
        (0, size + base),
        (size - base, size + base),
        (size // 2, 2 * size),
        (size, size),
    )
    for (offset, length), advice in product(ranges, (MADV_COLD, MADV_PAGEOUT)):
        memory = huge_pages(live, 3)
        parts = [min(offset + length, end) - max(offset, end - size) for end in (size, 2 * size, 3 * size)]
        beside, whole = sum(part <= 0 for part in parts) * size, parts.count(size) * size
        expected = {"Rss": memory.length - length, "Swap": length, "AnonHugePages": beside}
        if advice == MADV_COLD:
            used = memory.length - length if keeps_use else beside
            expected = {"Referenced": used, "Rss": memory.length, "AnonHugePages": beside + whole}
        with live.about(f"advice {advice} for {length} bytes at {offset}"):
            _expect_advised(live, memory, (memory.address + offset, length, advice), expected)
            memory.expect_filled()
        memory.actor.end()


def _expect_advised(live: Live, memory: Memory, advice: tuple[int, int, int], expected: Mapping[str, int]) -> None:
    """Give ``advice`` on a part of ``memory`` until the first field of smaps is as ``expected``, and expect all so."""
    first, most = next(iter(expected.items()))

    def has_part() -> bool:
        # what somebody else has a hold of is passed over
        memory.actor.call("madvise", *advice)
        return memory.smaps().fields[first] <= most

    live.host.wait_until(has_part)
    fields = memory.smaps().fields
    live.expect("smaps", dict(expected), {name: fields[name] for name in expected})


@PARTS.case(
    "MADV_WILLNEED of huge pages that may not be accessed changes nothing, of whole ones and of parts",
    "madvise(2) MADV_WILLNEED; mm/madvise.c swapin_walk_pmd_entry()",
)
def wanted_soon(live: Live) -> None:
    if live.host.read("proc/swaps") is None:
        raise CannotRun("this kernel has no CONFIG_SWAP, without which this is no advice for anonymous memory")
    memory = huge_pages(live, 2)
    memory.protect(PROT_NONE)
    memory.advise(mmap.MADV_WILLNEED)
    live.expect_signal(signal.SIGSEGV, memory.read)
    memory.protect(READ_WRITE)
    memory.expect_huge()
    memory.expect_filled()
    memory.actor.call("mprotect", memory.address + memory.size // 2, memory.size, PROT_NONE)
    memory.advise(mmap.MADV_WILLNEED)
    memory.protect(READ_WRITE)
    memory.expect_filled()


@PARTS.case(
    "guards in huge pages, a whole one and parts, give SIGSEGV, in a child, too; the rest holds what it held, and what"
    " was guarded is zero when they are removed",
    f"{GUARDS}, madvise_guard_remove()",
    since="6.13",
)
def guarded(live: Live) -> None:
    memory = huge_pages(live, 3)
    _guard(memory)
    memory.expect_huge(1)
    child = memory.fork()
    for each in (memory, child):
        _expect_guarded(live, each)
    half = memory.size // 2
    memory.actor.call("madvise", memory.address, memory.length, MADV_GUARD_REMOVE)
    guarded = memory.nonzero(half, memory.size + half)
    live.expect("words that were guarded and are not zero", 0, guarded)
    live.expect("words of the rest that changed", 0, memory.wrong_beside(half, 4 * half))
    _expect_guarded(live, child)


@PARTS.case(
    "MADV_COLLAPSE refuses memory with a guard, and the guard stays",
    f"{GUARDS}; madvise(2) MADV_COLLAPSE",
    since="6.13",
)
def guarded_and_collapsed(live: Live) -> None:
    let_rest(live)
    memory = huge_pages(live, 3)
    _guard(memory)
    for page in (0, 1):
        live.expect_errno(errno.EINVAL, collapse, live, partial(memory.advise, MADV_COLLAPSE, page, 1))
    memory.expect_huge(1)
    _expect_guarded(live, memory)


def _let_merge(live: Live, memory: Memory) -> None:
    if has_ksm(live.host):
        memory.advise(MADV_MERGEABLE)


def _guard(memory: Memory) -> None:
    """Install guards in the second half of the first huge page, and in all of the second one."""
    memory.actor.call("madvise", memory.address + memory.size // 2, memory.size * 3 // 2, MADV_GUARD_INSTALL)


def _expect_guarded(live: Live, memory: Memory) -> None:
    half = memory.size // 2
    for offset in (half, memory.size - WORD, memory.size, 2 * memory.size - WORD):
        live.expect_signal(signal.SIGSEGV, memory.actor.read, memory.address + offset)
        live.expect_signal(signal.SIGSEGV, memory.actor.write, memory.address + offset, _NEW_VALUE)
    live.expect("words of the rest that changed", 0, memory.wrong_beside(half, 4 * half))


class ThpParts(LiveTest):
    def test_parts(self) -> None:
        self.run_area(PARTS)
