"""What huge pages are made of: pieces of other huge pages, smaller ones, shared memory; by khugepaged and by advice."""

import mmap
from collections.abc import Iterator
from functools import partial

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.fragmentation import expect_no_node_short, expect_no_shortage, with_blocks
from hugepage_qa.cases.khugepaged_clock import (
    KHUGEPAGED,
    PATIENT_SCANS,
    allow_absent,
    await_khugepaged,
    await_scans,
    full_scans,
    let_rest,
    quicken,
)
from hugepage_qa.cases.khugepaged_sleep import await_sleep
from hugepage_qa.cases.khugepaged_work import (
    COLLAPSE_SINCE,
    beyond_limit,
    expect_beyond_limit,
    expect_collapse,
    put_to_work,
)
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.madv_collapse import collapse_memory
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.size_counters import allow_only
from hugepage_qa.cases.thp_memory import map_aligned, pmd_size, room_for
from hugepage_qa.cases.thp_policy import (
    advised,
    base_pages,
    huge_pages,
    leave_dirt,
    need_sizes,
    set_policy,
    smaller_sizes,
    some_smaller_sizes,
)
from hugepage_qa.cases.thp_shared_memory import filled_file, let_only_pmd_inherit, map_file, mount_tmpfs
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.tree import read_integer
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE, MADV_NOHUGEPAGE, MAP_FIXED, MREMAP_FIXED, MREMAP_MAYMOVE
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.oracle.rules import THP_DOC
from hugepage_qa.plugins.avocado_test import LiveTest

SOURCES = Area("thp/collapse-sources", sizes=Sizes.ONCE, uncleared=True)

DOC = f"{THP_DOC} Khugepaged controls"
COLLAPSE = "madvise(2) MADV_COLLAPSE"
SCAN = "mm/khugepaged.c hpage_collapse_scan_pmd(), collapse_scan_pmd()"
_SLEEP_MILLISECONDS = 500
_PAGES = 12
#: made in rounds of one huge page and of four, and so much more may be for what a process has besides
_ALL, _AT_A_TIME, _MORE_ROUNDS = 24, 4, 2
#: others are looked at, too
_MOST_ROUNDS, _ROUND_SECONDS = 4 * _ALL, 10.0
#: one after the other in which nothing comes of ours, after which others have too much
_IDLE_ROUNDS = 12
#: where khugepaged has no processor for it, a round takes several
_TRIES = 3
_NEW_VALUE = 77
_QUIET_SECONDS = 1.0


@SOURCES.case(
    "a huge page that is mapped as base pages is made one that is mapped as a whole, and holds what it held",
    f"{DOC}; {COLLAPSE}; {SCAN}",
    since="5.8",
)
def a_huge_page_in_parts(live: Live) -> None:
    for by_advice in _ways(live):
        memory = huge_pages(live, 2)
        for prot in (mmap.PROT_READ, READ_WRITE):
            memory.actor.call("mprotect", memory.address + live.base_page, live.base_page, prot)
        memory.expect_huge(1, about="of the page behind it")
        _make_huge(live, memory, by_advice)
        memory.expect_filled()


@SOURCES.case(
    "a child makes a huge page of its own of one that it shares with its parent and has mapped as base pages",
    f"{DOC} max_ptes_shared; {COLLAPSE}; fork(2); {SCAN}",
    since="5.8",
)
def a_shared_huge_page_in_parts(live: Live) -> None:
    for by_advice in _ways(live):
        live.set_knob(f"{KHUGEPAGED}/max_ptes_shared", str(pmd_size(live) // live.base_page - 1))
        parent = huge_pages(live)
        child = parent.fork()
        # a page of its own, and by it all others as base pages
        child.touch(value=_NEW_VALUE)
        child.expect_huge(0, about="of the child before")
        _make_huge(live, child, by_advice)
        parent.expect_huge(about="of the parent")
        parent.expect_filled()
        child.touch()
        child.expect_filled()
        child.fill(_NEW_VALUE)
        parent.expect_filled()


@SOURCES.case(
    "pieces of two huge pages that lie side by side are made one, and hold what they held; so does the rest of the two",
    f"{DOC}; {COLLAPSE}; {SCAN}, __collapse_huge_page_copy()",
    since="5.8",
)
def pieces_of_two_huge_pages(live: Live) -> None:
    for by_advice in _ways(live):
        memory = huge_pages(live, 2)
        half, actor = memory.size // 2, memory.actor
        room = actor.mmap(3 * memory.size, 0, mmap.MAP_ANONYMOUS | mmap.MAP_PRIVATE)
        target = -(-room // memory.size) * memory.size
        flags = MREMAP_MAYMOVE | MREMAP_FIXED
        actor.call("mremap", memory.address + half, memory.size, memory.size, flags, target)
        pieces = Memory(live, actor, target, 1, memory.size)
        pieces.expect_huge(0, about="of pieces")
        _make_huge(live, pieces, by_advice)
        pieces.expect_filled(1 + half)
        wrong = actor.check(memory.address, half, WORD, 1) + actor.check(
            memory.address + 3 * half, half, WORD, 1 + 3 * half
        )
        live.expect("words of the rest that changed", 0, wrong)


@SOURCES.case(
    "huge pages of a smaller size are made one of PMD size, and hold what they held",
    f"{DOC}; {COLLAPSE}; {SCAN}",
    since="6.10",
)
def pages_of_a_smaller_size(live: Live) -> None:
    sizes = need_sizes(smaller_sizes(live))
    for (size, path), by_advice in ((one, way) for one in (sizes[0], sizes[-1]) for way in _ways(live)):
        set_policy(live, "madvise", pmd="never")
        live.set_knob(f"{path}/enabled", "madvise")
        memory = advised(live)
        before = _faults(live, path)
        memory.fill()
        given = _faults(live, path) - before
        if given < memory.length // size:
            expect_no_shortage(live, size, memory.length // size)
        live.expect(f"faults that took {size >> 10} kB", memory.length // size, min(given, memory.length // size))
        set_policy(live, "madvise")
        # a process comes to khugepaged's list by advice that is new, for memory that was touched before
        for advice in (MADV_NOHUGEPAGE, MADV_HUGEPAGE):
            memory.advise(advice)
        _make_huge(live, memory, by_advice)
        memory.expect_filled()
        memory.actor.end()


@SOURCES.case(
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


@SOURCES.case(
    "khugepaged makes shared memory huge that is all there, in huge pages of a smaller size, where none may be absent,"
    " and leaves it where one of them is; it holds what it held",
    f"{DOC} max_ptes_none; mm/khugepaged.c hpage_collapse_scan_file() (d60fcaf00d75)",
    since="6.12",
)
def shared_pages_of_a_smaller_size(live: Live) -> None:
    put_to_work(live)
    let_only_pmd_inherit(live)
    allow_absent(live, 0)
    sizes = [(size, path) for size, path in some_smaller_sizes(live) if "shmem_enabled" in live.host.names(path)]
    if not sizes:
        raise CannotRun("this kernel has no shared memory in huge pages of smaller sizes")
    for size, path in sizes:
        for absent in (0, 1):
            live.set_knob(f"{DIRECTORY}/shmem_enabled", "never")
            allow_only(live, size, knob="shmem_enabled", policy="always")
            memory = map_aligned(live, 1, pmd_size(live), shared=True)
            present, before = memory.length - absent * size, _taken(live, path)
            memory.fill_part(0, present)
            if _taken(live, path) - before < present // size:
                expect_no_shortage(live, size, present // size)
            live.expect(f"pages of {size} bytes that were taken", present // size, _taken(live, path) - before)
            allow_only(live, pmd_size(live), knob="shmem_enabled", policy="inherit")
            live.set_knob(f"{DIRECTORY}/shmem_enabled", "advise")
            _advise(memory)
            with live.about(f"pages of {size} bytes, {absent} absent"):
                _expect_shared(live, memory, not absent, f"{absent} absent")
                live.expect("words that changed", 0, memory.wrong(0, present))
            memory.actor.end()


@SOURCES.case(
    "khugepaged has huge pages of files mapped as a whole that are mapped as base pages, in every mapping of a process"
    " and of others, the last one, too; a private one with a page of its own keeps that",
    f"{DOC}; mm/khugepaged.c collapse_pte_mapped_thp(), khugepaged_collapse_pte_mapped_thps()",
    since="6.1",
)
def files_in_parts(live: Live) -> None:
    let_only_pmd_inherit(live)
    point = mount_tmpfs(live, "always")
    for has_more in (False, True):
        put_to_work(live)
        _let_sleep(live)
        path = f"{point}/{has_more}"
        first, other = filled_file(live, path, 2), live.actor()
        others = (first.actor, other) if has_more else ()
        shared = [first, *(map_file(live, each, live.open(each, path), 2) for each in others)]
        private = Memory(live, other, room_for(other, 1, first.size), 1, first.size)
        kind = mmap.MAP_PRIVATE | MAP_FIXED
        other.mmap(private.size, READ_WRITE, kind, live.open(other, path), address=private.address)
        for memory in (*shared, private):
            _map_in_parts(live, memory)
        private.actor.write(private.at(1) - WORD, _NEW_VALUE)
        quicken(live)
        for memory in shared:
            _expect_shared(live, memory, True, f"{len(shared)} mappings")
            memory.expect_filled()
        await_scans(live)
        live.expect("the word that is its own", _NEW_VALUE, private.actor.read(private.at(1) - WORD))
        live.expect("words of a private mapping that changed", 0, private.wrong(0, private.size - WORD))
        for memory in shared:
            memory.fill()
        live.expect("the word that is its own", _NEW_VALUE, private.actor.read(private.at(1) - WORD))
        first.actor.end()
        other.end()


@SOURCES.case(
    "a shorter scan_sleep_millisecs wakes khugepaged at once, though it would have slept for minutes",
    f"{DOC} scan_sleep_millisecs; mm/khugepaged.c scan_sleep_millisecs_store()",
)
def woken_at_once(live: Live) -> None:
    put_to_work(live)
    _let_sleep(live)
    memory = base_pages(live, 2)
    before = full_scans(live)
    live.host.pause(_QUIET_SECONDS)
    live.expect("full scans while it sleeps", before, full_scans(live))
    memory.expect_huge(0, about="while it sleeps")
    quicken(live)
    expect_collapse(live, memory, memory.length)
    memory.expect_filled()


@SOURCES.case(
    "with pages_to_scan=1 khugepaged looks at one huge page and sleeps: it makes no more of them than sleeps are over",
    f"{DOC} pages_to_scan, scan_sleep_millisecs; mm/khugepaged.c khugepaged_do_scan()",
)
def one_at_a_time(live: Live) -> None:
    put_to_work(live)
    _let_sleep(live)
    memory = base_pages(live, _PAGES)
    with_blocks(live, memory.size, _PAGES)
    start = live.host.clock()
    live.host.write(f"{KHUGEPAGED}/scan_sleep_millisecs", str(_SLEEP_MILLISECONDS))
    live.host.wait_until(lambda: memory.smaps().anon_huge_pages >= 2 * memory.size, 60.0)
    made = memory.smaps().anon_huge_pages // memory.size
    if made < 2:
        raise CannotRun("others have so many processes and so much advised memory that khugepaged did not come to ours")
    # it was woken when the number was written, and the last sleep may end now
    most = 2 + round((live.host.clock() - start) * 1000) // _SLEEP_MILLISECONDS
    live.expect(f"at most {most} huge pages of {_PAGES} were made, found {made}", True, made <= most)
    memory.expect_filled()


@SOURCES.case(
    "pages_to_scan is how much khugepaged looks at before it sleeps: with one it makes no more than a huge page, and"
    f" with the pages of {_AT_A_TIME} huge ones it need be woken a quarter as often until all are made",
    f"{DOC} pages_to_scan, pages_collapsed; mm/khugepaged.c khugepaged_do_scan(), khugepaged_wait_work()",
)
def more_at_a_time(live: Live) -> None:
    put_to_work(live)
    _let_sleep(live)
    pages = pmd_size(live) // live.base_page
    one = _rounds_until_all_is_made(live, 1, at_least=1)
    live.expect(f"at least {_ALL} rounds with pages_to_scan=1, found {one}", True, one >= _ALL)
    to_scan, most = _AT_A_TIME * pages, one // _AT_A_TIME + _MORE_ROUNDS
    for _try in range(_TRIES):
        many = _rounds_until_all_is_made(live, to_scan, at_least=_AT_A_TIME)
        if many <= most:
            break
    rounds = f"from {_ALL // _AT_A_TIME} to {most} rounds with pages_to_scan={to_scan}"
    live.expect(f"{rounds}, found {many}", True, _ALL // _AT_A_TIME <= many <= most)


def _rounds_until_all_is_made(live: Live, to_scan: int, at_least: int) -> int:
    """Return how often khugepaged, which sleeps for minutes, had to be woken until it had made all huge pages.

    A round is over when it sleeps again, or has made ``at_least`` so many. Raises CannotRun where memory is too
    fragmented, or others have so much that it does not come to ours.
    """
    live.set_knob(f"{KHUGEPAGED}/pages_to_scan", str(to_scan))
    memory = base_pages(live, _ALL)
    with_blocks(live, memory.size, _ALL)
    path = f"{KHUGEPAGED}/scan_sleep_millisecs"
    minutes = (live.host.read(path) or "").strip()
    idle = 0
    for rounds in range(1, _MOST_ROUNDS):
        before = memory.smaps().anon_huge_pages
        wanted = min(before + at_least * memory.size, memory.length)
        live.host.write(path, minutes)  # who writes it wakes khugepaged
        await_sleep(live, _ROUND_SECONDS, partial(_has, memory, wanted))
        idle = 0 if memory.smaps().anon_huge_pages > before else idle + 1
        if idle == _IDLE_ROUNDS:
            break
        if _has(memory, memory.length):
            memory.expect_huge(about="when all is made")
            memory.expect_filled()
            memory.actor.end()
            return rounds
    expect_no_shortage(live, memory.size, _ALL)
    raise CannotRun("others have so much advised memory, or keep the processors so busy, that nothing came of ours")


def _has(memory: Memory, huge: int) -> bool:
    return memory.smaps().anon_huge_pages >= huge


def _ways(live: Live) -> Iterator[bool]:
    """Yield whether advice (since Linux 6.1) makes huge pages, or khugepaged, which sleeps until ``_make_huge``."""
    for by_advice in (False, True) if live.kernel_version >= COLLAPSE_SINCE else (False,):
        put_to_work(live)
        _let_sleep(live)
        yield by_advice


def _let_sleep(live: Live) -> None:
    """Have khugepaged sleep for minutes, and wait until it does."""
    # without a process on its list it does not sleep but waits for one
    base_pages(live)
    # of what is under way when it is to rest as little as can be
    live.set_knob(f"{KHUGEPAGED}/pages_to_scan", "1")
    let_rest(live)


def _make_huge(live: Live, memory: Memory, by_advice: bool) -> None:
    """Expect ``memory`` to be made huge. Raises CannotRun where it is too fragmented for that."""
    if by_advice:
        collapse_memory(live, memory)
        memory.expect_huge(about="after MADV_COLLAPSE")
    else:
        quicken(live)
        expect_collapse(live, memory, memory.length)


def _expect_shared(live: Live, memory: Memory, huge: bool, where: str) -> None:
    with_blocks(live, memory.size, 1)
    if huge:
        if not await_khugepaged(live, lambda: _mapped_whole(live, memory) == memory.length, PATIENT_SCANS):
            expect_no_node_short(live, memory.size, 1)
    else:
        await_scans(live)
    live.expect(f"ShmemPmdMapped, {where}", memory.length if huge else 0, _mapped_whole(live, memory))


def _map_in_parts(live: Live, memory: Memory) -> None:
    """Have ``memory`` of a file mapped as base pages, though it is huge, and advise it."""
    for page in range(memory.pages):
        # a mapping that ends inside a huge page has none
        memory.actor.call("mprotect", memory.at(page), live.base_page, mmap.PROT_READ)
    memory.expect_filled()
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


def _taken(live: Live, path: str) -> int:
    return read_integer(live.host, f"{path}/stats/shmem_alloc") or 0


def _faults(live: Live, path: str) -> int:
    return read_integer(ObservedTree(live.host), f"{path}/stats/anon_fault_alloc") or 0


class ThpCollapseSources(LiveTest):
    def test_collapse_sources(self) -> None:
        self.run_area(SOURCES)
