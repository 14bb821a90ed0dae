"""Advice on huge pages: what the kernel may take of them, and what it keeps in memory."""

import errno
import mmap
import signal
from collections.abc import Callable
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.changed_counters import OF_NODES, expect_change, read_counters_with_nodes
from hugepage_qa.cases.khugepaged_clock import let_rest
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.lru_batches import drain_lru_batches
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.swapped import need_swap, parts_out, swapped
from hugepage_qa.cases.thp_memory import free_lazily, pmd_size, room_for
from hugepage_qa.cases.thp_policy import advised, base_pages, huge_pages, mapped_in_parts, smaller_pages
from hugepage_qa.kernel.uapi import MADV_COLD, MADV_DONTNEED_LOCKED, MADV_PAGEOUT, MADV_WIPEONFORK
from hugepage_qa.plugins.avocado_test import LiveTest

ADVICE = Area("thp/advice", sizes=Sizes.ONCE)

FREE = "madvise(2) MADV_FREE; mm/huge_memory.c madvise_free_huge_pmd()"
#: of /proc/meminfo and of each node, and of /proc/vmstat
_LOCKED = "Mlocked", "Unevictable"
_EVENTS = "unevictable_pgs_mlocked", "unevictable_pgs_munlocked"
_NEW_VALUE = 77
_ATTEMPTS = 3


@ADVICE.case(
    "MADV_FREE of a part of a huge page lets the kernel take that part and no more, until it is written again",
    f"{FREE}; Documentation/filesystems/proc.rst LazyFree",
    since="5.4",  # MADV_PAGEOUT
)
def freed_in_part(live: Live) -> None:
    let_rest(live)
    memory = huge_pages(live, 2)
    half, quarter = memory.size // 2, memory.size // 4
    lazy = _free(live, memory, half)
    # a few pages may wait in lists of the CPUs (mm/swap.c lru_lazyfree)
    live.expect("LazyFree is most of the part and no more", True, half // 2 < lazy <= half)
    live.expect("AnonHugePages of the page behind it", memory.size, memory.smaps(1).anon_huge_pages)
    memory.fill_part(0, quarter, _NEW_VALUE)
    _have_taken(live, memory)
    live.expect("words that were written again and changed", 0, memory.wrong(0, quarter, _NEW_VALUE))
    live.expect("words of the other part that changed", 0, memory.wrong(half, memory.size - half))
    memory.expect_filled(first=1)
    _expect_kept_or_zero(live, memory, quarter, half - quarter)


@ADVICE.case(
    "MADV_FREE of a whole huge page keeps it one, and lets the kernel take it, until it is written again",
    FREE,
    since="5.4",  # MADV_PAGEOUT
)
def freed(live: Live) -> None:
    memory = huge_pages(live, 3)
    live.expect("LazyFree", 2 * memory.size, _free(live, memory, 2 * memory.size))
    memory.expect_huge()
    memory.fill_part(0, memory.size, _NEW_VALUE)
    live.expect("LazyFree after one was written again", memory.size, _lazy(memory))
    _have_taken(live, memory)
    live.expect("words that were written again and changed", 0, memory.wrong(0, memory.size, _NEW_VALUE))
    _expect_kept_or_zero(live, memory, memory.size, memory.size)
    memory.expect_filled(first=2)


@ADVICE.case(
    "MADV_FREE that is given once lets the kernel take all of a range, also where it begins or ends within a huge page,"
    " mapped whole or in parts, or within a smaller one, and of base pages",
    f"{FREE}, madvise_free_pte_range(); Documentation/filesystems/proc.rst LazyFree",
)
def freed_at_once(live: Live) -> None:
    let_rest(live)
    size, base = pmd_size(live), live.base_page
    ranges = (0, base), (base, size - base), (size // 2, size), (0, size + size // 2), (size - base, size + base)
    for make, (start, length) in product((huge_pages, mapped_in_parts, smaller_pages, base_pages), ranges):
        # those that it does not cut stay what they are
        cut = {edge // size for edge in (start, start + length) if edge % size}
        expected = length, (2 - len(cut)) * size if make is huge_pages else 0

        def lazy(
            make: Callable[[Live, int], Memory] = make, start: int = start, length: int = length
        ) -> tuple[int, int]:
            memory = make(live, 2)
            memory.actor.call("madvise", memory.address + start, length, mmap.MADV_FREE)
            # a few pages may wait in lists of the CPUs (mm/swap.c lru_lazyfree)
            drain_lru_batches(live, memory.actor)
            found = memory.smaps()
            memory.actor.end()
            return found.fields["LazyFree"], found.anon_huge_pages

        with live.about(f"{make.__name__}, {length} bytes from {start} on"):
            # pages that somebody else has a hold of in that moment are passed over
            live.expect("LazyFree, AnonHugePages", expected, live.host.last_attempt(lazy, expected.__eq__))


@ADVICE.case(
    "MADV_PAGEOUT of a part of a huge page swaps that part out and no more, and all of it comes back as it was",
    "madvise(2) MADV_PAGEOUT; mm/madvise.c madvise_cold_or_pageout_pte_range()",
    since="5.4",
)
def paged_out_in_part(live: Live) -> None:
    let_rest(live)
    need_swap(live, 2 * pmd_size(live))
    for offset, length in ((0, live.base_page), (pmd_size(live) // 2, pmd_size(live) // 4)):
        memory = huge_pages(live, 2)
        part = memory.address + offset, length

        def is_out(memory: Memory = memory, part: tuple[int, int] = part) -> bool:
            # what somebody else has a hold of is passed over
            memory.actor.call("madvise", *part, MADV_PAGEOUT)
            return swapped(memory) >= part[1]

        live.host.wait_until(is_out)
        live.expect(f"memory in swap, {length} bytes at {offset}", length, swapped(memory))
        live.expect("Rss", memory.length - length, memory.smaps().rss)
        live.expect("AnonHugePages of the page behind it", memory.size, memory.smaps(1).anon_huge_pages)
        memory.expect_filled()


@ADVICE.case(
    "mlock() of a huge page counts all of it as locked and unevictable, of the machine and of its node, munlock() none,"
    " and it stays one; all its base pages are counted as locked and as unlocked, once",
    "mlock(2); Documentation/filesystems/proc.rst Mlocked, Locked; mm/mlock.c mlock_folio(), munlock_folio()",
)
def locked(live: Live) -> None:
    pages = 2
    length = pages * pmd_size(live)
    events = length // live.base_page
    counted = {**_now_locked(length), "AnonHugePages": 0, _EVENTS[0]: events, _EVENTS[1]: 0}
    memory = expect_change(live, counted, partial(huge_pages, live, pages), Memory.lock, read_counters_with_nodes)
    live.expect("Locked", length, memory.smaps().fields["Locked"])
    live.expect("AnonHugePages", length, memory.smaps().anon_huge_pages)
    memory.expect_filled()
    for release in (Memory.unlock, Memory.unmap):
        gone = 0 if release is Memory.unlock else -length
        given = {**_now_locked(-length), "AnonHugePages": gone, _EVENTS[0]: 0, _EVENTS[1]: events}
        expect_change(live, given, partial(_locked, live, pages), release, read_counters_with_nodes)


@ADVICE.case(
    "what is done to locked huge pages that unlocks none of them counts none as locked or unlocked: they are locked"
    " again, also on fault, protected, moved, and shared with a child until that ends",
    "mlock(2); mremap(2); Documentation/filesystems/proc.rst Mlocked; mm/mlock.c mlock_fixup(); mm/mremap.c move_vma()",
)
def locked_all_along(live: Live) -> None:
    def protect(memory: Memory) -> None:
        for prot in (mmap.PROT_READ, READ_WRITE):
            memory.protect(prot)

    def move(memory: Memory) -> None:
        memory.moved_to(room_for(memory.actor, memory.pages, memory.size)).expect_filled()

    def share(memory: Memory) -> None:
        child = memory.fork()
        child.expect_filled()
        child.actor.end()

    pages = 2
    for act in (Memory.lock, Memory.lock_on_fault, protect, move, share):
        with live.about(act.__name__):
            unchanged = {**_now_locked(0), "AnonHugePages": 0, _EVENTS[0]: 0, _EVENTS[1]: 0}
            memory = expect_change(live, unchanged, partial(_locked, live, pages), act, read_counters_with_nodes)
        # what is locked of each would add up
        memory.actor.end()


@ADVICE.case(
    "MADV_DONTNEED refuses huge pages that are locked; MADV_DONTNEED_LOCKED gives parts of them back, the rest stays as"
    " it was, and what is touched again is locked as well",
    "madvise(2) MADV_DONTNEED_LOCKED; mm/madvise.c madvise_dontneed_free_valid_vma()",
    since="5.18",
)
def given_back_though_locked(live: Live) -> None:
    let_rest(live)
    memory = _locked(live, 2)
    half = memory.size // 2
    part = memory.address + half, memory.size
    live.expect_errno(errno.EINVAL, memory.actor.call, "madvise", *part, mmap.MADV_DONTNEED)
    live.expect("Locked after advice that was refused", memory.length, memory.smaps().fields["Locked"])
    memory.expect_huge(about="after advice that was refused")
    memory.expect_filled()
    memory.actor.call("madvise", *part, MADV_DONTNEED_LOCKED)
    live.expect("Locked without what was given back", memory.length - memory.size, memory.smaps().fields["Locked"])
    live.expect("words that were given back and are not zero", 0, memory.actor.nonzero(*part))
    live.expect("words of the rest that changed", 0, memory.wrong_beside(half, 3 * half))
    memory.fill(_NEW_VALUE)
    live.expect("Locked when all is there again", memory.length, memory.smaps().fields["Locked"])
    memory.expect_filled(_NEW_VALUE)


@ADVICE.case(
    "a huge page that comes into memory which was locked before counts as locked and unevictable, all of it, and no"
    " longer when it is unlocked or goes; all its base pages are counted as locked and as unlocked, once",
    "mlock2(2) MLOCK_ONFAULT; Documentation/filesystems/proc.rst Mlocked, Locked; mm/mlock.c mlock_new_folio()",
)
def locked_before(live: Live) -> None:
    pages = 2
    length = pages * pmd_size(live)
    events = length // live.base_page
    for release in (Memory.unlock, Memory.unmap):
        # free blocks for them, and the policies
        huge_pages(live, pages).unmap()
        counted = {"Mlocked": length, "Unevictable": length, "AnonHugePages": length, _EVENTS[0]: events, _EVENTS[1]: 0}
        memory = expect_change(live, counted, partial(_locked_on_fault, live, pages), Memory.fill)
        mapping = memory.smaps()
        live.expect("Locked, AnonHugePages", (length, length), (mapping.fields["Locked"], mapping.anon_huge_pages))
        memory.expect_filled()
        given = {"Mlocked": -length, "Unevictable": -length, _EVENTS[0]: 0, _EVENTS[1]: events}
        expect_change(live, given, partial(_filled_when_locked, live, pages), release)


@ADVICE.case(
    "a child has zeroes where its parent has huge pages with MADV_WIPEONFORK, and with MADV_DONTFORK no memory at all",
    "madvise(2) MADV_WIPEONFORK, MADV_DONTFORK; mm/mmap.c dup_mmap()",
)
def kept_from_children(live: Live) -> None:
    for wiped in (False, True):
        memory = huge_pages(live, 2)
        memory.advise(MADV_WIPEONFORK if wiped else mmap.MADV_DONTFORK, 0, 1)
        child = memory.fork()
        child.expect_filled(first=1)
        if wiped:
            child.expect_zero()
            child.touch(value=_NEW_VALUE)
        else:
            live.expect_signal(signal.SIGSEGV, child.read)
        memory.expect_filled()
        memory.expect_huge(1, about="of the parent")


@ADVICE.case(
    "MADV_COLD of huge pages leaves them whole and unused, until they are used again, and those beside them used",
    "madvise(2) MADV_COLD; Documentation/filesystems/proc.rst Referenced; mm/madvise.c",
    since="5.4",
)
def cold(live: Live) -> None:
    size = pmd_size(live)
    expected = (size, 3 * size, 2 * size)
    for _attempt in range(_ATTEMPTS):
        memory = huge_pages(live, 3)
        memory.advise(MADV_COLD, 0, 2)
        mapping = memory.smaps()
        live.expect("the first word of the second one", 1 + size, memory.read(1))
        referenced_again = memory.smaps().fields["Referenced"]
        found = (mapping.fields["Referenced"], mapping.anon_huge_pages, referenced_again)
        # where memory is short the kernel ages what is used, too
        if found == expected:
            break
    live.expect("Referenced and AnonHugePages when two are cold, Referenced when one was read", expected, found)
    memory.expect_filled()


@ADVICE.case(
    "MADV_PAGEOUT by one of two processes leaves both what they share, huge pages, mapped whole or in parts, and base"
    " pages",
    "madvise(2) MADV_PAGEOUT; mm/madvise.c madvise_cold_or_pageout_pte_range()",
    since="5.4",
)
def paged_out_by_one_of_two(live: Live) -> None:
    let_rest(live)
    need_swap(live, pmd_size(live))
    for make in (huge_pages, mapped_in_parts, base_pages):
        parent = make(live)
        child = parent.fork()
        huge = parent.smaps().anon_huge_pages
        for each in (parent, child):
            each.advise(MADV_PAGEOUT)
        for each in (parent, child):
            live.expect("memory in swap", 0, swapped(each))
            live.expect("Rss", each.length, each.smaps().rss)
            live.expect("AnonHugePages", huge, each.smaps().anon_huge_pages)
            each.expect_filled()
        parent.actor.end()


@ADVICE.case(
    "MADV_FREE by one of two processes frees nothing of huge pages that both have, mapped whole or in parts, by smaps"
    " and pglazyfree, and both keep what these hold, base pages too; it does when the other one has unmapped them or"
    " given them back",
    f"{FREE}, madvise_free_pte_range(); mm/swap.c lru_lazyfree_fn()",
    since="5.4",  # MADV_PAGEOUT
)
def freed_by_one_of_two(live: Live) -> None:
    let_rest(live)
    need_swap(live, 2 * pmd_size(live))
    for make, is_parent, unmaps in product((huge_pages, mapped_in_parts, base_pages), (True, False), (True, False)):
        with live.about(f"{make.__name__}, by the parent: {is_parent}, the other unmaps: {unmaps}"):
            # of base pages the kernel marks those that it cannot take, too
            counted = {} if make is base_pages else {"pglazyfree": 0}
            one, other = expect_change(live, counted, partial(_of_two, live, make, is_parent), _free_of_one)
            if make is not base_pages:
                live.expect("LazyFree of both", (0, 0), (_lazy(one), _lazy(other)))
            huge = one.length if make is huge_pages else 0
            live.expect("AnonHugePages of both", 2 * [huge], [each.smaps().anon_huge_pages for each in (one, other)])
            for each in (other, one):
                each.advise(MADV_PAGEOUT)
            for each in (one, other):
                each.expect_filled()
            if unmaps:
                other.unmap()
            else:
                other.advise(mmap.MADV_DONTNEED)
            if make is not base_pages:
                live.host.wait_until(partial(free_lazily, live, one))
                live.expect("LazyFree of who has it alone", one.length, _lazy(one))
            for each in (one, other):
                each.actor.end()


@ADVICE.case(
    "MADV_FREE of whole huge pages is counted in pglazyfree, all their base pages, and nothing of them is taken yet",
    "madvise(2) MADV_FREE; mm/swap.c lru_lazyfree_fn()",
)
def counted_when_freed(live: Live) -> None:
    pages = 2
    counted = {"pglazyfree": pages * pmd_size(live) // live.base_page, "pglazyfreed": 0, "AnonHugePages": 0}
    expect_change(live, counted, partial(huge_pages, live, pages), lambda memory: memory.advise(mmap.MADV_FREE))


def _free(live: Live, memory: Memory, length: int) -> int:
    """Give MADV_FREE for the first ``length`` bytes and return how many are marked.

    Pages that somebody else has a hold of in that moment are passed over: it is given again where many are missing.
    """

    def is_marked() -> bool:
        memory.actor.call("madvise", memory.address, length, mmap.MADV_FREE)
        return _lazy(memory) > length * 3 // 4

    live.host.wait_until(is_marked)
    return _lazy(memory)


def _of_two(live: Live, make: Callable[[Live], Memory], is_parent: bool) -> tuple[Memory, Memory]:
    """Return memory as a process and its child have it, that of the parent first if ``is_parent``, else last."""
    parent = make(live)
    child = parent.fork()
    return (parent, child) if is_parent else (child, parent)


def _free_of_one(both: tuple[Memory, Memory]) -> None:
    one, _other = both
    one.advise(mmap.MADV_FREE)


def _lazy(memory: Memory) -> int:
    return memory.smaps().fields["LazyFree"]


def _have_taken(live: Live, memory: Memory) -> None:
    """Have the kernel take what was freed of ``memory`` and not written again, and expect it to."""
    everything = [(0, memory.length)]
    live.host.wait_until(partial(parts_out, live, memory, everything, lambda: not _lazy(memory)))
    live.expect("LazyFree after MADV_PAGEOUT", 0, _lazy(memory))


def _expect_kept_or_zero(live: Live, memory: Memory, offset: int, length: int) -> None:
    """Expect each base page to be as it was filled, or to have been taken by the kernel: zero."""
    # more may be taken between the two
    wrong = memory.wrong(offset, length)
    zero = length // WORD - memory.nonzero(offset, length)
    live.expect("words that are neither what they were nor zero", 0, max(0, wrong - zero))


def _now_locked(length: int) -> dict[str, int]:
    """Return how counters change, of the machine and of all nodes together, when ``length`` bytes are locked."""
    return {where + name: length for name in _LOCKED for where in ("", OF_NODES)}


def _locked(live: Live, pages: int) -> Memory:
    memory = huge_pages(live, pages)
    memory.lock()
    return memory


def _locked_on_fault(live: Live, pages: int) -> Memory:
    memory = advised(live, pages)
    memory.lock_on_fault()
    return memory


def _filled_when_locked(live: Live, pages: int) -> Memory:
    memory = _locked_on_fault(live, pages)
    memory.fill()
    return memory


class ThpAdvice(LiveTest):
    def test_advice(self) -> None:
        self.run_area(ADVICE)
