"""Transparent huge pages in control groups: what is charged for them, what memory.stat shows, what a limit refuses."""

import errno
import mmap
from collections.abc import Callable, Mapping
from functools import partial, wraps

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.changed_counters import expect_change, read_counters
from hugepage_qa.cases.control_group import CHARGED_AHEAD, ControlGroup, Version, new_group
from hugepage_qa.cases.fragmentation import compact_if_short, expect_no_shortage
from hugepage_qa.cases.group_memory import USED, actor_in, has_exact_charges, need_exact_charges
from hugepage_qa.cases.group_statistics import ADDED_UP_SECONDS, expect_collapses, expect_statistics
from hugepage_qa.cases.khugepaged_work import expect_collapse, put_to_work
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.madv_collapse import collapse_memory, expect_no_collapse
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.memory_policy import MOVE_STRICTLY, bind
from hugepage_qa.cases.pages_of_a_node import need_memory
from hugepage_qa.cases.size_counters import allow_only, counted_sizes, read_size_counters, size_counter
from hugepage_qa.cases.thp_memory import map_aligned, mapped_huge, pmd_size
from hugepage_qa.cases.thp_policy import advised, fill_in_huge_pages, set_policy
from hugepage_qa.cases.thp_shared_memory import let_only_pmd_inherit
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE, MADV_NOHUGEPAGE
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.oracle.rules import THP_DOC
from hugepage_qa.plugins.avocado_test import LiveTest

TRANSPARENT = Area("cgroup/transparent", sizes=Sizes.ONCE)

DOC = "Documentation/admin-guide/cgroup-v2.rst"
_PAGES = 4
#: pages that are refused, one after the other: what is lost of them is no trifle of the machine's memory
_REFUSED = 8
_OF_FAULTS = ("anon_fault_alloc", "anon_fault_fallback", "anon_fault_fallback_charge")
_SHRINKERS = "2"

GroupAct = Callable[[Live, ControlGroup], None]


def case(statement: str, source: str, *, since: str, nodes: int = 1) -> Callable[[GroupAct], None]:
    """Make the decorated function, which gets a group of its own, a case."""

    def register(act: GroupAct) -> None:
        @wraps(act)
        def in_group(live: Live) -> None:
            set_policy(live, "madvise")
            compact_if_short(live, pmd_size(live), _PAGES)
            act(live, new_group(live, "memory", Version.TWO))

        TRANSPARENT.case(statement, source, since=since, nodes=nodes)(in_group)

    return register


@case(
    "a huge page is charged to the group of the process that touches it, is in its anon_thp, and goes with its memory",
    f"{DOC} memory.current, memory.stat anon, anon_thp, thp_fault_alloc; mm/memcontrol.c charge_memcg()",
    since="5.11",
)
def charged_and_given_back(live: Live, group: ControlGroup) -> None:
    memory, before = _huge_pages_in(live, group)
    _expect_charged(live, group, before, _PAGES)
    expect_statistics(live, group, {"anon_thp": memory.length, "thp_fault_alloc": _PAGES})
    memory.expect_filled()
    memory.advise(mmap.MADV_DONTNEED, 0, 1)
    _expect_charged(live, group, before, _PAGES - 1)
    expect_statistics(live, group, {"anon_thp": memory.length - memory.size, "thp_fault_alloc": _PAGES})
    memory.unmap()
    _expect_charged(live, group, before, 0)
    expect_statistics(live, group, {"anon_thp": 0, "thp_fault_alloc": _PAGES})


@case(
    "huge pages that move to another node, anonymous and shared, stay charged to their group, and memory.numa_stat has"
    " the anonymous ones on the node where they are",
    f"{DOC} memory.current, memory.numa_stat; mm/memcontrol.c mem_cgroup_migrate(), memory_numa_stat_show()",
    since="5.11",
    nodes=2,
)
def shown_on_its_node(live: Live, group: ControlGroup) -> None:
    here, there = live.nodes[:2]
    for node in (here, there):
        need_memory(live, [node], _PAGES * pmd_size(live))
    let_only_pmd_inherit(live)
    live.set_knob(f"{DIRECTORY}/shmem_enabled", "advise")
    actor = actor_in(live, group)
    before = group.read_number(USED)
    for shared in (False, True):
        memory = map_aligned(live, _PAGES, pmd_size(live), shared=shared, actor=actor, advice=MADV_HUGEPAGE)
        bind(memory, [here])
        fill_in_huge_pages(live, memory)
        for node, other in ((here, there), (there, here), (here, there)):
            bind(memory, [node], MOVE_STRICTLY)
            found = mapped_huge(memory)
            if found != memory.length:
                # what finds no free block is split, and moved as base pages
                expect_no_shortage(live, memory.size, memory.pages, node)
            with live.about(f"on node {node}, shared: {shared}"):
                live.expect("bytes in huge pages", memory.length, found)
                _expect_on_nodes(live, group, {node: 0 if shared else memory.length, other: 0})
                if has_exact_charges(live):
                    _expect_charged(live, group, before, _PAGES)
        memory.unmap()
        _expect_on_nodes(live, group, {here: 0, there: 0})
        if has_exact_charges(live):
            _expect_charged(live, group, before, 0)


@case(
    "a collapse charges the group for the huge page and no longer for the base pages, and is counted for it",
    f"{DOC} memory.stat thp_collapse_alloc; mm/khugepaged.c alloc_charge_hpage()",
    since="6.1",
)
def charged_for_a_collapse(live: Live, group: ControlGroup) -> None:
    memory = _memory_in(live, group)
    set_policy(live, "never")
    before = group.read_number(USED)
    memory.fill()
    memory.expect_huge(0, about="before")
    _expect_charged(live, group, before, _PAGES)
    collapse_memory(live, memory)
    memory.expect_huge()
    _expect_charged(live, group, before, _PAGES)
    expect_statistics(live, group, {"anon_thp": memory.length, "thp_fault_alloc": 0})
    # what has to be tried again has an allocation each time
    expect_collapses(live, group, _PAGES)
    memory.expect_filled()
    memory.unmap()
    _expect_charged(live, group, before, 0)


@case(
    "huge pages that khugepaged makes are charged to the group of the process whose base pages they were",
    f"{DOC} memory.current, memory.stat anon_thp; mm/khugepaged.c alloc_charge_folio()",
    since="5.11",
)
def charged_for_what_khugepaged_makes(live: Live, group: ControlGroup) -> None:
    put_to_work(live)
    memory = _memory_in(live, group)
    memory.advise(MADV_NOHUGEPAGE)
    before = group.read_number(USED)
    memory.fill()
    _expect_charged(live, group, before, _PAGES)
    memory.advise(MADV_HUGEPAGE)
    expect_collapse(live, memory, memory.length)
    _expect_charged(live, group, before, _PAGES)
    expect_statistics(live, group, {"anon_thp": memory.length})
    memory.unmap()
    _expect_charged(live, group, before, 0)


@case(
    "huge pages of a group that are unmapped in part are split by the shrinkers, and the group pays for the rest alone",
    f"{THP_DOC} thp_deferred_split_page; mm/huge_memory.c deferred_split_scan(), deferred_split_count()",
    since="5.4",
)
def charged_for_the_rest(live: Live, group: ControlGroup) -> None:
    memory, before = _huge_pages_in(live, group)
    half = memory.size // 2
    for page in range(_PAGES):
        memory.actor.call("munmap", memory.at(page) + half, half)

    def is_split() -> bool:
        # one that somebody else has a hold of is passed over
        live.host.write("proc/sys/vm/drop_caches", _SHRINKERS)
        return _is_charged(live, group, before, _PAGES // 2)

    live.host.wait_until(is_split, ADDED_UP_SECONDS)
    _expect_charged(live, group, before, _PAGES // 2)
    for page in range(_PAGES):
        wrong = memory.actor.check(memory.at(page), half, WORD, 1 + page * memory.size)
        live.expect("words of the rest that changed", 0, wrong)


@case(
    "where the limit of a group has no room for a huge page the process gets base pages, and the refusal is counted",
    f"{THP_DOC} thp_fault_fallback_charge; mm/huge_memory.c vma_alloc_anon_folio_pmd()",
    since="5.8",
)
def refused_by_a_limit(live: Live, group: ControlGroup) -> None:
    group.write("memory.max", str(pmd_size(live) // 2))
    counted = {"thp_fault_fallback": 1, "thp_fault_fallback_charge": 1, "thp_fault_alloc": 0}
    refused = _refused(live, group, counted, partial(advised, live, _PAGES))
    refused.expect_huge(0)
    eighth = refused.size // 8
    refused.fill_part(0, eighth)
    live.expect("Rss", eighth, refused.smaps().rss)
    live.expect("words that changed", 0, refused.wrong(0, eighth))
    group.write("memory.max", "max")
    refused.touch(1)
    if not refused.smaps().anon_huge_pages:
        expect_no_shortage(live, refused.size, 1)
    refused.expect_huge(1, about="without a limit")


@case(
    "a size that the limit of a group refuses, time and again, counts as a fallback, and the smaller one that it allows"
    " as had; no memory is lost by that",
    f"{THP_DOC} anon_fault_fallback, anon_fault_fallback_charge; mm/memory.c alloc_anon_folio()",
    since="6.10",
)
def refused_size(live: Live, group: ControlGroup) -> None:
    sizes = list(counted_sizes(live))
    large = sizes[-1]
    small = max(size for size in sizes if size <= large // 4 // _REFUSED)
    allow_only(live, small, large)
    group.write("memory.max", str(large // 2))
    refusals = "anon_fault_fallback", "anon_fault_fallback_charge"
    counted = {size_counter(large, name): _REFUSED for name in refusals}
    counted |= {size_counter(large, "anon_fault_alloc"): 0, size_counter(small, "anon_fault_alloc"): _REFUSED}
    counted |= {size_counter(small, name): 0 for name in refusals}
    make = partial(map_aligned, live, _REFUSED, large, advice=MADV_HUGEPAGE)
    refused = _refused(live, group, counted, make, partial(read_size_counters, names=_OF_FAULTS), pages=_REFUSED)
    live.expect("Rss", _REFUSED * small, refused.smaps().rss)


@case(
    "a huge page of shared memory that the limit of a group refuses is a base page, and counts as a fallback",
    f"{THP_DOC} thp_file_fallback, thp_file_fallback_charge, shmem_fallback; mm/shmem.c shmem_alloc_and_add_folio()",
    since="5.8",
)
def refused_shared_memory(live: Live, group: ControlGroup) -> None:
    let_only_pmd_inherit(live)
    live.set_knob(f"{DIRECTORY}/shmem_enabled", "always")
    size = pmd_size(live)
    group.write("memory.max", str(size // 2))
    counted = {"thp_file_fallback": 1, "thp_file_fallback_charge": 1, "thp_file_alloc": 0}
    counted |= {size_counter(size, "shmem_fallback"): 1, size_counter(size, "shmem_fallback_charge"): 1}
    counted[size_counter(size, "shmem_alloc")] = 0
    make = partial(map_aligned, live, 1, size, shared=True)
    refused = _refused(live, group, counted, make, _read_of_shared_memory)
    live.expect("ShmemPmdMapped", 0, refused.smaps().shmem_pmd_mapped)
    live.expect("Rss", live.base_page, refused.smaps().rss)


@case(
    "where the limit of a group has no room for a huge page beside its base pages MADV_COLLAPSE is EBUSY, and they stay"
    " what they were; with room they are huge",
    "madvise(2) MADV_COLLAPSE EBUSY; mm/khugepaged.c madvise_collapse_errno()",
    since="6.1",
)
def collapse_refused_by_a_limit(live: Live, group: ControlGroup) -> None:
    if pmd_size(live) <= CHARGED_AHEAD * live.base_page:
        raise CannotRun("what a group is charged for ahead is more than a huge page, for which it has room then")
    memory = _memory_in(live, group)
    set_policy(live, "never")
    memory.fill()
    if group.read("memory.swap.max") is not None:
        group.write("memory.swap.max", "0")
    group.write("memory.max", str(memory.length + memory.size // 2))
    expect_no_collapse(live, memory, errno.EBUSY)
    memory.expect_huge(0)
    memory.expect_filled()
    group.write("memory.max", "max")
    collapse_memory(live, memory)
    memory.expect_huge(about="with room")
    memory.expect_filled()


def _refused(
    live: Live,
    group: ControlGroup,
    counted: Mapping[str, int],
    make: Callable[..., Memory],
    read: Callable[[Live], Mapping[str, int]] = read_counters,
    pages: int = 1,
) -> Memory:
    """Expect a fault in each of ``pages`` that ``make`` maps for an ``actor`` of the group to be counted so.

    Returned is the memory.
    """
    earlier: list[Memory] = []

    def prepare() -> Memory:
        # of each attempt page tables are charged, and the limit is small
        for memory in earlier:
            memory.actor.end()
        earlier[:] = [make(actor=actor_in(live, group))]
        return earlier[0]

    def touch(memory: Memory) -> None:
        for page in range(pages):
            memory.touch(page)
        # a page that is not allocated is not charged either
        expect_no_shortage(live, memory.size, 1)

    return expect_change(live, counted, prepare, touch, read)


def _read_of_shared_memory(live: Live) -> dict[str, int]:
    return read_counters(live) | read_size_counters(live, ("shmem_alloc", "shmem_fallback", "shmem_fallback_charge"))


def _huge_pages_in(live: Live, group: ControlGroup) -> tuple[Memory, int]:
    """Return filled huge pages of a process in ``group``, and how much it was charged for before."""
    memory = _memory_in(live, group)
    before = group.read_number(USED)
    fill_in_huge_pages(live, memory)
    memory.expect_huge()
    return memory, before


def _memory_in(live: Live, group: ControlGroup) -> Memory:
    """Return advised memory that was not touched, of a process in ``group`` that keeps to one CPU."""
    return advised(live, _PAGES, actor=actor_in(live, group))


def _expect_charged(live: Live, group: ControlGroup, before: int, pages: int) -> None:
    """Expect what the group is charged to have risen by ``pages`` huge pages; up to half of one may differ.

    A CPU may be charged for base pages that nobody has yet. Raises CannotRun where these are half a huge page.
    """
    need_exact_charges(live)
    is_charged = live.host.last_look(partial(_is_charged, live, group, before, pages), bool, ADDED_UP_SECONDS)
    live.expect(f"memory.current rose by {pages} huge pages, half of one is within the error", True, is_charged)


def _is_charged(live: Live, group: ControlGroup, before: int, pages: int) -> bool:
    return abs(group.read_number(USED) - before - pages * pmd_size(live)) < pmd_size(live) // 2


def _expect_on_nodes(live: Live, group: ControlGroup, expected: Mapping[int, int]) -> None:
    """Expect anon_thp of these nodes in memory.numa_stat to be so many bytes."""
    named = {f"anon_thp N{node}": length for node, length in expected.items()}
    expect_statistics(live, group, named, "memory.numa_stat")


class CgroupTransparent(LiveTest):
    def test_transparent(self) -> None:
        self.run_area(TRANSPARENT)
