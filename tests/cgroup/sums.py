"""What a control group shows of the memory of all groups below it: sums of their charges and statistics."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from operator import not_

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.control_group import ControlGroup, Version, keeping_hierarchy, new_group
from hugepage_qa.cases.fragmentation import compact_if_short
from hugepage_qa.cases.group_memory import USED, actor_in, look_for_about, need_exact_charges
from hugepage_qa.cases.group_statistics import ADDED_UP_SECONDS, expect_statistics, read_statistics
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.thp_memory import map_aligned, mapped_huge, pmd_size
from hugepage_qa.cases.thp_policy import fill_in_huge_pages, give_on_advice
from hugepage_qa.kernel.uapi import MADV_DONTNEED, MADV_HUGEPAGE, MADV_NOHUGEPAGE
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor

# what was charged to groups of version 2 is given back to counters of version 1 that were never charged, and the kernel
# warns (mm/memcontrol.c memcg_account_kmem(), seen on 6.1)
SUMS_1 = Area("cgroup/sums-v1", sizes=Sizes.ONCE, around=keeping_hierarchy("memory"), first=True)
SUMS_2 = Area("cgroup/sums-v2", sizes=Sizes.ONCE)

#: the most that all groups of a case have together, half of them shared
_HUGE_PAGES = 12
#: as much memory as so many huge pages, of which two groups have every other page
_IN_TURN = 4
#: in version 1: what begins the lines that are sums, in each file that has such
_PREFIXES = {"memory.stat": "total_", "memory.numa_stat": "hierarchical_"}
#: in version 2, where all lines are sums: those that have no memory of the kernel, which belongs to groups themselves
_MEMORY = ("anon", "file", "shmem", "file_mapped", "anon_thp", "file_thp", "shmem_thp", "inactive_anon", "active_anon")
_OF_PROCESSES = {*_MEMORY, "unevictable", "pgfault", "thp_fault_alloc", "thp_collapse_alloc"}


@SUMS_1.case(
    "each total_ line of memory.stat and each hierarchical_ line of memory.numa_stat is what the group has of it and"
    " all groups below it have, huge pages and all else; the lines without that are of the group itself",
    "Documentation/admin-guide/cgroup-v1/memory.rst 5.2 total_, 5.6; mm/memcontrol.c memcg_stat_show(),"
    " memcg_numa_stat_show()",
    since="5.11",  # before, a group has what is below it with memory.use_hierarchy alone
)
def sums_of_version_1(live: Live) -> None:
    _let_all_be_huge(live)
    below = _hierarchy(live, Version.ONE)
    top, middle, beside, bottom = below
    actors = {group: _with_huge_pages(live, group, pages) for group, pages in ((bottom, 1), (beside, 2), (middle, 1))}
    _with_huge_pages(live, top, 2)
    size = pmd_size(live)
    for pages, total in (((2, 1, 2, 1), (6, 2, 2, 1)), ((2, 1, 2, 0), (5, 1, 2, 0))):
        for number, (group, groups_below) in enumerate(below.items()):
            own = dict.fromkeys(("rss_huge", "shmem"), pages[number] * size)
            sums = dict.fromkeys(("total_rss_huge", "total_shmem"), total[number] * size)
            expect_statistics(live, group, own | sums)
            _expect_sums(live, group, groups_below)
        actors[bottom].end()


@SUMS_2.case(
    "each line of memory.stat and memory.numa_stat on memory of processes is the sum of those of the groups below, huge"
    " pages and all else, where the group itself has no processes",
    "Documentation/admin-guide/cgroup-v2.rst memory.stat, memory.numa_stat; mm/memcontrol.c memory_stat_format(),"
    " memory_numa_stat_show()",
    since="5.11",  # shmem_thp
)
def sums_of_version_2(live: Live) -> None:
    _let_all_be_huge(live)
    below = _hierarchy(live, Version.TWO)
    _top, _middle, beside, bottom = below
    actor = _with_huge_pages(live, bottom, 1)
    _with_huge_pages(live, beside, 2)
    size = pmd_size(live)
    for total in ((3, 1, 2, 1), (2, 0, 2, 0)):
        for pages, (group, groups_below) in zip(total, below.items(), strict=True):
            expect_statistics(live, group, dict.fromkeys(("anon_thp", "shmem_thp"), pages * size))
            if groups_below:
                _expect_sums(live, group, groups_below)
        actor.end()


@SUMS_2.case(
    "base pages and huge ones, private and shared, that two groups have touched in turn are charged to each as many as"
    " it has touched, and all of them to the one above; to none when they are given back at once, unmapped, with"
    " MADV_DONTNEED or by the end of their process",
    "Documentation/admin-guide/cgroup-v2.rst memory.current, Memory Ownership; mm/memcontrol.c"
    " __mem_cgroup_uncharge_folios(), uncharge_folio()",
    since="5.11",
)
def given_back_at_once(live: Live) -> None:
    need_exact_charges(live)
    _let_all_be_huge(live)
    above = new_group(live, "memory", Version.TWO)
    groups = first, second = above.child("first"), above.child("second")
    ways: tuple[tuple[str, bool, Callable[[Memory], object]], ...] = (
        ("private, unmapped", False, Memory.unmap),
        ("private, MADV_DONTNEED", False, partial(Memory.advise, advice=MADV_DONTNEED)),
        ("private, the process ends", False, _end),
        ("shared, unmapped", True, Memory.unmap),
        ("shared, the process ends", True, _end),
    )
    for (way, shared, give_back), advice in product(ways, (MADV_NOHUGEPAGE, MADV_HUGEPAGE)):
        with live.about(f"{way}, advice {advice}"):
            memory = map_aligned(
                live, _IN_TURN, pmd_size(live), shared=shared, actor=actor_in(live, first), advice=advice
            )
            for number, group in enumerate(groups):
                group.add(memory.actor)
                _touch_every_other(live, memory, number, advice)
            _expect_used(live, {above: _IN_TURN, first: _IN_TURN // 2, second: _IN_TURN // 2})
            give_back(memory)
            _expect_used(live, {above: 0, first: 0, second: 0})
            memory.actor.end()
        if live.differences:
            # what a group is still charged for would be found each time, and waited for
            break


def _end(memory: Memory) -> None:
    memory.actor.end()


def _touch_every_other(live: Live, memory: Memory, first: int, advice: int) -> None:
    """Touch every second base page of ``memory``, or every second huge page and all of it, from ``first`` on."""
    if advice == MADV_HUGEPAGE:
        for page in range(first, memory.pages, 2):
            memory.part(page).fill()
    else:
        base = live.base_page
        memory.actor.fill(memory.address + first * base, memory.length - base, 2 * base, 1)


def _expect_used(live: Live, expected: Mapping[ControlGroup, int]) -> None:
    for group, pages in expected.items():
        found = look_for_about(live, group, USED, pages, ADDED_UP_SECONDS)
        live.expect(f"huge pages in {USED} of {group.path}", pages, found)


def _hierarchy(live: Live, version: Version) -> dict[ControlGroup, list[ControlGroup]]:
    """Return each group with those right below it: one at the top, two below it, and one below the first of these."""
    top = new_group(live, "memory", version)
    middle, beside = top.child("middle"), top.child("beside")
    bottom = middle.child("bottom")
    return {top: [middle, beside], middle: [bottom], beside: [], bottom: []}


def _let_all_be_huge(live: Live) -> None:
    """Have memory get huge pages on advice, shared or not, until the case ends."""
    give_on_advice(live)
    compact_if_short(live, pmd_size(live), _HUGE_PAGES)


def _with_huge_pages(live: Live, group: ControlGroup, pages: int) -> Actor:
    """Return a process in ``group`` that has filled so many huge pages, and as many shared ones.

    Raises CannotRun where memory is too fragmented for them.
    """
    actor = group.actor()
    for shared in (False, True):
        memory = map_aligned(live, pages, pmd_size(live), shared=shared, actor=actor, advice=MADV_HUGEPAGE)
        fill_in_huge_pages(live, memory)
        live.expect("bytes in huge pages", memory.length, mapped_huge(memory))
    return actor


def _expect_sums(live: Live, group: ControlGroup, groups_below: Sequence[ControlGroup]) -> None:
    """Expect what ``group`` shows of itself and all below it to be what these show together."""

    def wrong() -> dict[str, tuple[int, int]]:
        pairs = {f"{file} {name}": pair for file in _PREFIXES for name, pair in _sums(file, group, groups_below)}
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}

    found = live.host.last_look(wrong, not_, ADDED_UP_SECONDS)
    live.expect(f"sums of {group.path} that are others", {}, found)


def _sums(file: str, group: ControlGroup, below: Sequence[ControlGroup]) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield the name of each sum in ``file``, what it is to be, and what it is."""
    shown, others = read_statistics(group, file), [read_statistics(each, file) for each in below]
    if group.version is Version.ONE:
        prefix = _PREFIXES[file]
        names = [name for name in shown if name.startswith(prefix)]
        own = {name: shown[name.removeprefix(prefix)] for name in names}
    else:
        names = [name for name in shown if name.split()[0] in _OF_PROCESSES]
        own = dict.fromkeys(names, 0)
    for name in names:
        yield name, (own[name] + sum(other.get(name, 0) for other in others), shown[name])


class CgroupSums(LiveTest):
    def test_version_1(self) -> None:
        self.run_area(SUMS_1)

    def test_version_2(self) -> None:
        self.run_area(SUMS_2)
