"""Protected memory, there or not, that KSM merges, or that UFFDIO_MOVE moves: what is protected then."""

import signal
from collections.abc import Callable
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.closed_memory import VALUE, begin_access, close, fill, places
from hugepage_qa.cases.khugepaged_clock import let_rest
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory, runs
from hugepage_qa.cases.merged_pages import (
    KSM_DOC,
    await_merged,
    base_page_count,
    expect_all_merged,
    merged_pages,
    start_merging,
)
from hugepage_qa.cases.swapped import need_swap, swap_out
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.cases.thp_policy import advised, base_pages, huge_pages, mapped_in_parts
from hugepage_qa.cases.user_moves import MOVE, Sides
from hugepage_qa.cases.userfaultfd import Feature, Mode, Userfault, protected_pages
from hugepage_qa.kernel.ksm import DIRECTORY
from hugepage_qa.kernel.uapi import MADV_MERGEABLE, MADV_NOHUGEPAGE, MADV_POPULATE_WRITE
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor_threads import Came

KEPT_PROTECTED = Area("userfaultfd/kept-protected", sizes=Sizes.ONCE)

DOC = "Documentation/admin-guide/mm/userfaultfd.rst"
PROTECTED = f"{DOC} Write Protect Notifications; Documentation/admin-guide/mm/pagemap.rst bit 57"
CLOSED = f"{DOC} Read-Write Protection: Scope of protection"
_NEW_VALUE = 1 << 41

#: registers memory, all of which nobody writes from then on without being told, and returns what ends that
Protect = Callable[[Memory], Callable[[], None]]


def _write_protect(memory: Memory) -> Callable[[], None]:
    fault = Userfault(memory, Mode.WRITE_PROTECTED, Feature.PAGEFAULT_FLAG_WP)
    fault.write_protect(length=memory.length)
    return lambda: fault.write_protect(on=False, length=memory.length)


def _close(memory: Memory) -> Callable[[], None]:
    fault = close(memory)
    return lambda: fault.read_write_protect(on=False, length=memory.length)


@KEPT_PROTECTED.case(
    "what is protected stays so, whether KSM merges it with equal pages or not: base pages and huge pages, which it"
    " splits, and zeroes, of which it makes the zero page; no longer protected, what is written is its writer's alone",
    f"{PROTECTED}; {KSM_DOC}; mm/ksm.c replace_page()",
    since="5.14",  # MADV_POPULATE_WRITE
)
def merged(live: Live) -> None:
    _expect_kept_by_merging(live, _write_protect)


@KEPT_PROTECTED.case(
    "what is closed stays so, whether KSM merges it with equal pages or not: base pages and huge pages, which it"
    " splits, and zeroes, of which it makes the zero page; opened, what is written is its writer's alone",
    f"{CLOSED}; {KSM_DOC}; mm/ksm.c replace_page()",
    since="7.3",
)
def closed_and_merged(live: Live) -> None:
    _expect_kept_by_merging(live, _close)


@KEPT_PROTECTED.case(
    "anonymous memory that a program protects before it is there, as it asked for, is protected, all of it or the part"
    " that it names, and pagemap says so of each base page: it is read as zeroes and not written, and stays protected"
    " until it is to be so no longer",
    f"{DOC} UFFD_FEATURE_WP_UNPOPULATED; mm/mprotect.c change_pte_range(); mm/memory.c do_anonymous_page()",
    since="6.4",
)
def unpopulated_memory(live: Live) -> None:
    base, size = live.base_page, pmd_size(live)
    for make in (_small_pages, advised):
        for start, length in ((0, size), (size // 2, base), (base, size - base)):
            memory = make(live)
            fault = Userfault(memory, Mode.WRITE_PROTECTED, Feature.PAGEFAULT_FLAG_WP | Feature.WP_UNPOPULATED)
            fault.write_protect(offset=start, length=length)
            every = [range(start // base, (start + length) // base)]
            with live.about(f"{make.__name__.strip('_')}, {length} bytes from {start} on"):
                live.expect("bytes that are there", 0, memory.smaps().rss)
                live.expect("runs of base pages that are protected", every, runs({*protected_pages(memory)}))
                for place in (start, start + length - base):
                    address = memory.address + place
                    live.expect("what is read", 0, memory.actor.read(address))
                    live.expect_signal(signal.SIGBUS, memory.actor.write, address, _NEW_VALUE)
                live.expect("runs of base pages that are protected then", every, runs({*protected_pages(memory)}))
                fault.write_protect(on=False, offset=start, length=length)
                live.expect("base pages that are protected no longer, and are", [], protected_pages(memory))
                memory.fill()
                memory.expect_filled()
            memory.actor.end()


@KEPT_PROTECTED.case(
    "what UFFDIO_MOVE takes out of protected memory, huge pages, base pages and memory in swap, is not protected where"
    " it was missing, whether that is registered for protection or not: a write is done, and told to nobody",
    f"{PROTECTED}; {MOVE}; mm/userfaultfd.c move_present_pte(), move_swap_pte(); mm/huge_memory.c"
    " move_pages_huge_pmd() (adef440691ba)",
    since="6.8",
)
def moved(live: Live) -> None:
    _expect_open_where_moved(live, _write_protect)


@KEPT_PROTECTED.case(
    "what UFFDIO_MOVE takes out of closed memory, huge pages, base pages and memory in swap, is open where it was"
    " missing, whether that is registered for protection or not: each access is done, and told to nobody",
    f"{CLOSED}; {MOVE}; mm/userfaultfd.c move_present_ptes(), move_swap_pte(); mm/huge_memory.c move_pages_huge_pmd()",
    since="7.3",
)
def closed_and_moved(live: Live) -> None:
    _expect_open_where_moved(live, _close)


def _expect_kept_by_merging(live: Live, protect: Protect) -> None:
    """Expect protected memory that KSM may merge to stay protected, and what it is equal to as it is."""
    start_merging(live)
    live.set_knob(f"{DIRECTORY}/use_zero_pages", "1")
    # what is merged before takes the place of what is protected
    equal, another = fill(huge_pages(live)), fill(huge_pages(live))
    expect_all_merged(live, equal, another)
    for make in (huge_pages, mapped_in_parts, base_pages):
        with live.about(make.__name__):
            memory = fill(make(live))
            _expect_kept(live, memory, equal, protect)
            memory.expect_filled(VALUE)
            _expect_written_alone(memory, equal, another)
    with live.about("zeroes"):
        memory = _small_pages(live)
        memory.advise(MADV_POPULATE_WRITE)
        _expect_kept(live, memory, equal, protect, value=0)
        memory.expect_zero()
        _expect_written_alone(memory, equal, another)


def _expect_kept(live: Live, memory: Memory, equal: Memory, protect: Protect, value: int | None = None) -> None:
    """Expect ``memory`` to be protected, when KSM had its time, until it is to be so no longer.

    ``value`` is what there is to read, by default what was filled.
    """
    unprotect = protect(memory)
    memory.advise(MADV_MERGEABLE)
    await_merged(live, memory, lambda: len(merged_pages(memory, equal)))
    every, lost = base_page_count(live, memory), merged_pages(memory, equal)
    accesses = [*product(places(memory.size), (True,) if protect is _write_protect else (False, True))]
    marked = len(protected_pages(memory))
    found = marked, [_came(memory, place, writes=writes, value=value) for place, writes in accesses]
    came = [Came.DONE if place // live.base_page in lost else Came.SIGBUS for place, _writes in accesses]
    wanted, known = (every, [Came.SIGBUS] * len(accesses)), (every - len(lost), came)
    subject = "base pages that are protected, and what came of accesses"
    live.expect(subject, wanted, found, {Quirk.MERGING_ENDS_PROTECTION: known})
    unprotect()
    live.expect("base pages that are protected no longer, and are", [], protected_pages(memory))


def _expect_written_alone(memory: Memory, *others: Memory) -> None:
    """Write memory that may be merged with ``others``, which are filled and stay so, and end it."""
    memory.fill(_NEW_VALUE)
    memory.expect_filled(_NEW_VALUE)
    for each in others:
        each.expect_filled(VALUE)
    memory.actor.end()


def _came(memory: Memory, place: int, *, writes: bool, value: int | None = None) -> Came:
    """Return what came of an access, of which one that writes leaves something else."""
    begin_access(memory, place, writes=writes, value=value)
    (found,) = memory.actor.threads.stop(0)
    # a thread that stores has found nothing wrong before
    return found.came if found.came == Came.DONE else found.came & ~Came.DONE


def _expect_open_where_moved(live: Live, protect: Protect) -> None:
    """Expect nothing to be protected of what is moved out of protected memory, and that it can be accessed."""
    let_rest(live)
    need_swap(live, pmd_size(live))
    modes = Mode.MISSING, Mode.MISSING | Mode.WRITE_PROTECTED
    ways = (huge_pages, False), (base_pages, False), (_small_pages, True)
    for (make, in_swap), mode in product(ways, modes):
        source = fill(make(live))
        with live.about(f"{make.__name__.strip('_')}, in swap {in_swap}, moved to what is registered for {mode.name}"):
            protect(source)
            if in_swap:
                swap_out(live, source, source.length)
            sides = Sides.of(live, source)
            sides.faults.register(mode)
            sides.move_all(0, 0, source.length)
            huge = source.length if make is huge_pages else 0
            live.expect("AnonHugePages where it was moved", huge, sides.target.smaps().anon_huge_pages)
            _expect_open(live, sides.target, told=Mode.WRITE_PROTECTED in mode)
            sides.target.fill(_NEW_VALUE)
            sides.target.expect_filled(_NEW_VALUE)
        source.actor.end()


def _small_pages(live: Live) -> Memory:
    return advised(live, 1, MADV_NOHUGEPAGE)


def _expect_open(live: Live, memory: Memory, *, told: bool) -> None:
    """Expect filled memory not to be protected, and accesses to be done; with the known bug writes may be ``told``."""
    every = base_page_count(live, memory)
    accesses = [*product(places(memory.size), (False, True))]
    marked = len(protected_pages(memory))
    memory.expect_filled(VALUE)
    found = marked, [_came(memory, place, writes=writes) for place, writes in accesses]
    came = [Came.SIGBUS if told and writes else Came.DONE for _place, writes in accesses]
    wanted, known = (0, [Came.DONE] * len(accesses)), (every, came)
    subject = "base pages that are protected, and what came of accesses"
    live.expect(subject, wanted, found, {Quirk.MOVED_SWAP_STAYS_PROTECTED: known})


class KeptProtected(LiveTest):
    def test_kept_protected(self) -> None:
        self.run_area(KEPT_PROTECTED)
