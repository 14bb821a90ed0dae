"""Huge pages into which the border of two mappings moves, that move and leave their mapping, or are inherited again."""

import mmap
import signal
from functools import partial
from itertools import permutations, product

from hugepage_qa.cases.address_space import expect_as_mapped
from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.changed_counters import expect_change
from hugepage_qa.cases.debugfs import expect_split
from hugepage_qa.cases.hugetlb_segments import IPC_CREAT, SHM_LOCK, SHM_REMAP, SHM_UNLOCK, segment_number
from hugepage_qa.cases.khugepaged_clock import let_rest
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.lru_batches import drain_lru_batches
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.swapped import need_swap, page_all_out
from hugepage_qa.cases.thp_memory import mapped_huge, need_blocks, pmd_size, room_for
from hugepage_qa.cases.thp_policy import huge_pages, set_policy
from hugepage_qa.cases.thp_shared_memory import (
    expect_mapped_whole,
    expect_shared,
    let_only_pmd_inherit,
    shared_huge_pages,
)
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.uapi import (
    MADV_HUGEPAGE,
    MADV_KEEPONFORK,
    MADV_NOHUGEPAGE,
    MADV_PAGEOUT,
    MADV_WIPEONFORK,
    MAP_FIXED,
    MREMAP_DONTUNMAP,
    MREMAP_FIXED,
    MREMAP_MAYMOVE,
)
from hugepage_qa.plugins.avocado_test import LiveTest

BORDERS = Area("thp/borders", sizes=Sizes.ONCE)

_PAGES = 4
#: halves of huge pages, which are mapped one by one
_PARTS = 4
_NEW_VALUE = 77


@BORDERS.case(
    "private memory that is mapped beside other such memory, before it, behind it or between, is one mapping with it,"
    " and huge pages cover the borders of both",
    "mmap(2); mm/vma.c vma_merge_new_range(); mm/memory.c create_huge_pmd()",
)
def joined_when_mapped(live: Live) -> None:
    set_policy(live, "always")
    size = pmd_size(live)
    for order in permutations(range(_PARTS)):
        actor = live.actor()
        memory = Memory(live, actor, room_for(actor, _PARTS // 2, size), _PARTS // 2, size)
        for part in order:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_FIXED
            actor.mmap(size // 2, READ_WRITE, flags, address=memory.address + part * size // 2)
        with live.about(f"halves of huge pages are mapped in the order {order}"):
            live.expect("mappings", 1, len(memory.all_mappings()))
            memory.fill()
            need_blocks(live, memory)
            live.expect("memory mapped huge", memory.length, mapped_huge(memory))
            memory.expect_filled()
        actor.end()


@BORDERS.case(
    "the border of two mappings that moves into a huge page of either splits how this one is mapped, and no other: each"
    " part has the protection of its mapping, and all of it what it held",
    "mprotect(2); madvise(2); mm/huge_memory.c vma_adjust_trans_huge()",
)
def moved_into_a_huge_page(live: Live) -> None:
    let_only_pmd_inherit(live)
    for make in (huge_pages, shared_huge_pages):
        for shift in (-live.base_page, live.base_page, -pmd_size(live) // 2, pmd_size(live) // 2):
            with live.about(f"{make.__name__.replace('_', ' ')}, a border that moves by {shift} bytes"):
                _expect_border(live, make(live, _PAGES), shift)


def _expect_border(live: Live, memory: Memory, shift: int) -> None:
    """Have the border between read-only memory and other memory move by ``shift`` bytes from the middle of all."""
    middle = memory.length // 2
    memory.protect(mmap.PROT_READ, 0, _PAGES // 2)
    live.expect("memory mapped huge before", memory.length, mapped_huge(memory))
    if shift > 0:
        memory.actor.call("mprotect", memory.address + middle, shift, mmap.PROT_READ)
    else:
        memory.actor.call("mprotect", memory.address + middle + shift, -shift, READ_WRITE)
    border = middle + shift
    live.expect("where the second mapping begins", memory.address + border, memory.smaps(_PAGES - 1).start)
    live.expect("memory mapped huge", memory.length - memory.size, mapped_huge(memory))
    memory.expect_filled()
    for offset in (0, border - WORD):
        live.expect_signal(signal.SIGSEGV, memory.actor.write, memory.address + offset, _NEW_VALUE)
    memory.actor.fill(memory.address + border, memory.length - border, WORD, _NEW_VALUE)
    live.expect("words of the first mapping that changed", 0, memory.wrong(0, border))
    rest = memory.actor.check(memory.address + border, memory.length - border, WORD, _NEW_VALUE)
    live.expect("words that were written and changed", 0, rest)
    memory.actor.end()


@BORDERS.case(
    "advice for a part of a huge page that joins it to the mapping beside it holds for that part, and back again, and"
    " what it holds stays",
    "madvise(2) MADV_NOHUGEPAGE, MADV_HUGEPAGE; mm/huge_memory.c vma_adjust_trans_huge(); mm/madvise.c",
)
def joined_by_advice(live: Live) -> None:
    let_rest(live)
    memory = huge_pages(live, _PAGES)
    half = memory.size // 2
    memory.advise(MADV_NOHUGEPAGE, 0, 1)
    for start, end, advice in (
        (memory.size, memory.size + half, MADV_NOHUGEPAGE),
        (half, memory.size, MADV_HUGEPAGE),
        (memory.size, memory.size + half, MADV_HUGEPAGE),
        (0, half, MADV_HUGEPAGE),
    ):
        memory.actor.call("madvise", memory.address + start, end - start, advice)
        memory.expect_filled()
    live.expect("start of the mapping that has the last page", memory.address, memory.smaps(_PAGES - 1).start)
    # the first two are mapped in parts, the others never were
    live.expect("AnonHugePages", memory.length - 2 * memory.size, memory.smaps().anon_huge_pages)
    memory.fill(_NEW_VALUE)
    memory.expect_filled(_NEW_VALUE)


@BORDERS.case(
    "huge pages that mremap() moves with MREMAP_DONTUNMAP are at their new place, huge, and the old one is empty memory"
    " of the same mapping; of shared memory both places show the same",
    "mremap(2) MREMAP_DONTUNMAP; mm/mremap.c move_vma()",
    since="5.13",
)
def moved_and_not_unmapped(live: Live) -> None:
    flags = MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP
    memory = huge_pages(live, _PAGES)
    actor, size = memory.actor, memory.size
    place = room_for(actor, 2, size)
    actor.call("mremap", memory.at(1), 2 * size, 2 * size, flags, place)
    there = Memory(live, actor, place, 2, size)
    live.expect("AnonHugePages at the new place", 2 * size, there.smaps().anon_huge_pages)
    live.expect("words that changed at the new place", 0, there.wrong(0, 2 * size, 1 + size))
    old = memory.smaps(1)
    live.expect("Rss of the old mapping", memory.length - 2 * size, old.rss)
    live.expect("AnonHugePages of the old mapping", memory.length - 2 * size, old.anon_huge_pages)
    # as far as it reached before
    live.expect("the mapping has all of it", (memory.address, True), (old.start, old.end >= memory.at(_PAGES)))
    memory.expect_zero(1, 2)
    for page in (1, 2):
        memory.touch(page, _NEW_VALUE)
    live.expect("words that changed at the new place", 0, there.wrong(0, 2 * size, 1 + size))
    for page in (0, 3):
        memory.expect_filled(first=page, pages=1)
    actor.end()

    let_only_pmd_inherit(live)
    shared = shared_huge_pages(live, 2)
    place = room_for(shared.actor, 2, size)
    shared.actor.call("mremap", shared.address, 2 * size, 2 * size, flags, place)
    there = Memory(live, shared.actor, place, 2, size)
    live.expect("Rss of the old mapping", 0, shared.smaps().rss)
    expect_mapped_whole(live, there, 2)
    shared.expect_filled()
    expect_mapped_whole(live, shared, 2)
    there.fill(_NEW_VALUE)
    shared.expect_filled(_NEW_VALUE)


@BORDERS.case(
    "huge pages with MADV_DONTFORK are a child's again after MADV_DOFORK, and those with MADV_WIPEONFORK after"
    " MADV_KEEPONFORK, a part of one by itself, too; VmSize has what is mapped",
    "madvise(2) MADV_DOFORK, MADV_KEEPONFORK; mm/mmap.c dup_mmap(); mm/madvise.c madvise_vma_behavior()",
)
def inherited_again(live: Live) -> None:
    let_rest(live)
    half = pmd_size(live) // 2
    for kept_back, given in ((mmap.MADV_DONTFORK, mmap.MADV_DOFORK), (MADV_WIPEONFORK, MADV_KEEPONFORK)):
        memory = huge_pages(live, 2)
        memory.advise(kept_back)
        # but for the second half of the second one
        memory.actor.call("madvise", memory.address, 3 * half, given)
        child = memory.fork()
        live.expect("words that the child lacks", 0, child.wrong(0, 3 * half))
        behind = memory.address + 3 * half
        if kept_back == MADV_WIPEONFORK:
            live.expect("words that the child has of the rest", 0, child.actor.nonzero(behind, half))
        else:
            live.expect_signal(signal.SIGSEGV, child.actor.read, behind)
        memory.advise(given)
        again = memory.fork()
        again.expect_filled()
        everyone = child, again, memory
        found = [expect_as_mapped(live, one.actor) for one in everyone]
        lacking = half if kept_back == mmap.MADV_DONTFORK else 0
        live.expect("VmSize of the two children", [found[2] - lacking, found[2]], found[:2])
        huge = [one.smaps().anon_huge_pages for one in everyone]
        live.expect("AnonHugePages of the first one", [memory.size] * len(everyone), huge)
        again.fill(_NEW_VALUE)
        memory.expect_filled()
        memory.expect_huge(1, about="of the first one, written by a child")
        for one in everyone:
            one.actor.end()


@BORDERS.case(
    "of a huge page that is locked in part that part is locked, and is counted so when the huge page is split, until it"
    " is unlocked",
    "mlock(2); Documentation/filesystems/proc.rst Mlocked, Locked; mm/mlock.c mlock_fixup(), mlock_pte_range()",
    since="5.13",  # a process can be named to split_huge_pages
)
def locked_in_part(live: Live) -> None:
    let_rest(live)
    half = pmd_size(live) // 2

    def lock(memory: Memory) -> None:
        memory.actor.call("mlock", memory.address + half // 2, half)

    def lock_and_split(memory: Memory) -> None:
        lock(memory)
        expect_split(live, f"{memory.actor.pid},{memory.address:#x},{memory.at(1):#x}", 1)

    def unlock(_none: None) -> None:
        memory.actor.call("munlock", memory.address, memory.size)

    counted = {"Mlocked": half, "Unevictable": half, "AnonHugePages": -2 * half}
    memory = expect_change(live, counted, partial(huge_pages, live, 1), lock_and_split)
    middle = Memory(live, memory.actor, memory.address + half, 1, half)
    live.expect("Locked", half, middle.smaps().fields["Locked"])
    live.expect("Rss of the locked mapping", half, middle.smaps().rss)
    memory.expect_filled()
    expect_change(live, {"Mlocked": -half, "Unevictable": -half}, partial(lock, memory), unlock)
    live.expect("Locked of what is unlocked", 0, middle.smaps().fields["Locked"])
    memory.expect_filled()


@BORDERS.case(
    "a System V segment that is locked, in huge pages or base pages, before or after it is filled, stays in memory, and"
    " huge pages are unevictable; unlocked, they are not, it can be swapped out, and holds what it held",
    "shmctl(2) SHM_LOCK, SHM_UNLOCK; mm/shmem.c shmem_lock(), shmem_unlock_mapping(); mm/vmscan.c"
    " check_move_unevictable_folios()",
    since="5.4",  # MADV_PAGEOUT
)
def locked_segment(live: Live) -> None:
    need_swap(live, pmd_size(live))
    let_only_pmd_inherit(live)
    for policy, is_filled in product(("always", "never"), (True, False)):
        with live.about(f"shmem_enabled={policy}, filled before it is locked: {is_filled}"):
            live.set_knob(f"{DIRECTORY}/shmem_enabled", policy)
            _expect_locked_segment(live, policy == "always", is_filled)


def _expect_locked_segment(live: Live, huge: bool, is_filled: bool) -> None:
    """Expect a new segment to stay in memory as long as it is locked, from before or after it ``is_filled`` on."""
    actor, size = live.actor(), pmd_size(live)
    number = segment_number(live, actor, size, 0o600 | IPC_CREAT)
    address = actor.call("shmat", number, room_for(actor, 1, size), SHM_REMAP)
    memory = Memory(live, actor, address, 1, size)

    def lock() -> None:
        actor.call("shmctl", number, SHM_LOCK, 0)
        # it is found to be unevictable when somebody wants to evict it, once each CPU has put it on its lists
        memory.advise(MADV_PAGEOUT)
        drain_lru_batches(live, actor)
        memory.advise(MADV_PAGEOUT)

    def unlock() -> None:
        actor.call("shmctl", number, SHM_UNLOCK, 0)

    if not is_filled:
        lock()
    expect_shared(live, memory, huge, "a segment")
    if not is_filled:
        lock()
        live.expect("Rss of what was locked when it was filled", size, memory.smaps().rss)
    # base pages that were taken off their list, be it to compact, are on none until their CPU puts them there
    counted = {"Unevictable": size, "Shmem": 0} if huge else {"Shmem": 0}
    expect_change(live, counted, unlock, lambda _none: lock())
    live.expect("Rss while it is locked", size, memory.smaps().rss)
    memory.expect_filled()
    expect_change(live, {name: -change for name, change in counted.items()}, lock, lambda _none: unlock())
    page_all_out(live, memory)
    memory.expect_filled()
    actor.end()


class ThpBorders(LiveTest):
    def test_borders(self) -> None:
        self.run_area(BORDERS)
