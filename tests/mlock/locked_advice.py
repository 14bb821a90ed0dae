"""Advice on memory that is locked: what the kernel would take of it is refused, whatever kind of memory it is."""

import errno
import mmap
from collections.abc import Callable
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.khugepaged_clock import let_nobody_else_act
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.thp_memory import mapped_huge, pmd_size
from hugepage_qa.cases.thp_policy import base_pages, huge_pages, mapped_in_parts
from hugepage_qa.cases.thp_shared_memory import shared_base_pages, shared_huge_pages
from hugepage_qa.kernel.uapi import MADV_COLD, MADV_GUARD_INSTALL, MADV_PAGEOUT, MLOCK_ONFAULT
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.version import KernelVersion

LOCKED_ADVICE = Area("mlock/locked-advice", sizes=Sizes.ONCE)

SOURCE = (
    "madvise(2) EINVAL; mm/madvise.c madvise_dontneed_free_valid_vma(), can_madv_lru_vma(), madvise_remove(),"
    " is_valid_guard_vma()"
)
_PRIVATE, _SHARED = (huge_pages, mapped_in_parts, base_pages), (shared_huge_pages, shared_base_pages)
#: what takes memory from who gives it, in the order in which it is given when it may be, and of which kind of memory
_TAKING: tuple[tuple[int, tuple[Callable[[Live], Memory], ...]], ...] = (
    (MADV_COLD, _PRIVATE + _SHARED),
    (MADV_PAGEOUT, _PRIVATE + _SHARED),
    (mmap.MADV_FREE, _PRIVATE),
    (mmap.MADV_REMOVE, _SHARED),
    (mmap.MADV_DONTNEED, _PRIVATE + _SHARED),
    (MADV_GUARD_INSTALL, _PRIVATE),
)
#: MADV_GUARD_INSTALL
_GUARDS = KernelVersion(6, 13)
#: what another process may advise so (process_madvise(2))
_OF_OTHERS = (MADV_COLD, MADV_PAGEOUT)


@LOCKED_ADVICE.case(
    "advice by which the kernel would take memory, free or age it is EINVAL where it is locked, in whichever way, huge"
    " or not, private or shared, for another process too, and changes nothing: all of it is there, and locked; it is"
    " taken when it is unlocked, where it is for such memory",
    SOURCE,
    since="5.10",  # process_madvise(2)
)
def refused_while_locked(live: Live) -> None:
    let_nobody_else_act(live)
    uapi, stranger = live.host.uapi, live.actor()
    ways: tuple[tuple[str, int], ...] = ("mlock", 0), ("mlock2", MLOCK_ONFAULT), ("mlockall", uapi.mcl_current)
    for make, (way, flag) in product(_PRIVATE + _SHARED, ways):
        with live.about(f"{make.__name__}, {way}"):
            memory = make(live)
            huge = mapped_huge(memory)
            memory.actor.call(way, *((flag,) if way == "mlockall" else (memory.address, memory.length, flag)))
            for advice, _kinds in _TAKING:
                with live.about(f"advice {advice}"):
                    live.expect_errno(errno.EINVAL, memory.advise, advice)
                    if advice in _OF_OTHERS:
                        live.expect_errno(errno.EINVAL, memory.advised_by, stranger, advice)
                    _expect_all_there(live, memory, huge)
            memory.actor.call("munlockall")
            for advice, kinds in _TAKING:
                if make in kinds and (advice != MADV_GUARD_INSTALL or live.kernel_version >= _GUARDS):
                    with live.about(f"advice {advice} when it is unlocked"):
                        live.expect_success(memory.advise, advice)
                        if advice == (mmap.MADV_DONTNEED if make in _PRIVATE else mmap.MADV_REMOVE):
                            left = memory.nonzero(0, memory.length)
                            live.expect("words that are not zero when all was taken", 0, left)
            memory.actor.end()


@LOCKED_ADVICE.case(
    "advice that gives memory back goes as far as what is locked and ends there with EINVAL: that is all there, and so"
    " is what is behind it",
    f"{SOURCE}, madvise_walk_vmas()",
    since="5.4",  # MADV_PAGEOUT
)
def up_to_what_is_locked(live: Live) -> None:
    let_nobody_else_act(live)
    for make, advice in (
        *product((huge_pages, shared_huge_pages), (mmap.MADV_DONTNEED, MADV_PAGEOUT, MADV_COLD)),
        (huge_pages, mmap.MADV_FREE),
        (shared_huge_pages, mmap.MADV_REMOVE),
    ):
        # the second page, or what is at its end
        for length in (live.base_page, 3 * live.base_page, pmd_size(live)):
            memory = make(live, 3)
            locked = memory.at(2) - length
            memory.actor.call("mlock", locked, length)
            with live.about(f"{make.__name__}, advice {advice}, {length} bytes locked"):
                live.expect_errno(errno.EINVAL, memory.advise, advice)
                kept = locked - memory.address
                live.expect("words locked or behind it that changed", 0, memory.wrong(kept, memory.length - kept))
                mapping = memory.smaps(2)
                live.expect("huge pages behind it", memory.size, mapping.anon_huge_pages + mapping.shmem_pmd_mapped)
                live.expect("LazyFree behind it", 0, mapping.fields.get("LazyFree", 0))
                # of a file MADV_DONTNEED takes the mapping alone
                if advice == mmap.MADV_REMOVE or (advice == mmap.MADV_DONTNEED and make is huge_pages):
                    live.expect("words before it that are not zero", 0, memory.nonzero(0, kept))
                elif advice != mmap.MADV_FREE:
                    live.expect("words before it that changed", 0, memory.wrong(0, kept))
            memory.actor.end()


def _expect_all_there(live: Live, memory: Memory, huge: int) -> None:
    """Expect all of filled ``memory`` to be locked, ``huge`` bytes of it to be in huge pages, and none to be freed."""
    mappings = memory.mappings()
    names = ("Locked", "LazyFree", "Swap")
    found = [sum(each.fields.get(name, 0) for each in mappings) for name in names]
    live.expect(", ".join(names), [memory.length, 0, 0], found)
    live.expect("Rss, huge pages", (memory.length, huge), (sum(each.rss for each in mappings), mapped_huge(memory)))
    memory.expect_filled()


class ThpLockedAdvice(LiveTest):
    def test_locked_advice(self) -> None:
        self.run_area(LOCKED_ADVICE)
