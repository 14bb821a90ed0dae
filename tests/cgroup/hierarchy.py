"""Groups of a hierarchy, from its root down: limits and charges of the hugetlb controller, and sums of statistics."""

import errno
import signal
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.control_group import ControlGroup, Version, keeping_hierarchy, new_group
from hugepage_qa.cases.fragmentation import compact_if_short
from hugepage_qa.cases.hugetlb_group import HUGETLB_CGROUP, V1_DOC, V2_DOC, HugetlbGroup, hugetlb_case
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.thp_memory import let_only_pmd_inherit, map_aligned, mapped_huge, need_blocks, pmd_size
from hugepage_qa.cases.thp_policy import set_policy
from hugepage_qa.kernel import hugetlb_cgroup
from hugepage_qa.kernel.hugetlb_cgroup import RESERVATIONS, file_prefix
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor

VERSION_1 = Area("cgroup/hierarchy-v1", around=keeping_hierarchy("hugetlb"))
VERSION_2 = Area("cgroup/hierarchy-v2")
SUMS_1 = Area("cgroup/sums-v1", sizes=Sizes.ONCE, around=keeping_hierarchy("memory"))
SUMS_2 = Area("cgroup/sums-v2", sizes=Sizes.ONCE)
case = partial(hugetlb_case, {Version.ONE: VERSION_1, Version.TWO: VERSION_2})

#: groups one below the other, and beside each other: of gigantic pages, which an emulated machine clears slowly, fewer
_DEEP, _MANY, _FEW = 12, 12, 3

#: in version 1: what begins the lines that are sums, in each file that has such
_SUMS = {"memory.stat": "total_", "memory.numa_stat": "hierarchical_"}
#: in version 2, where all lines are sums: those that have no memory of the kernel, which belongs to groups themselves
_MEMORY = ("anon", "file", "shmem", "file_mapped", "anon_thp", "file_thp", "shmem_thp", "inactive_anon", "active_anon")
_OF_PROCESSES = {*_MEMORY, "unevictable", "pgfault", "thp_fault_alloc", "thp_collapse_alloc"}
#: statistics of a group are added up every two seconds (mm/memcontrol.c FLUSH_TIME)
_SECONDS = 6.0


@VERSION_2.case(
    "events counts what was refused in the group and in those below it, whoever's limit that was, events.local what was"
    " in the group itself",
    f"{V2_DOC} hugetlb.<hugepagesize>.events.local; {HUGETLB_CGROUP} hugetlb_event()",
    pages=2,
)
def refusals_of_a_group_below(live: Live) -> None:
    above = HugetlbGroup(live, new_group(live, "hugetlb", Version.TWO))
    group = above.child("limited")
    memory = live.map(2, group.actor())
    memory.touch(0)
    for refused, limited in enumerate((group, above), start=1):
        limited.limit(1)
        live.expect_signal(signal.SIGBUS, memory.touch, 1)
        for each, name, local in ((group, "the group", refused), (above, "the one above", 0)):
            paths = (f"{each.group.path}/{file_prefix(live.size)}{end}" for end in ("events", "events.local"))
            found = tuple(hugetlb_cgroup.read_refusals(ObservedTree(live.host), path) for path in paths)
            live.expect(f"events and events.local of {name}", (refused, local), found)
        limited.limit(2)
    memory.touch(1)
    live.expect_pool(nr=2, free=0)


@case(
    "all groups together have no limit: the root has no file for one, or takes none, EINVAL, and shows none",
    f"{V1_DOC}; {V2_DOC} HugeTLB Interface Files, non-root cgroups; {HUGETLB_CGROUP} hugetlb_cgroup_write()",
)
def the_root_has_no_limit(live: Live, group: HugetlbGroup) -> None:
    root = group.group.path.rpartition("/")[0]
    # there on the root alone, and not there on the root alone (kernel/cgroup/cgroup-v1.c, cgroup.c)
    is_version_1 = group.group.version is Version.ONE
    marked = live.host.read(f"{root}/{'cgroup.sane_behavior' if is_version_1 else 'cgroup.type'}") is not None
    if marked is not is_version_1:
        raise CannotRun(f"{root} is not the root of all groups, as in a container")
    limit = (hugetlb_cgroup.VERSION_1 if is_version_1 else hugetlb_cgroup.VERSION_2).limit
    for kind in ("", RESERVATIONS):
        path = f"{root}/{file_prefix(live.size)}{kind}{limit}"
        before = ObservedTree(live.host).read(path)
        if not is_version_1:
            live.expect(f"{kind}limit of the root", None, before)
            continue
        try:
            for amount in (0, live.size, 2 * live.size):
                live.expect_errno(errno.EINVAL, live.host.write, path, str(amount))
            live.expect(f"{kind}limit of the root", before, ObservedTree(live.host).read(path))
        finally:
            # with a limit that the kernel has taken nobody would get a page any more
            if before and ObservedTree(live.host).read(path) != before:
                live.host.write(path, before)


@case(
    "the limit of a group holds for the groups below it together",
    f"{V2_DOC} Resource Distribution Models, Limits; {HUGETLB_CGROUP} hugetlb_cgroup_init()",
    pages=2,
)
def a_limit_holds_for_the_groups_below(live: Live, group: HugetlbGroup) -> None:
    group.limit(1)
    first, second = live.actor(), live.actor()
    group.child("first").add(first)
    neighbour = group.child("second")
    neighbour.add(second)
    live.map(1, first).touch()
    memory = live.map(1, second)
    live.expect_signal(signal.SIGBUS, memory.touch)
    group.expect(usage=1, reserved=2, refusals=1)
    first.end()
    memory.touch()
    group.expect(usage=1, reserved=1, refusals=1)


@case(
    "pages are charged through every level of deep groups, and to each of many, while processes come and go",
    f"{V2_DOC} Resource Distribution Models; {HUGETLB_CGROUP} hugetlb_cgroup_charge_cgroup()",
    pages=2,
)
def many_and_deep_groups(live: Live, group: HugetlbGroup) -> None:
    levels = [group]
    for level in range(_DEEP):
        levels.append(levels[-1].child(f"level{level}"))
    many = [levels[-1].child(f"group{number}") for number in range(_FEW if live.is_gigantic else _MANY)]
    for one in many:
        actors = [one.actor() for _ in range(2)]
        for pages, actor in enumerate(actors, start=1):
            live.map(1, actor).touch()
            for above in (one, *levels):
                above.expect(usage=pages, reserved=pages)
        for pages, actor in enumerate(actors):
            actor.end()
            for above in (one, *levels):
                above.expect(usage=1 - pages, reserved=1 - pages)
    for one in (*many, *reversed(levels[1:])):
        one.remove()
    group.expect(usage=0, reserved=0)
    live.expect_pool(nr=2, free=2)


@SUMS_1.case(
    "each total_ line of memory.stat and each hierarchical_ line of memory.numa_stat is what the group has of it and"
    " all groups below it have, huge pages and all else; the lines without that are of the group itself",
    "Documentation/admin-guide/cgroup-v1/memory.rst 5.2 total_, 5.6; mm/memcontrol.c memcg_stat_show(),"
    " memcg_numa_stat_show()",
    since="5.11",  # before, a group has what is below it with memory.use_hierarchy alone
)
def sums_of_version_1(live: Live) -> None:
    _let_all_be_huge(live)
    top = new_group(live, "memory", Version.ONE)
    middle, beside = top.child("middle"), top.child("beside")
    bottom = middle.child("bottom")
    below = {top: [middle, beside], middle: [bottom], beside: [], bottom: []}
    actors = {group: _with_huge_pages(live, group, pages) for group, pages in ((bottom, 1), (beside, 2), (middle, 1))}
    _with_huge_pages(live, top, 2)
    size = pmd_size(live)
    for pages, total in (((2, 1, 2, 1), (6, 2, 2, 1)), ((2, 1, 2, 0), (5, 1, 2, 0))):
        for number, (group, groups_below) in enumerate(below.items()):
            own = dict.fromkeys(("rss_huge", "shmem"), pages[number] * size)
            sums = dict.fromkeys(("total_rss_huge", "total_shmem"), total[number] * size)
            _expect_shown(live, group, own | sums)
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
    top = new_group(live, "memory", Version.TWO)
    middle, beside = top.child("middle"), top.child("beside")
    bottom = middle.child("bottom")
    below = {top: [middle, beside], middle: [bottom], beside: [], bottom: []}
    actor = _with_huge_pages(live, bottom, 1)
    _with_huge_pages(live, beside, 2)
    size = pmd_size(live)
    for total in ((3, 1, 2, 1), (2, 0, 2, 0)):
        for pages, (group, groups_below) in zip(total, below.items(), strict=True):
            _expect_shown(live, group, dict.fromkeys(("anon_thp", "shmem_thp"), pages * size))
            if groups_below:
                _expect_sums(live, group, groups_below)
        actor.end()


def _let_all_be_huge(live: Live) -> None:
    """Have memory get huge pages on advice, shared or not, until the case ends."""
    set_policy(live, "madvise")
    let_only_pmd_inherit(live)
    live.set_knob(f"{DIRECTORY}/shmem_enabled", "advise")
    compact_if_short(live, pmd_size(live), _DEEP)


def _with_huge_pages(live: Live, group: ControlGroup, pages: int) -> Actor:
    """Return a process in ``group`` that has filled so many huge pages, and as many shared ones.

    Raises CannotRun where memory is too fragmented for them.
    """
    actor = group.actor()
    for shared in (False, True):
        memory = map_aligned(live, pages, pmd_size(live), shared=shared, actor=actor, advice=MADV_HUGEPAGE)
        memory.fill()
        need_blocks(live, memory)
        live.expect("bytes in huge pages", memory.length, mapped_huge(memory))
    return actor


def _expect_shown(live: Live, group: ControlGroup, expected: Mapping[str, int]) -> None:
    def found() -> dict[str, int | None]:
        shown = dict(_lines(group, "memory.stat"))
        return {name: shown.get(name) for name in expected}

    live.host.wait_until(lambda: found() == expected, _SECONDS)
    live.expect(f"memory.stat of {group.path}", dict(expected), found())


def _expect_sums(live: Live, group: ControlGroup, groups_below: Sequence[ControlGroup]) -> None:
    """Expect what ``group`` shows of itself and all below it to be what these show together."""

    def wrong() -> dict[str, tuple[int, int]]:
        pairs = {f"{file} {name}": pair for file in _SUMS for name, pair in _sums(file, group, groups_below)}
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}

    live.host.wait_until(lambda: not wrong(), _SECONDS)
    live.expect(f"sums of {group.path} that are others", {}, wrong())


def _sums(file: str, group: ControlGroup, below: Sequence[ControlGroup]) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield the name of each sum in ``file``, what it is to be, and what it is."""
    shown, others = dict(_lines(group, file)), [dict(_lines(each, file)) for each in below]
    if group.version is Version.ONE:
        prefix = _SUMS[file]
        names = [name for name in shown if name.startswith(prefix)]
        own = {name: shown[name.removeprefix(prefix)] for name in names}
    else:
        names = [name for name in shown if name.split()[0] in _OF_PROCESSES]
        own = dict.fromkeys(names, 0)
    for name in names:
        yield name, (own[name] + sum(other.get(name, 0) for other in others), shown[name])


def _lines(group: ControlGroup, file: str) -> Iterator[tuple[str, int]]:
    """Yield what the lines of a file tell: their number by their name, and that of a node by both names."""
    for line in (group.read(file) or "").splitlines():
        name, *words = line.replace("=", " ").split()
        if len(words) % 2:
            yield name, int(words.pop(0))
        for node, number in zip(words[::2], words[1::2], strict=True):
            yield f"{name} {node}", int(number)


class HugetlbHierarchy(LiveTest):
    """Limits of the hugetlb controller in a hierarchy, for every page size of the machine, and sums of statistics.

    :avocado: enable
    """

    def test_version_1(self) -> None:
        """Every case in a hierarchy of version 1."""
        self.run_area(VERSION_1)

    def test_version_2(self) -> None:
        """Every case in the hierarchy of version 2."""
        self.run_area(VERSION_2)

    def test_sums_of_version_1(self) -> None:
        """Every case on sums in a hierarchy of version 1, once for the machine."""
        self.run_area(SUMS_1)

    def test_sums_of_version_2(self) -> None:
        """Every case on sums in the hierarchy of version 2, once for the machine."""
        self.run_area(SUMS_2)
