"""Shared memory and files that khugepaged makes huge, or maps as a whole, for all who have them mapped."""

import mmap

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.folio_layout import folios_of_all, layout_of
from hugepage_qa.cases.fragmentation import expect_no_node_short, with_blocks
from hugepage_qa.cases.khugepaged_clock import PATIENT_SCANS, allow_absent, await_khugepaged, await_scans, quicken
from hugepage_qa.cases.khugepaged_work import (
    COLLAPSE_SINCE,
    beyond_limit,
    expect_beyond_limit,
    expect_collapse,
    put_to_sleep,
    put_to_work,
)
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.madv_collapse import collapse_memory
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.size_counters import allow_only
from hugepage_qa.cases.thp_memory import map_aligned, pmd_size, room_for
from hugepage_qa.cases.thp_policy import base_pages, leave_dirt, some_smaller_sizes
from hugepage_qa.cases.thp_shared_memory import (
    filled_file,
    let_only_pmd_inherit,
    map_file,
    map_start_of_file,
    mount_tmpfs,
    remount_tmpfs,
)
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE, MAP_FIXED
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.oracle.rules import THP_DOC
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor

SHARED = Area("thp/collapse-of-shared", sizes=Sizes.ONCE, uncleared=True)

DOC = f"{THP_DOC} Khugepaged controls"
COLLAPSE = "madvise(2) MADV_COLLAPSE"
_NEW_VALUE = 77


@SHARED.case(
    "khugepaged makes advised shared memory huge for all who map it, as far as max_ptes_none allows absent pages, which"
    " are zero then, and counts what has more of them; who has it mapped without advice need not touch it to have it"
    " mapped as a whole by MADV_COLLAPSE",
    f"{DOC} max_ptes_none; {COLLAPSE}; {THP_DOC} shmem_enabled, thp_scan_exceed_none_pte; mm/khugepaged.c"
    " collapse_file(), hpage_collapse_scan_file(), collapse_pte_mapped_thp()",
)
def shared_memory(live: Live) -> None:
    put_to_work(live)
    let_only_pmd_inherit(live)
    pages = pmd_size(live) // live.base_page
    for absent in (0, 1, pages // 2):
        for limit in {max(absent - 1, 0), absent}:
            leave_dirt(live)
            live.set_knob(f"{DIRECTORY}/shmem_enabled", "never")
            allow_absent(live, limit)
            memory = map_aligned(live, 1, pmd_size(live), shared=True)
            present = memory.length - absent * live.base_page
            memory.fill_part(0, present)
            other = memory.fork()
            # its page table is what khugepaged takes away
            live.expect("words that the other process finds wrong", 0, other.wrong(0, present))
            live.set_knob(f"{DIRECTORY}/shmem_enabled", "advise")
            _advise(memory)
            where, before = f"{absent} absent, max_ptes_none {limit}", beyond_limit(live, "none")
            _expect_shared(live, memory, absent <= limit, where)
            if absent > limit:
                expect_beyond_limit(live, "none", before, where)
            elif live.kernel_version >= COLLAPSE_SINCE:
                collapse_memory(live, other)
                mapped = other.smaps().shmem_pmd_mapped
                live.expect(f"ShmemPmdMapped after advice of the other process, {where}", other.length, mapped)
            for each in (memory, other):
                live.expect("words that changed", 0, each.wrong(0, present))
            rest = other.nonzero(present, absent * live.base_page)
            live.expect("words of absent pages that are not zero", 0, rest)
            memory.actor.end()


@SHARED.case(
    "khugepaged makes shared memory huge that is all there, in huge pages of a smaller size, where none may be absent,"
    " and leaves it where one of them is; it holds what it held",
    f"{DOC} max_ptes_none; mm/khugepaged.c hpage_collapse_scan_file() (d60fcaf00d75)",
    since="6.12",
)
def shared_pages_of_a_smaller_size(live: Live) -> None:
    let_only_pmd_inherit(live)
    for size in _shared_sizes(live):
        for absent in (0, 1):
            put_to_work(live)
            allow_absent(live, 0)
            # before 6.17 the smaller size alone is leave enough for khugepaged
            put_to_sleep(live)
            live.set_knob(f"{DIRECTORY}/shmem_enabled", "never")
            allow_only(live, size, knob="shmem_enabled", policy="always")
            memory = map_aligned(live, 1, pmd_size(live), shared=True)
            present = memory.length - absent * size
            memory.fill_part(0, present)
            _expect_in_pages_of(live, memory, size, present)
            allow_only(live, pmd_size(live), knob="shmem_enabled", policy="inherit")
            live.set_knob(f"{DIRECTORY}/shmem_enabled", "advise")
            _advise(memory)
            quicken(live)
            with live.about(f"pages of {size} bytes, {absent} absent"):
                _expect_shared(live, memory, not absent, f"{absent} absent")
                live.expect("words that changed", 0, memory.wrong(0, present))
            memory.actor.end()


@SHARED.case(
    "khugepaged leaves shared memory alone that may have huge pages of smaller sizes, and none of a PMD",
    f"{THP_DOC} shmem_enabled; mm/huge_memory.c __thp_vma_allowable_orders() (26c7d8413aaf)",
    since="6.11",
)
def smaller_sizes_alone(live: Live) -> None:
    put_to_work(live)
    let_only_pmd_inherit(live)
    live.set_knob(f"{DIRECTORY}/shmem_enabled", "never")
    sizes = _shared_sizes(live)
    for policy in ("always", "advise"):
        allow_only(live, *sizes, knob="shmem_enabled", policy=policy)
        # that it is huge in the end tells that khugepaged has been in this process
        private = base_pages(live)
        memory = map_aligned(live, 1, private.size, shared=True, actor=private.actor, advice=MADV_HUGEPAGE)
        memory.fill()
        expect_collapse(live, private, private.length)
        await_scans(live)
        mapped = _mapped_whole(live, memory)
        known = {Quirk.SMALLER_SIZE_LETS_COLLAPSE: memory.length}
        live.expect(f"ShmemPmdMapped, smaller sizes are {policy}", 0, mapped, known)
        private.actor.end()


@SHARED.case(
    "khugepaged has huge pages of files mapped as a whole that are mapped as base pages, all of them or some, in every"
    " mapping of a process and of others, the last one, too; a private one with a page of its own keeps that",
    f"{DOC}; mm/khugepaged.c collapse_pte_mapped_thp(), khugepaged_collapse_pte_mapped_thps()",
    since="6.1",
)
def files_in_parts(live: Live) -> None:
    let_only_pmd_inherit(live)
    point = mount_tmpfs(live, "always")
    size, base = pmd_size(live), live.base_page
    ways = (False, 2 * size, 0), (True, 2 * size, 0), (True, base, 0), (True, size, size - base)
    for number, (has_more, length, start) in enumerate(ways):
        put_to_work(live)
        put_to_sleep(live)
        path = f"{point}/{number}"
        first, other = filled_file(live, path, 2), live.actor()
        others = (first.actor, other) if has_more else ()
        shared = [first, *(map_file(live, each, live.open(each, path), 2) for each in others)]
        private = Memory(live, other, room_for(other, 1, first.size), 1, first.size)
        kind = mmap.MAP_PRIVATE | MAP_FIXED
        other.mmap(private.size, READ_WRITE, kind, live.open(other, path), address=private.address)
        for memory in (*shared, private):
            _map_in_parts(live, memory, start, length)
        private.actor.write(private.at(1) - WORD, _NEW_VALUE)
        quicken(live)
        for memory in shared:
            _expect_shared(live, memory, True, f"{len(shared)} mappings, {length} bytes at {start} read")
            memory.expect_filled()
        await_scans(live)
        live.expect("the word that is its own", _NEW_VALUE, private.actor.read(private.at(1) - WORD))
        live.expect("words of a private mapping that changed", 0, private.wrong(0, private.size - WORD))
        for memory in shared:
            memory.fill()
        live.expect("the word that is its own", _NEW_VALUE, private.actor.read(private.at(1) - WORD))
        first.actor.end()
        other.end()


@SHARED.case(
    "khugepaged makes files of a tmpfs with huge=always huge that a process has mapped without advice, though nothing"
    " else of it may be huge: shared or private, to be read alone, moved since, or as a child of who mapped them",
    f"{THP_DOC} huge=always, Khugepaged controls; mm/khugepaged.c khugepaged_do_scan(); kernel/fork.c dup_mmap()",
)
def files_that_are_mapped_alone(live: Live) -> None:
    put_to_work(live)
    let_only_pmd_inherit(live)
    # without a process on its list it ends no scan
    base_pages(live)
    point = mount_tmpfs(live, "never")
    ways = (_map_shared, _map_private, _map_to_be_read, _map_and_move, _map_and_fork)
    for number in range(len(ways)):
        writer = map_start_of_file(live, f"{point}/{number}")
        writer.fill()
        writer.actor.end()
    remount_tmpfs(live.actor(), point, "huge=always")
    for number, map_it in enumerate(ways):
        actor = live.actor()
        memory = map_it(live, actor, live.open(actor, f"{point}/{number}"))
        with live.about(map_it.__name__.strip("_")):
            _expect_shared(live, memory, True, "huge=always")
            memory.expect_filled()
        # in the same order each time, as a record has it: a set of actors has none
        for each in dict.fromkeys((memory.actor, actor)):
            each.end()


def _map_shared(live: Live, actor: Actor, descriptor: int) -> Memory:
    return map_file(live, actor, descriptor, 1)


def _map_private(live: Live, actor: Actor, descriptor: int) -> Memory:
    return map_file(live, actor, descriptor, 1, shared=False)


def _map_to_be_read(live: Live, actor: Actor, descriptor: int) -> Memory:
    address = room_for(actor, 1, pmd_size(live))
    actor.mmap(pmd_size(live), mmap.PROT_READ, mmap.MAP_SHARED | MAP_FIXED, descriptor, address=address)
    return Memory(live, actor, address, 1, pmd_size(live))


def _map_and_move(live: Live, actor: Actor, descriptor: int) -> Memory:
    return map_file(live, actor, descriptor, 1).moved_to(room_for(actor, 1, pmd_size(live)))


def _shared_sizes(live: Live) -> list[int]:
    """Return some sizes in bytes below a PMD that shared memory may have. Raises CannotRun where there are none."""
    sizes = [size for size, path in some_smaller_sizes(live) if "shmem_enabled" in live.host.names(path)]
    if not sizes:
        raise CannotRun("this kernel has no shared memory in huge pages of smaller sizes")
    return sizes


def _map_and_fork(live: Live, actor: Actor, descriptor: int) -> Memory:
    memory = map_file(live, actor, descriptor, 1)
    child = memory.fork()
    # what is left of it is the child's
    memory.unmap()
    return child


def _expect_shared(live: Live, memory: Memory, huge: bool, where: str) -> None:
    with_blocks(live, memory.size, 1)
    if huge:
        if not await_khugepaged(live, lambda: _mapped_whole(live, memory) == memory.length, PATIENT_SCANS):
            expect_no_node_short(live, memory.size, 1)
    else:
        await_scans(live)
    live.expect(f"ShmemPmdMapped, {where}", memory.length if huge else 0, _mapped_whole(live, memory))


def _map_in_parts(live: Live, memory: Memory, start: int, length: int) -> None:
    """Have ``length`` bytes of ``memory`` of a file mapped as base pages, though it is huge, and advise it."""
    for page in range(memory.pages):
        # a mapping that ends inside a huge page has none
        memory.actor.call("mprotect", memory.at(page), live.base_page, mmap.PROT_READ)
    live.expect("words of a file that others read", 0, memory.wrong(start, min(length, memory.length - start)))
    memory.protect(READ_WRITE)
    live.expect("ShmemPmdMapped of what is mapped in parts", 0, memory.smaps().shmem_pmd_mapped)
    _advise(memory)


def _advise(memory: Memory) -> None:
    for _time in range(2):
        # shared memory is looked at with the flags that the mapping had before: the first advice puts no process on
        # the list of khugepaged (mm/shmem.c shmem_allowable_huge_orders() reads vma->vm_flags, 6.1 to 7.3)
        memory.advise(MADV_HUGEPAGE)


def _mapped_whole(live: Live, memory: Memory) -> int:
    # khugepaged leaves it to the next access to map what it made
    for page in range(memory.pages):
        live.expect("the first word", 1 + page * memory.size, memory.read(page))
    return memory.smaps().shmem_pmd_mapped


def _expect_in_pages_of(live: Live, memory: Memory, size: int, present: int) -> None:
    """Expect the first ``present`` bytes to be in pages of ``size``. Raises CannotRun where none were to be had."""
    wanted = {size >> 10: [range(present // live.base_page)]}
    found = layout_of(live, folios_of_all(live, memory, present // live.base_page))
    if found != wanted:
        expect_no_node_short(live, size, present // size)
    live.expect("base pages in folios of each size in kB before", wanted, found)


class ThpCollapseOfShared(LiveTest):
    def test_collapse_of_shared(self) -> None:
        self.run_area(SHARED)
