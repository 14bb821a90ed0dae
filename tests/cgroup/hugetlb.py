"""The hugetlb controller of control groups: limits, and what is refused beyond them."""

import errno
import signal
from functools import partial
from typing import Any

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.control_group import Version, keeping_hierarchy, new_group
from hugepage_qa.cases.hugetlb_files import new_memfd, open_file
from hugepage_qa.cases.hugetlb_group import HUGETLB_CGROUP, V1_DOC, V2_DOC, HugetlbGroup, hugetlb_case
from hugepage_qa.cases.hugetlb_segments import get_segment
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.kernel import hugetlb_cgroup
from hugepage_qa.kernel.hugetlb_cgroup import RESERVATIONS, file_prefix
from hugepage_qa.kernel.uapi import MAP_POPULATE
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor

VERSION_1 = Area("cgroup/hugetlb-v1", around=keeping_hierarchy("hugetlb"))
VERSION_2 = Area("cgroup/hugetlb-v2")
case = partial(hugetlb_case, {Version.ONE: VERSION_1, Version.TWO: VERSION_2})

#: no machine has that much, and no version 1 limit that stands for none is lower
ALL_MEMORY = 1 << 56
#: who polls is told at once, or after the 10 ms in which two changes are told as one
_TOLD_SECONDS = 5.0


@case(
    "a group has the files of each page size of the machine, named 64KB, 2MB or 1GB as the size is, and of no other",
    f"{V1_DOC}; {V2_DOC} HugeTLB Interface Files; {HUGETLB_CGROUP} mem_fmt()",
    sizes=Sizes.DEFAULT,
)
def each_size_has_its_files(live: Live, group: HugetlbGroup) -> None:
    names = [name for name in live.host.names(group.group.path) if name.startswith("hugetlb.")]
    files = hugetlb_cgroup.VERSION_1 if group.group.version is Version.ONE else hugetlb_cgroup.VERSION_2
    ends = (files.limit, files.usage, f"{RESERVATIONS}{files.limit}", f"{RESERVATIONS}{files.usage}", files.refusals)
    expected = {f"{file_prefix(size)}{end}" for size in live.sizes for end in ends}
    live.expect("files", set(), expected - set(names))
    found = {f"{name.partition('B.')[0]}B." for name in names}
    live.expect("page sizes", {file_prefix(size) for size in live.sizes}, found)


@case(
    "a limit is kept in whole pages, less is cut off, and it can be taken away; what is no number changes nothing",
    f"{V1_DOC}; {HUGETLB_CGROUP} hugetlb_cgroup_write()",
)
def limits_are_whole_pages(live: Live, group: HugetlbGroup) -> None:
    for kind in ("", RESERVATIONS):
        group.write_limit(None, kind)
        unlimited = group.read_limit(kind)
        if group.group.version is Version.TWO:
            live.expect(f"no {kind}limit", "max", unlimited)
        else:
            live.expect(f"no {kind}limit is beyond all memory", True, int(unlimited) > ALL_MEMORY)
        group.write_limit(2 * live.size + live.size // 2, kind)
        for text in ("x", "1x", "-2", "1 2", "max" if group.group.version is Version.ONE else "-1"):
            live.expect_errno(errno.EINVAL, group.write_limit, text, kind)
        live.expect(f"{kind}limit", str(2 * live.size), group.read_limit(kind))
        group.write_limit(live.size - 1, kind)
        live.expect(f"{kind}limit", "0", group.read_limit(kind))
        group.write_limit(None, kind)
        live.expect(f"{kind}limit that was taken away", unlimited, group.read_limit(kind))


@case(
    "a touch beyond the limit gets SIGBUS, is counted as refused, and takes nothing; with a higher limit it is there",
    f"{V1_DOC}; {V2_DOC} hugetlb.<hugepagesize>.max; mm/hugetlb.c alloc_hugetlb_folio()",
    pages=2,
)
def a_page_beyond_the_limit_is_sigbus(live: Live, group: HugetlbGroup) -> None:
    group.limit(1)
    actor = group.actor()
    memory = live.map(2, actor)
    memory.touch(0, value=4)
    group.expect(usage=1, reserved=2)
    for refusals in (1, 2):
        live.expect_signal(signal.SIGBUS, memory.touch, 1)
        group.expect(usage=1, reserved=2, refusals=refusals)
        live.expect_pool(nr=2, free=1, resv=1)
    live.expect("the page within the limit", 4, memory.read(0))
    group.limit(2)
    memory.touch(1)
    group.expect(usage=2, reserved=2, refusals=2)
    live.expect_pool(nr=2, free=0)


@VERSION_1.case(
    "the highest use and the refused charges are kept until they are reset",
    f"{V1_DOC} max_usage_in_bytes, failcnt; {HUGETLB_CGROUP} hugetlb_cgroup_reset()",
    pages=3,
)
def highest_use_and_refusals_are_reset(live: Live) -> None:
    group = HugetlbGroup(live, new_group(live, "hugetlb", Version.ONE))
    group.limit(2)
    memory = live.map(3, group.actor())
    for page in (0, 1):
        memory.touch(page)
    live.expect_signal(signal.SIGBUS, memory.touch, 2)
    memory.unmap(1, 2)
    group.expect(usage=1, reserved=1, refusals=1)
    group.expect_highest(usage=2, reserved=3)
    group.reset(RESERVATIONS)
    group.expect(usage=1, reserved=1, refusals=1)
    group.expect_highest(usage=2, reserved=1)
    group.reset()
    group.expect(usage=1, reserved=1)
    group.expect_highest(usage=1, reserved=1)


@VERSION_2.case(
    "who polls the events of a group, or of one above it, is told of a touch that its limit refuses",
    f"{V2_DOC} hugetlb.<hugepagesize>.events; {HUGETLB_CGROUP} hugetlb_event()",
    pages=2,
)
def refusals_are_told(live: Live) -> None:
    above = HugetlbGroup(live, new_group(live, "hugetlb", Version.TWO))
    group, watcher = above.child("limited"), live.actor()
    group.limit(1)
    memory = live.map(2, group.actor())
    memory.touch(0)
    watches = [each.watch(watcher) for each in (group, above)]
    live.expect("told before", [False, False], [watch.is_told() for watch in watches])
    for _time in range(2):
        live.expect_signal(signal.SIGBUS, memory.touch, 1)
        for watch, name in zip(watches, ("the group", "the one above"), strict=True):
            live.host.wait_until(watch.is_told, _TOLD_SECONDS)
            live.expect(f"whether a refusal is told to who polls the events of {name}", True, watch.is_told())
            watch.read()


@case(
    "a limit cannot be set below what the group uses, nor below what it has reserved: EBUSY",
    "mm/page_counter.c page_counter_set_max()",
    pages=2,
)
def a_limit_below_use_is_refused(live: Live, group: HugetlbGroup) -> None:
    actor = group.actor()
    live.map(2, actor).touch(0)
    live.expect_errno(errno.EBUSY, group.limit, 0)
    group.limit(1)
    live.expect_errno(errno.EBUSY, group.limit_reservations, 1)
    group.limit_reservations(2)
    group.expect(usage=1, reserved=2)


@case(
    "a mapping that reserves more than the group may is refused with ENOMEM and reserves nothing",
    f"{V1_DOC} Reservation accounting; {V2_DOC} hugetlb.<hugepagesize>.rsvd.max; mm/hugetlb.c hugetlb_reserve_pages()",
    pages=2,
)
def reservations_beyond_the_limit_are_refused(live: Live, group: HugetlbGroup) -> None:
    group.limit_reservations(1)
    actor = group.actor()
    for refused, shared in enumerate((False, True), start=1):
        live.expect_errno(errno.ENOMEM, live.map, 2, actor, shared=shared)
        group.expect(usage=0, reserved=0, refused_reservations=refused)
        live.expect_pool(nr=2, free=2)
    live.map(1, actor).touch()
    group.expect(usage=1, reserved=1, refused_reservations=2)
    live.expect_pool(nr=2, free=1)


@case(
    "a segment and a file that reserve more than the group may are refused with ENOMEM, and within the limit charged",
    f"{V1_DOC} Reservation accounting; {V2_DOC} hugetlb.<hugepagesize>.rsvd.max; mm/hugetlb.c hugetlb_reserve_pages()",
    pages=2,
)
def reservations_of_each_kind_are_limited(live: Live, group: HugetlbGroup) -> None:
    group.limit_reservations(1)
    for refused, kind in enumerate(_KINDS, start=1):
        actor = group.actor()
        with live.about(kind.__name__):
            live.expect_errno(errno.ENOMEM, kind, live, actor, 2)
            group.expect(usage=0, reserved=0, refused_reservations=refused)
            live.expect_pool(nr=2, free=2)
            memory = kind(live, actor, 1)
            group.expect(usage=0, reserved=1, refused_reservations=refused)
            memory.touch()
            group.expect(usage=1, reserved=1, refused_reservations=refused)
            actor.end()
            group.expect(usage=0, reserved=0, refused_reservations=refused)
            live.expect_pool(nr=2, free=2)


@case(
    "MAP_POPULATE of a file, or of no file, takes as many pages as the limit allows, and a touch of others gets SIGBUS",
    f"{V1_DOC}; {V2_DOC} hugetlb.<hugepagesize>.max; mmap(2) MAP_POPULATE; mm/hugetlb.c alloc_hugetlb_folio()",
    pages=2,
)
def a_populated_mapping_is_limited(live: Live, group: HugetlbGroup) -> None:
    group.limit(1)
    for noreserve in (False, True):
        for of_a_file in (False, True):
            actor = group.actor()
            file = new_memfd(live, actor) if of_a_file else None
            named: dict[str, Any] = {"noreserve": noreserve, "flags": MAP_POPULATE}
            memory = file.map(2, **named) if file else live.map(2, actor, **named)
            reserved = 1 if noreserve else 2
            with live.about(f"of a file {of_a_file}, without a reservation {noreserve}"):
                # how often it is tried to have the other page is told nowhere
                group.expect_charged(usage=1, reserved=reserved)
                live.expect("what the page within the limit holds", 0, memory.read())
                live.expect_signal(signal.SIGBUS, memory.touch, 1)
                group.expect_charged(usage=1, reserved=reserved)
                live.expect_pool(nr=2, free=1, resv=reserved - 1)
            actor.end()
            group.expect_charged(usage=0, reserved=0)
            live.expect_pool(nr=2, free=2)


def _segment(live: Live, actor: Actor, pages: int) -> Memory:
    return get_segment(live, pages * live.size, actor).attach_for_good()


def _file(live: Live, actor: Actor, pages: int) -> Memory:
    return new_memfd(live, actor).map(pages)


#: what a process has huge pages by that others can have, too
_KINDS = (_segment, _file)


@case(
    "without a reservation a page is charged as one when it is touched, and beyond that limit the touch gets SIGBUS",
    f"{V1_DOC} Reservation accounting; mm/hugetlb.c alloc_hugetlb_folio(), deferred_reserve",
    pages=2,
)
def pages_without_reservation_are_charged_when_touched(live: Live, group: HugetlbGroup) -> None:
    group.limit_reservations(1)
    actor = group.actor()
    memory = live.map(2, actor, noreserve=True)
    group.expect(usage=0, reserved=0)
    memory.touch(0)
    group.expect(usage=1, reserved=1)
    live.expect_signal(signal.SIGBUS, memory.touch, 1)
    group.expect(usage=1, reserved=1, refused_reservations=1)
    live.expect_pool(nr=2, free=1)
    memory.unmap()
    group.expect(usage=0, reserved=0, refused_reservations=1)
    live.expect_pool(nr=2, free=2)


@case(
    "a page that is not to be had is charged to nobody, neither as used nor as reserved",
    "mm/hugetlb.c alloc_hugetlb_folio(), hugetlb_reserve_pages()",
    pages=1,
)
def what_is_not_there_is_not_charged(live: Live, group: HugetlbGroup) -> None:
    taken = live.map(1)
    actor = group.actor()
    for shared in (False, True):
        live.expect_errno(errno.ENOMEM, live.map, 1, actor, shared=shared)
        group.expect(usage=0, reserved=0)
        memory = live.map(1, actor, shared=shared, noreserve=True)
        live.expect_signal(signal.SIGBUS, memory.touch)
        group.expect(usage=0, reserved=0)
        memory.unmap()
    live.expect_pool(nr=1, free=1, resv=1)
    taken.unmap()
    live.map(1, actor).touch()
    group.expect(usage=1, reserved=1)


@case(
    "a page that the limit of a group refuses is neither reserved for it nor taken off the limit of a mount",
    "mm/hugetlb.c alloc_hugetlb_folio()",
    pages=1,
)
def a_refused_page_is_in_no_other_count(live: Live, group: HugetlbGroup) -> None:
    point = live.mount(size=live.size)
    file = open_file(live, f"{point}/file", group.actor())
    memory = file.map(1, noreserve=True)
    group.limit(0)
    for refusals in (1, 2):
        live.expect_signal(signal.SIGBUS, memory.touch)
        group.expect(usage=0, reserved=0, refusals=refusals)
        lost = {Quirk.SUBPOOL_USE_LOST_AT_FAULT: 0}
        live.expect("blocks that are left", 1, live.host.file_system(point).free_blocks, lost)
    live.expect_pool(nr=1, free=1)
    group.limit(1)
    memory.touch()
    group.expect(usage=1, reserved=1, refusals=2)
    live.expect("blocks that are left", 0, live.host.file_system(point).free_blocks)
    # a group with a page does not go
    memory.unmap()
    file.truncate(0)
    group.expect(usage=0, reserved=0, refusals=2)


class HugetlbLimits(LiveTest):
    def test_version_1(self) -> None:
        self.run_area(VERSION_1)

    def test_version_2(self) -> None:
        self.run_area(VERSION_2)
