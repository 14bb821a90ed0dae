"""Limits and charges of the hugetlb controller through the groups of a hierarchy, from its root down."""

import errno
import signal
from functools import partial

from hugepage_qa.cases.case import Area
from hugepage_qa.cases.control_group import Version, keeping_hierarchy, new_group
from hugepage_qa.cases.hugetlb_group import HUGETLB_CGROUP, V1_DOC, V2_DOC, HugetlbGroup, hugetlb_case
from hugepage_qa.cases.live import Live
from hugepage_qa.kernel import hugetlb_cgroup
from hugepage_qa.kernel.hugetlb_cgroup import RESERVATIONS, file_prefix
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest

VERSION_1 = Area("cgroup/hierarchy-v1", around=keeping_hierarchy("hugetlb"))
VERSION_2 = Area("cgroup/hierarchy-v2")
case = partial(hugetlb_case, {Version.ONE: VERSION_1, Version.TWO: VERSION_2})

#: groups one below the other, and beside each other: of gigantic pages, which an emulated machine clears slowly, fewer
_DEEP, _MANY, _FEW = 12, 12, 3
#: bytes that a counter can hold, of which groups count base pages (PAGE_COUNTER_MAX)
_MOST = (1 << 63) - 1


@case(
    "a new group, and one below it, has as little of a limit, of pages in use and of reservations, as one whose limit"
    " was taken away, and has used nothing",
    f"{V1_DOC}; {V2_DOC} HugeTLB Interface Files; {HUGETLB_CGROUP} hugetlb_cgroup_init()",
)
def new_groups_have_no_limit(live: Live, group: HugetlbGroup) -> None:
    for each in (group, group.child("below")):
        for kind in ("", RESERVATIONS):
            found = each.read_limit(kind)
            each.write_limit(live.size, kind)
            each.write_limit(None, kind)
            known = {Quirk.NEW_GROUP_SHOWS_NUMBER: f"{_MOST // live.base_page * live.base_page}"}
            live.expect(f"{kind}limit of {each.group.path}", each.read_limit(kind), found, known)
        each.expect(usage=0, reserved=0)


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


class HugetlbHierarchy(LiveTest):
    def test_version_1(self) -> None:
        self.run_area(VERSION_1)

    def test_version_2(self) -> None:
        self.run_area(VERSION_2)
