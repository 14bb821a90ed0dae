"""Locked memory, in huge pages: what VmLck counts of it, and what of it is taken at once."""

import errno
import mmap
from collections.abc import Iterator, Mapping
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.locked_bytes import LOCKED, expect_locked, flagged_bytes
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.process_counters import process_status
from hugepage_qa.cases.thp_memory import mapped_huge, need_blocks, pmd_size, room_for
from hugepage_qa.cases.thp_policy import huge_pages, set_policy
from hugepage_qa.cases.thp_shared_memory import let_only_pmd_inherit, shared_huge_pages
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.uapi import (
    MAP_FIXED,
    MLOCK_ONFAULT,
    MREMAP_DONTUNMAP,
    MREMAP_FIXED,
    MREMAP_MAYMOVE,
)
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor
from hugepage_qa.version import KernelVersion

LOCKED_MEMORY = Area("mlock/locked-memory", sizes=Sizes.ONCE)

_STATUS = "Documentation/filesystems/proc.rst VmLck, VmFlags lo"
_PAGES = 4
#: move_vma() adds to VmLck what is moved, also where its place is kept (d5c8aec0542e)
_COUNTS_THE_MOVED = KernelVersion(6, 15)


@LOCKED_MEMORY.case(
    "VmLck is what of the address space is locked, once, whichever way it was: what is moved, split, protected or made"
    " longer stays so and is counted, what is cut off or unmapped is not, and a child and a new program have none",
    f"{_STATUS}; mlock(2); mm/mlock.c mlock_fixup(); mm/mremap.c move_vma()",
)
def counted(live: Live) -> None:
    let_only_pmd_inherit(live)
    for make in (huge_pages, shared_huge_pages):
        with live.about(make.__name__):
            memory = make(live, _PAGES)
            locked = 0
            for what, change in _changes(live, memory):
                locked += change
                with live.about(what):
                    expect_locked(live, memory.actor, locked)
            memory.actor.end()


def _changes(live: Live, memory: Memory) -> Iterator[tuple[str, int]]:
    """Do one thing after the other to ``memory``; yield what it was, and by how much of it more is locked then."""
    yield from _locked_and_unlocked(live, memory)
    yield from _moved(live, memory)
    yield from _gone(live, memory)


def _locked_and_unlocked(live: Live, memory: Memory) -> Iterator[tuple[str, int]]:
    """Lock and unlock ranges that meet; at last all but the last page is locked."""
    call, start, size, base = memory.actor.call, memory.address, memory.size, live.base_page
    yield "none is locked", 0
    call("mlock", start, 2 * size)
    yield "two pages are locked", 2 * size
    call("mlock", start, 2 * size)
    yield "they are once more", 0
    call("mlock", start + size, 2 * size)
    yield "one of them is, and the one behind", size
    call("mlock2", start + size // 2, size, MLOCK_ONFAULT)
    yield "parts of them are on fault", 0
    call("munlock", start, base)
    yield "the first base page is unlocked", -base
    call("munlock", start, base)
    yield "it is once more", 0
    call("munlock", start + size - base, 2 * base)
    yield "so are the base pages where two of them meet", -2 * base
    call("mlock", start, 3 * size)
    yield "what is not locked among what is", 3 * base


def _moved(live: Live, memory: Memory) -> Iterator[tuple[str, int]]:
    """Protect, advise and move what is locked, which unlocks none of it; at last it is where it was."""
    call, start, size, base = memory.actor.call, memory.address, memory.size, live.base_page
    call("mprotect", start + base, size, mmap.PROT_READ)
    yield "some of it is made read only", 0
    call("mprotect", start + base, size, READ_WRITE)
    yield "it is made writable again", 0
    call("madvise", start, memory.length, mmap.MADV_DONTFORK)
    call("madvise", start, memory.length, mmap.MADV_DOFORK)
    yield "all of it is advised", 0
    place = room_for(memory.actor, _PAGES, size)
    for source, target in ((start + size, place), (place, start + size)):
        call("mremap", source, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, target)
        yield "a page is moved away and back", 0
    call("mremap", start + 2 * size, size, 2 * size, MREMAP_MAYMOVE | MREMAP_FIXED, place)
    yield "the last one is moved and made as long again", size
    call("mremap", place, 2 * size, 2 * size - base, 0)
    yield "it is made shorter by a base page", -base
    call("mremap", place, 2 * size - base, 2 * size, 0)
    yield "and longer by it", base
    call("mremap", place, 2 * size, size, MREMAP_MAYMOVE | MREMAP_FIXED, start + 2 * size)
    yield "it is moved back, and half as long", -size


def _gone(live: Live, memory: Memory) -> Iterator[tuple[str, int]]:
    """Have a child, cut off what is locked, unlock all, and execute a program."""
    actor, start, size, base = memory.actor, memory.address, memory.size, live.base_page
    child = actor.fork()
    live.expect("VmLck of a child", 0, process_status(live, child).locked)
    child.call("mlock", start, base)
    live.expect("VmLck of a child that locks", base, process_status(live, child).locked)
    child.end()
    yield "a child came and went", 0
    actor.mmap(base, READ_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_FIXED, address=start + base)
    yield "a base page is mapped anew", -base
    actor.call("munmap", start + size - base, 2 * base)
    yield "base pages are unmapped", -2 * base
    actor.call("munlockall")
    yield "all is unlocked", -(3 * size - 3 * base)
    actor.call("mlock", start + 3 * size, size)
    yield "the last page is locked", size
    actor.exec()
    yield "another program is executed", -size


@LOCKED_MEMORY.case(
    "what is locked and moved as a whole, and whose place is kept, is locked and counted once, where it is then, and"
    " no more when that is unmapped",
    f"{_STATUS}; mremap(2) MREMAP_DONTUNMAP; mm/mremap.c dontunmap_complete()",
    since="5.13",
)
def mapping_whose_place_is_kept(live: Live) -> None:
    let_only_pmd_inherit(live)
    for make in (huge_pages, shared_huge_pages):
        with live.about(make.__name__):
            memory = make(live, 1)
            size = memory.size
            known = {Quirk.KEPT_PLACE_COUNTS_TWICE: (size, 2 * size, size)}
            _expect_locked_when_moved(live, memory, 0, known)
            memory.actor.end()


@LOCKED_MEMORY.case(
    "a part of what is locked that is moved, and whose place is kept, is locked and counted where it is then; its place"
    " is neither, what is beside it stays both, and none is counted when all is unmapped",
    f"{_STATUS}; mremap(2) MREMAP_DONTUNMAP; mm/mremap.c dontunmap_complete()",
    since="5.13",
)
def part_whose_place_is_kept(live: Live) -> None:
    let_only_pmd_inherit(live)
    for make in (huge_pages, shared_huge_pages):
        with live.about(make.__name__):
            memory = make(live, 3)
            size = memory.size
            twice = size if live.kernel_version >= _COUNTS_THE_MOVED else 0
            known = {Quirk.KEPT_PLACE_UNLOCKS_MAPPING: (size, 3 * size + twice, 2 * size + twice)}
            _expect_locked_when_moved(live, memory, 1, known)
            memory.actor.end()


def _expect_locked_when_moved(
    live: Live, memory: Memory, page: int, known: Mapping[Quirk, tuple[int, int, int]]
) -> None:
    """Lock ``memory``, move a page and keep its place: as much is locked as before, and none when all is unmapped.

    ``known`` tells of bugs what is flagged then, what is counted, and what is when all is unmapped. Raises KnownBug.
    """
    actor, size = memory.actor, memory.size
    actor.call("mlock", *_all_of(memory))
    place = room_for(actor, 1, size)
    flags = MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP
    actor.call("mremap", memory.at(page), size, size, flags, place)
    flagged, counted = flagged_bytes(live, actor), process_status(live, actor).locked
    actor.call("munmap", place, size)
    actor.call("munmap", *_all_of(memory))
    live.expect(
        "bytes with lo in VmFlags, VmLck, VmLck when all is unmapped",
        (memory.length, memory.length, 0),
        (flagged, counted, process_status(live, actor).locked),
        known,
    )


@LOCKED_MEMORY.case(
    "memory is taken at once when it is locked, and when what is locked is made longer; what is locked on fault is when"
    " it is touched, and when it is locked without that; another flag is EINVAL, and locks and takes nothing",
    f"{_STATUS}; mlock2(2) MLOCK_ONFAULT, EINVAL; mmap(2) MAP_LOCKED; mm/gup.c populate_vma_page_range()",
)
def taken_at_once(live: Live) -> None:
    _let_it_be_huge(live)
    ways: tuple[tuple[str, tuple[int, ...]], ...] = (
        ("mlock", ()),
        ("mlock2", (0,)),
        ("mlock2", (MLOCK_ONFAULT,)),
        ("mmap", (live.host.uapi.map_locked,)),
    )
    for shared, (name, flags) in product((False, True), ways):
        with live.about(f"{'shared' if shared else 'private'}, {name} {flags}"):
            actor, takes = live.actor(), flags != (MLOCK_ONFAULT,)
            if name == "mmap":
                memory = _map(live, actor, 2, shared, *flags)
            else:
                memory = _map(live, actor, 2, shared)
                _expect_state(live, "before", memory, False, 0)
                live.expect_errno(errno.EINVAL, actor.call, "mlock2", *_all_of(memory), MLOCK_ONFAULT << 1)
                _expect_state(live, "of what is refused", memory, False, 0)
                actor.call(name, *_all_of(memory), *flags)
            _expect_state(live, "", memory, True, memory.length if takes else 0)
            expect_locked(live, actor, memory.length)
            if not takes:
                memory.touch(1)
                live.expect("Rss of one that was touched", memory.size, memory.smaps().rss)
                actor.call("mlock", *_all_of(memory))
            _expect_state(live, "at last", memory, True, memory.length)
            memory.fill()
            actor.call("mlock2", *_all_of(memory), MLOCK_ONFAULT)
            _expect_state(live, "of what is taken already", memory, True, memory.length)
            # shared memory has no more pages than it began with
            if not shared:
                longer = _longer(live, memory)
                _expect_state(live, "when made longer, on fault", longer, True, memory.length)
                actor.call("mlock", *_all_of(longer))
                longest = _longer(live, longer)
                _expect_state(live, "when made longer", longest, True, longest.length)
            actor.end()


@LOCKED_MEMORY.case(
    "mlockall(2) locks what is there, what comes, or both, as its flags say, and takes it at once but for MCL_ONFAULT;"
    " without one of these flags, and with others, it is EINVAL, and locks nothing",
    f"{_STATUS}; mlockall(2) MCL_CURRENT, MCL_FUTURE, MCL_ONFAULT, EINVAL; mm/mlock.c apply_mlockall_flags()",
)
def all_locked(live: Live) -> None:
    _let_it_be_huge(live)
    now, later = live.host.uapi.mcl_current, live.host.uapi.mcl_future
    on_fault = later << 1  # include/uapi/asm-generic/mman.h, arch/powerpc/include/uapi/asm/mman.h
    wrong = (0, on_fault, on_fault << 1, now | on_fault << 1)
    right = [which | more for which in (now, later, now | later) for more in (0, on_fault)]
    for shared, flags in product((False, True), (*right, *wrong)):
        with live.about(f"{'shared' if shared else 'private'}, mlockall {flags:#x}"):
            actor = live.actor()
            memory = _map(live, actor, 2, shared)
            if flags in wrong:
                live.expect_errno(errno.EINVAL, actor.call, "mlockall", flags)
            else:
                actor.call("mlockall", flags)
            for what, flag in ((memory, now), (_map(live, actor, 2, shared), later)):
                is_locked = flags not in wrong and bool(flags & flag)
                taken = what.length if is_locked and not flags & on_fault else 0
                _expect_state(live, f"of flag {flag:#x}", what, is_locked, taken)
            expect_locked(live, actor)
            child = actor.fork()
            expect_locked(live, child, 0)
            _expect_state(live, "of a child's", _map(live, child, 1, shared), False, 0)
            child.end()
            # what comes is locked no more either
            actor.call("munlockall")
            expect_locked(live, actor, 0)
            _expect_state(live, "after munlockall", _map(live, actor, 1, shared), False, 0)
            actor.end()


@LOCKED_MEMORY.case(
    "what is not mapped in a range that is to be locked or unlocked is ENOMEM: what is before it is so, and what is"
    " behind it stays as it was",
    f"{_STATUS}; mlock(2) ENOMEM; mm/mlock.c apply_vma_lock_flags()",
)
def with_a_hole(live: Live) -> None:
    memory = huge_pages(live, 3)
    memory.unmap(1, 1)
    before, behind = (memory.part(page) for page in (0, 2))
    ways: tuple[tuple[str, tuple[int, ...]], ...] = (
        ("mlock", ()),
        ("munlock", ()),
        ("mlock2", (MLOCK_ONFAULT,)),
        ("mlock2", (0,)),
    )
    for name, flags in ways:
        with live.about(f"{name} {flags}"):
            live.expect_errno(errno.ENOMEM, memory.actor.call, name, *_all_of(memory), *flags)
            is_locked = name != "munlock"
            _expect_state(live, "before it", before, is_locked, memory.size)
            _expect_state(live, "behind it", behind, False, memory.size)
            expect_locked(live, memory.actor, memory.size if is_locked else 0)
            # there is nothing where it begins
            live.expect_errno(errno.ENOMEM, memory.actor.call, name, memory.at(1), memory.size, *flags)
            expect_locked(live, memory.actor, memory.size if is_locked else 0)


def _let_it_be_huge(live: Live) -> None:
    """Let memory be in huge pages, anonymous and shared, until the case ends."""
    let_only_pmd_inherit(live)
    set_policy(live, "always")
    live.set_knob(f"{DIRECTORY}/shmem_enabled", "always")


def _map(live: Live, actor: Actor, pages: int, shared: bool, flags: int = 0) -> Memory:
    size = pmd_size(live)
    address = room_for(actor, pages, size)
    flags |= MAP_FIXED | mmap.MAP_ANONYMOUS | (mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE)
    return Memory(live, actor, actor.mmap(pages * size, READ_WRITE, flags, address=address), pages, size)


def _longer(live: Live, memory: Memory) -> Memory:
    """Make ``memory`` a page longer, wherever there is room."""
    actor, length = memory.actor, memory.length + memory.size
    place = room_for(actor, memory.pages + 1, memory.size)
    actor.call("mremap", *_all_of(memory), length, MREMAP_MAYMOVE | MREMAP_FIXED, place)
    return Memory(live, actor, place, memory.pages + 1, memory.size)


def _all_of(memory: Memory) -> tuple[int, int]:
    return memory.address, memory.length


def _expect_state(live: Live, what: str, memory: Memory, is_locked: bool, taken: int) -> None:
    """Expect ``memory``, a mapping, to be locked or not, and so much of it to be there, in huge pages.

    Raises CannotRun where memory is too fragmented for them.
    """
    found, huge = memory.smaps(), mapped_huge(memory)
    if huge < found.rss:
        need_blocks(live, memory)
    live.expect(
        f"VmFlags lo, Rss, huge pages {what}".rstrip(),
        (is_locked, taken, taken),
        (LOCKED in found.flags, found.rss, huge),
    )


class ThpLockedMemory(LiveTest):
    def test_locked_memory(self) -> None:
        self.run_area(LOCKED_MEMORY)
