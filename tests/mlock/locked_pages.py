"""Which pages of locked memory are locked, whatever kind of pages, as kpageflags, Mlocked and Unevictable tell."""

import mmap
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.changed_counters import expect_change
from hugepage_qa.cases.fragmentation import with_blocks
from hugepage_qa.cases.frames import MLOCKED, UNEVICTABLE
from hugepage_qa.cases.hugetlb_segments import IPC_CREAT, IPC_RMID, SHM_LOCK, SHM_REMAP, SHM_UNLOCK, segment_number
from hugepage_qa.cases.khugepaged_clock import let_nobody_else_act, let_rest
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.locked_flags import expect_locked_pages
from hugepage_qa.cases.lru_batches import drain_lru_batches
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.thp_memory import mapped_huge, need_blocks, pmd_size, room_for
from hugepage_qa.cases.thp_policy import base_pages, huge_pages, huge_zeroes, set_policy, some_smaller_sizes
from hugepage_qa.cases.thp_shared_memory import expect_mapped_whole, shared_base_pages, shared_huge_pages
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.uapi import MAP_FIXED, MLOCK_ONFAULT
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor

LOCKED_PAGES = Area("mlock/locked-pages", sizes=Sizes.ONCE)

DOC = "Documentation/mm/unevictable-lru.rst Mlocked Pages; Documentation/filesystems/proc.rst Mlocked, Unevictable"
_HUGE = (huge_pages, shared_huge_pages)
_KINDS = (*_HUGE, base_pages, shared_base_pages)
_PAGES = 2
#: of /proc/vmstat
_RESCUED, _MLOCKED, _MUNLOCKED = (f"unevictable_pgs_{name}" for name in ("rescued", "mlocked", "munlocked"))
_PMD_SIZED = "huge pages"

#: a way to lock memory, or to unlock it, and what it is called
_Way = tuple[str, Callable[[Live, Memory], object]]


def _call(name: str, *flags: int) -> Callable[[Live, Memory], object]:
    return lambda _live, memory: memory.actor.call(name, memory.address, memory.length, *flags)


def _lock_all(more: int) -> Callable[[Live, Memory], object]:
    # MCL_ONFAULT is the flag behind MCL_FUTURE (include/uapi/asm-generic/mman.h and those of architectures)
    return lambda live, memory: memory.actor.call(
        "mlockall", live.host.uapi.mcl_current | more * live.host.uapi.mcl_future << 1
    )


_WAYS: tuple[_Way, ...] = (
    ("mlock()", _call("mlock")),
    ("mlock2()", _call("mlock2", 0)),
    ("mlock2(MLOCK_ONFAULT)", _call("mlock2", MLOCK_ONFAULT)),
    ("mlockall(MCL_CURRENT)", _lock_all(0)),
    ("mlockall(MCL_CURRENT | MCL_ONFAULT)", _lock_all(1)),
)
_UNLOCKING: tuple[_Way, ...] = (
    ("munlock()", _call("munlock")),
    ("munlockall()", lambda _live, memory: memory.actor.call("munlockall")),
)


@LOCKED_PAGES.case(
    "pages that are there are locked and unevictable, all of them, when their memory is locked in whichever way, and no"
    " more when it is unlocked: huge pages and base pages, private and shared; those of another mapping are not; while"
    " they are, numa_maps tells of none that is not active",
    f"{DOC}; numa(7) active; mm/mlock.c mlock_pte_range(), mlock_folio(), munlock_folio(); fs/proc/task_mmu.c"
    " gather_stats()",
)
def pages_that_are_there(live: Live) -> None:
    let_nobody_else_act(live)
    for make, (number, (name, lock)) in product(_KINDS, enumerate(_WAYS)):
        unlocked, unlock = _UNLOCKING[number % len(_UNLOCKING)]
        with live.about(f"{make.__name__}, {name}"):
            memory = make(live, _PAGES)
            beside = make(live, 1)
            expect_locked_pages(live, "before", memory, 0)
            lock(live, memory)
            expect_locked_pages(live, "locked", memory, MLOCKED | UNEVICTABLE)
            expect_locked_pages(live, "of another process", beside, 0)
            unlock(live, memory)
            expect_locked_pages(live, f"after {unlocked}", memory, 0)
            live.expect("huge pages", memory.length * (make in _HUGE), mapped_huge(memory))
            memory.expect_filled()
        for each in (memory, beside):
            each.actor.end()


@LOCKED_PAGES.case(
    "Mlocked counts base pages, huge pages and those of shared memory when they are locked, all of their bytes, and no"
    " more when they are unlocked, in whichever way, or unmapped; so does Unevictable huge pages, of which all base"
    " pages are events, unevictable_pgs_mlocked and unevictable_pgs_munlocked, once",
    f"{DOC}; mm/mlock.c mlock_folio(), munlock_folio()",
)
def counted(live: Live) -> None:
    let_nobody_else_act(live)
    length = _PAGES * pmd_size(live)
    every = length // live.base_page
    leaving: tuple[tuple[str, Callable[[Memory], object]], ...] = (
        ("munlock()", Memory.unlock),
        ("munlockall()", lambda memory: memory.actor.call("munlockall")),
        ("munmap()", Memory.unmap),
    )

    def settled(act: Callable[[Memory], object], memory: Memory) -> None:
        act(memory)
        drain_lru_batches(live)

    def locked(make: Callable[[Live, int], Memory]) -> Memory:
        memory = make(live, _PAGES)
        settled(Memory.lock, memory)
        return memory

    # locked base pages of others may be moved, too
    expect = partial(expect_change, live, on_others=drain_lru_batches)
    for make in _KINDS:
        rise, fall = {"Mlocked": length}, {"Mlocked": -length}
        if make in _HUGE:
            # base pages that were taken off their list, be it to compact, are on none until their CPU puts them there,
            # and those that are moved for it are unlocked where they were and locked where they are
            rise |= {"Unevictable": length, _MLOCKED: every, _MUNLOCKED: 0}
            fall |= {"Unevictable": -length, _MLOCKED: 0, _MUNLOCKED: every}
        with live.about(make.__name__):
            expect(rise, partial(make, live, _PAGES), partial(settled, Memory.lock))
        for name, leave in leaving:
            with live.about(f"{make.__name__}, {name}"):
                expect(fall, partial(locked, make), partial(settled, leave))


@LOCKED_PAGES.case(
    "pages that come into locked memory, huge ones, smaller ones and base pages, are counted as locked, all their base"
    " pages, once, by Mlocked and unevictable_pgs_mlocked: when what is locked on fault is written, when it is locked"
    " and none of it was there, and when it is mapped locked",
    f"{DOC}; mlock2(2) MLOCK_ONFAULT; mmap(2) MAP_LOCKED; mm/mlock.c mlock_new_folio()",
)
def counted_when_they_come(live: Live) -> None:
    let_rest(live)
    ways: tuple[tuple[str, Callable[[Live, int], Memory], Callable[[Memory], None]], ...] = (
        ("written", _locked_on_fault, Memory.fill),
        ("locked", _mapped, Memory.lock),
        ("mapped locked", _place, partial(_map, flags=live.host.uapi.map_locked)),
    )
    for kind, pages in _kinds_that_come(live):
        for way, prepare, act in ways:
            with live.about(f"{kind}, {way}"):
                length = pages * pmd_size(live)
                events = {_MLOCKED: length // live.base_page, _MUNLOCKED: 0}
                rise = {"Mlocked": length, **events}
                blocks = pages if kind == _PMD_SIZED else 0
                memory = expect_change(live, rise, partial(_with_blocks, live, blocks, prepare, pages), act)
                if kind == _PMD_SIZED and mapped_huge(memory) < length:
                    need_blocks(live, memory)
                live.expect("huge pages", length if kind == _PMD_SIZED else 0, mapped_huge(memory))
            memory.actor.end()


def _kinds_that_come(live: Live) -> Iterator[tuple[str, int]]:
    """Have all new memory in pages of one kind after the other; yield what it is, and the huge pages to try it on."""
    set_policy(live, "always")
    yield _PMD_SIZED, _PAGES
    set_policy(live, "never")
    yield "base pages", 1
    for size, path in some_smaller_sizes(live):
        # where memory is fragmented some come in smaller ones yet: the sum is the same
        live.set_knob(f"{path}/enabled", "always")
        yield f"pages of {size >> 10} kB", 1
        live.set_knob(f"{path}/enabled", "never")


def _with_blocks(live: Live, blocks: int, prepare: Callable[[Live, int], Memory], pages: int) -> Memory:
    """Return what ``prepare`` makes, for ``blocks`` huge pages that are to come."""
    # a CPU counts locked pages of who ended as unlocked when it has 31 of them, or is asked to (mm/mlock.c)
    drain_lru_batches(live)
    with_blocks(live, pmd_size(live), blocks)
    return prepare(live, pages)


def _place(live: Live, pages: int) -> Memory:
    """Return memory that is not mapped yet, but has a place."""
    actor, size = live.actor(), pmd_size(live)
    return Memory(live, actor, room_for(actor, pages, size), pages, size)


def _map(memory: Memory, flags: int = 0) -> None:
    flags |= mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_FIXED
    memory.actor.mmap(memory.length, READ_WRITE, flags, address=memory.address)


def _mapped(live: Live, pages: int) -> Memory:
    memory = _place(live, pages)
    _map(memory)
    return memory


def _locked_on_fault(live: Live, pages: int) -> Memory:
    memory = _mapped(live, pages)
    memory.lock_on_fault()
    return memory


@LOCKED_PAGES.case(
    "a huge page that two processes have locked stays so until the second one has unlocked it, whoever is the first,"
    " by munlock(), munmap() or its end; a child locks nothing by being one",
    f"{DOC}; mm/mlock.c mlock_folio(), munlock_folio()",
    since="5.18",  # 07ca76067308: before, nobody counts by how many it is locked
)
def locked_by_two(live: Live) -> None:
    let_nobody_else_act(live)
    # a child of ours ends with its parent
    leaving: tuple[tuple[str, Callable[[Memory], object], bool], ...] = (
        ("munlock()", Memory.unlock, False),
        ("munlock()", Memory.unlock, True),
        ("munmap()", Memory.unmap, False),
        ("munmap()", Memory.unmap, True),
        ("its end", lambda memory: memory.actor.end(), True),
    )
    # base pages that are taken off their list for a moment have been locked once, whoever counts (mm/swap.c lru_add())
    for make, (name, leave, child_first) in product(_HUGE, leaving):
        with live.about(f"{make.__name__}, {name}, the child first: {child_first}"):
            parent = make(live, 1)
            child = parent.fork()
            parent.expect_filled()
            child.expect_filled()
            first, second = (child, parent) if child_first else (parent, child)
            # on fault: else each would get a copy of what is private, as if it wrote
            first.lock_on_fault()
            expect_locked_pages(live, "locked by one", second, MLOCKED | UNEVICTABLE)
            second.lock_on_fault()
            huge = [mapped_huge(each) for each in (parent, child)]
            live.expect("huge pages of each", [parent.length, parent.length], huge)
            leave(first)
            expect_locked_pages(live, "left by one of two", second, MLOCKED | UNEVICTABLE)
            second.unlock()
            expect_locked_pages(live, "unlocked by both", second, 0)
        for each in (child, parent):
            each.actor.end()


@LOCKED_PAGES.case(
    "zeroes that a read has mapped are nobody's and not locked with the memory; what is written there then is",
    f"{DOC}; mm/mlock.c mlock_pte_range(), mlock_new_folio()",
)
def zeroes(live: Live) -> None:
    let_rest(live)
    memory = huge_zeroes(live)
    # MLOCK_ONFAULT: else it would be written
    memory.lock_on_fault()
    expect_locked_pages(live, "of zeroes", memory, 0)
    memory.fill()
    expect_locked_pages(live, "that were written", memory, MLOCKED | UNEVICTABLE)
    memory.unlock()
    expect_locked_pages(live, "unlocked", memory, 0)


@LOCKED_PAGES.case(
    "SHM_UNLOCK makes all pages of a segment that were used while it was locked evictable again, huge pages and base"
    " pages, and unevictable_pgs_rescued counts all base pages of them, once; locked again they are not until then",
    "shmctl(2) SHM_LOCK, SHM_UNLOCK; Documentation/mm/unevictable-lru.rst Unevictable Folio Lists; mm/shmem.c"
    " shmem_lock(), shmem_unlock_mapping(); mm/vmscan.c check_move_unevictable_folios()",
)
def segment_that_is_locked(live: Live) -> None:
    let_nobody_else_act(live)
    every = pmd_size(live) // live.base_page
    actors = list[Actor]()

    def locked(pages: int) -> tuple[Memory, int]:
        # what the one before had is for this one
        while actors:
            actors.pop().end()
        actor, size = live.actor(), pmd_size(live)
        actors.append(actor)
        number = segment_number(live, actor, pages * size, IPC_CREAT | 0o600)
        memory = Memory(live, actor, room_for(actor, pages, size), pages, size)
        actor.call("shmat", number, memory.address, SHM_REMAP)
        # it ends with its actor, and can be locked and unlocked until then
        actor.call("shmctl", number, IPC_RMID, 0)
        actor.call("shmctl", number, SHM_LOCK, 0)
        huge = pages if policy == "always" else 0
        with_blocks(live, size, huge)
        memory.fill()
        expect_mapped_whole(live, memory, huge, f"shmem_enabled={policy}")
        drain_lru_batches(live, memory.actor)
        expect_locked_pages(live, "of a segment that is locked", memory, UNEVICTABLE)
        return memory, number

    def unlock(segment: tuple[Memory, int]) -> None:
        memory, number = segment
        memory.actor.call("shmctl", number, SHM_UNLOCK, 0)
        # there is nothing left for another one
        memory.actor.call("shmctl", number, SHM_UNLOCK, 0)
        # what its CPU has yet to put on a list is rescued when it does (mm/swap.c lru_add())
        drain_lru_batches(live, memory.actor)

    for policy, pages in product(("always", "never"), (1, 2, 3)):
        live.set_knob(f"{DIRECTORY}/shmem_enabled", policy)
        with live.about(f"shmem_enabled={policy}, {pages} pages"):
            wanted = {_RESCUED: pages * every}
            memory, number = expect_change(live, wanted, partial(locked, pages), unlock)
            expect_locked_pages(live, "of a segment that is unlocked", memory, 0)
            memory.expect_filled()
            memory.actor.call("shmctl", number, SHM_LOCK, 0)
            memory.actor.call("shmctl", number, SHM_UNLOCK, 0)
            expect_locked_pages(live, "of one that was locked and not used", memory, 0)


class ThpLockedPages(LiveTest):
    def test_locked_pages(self) -> None:
        self.run_area(LOCKED_PAGES)
