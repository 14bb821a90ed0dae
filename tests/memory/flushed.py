"""Who writes memory that was just moved, unmapped, protected or forked: no processor knows the old place any more.

Nor does one know pages that were taken, or replaced by others.
"""

import mmap
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.clear_refs import need_soft_dirty, while_nothing_moves
from hugepage_qa.cases.khugepaged_clock import let_rest
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.madv_collapse import collapse
from hugepage_qa.cases.mapped_memory import PAGEMAP, WORD, Memory
from hugepage_qa.cases.pagemap_scan import Is, Masks, Region, store_around_a_scan, told_as_written, track_writes
from hugepage_qa.cases.places import free_place
from hugepage_qa.cases.reached_from_outside import word_read_by
from hugepage_qa.cases.swapped import need_swap
from hugepage_qa.cases.thp_memory import pmd_size, room_for
from hugepage_qa.cases.thp_policy import base_pages, huge_pages, mapped_in_parts
from hugepage_qa.cases.thp_shared_memory import let_only_pmd_inherit, shared_base_pages, shared_huge_pages
from hugepage_qa.kernel.uapi import MADV_COLLAPSE, MADV_PAGEOUT, MREMAP_FIXED, MREMAP_MAYMOVE
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor_threads import Came
from hugepage_qa.sizes import MIB
from hugepage_qa.version import KernelVersion

FLUSHED = Area("memory/flushed", sizes=Sizes.ONCE)

AT_ONCE = (
    "who writes memory, its first base page or its last one, gets SIGSEGV as soon as the call has returned that moves,"
    " unmaps or protects it, in the same thread or in another one, and writes nothing; what a thread writes when memory"
    " was forked, the child does not see"
)
CALLS = (
    "mremap(2); munmap(2); mprotect(2); fork(2); Documentation/core-api/cachetlb.rst; mm/mremap.c move_page_tables();"
    " mm/mprotect.c change_protection(); kernel/fork.c dup_mmap()"
)
#: a processor may have forgotten the page by chance; half of them are for the last base page
_ROUNDS = 4
#: a thread may have to wait for a CPU as long as it is looked at
_MOST_ROUNDS = 10
_SECONDS = 0.02
#: of what is written and forgotten, in one request
_OFTEN = 500
_LARGE = 256 * MIB
#: what Actor.late_store() leaves there at first, and at last
_STORED, _STORED_LATE = 1, 2
#: 550a7d60bd5e
_HUGETLB_MOVES_SINCE = KernelVersion(5, 16)
#: what no thread of a repeater stores
_TOUCHED = 7

_NOT, _WRITTEN = Is(0), Is.WRITTEN
#: of scans what they tell, what they choose, and how many regions they have room for: each goes a way of its own
_SCANS = (
    ("nothing", Masks(_NOT, _WRITTEN, _NOT, _WRITTEN), 0),
    ("what was written", Masks(_NOT, _WRITTEN, _NOT, _WRITTEN), 64),
    ("what was written and is there", Masks(_NOT, _WRITTEN, _NOT, _WRITTEN | Is.PRESENT), 64),
)
_TAKEN = {"given back": mmap.MADV_DONTNEED, "paged out": MADV_PAGEOUT}
_REMOVED, _MADE_HUGE = {"removed": mmap.MADV_REMOVE}, {"made huge": MADV_COLLAPSE}
#: of kinds of memory the advice that takes or replaces their pages; and that which keeps what they hold
_ADVICES: Mapping[Callable[[Live], Memory], Mapping[str, int]] = {
    huge_pages: _TAKEN,
    mapped_in_parts: _TAKEN | _MADE_HUGE,
    base_pages: _TAKEN | _MADE_HUGE,
    shared_huge_pages: _TAKEN | _REMOVED,
    shared_base_pages: _TAKEN | _REMOVED | _MADE_HUGE,
}
_KEEPING = (MADV_PAGEOUT, MADV_COLLAPSE)

#: name of a call and its arguments, and where the memory is to be seen then, if anywhere
_Call = tuple[str, tuple[int, ...], Memory | None]
_Way = Callable[[Live, Memory], _Call]


def _moved(live: Live, memory: Memory) -> _Call:
    return _moved_to(live, memory, room_for(memory.actor, memory.pages, memory.size))


def _moved_in_the_pool(live: Live, memory: Memory) -> _Call:
    # what is mapped as base pages may be in a range that has no hugetlb pages
    return _moved_to(live, memory, free_place(live, memory.actor, memory.pages))


def _moved_to(live: Live, memory: Memory, to: int) -> _Call:
    arguments = memory.address, memory.length, memory.length, MREMAP_MAYMOVE | MREMAP_FIXED, to
    return "mremap", arguments, Memory(live, memory.actor, to, memory.pages, memory.size)


def _unmapped(_live: Live, memory: Memory) -> _Call:
    return "munmap", (memory.address, memory.length), None


def _protected(_live: Live, memory: Memory) -> _Call:
    return "mprotect", (memory.address, memory.length, mmap.PROT_READ), memory


_WAYS = _moved, _unmapped, _protected


@FLUSHED.case(AT_ONCE, f"{CALLS}; mm/huge_memory.c move_huge_pmd(), change_huge_pmd()")
def ordinary_memory(live: Live) -> None:
    for make in (base_pages, huge_pages, mapped_in_parts):
        with live.about(make.__name__):
            _expect_refused(live, make)
            _expect_unseen(live, make)


@FLUSHED.case(AT_ONCE, f"{CALLS}; mm/huge_memory.c move_huge_pmd(), change_huge_pmd()")
def shared_memory(live: Live) -> None:
    let_only_pmd_inherit(live)
    _expect_refused(live, shared_huge_pages)


@FLUSHED.case(
    AT_ONCE,
    f"{CALLS}; mm/hugetlb.c move_hugetlb_page_tables(), hugetlb_change_protection(), __unmap_hugepage_range()",
    sizes=Sizes.EACH,
    pages=2,
)
def hugetlb_pages(live: Live) -> None:
    moved = (_moved_in_the_pool,) if live.kernel_version >= _HUGETLB_MOVES_SINCE else ()
    ways = *moved, _unmapped, _protected
    for shared in (False, True):
        make = partial(_hugetlb_page, shared=shared)
        with live.about(f"shared {shared}"):
            _expect_refused(live, make, ways)
            if not shared:
                _expect_unseen(live, make)
            live.expect_pool(nr=2, free=2)


@FLUSHED.case(
    "what a process stores as soon as its write to clear_refs has returned is soft-dirty, where it has stored right"
    " before that, too, and what it stored before is not",
    "Documentation/admin-guide/mm/soft-dirty.rst; fs/proc/task_mmu.c clear_refs_write() (912efa17e512),"
    " clear_soft_dirty_pmd()",
    since="5.11",
)
def written_after_clear_refs(live: Live) -> None:
    let_only_pmd_inherit(live)
    let_rest(live)
    for make in (huge_pages, base_pages, mapped_in_parts, shared_huge_pages, shared_base_pages):
        with live.about(make.__name__):
            memory = make(live)
            need_soft_dirty(live, memory)
            for place in (0, memory.size - WORD):
                _expect_soft_dirty(live, memory, place)
            memory.actor.end()


@FLUSHED.case(
    "what a process stores, in the first base page, amid or in the last one, as soon as a scan has returned that"
    " protects its memory is told as written by the next scan, alone, where all of it was written before:"
    " scans that tell nothing, what was written, or that and what is there",
    "Documentation/admin-guide/mm/pagemap.rst PAGEMAP_SCAN, PM_SCAN_WP_MATCHING; fs/proc/task_mmu.c"
    " pagemap_scan_pmd_entry(), pagemap_scan_thp_entry()",
    since="6.7",
)
def written_after_a_scan(live: Live) -> None:
    let_only_pmd_inherit(live)
    let_rest(live)
    for make in (huge_pages, base_pages, mapped_in_parts, shared_huge_pages, shared_base_pages):
        memory = make(live)
        track_writes(memory)
        base = live.base_page
        for (what, masks, regions), place in product(_SCANS, (0, memory.size // 2, memory.size - base)):
            with live.about(f"{make.__name__}, {place} bytes behind its start, a scan that tells {what}"):
                memory.fill()
                came = store_around_a_scan(live, memory, masks, place, regions=regions)
                live.expect("what came of a store right after the scan", Came.DONE, came)
                told = told_as_written(live, memory)
                if make is shared_huge_pages:
                    # what is mapped whole of a file is unmapped when it is written, and all of it told
                    told = [Region(place, place + base, Is.WRITTEN) for each in told if each.start <= place < each.end]
                live.expect("what is told as written", [Region(place, place + base, Is.WRITTEN)], told)
        memory.actor.end()


@FLUSHED.case(
    "what a process stores as soon as advice has returned that took its pages, or put a huge page in their place, is"
    " there for who reads it from outside, too: in memory that is given back, paged out, removed, or made huge",
    "madvise(2) MADV_DONTNEED, MADV_PAGEOUT, MADV_REMOVE, MADV_COLLAPSE; Documentation/core-api/cachetlb.rst;"
    " mm/khugepaged.c collapse_huge_page(), retract_page_tables(); mm/rmap.c try_to_unmap_one()",
    since="6.1",
)
def written_after_advice(live: Live) -> None:
    let_only_pmd_inherit(live)
    let_rest(live)
    need_swap(live, 2 * pmd_size(live))
    reader = live.actor()
    for make, advices in _ADVICES.items():
        for (what, advice), number in product(advices.items(), _rounds(live)):
            memory = make(live)
            offset = _offset(live, memory, at_the_end=bool(number % 2))
            with live.about(f"{make.__name__}, {what}, {offset} bytes behind its start"):
                store = partial(memory.actor.late_store, offset, "madvise", memory.address, memory.length, advice)
                # a base page that is busy ends a collapse, and the store comes with the next one
                collapse(live, store)
                live.expect("what a reader finds", _STORED_LATE, word_read_by(live, reader, memory, offset))
                if advice in _KEEPING:
                    live.expect("words beside it that changed", 0, memory.wrong_beside(offset, offset + WORD))
            memory.actor.end()


def _expect_soft_dirty(live: Live, memory: Memory, place: int) -> None:
    """Expect stores to be told of when they come right after clear_refs was written, and no others."""
    actor = memory.actor
    clear_refs, pagemap = live.open(actor, "/proc/self/clear_refs", os.O_WRONLY), live.open(actor, PAGEMAP, os.O_RDONLY)

    def attempt() -> tuple[tuple[int, int], bool]:
        lost, kept = actor.soft_dirty(memory.address + place, _OFTEN, clear_refs, pagemap)
        return (lost, kept), not lost and not kept

    lost, kept = while_nothing_moves(live, attempt)
    live.expect(f"stores right after clear_refs, of {_OFTEN}, that are not soft-dirty", 0, lost)
    live.expect(f"stores before clear_refs, of {_OFTEN}, that are soft-dirty still", 0, kept)
    for descriptor in (clear_refs, pagemap):
        actor.call("close", descriptor)


def _hugetlb_page(live: Live, *, shared: bool) -> Memory:
    return live.map(1, shared=shared)


def _expect_refused(live: Live, make: Callable[[Live], Memory], ways: Sequence[_Way] = _WAYS) -> None:
    """Expect a store right after each call to end in SIGSEGV, in the thread that has made it, and in another one."""
    for take in ways:
        by = take.__name__.strip("_").replace("_", " ")
        came = Came(0)
        for number in range(_MOST_ROUNDS):
            # a thread may have been stopped before it stored once more
            if number not in _rounds(live) and Came.SIGSEGV in came:
                break
            came |= _expect_refused_once(live, make, take, by, at_the_end=bool(number % 2))
        live.expect(f"whether stores of a thread end in SIGSEGV when it was {by}", True, Came.SIGSEGV in came)


def _expect_refused_once(live: Live, make: Callable[[Live], Memory], take: _Way, by: str, *, at_the_end: bool) -> Came:
    """Do so once, at the start of memory or in its last base page, and return what came of the other thread."""
    memory = make(live)
    offset = _offset(live, memory, at_the_end=at_the_end)
    name, arguments, seen = take(live, memory)
    about = f"when it was {by}, {offset} bytes behind its start"
    live.expect(f"a store {about}", Came.SIGSEGV, memory.actor.late_store(offset, name, *arguments))
    if seen:
        live.expect(f"what is there {about}", _STORED, seen.actor.read(seen.address + offset))
    memory.actor.end()

    memory = make(live)
    _have_written(live, memory, offset)
    name, arguments, seen = take(live, memory)
    memory.actor.call(name, *arguments)
    found = seen.actor.read(seen.address + offset) if seen else 0
    live.host.pause(_SECONDS)
    writes = seen is not None and seen.actor.read(seen.address + offset) != found
    live.expect(f"whether a thread still writes {about}", False, writes)
    (thread,) = memory.actor.threads.stop(0)
    memory.actor.end()
    return thread.came


def _rounds(live: Live) -> range:
    """Return the least rounds of each way: one where huge pages take seconds to clear."""
    return range(1 if live.is_gigantic or pmd_size(live) > _LARGE else _ROUNDS)


def _expect_unseen(live: Live, make: Callable[[Live], Memory]) -> None:
    """Expect a child not to see what a thread of its parent writes on and on."""
    for number in _rounds(live):
        memory = make(live)
        offset = _offset(live, memory, at_the_end=bool(number % 2))
        _have_written(live, memory, offset)
        child = memory.fork()
        place = child.address + offset
        found = child.actor.read(place)
        live.host.pause(_SECONDS)
        live.expect(f"whether a child sees what its parent writes at {offset}", False, child.actor.read(place) != found)
        (thread,) = memory.actor.threads.stop(0)
        live.expect("what came of the stores of the parent", Came.DONE, thread.came)
        memory.actor.end()


def _offset(live: Live, memory: Memory, *, at_the_end: bool) -> int:
    return memory.length - live.base_page if at_the_end else 0


def _have_written(live: Live, memory: Memory, offset: int) -> None:
    """Start a thread that writes the word that is ``offset`` bytes behind the start of ``memory`` on and on."""
    place = memory.address + offset
    memory.actor.write(place, _TOUCHED)
    memory.actor.threads.use(place, live.base_page, live.base_page)
    live.host.wait_until(lambda: memory.actor.read(place) != _TOUCHED)


class Flushed(LiveTest):
    def test_flushed(self) -> None:
        self.run_area(FLUSHED)
