"""The hugetlb controller of control groups: limits, what is charged to whom, and what stays when a group goes."""

import errno
import signal
from collections.abc import Callable
from typing import Any

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.control_group import (
    CHARGED_AHEAD,
    ControlGroup,
    GroupAct,
    HugetlbGroup,
    Version,
    in_new_hugetlb_group,
    keeping_hierarchy,
    new_group,
)
from hugepage_qa.cases.hugetlb_files import get_segment, new_memfd, open_file
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.memory_policy import move_page
from hugepage_qa.kernel import hugetlb_cgroup
from hugepage_qa.kernel.hugetlb_cgroup import RESERVATIONS, file_prefix
from hugepage_qa.kernel.proc_tables import read_mounts
from hugepage_qa.kernel.tree import parse_integer
from hugepage_qa.kernel.uapi import MAP_POPULATE
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor

VERSION_1 = Area("cgroup/v1", around=keeping_hierarchy("hugetlb"))
VERSION_2 = Area("cgroup/v2")

V1_DOC = "Documentation/admin-guide/cgroup-v1/hugetlb.rst"
V2_DOC = "Documentation/admin-guide/cgroup-v2.rst"
#: groups one below the other, and beside each other
_DEEP, _MANY = 12, 12
_ACCOUNTING = "memory_hugetlb_accounting"
#: what else a hierarchy of version 2 is mounted with (Documentation/admin-guide/cgroup-v2.rst Mounting)
_OPTIONS = ("nsdelegate", "favordynmods", "memory_localevents", "memory_recursiveprot", "pids_localevents", _ACCOUNTING)
HUGETLB_CGROUP = "mm/hugetlb_cgroup.c"

#: no machine has that much, and no version 1 limit that stands for none is lower
ALL_MEMORY = 1 << 56
_TWO = 2
#: who polls is told at once, or after the 10 ms in which two changes are told as one
_TOLD_SECONDS = 5.0


def case(
    statement: str, source: str, *, pages: int = 0, sizes: Sizes = Sizes.EACH, since: str | None = None
) -> Callable[[GroupAct], GroupAct]:
    """Make the decorated function, which gets a group of its own, a case for both versions of the hierarchy."""

    def register(act: GroupAct) -> GroupAct:
        for area, version in ((VERSION_1, Version.ONE), (VERSION_2, Version.TWO)):
            area.case(statement, source, pages=pages, sizes=sizes, since=since)(in_new_hugetlb_group(act, version))
        return act

    return register


# --- limits ----------------------------------------------------------------------------------------------------------
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
    "a limit is kept in whole pages, less is cut off, and it can be taken away",
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
    actor = live.actor()
    group.add(actor)
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
    memory = live.map(3, _actor_in(live, group))
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
    memory = live.map(2, _actor_in(live, group))
    memory.touch(0)
    watches = [each.watch(watcher) for each in (group, above)]
    live.expect("told before", [False, False], [watch.is_told() for watch in watches])
    for _time in range(2):
        live.expect_signal(signal.SIGBUS, memory.touch, 1)
        for watch, name in zip(watches, ("the group", "the one above"), strict=True):
            live.host.wait_until(watch.is_told, _TOLD_SECONDS)
            live.expect(f"whether a refusal is told to who polls the events of {name}", True, watch.is_told())
            watch.read()


@VERSION_2.case(
    "events counts what was refused in the group and in those below it, whoever's limit that was, events.local what was"
    " in the group itself",
    f"{V2_DOC} hugetlb.<hugepagesize>.events.local; {HUGETLB_CGROUP} hugetlb_event()",
    pages=2,
)
def refusals_of_a_group_below(live: Live) -> None:
    above = HugetlbGroup(live, new_group(live, "hugetlb", Version.TWO))
    group = above.child("limited")
    memory = live.map(2, _actor_in(live, group))
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
    "a limit cannot be set below what the group uses, nor below what it has reserved: EBUSY",
    "mm/page_counter.c page_counter_set_max()",
    pages=2,
)
def a_limit_below_use_is_refused(live: Live, group: HugetlbGroup) -> None:
    actor = live.actor()
    group.add(actor)
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
    actor = live.actor()
    group.add(actor)
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
        actor = _actor_in(live, group)
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
            actor = _actor_in(live, group)
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
    segment = get_segment(live, pages * live.size, actor)
    memory = segment.attach()
    # it goes with the last process that has it attached
    segment.remove()
    return memory


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
    actor = live.actor()
    group.add(actor)
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
    many = [levels[-1].child(f"group{number}") for number in range(_MANY)]
    for one in many:
        actors = [_actor_in(live, one) for _ in range(2)]
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


@case(
    "a page that is not to be had is charged to nobody, neither as used nor as reserved",
    "mm/hugetlb.c alloc_hugetlb_folio(), hugetlb_reserve_pages()",
    pages=1,
)
def what_is_not_there_is_not_charged(live: Live, group: HugetlbGroup) -> None:
    taken = live.map(1)
    actor = _actor_in(live, group)
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
    file = open_file(live, f"{point}/file", _actor_in(live, group))
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


# --- what is charged to whom -----------------------------------------------------------------------------------------
@case(
    "reservations are charged when memory is mapped, pages when they are touched, and both go when it is unmapped",
    f"{V1_DOC}; {V2_DOC} HugeTLB Interface Files; {HUGETLB_CGROUP}",
    pages=2,
)
def charges_follow_the_pages(live: Live, group: HugetlbGroup) -> None:
    actor = live.actor()
    group.add(actor)
    memory = live.map(2, actor)
    group.expect(usage=0, reserved=2)
    memory.touch(0)
    group.expect(usage=1, reserved=2)
    group.expect_on_nodes(1)
    live.expect("what the page holds", 0, memory.read(1))
    group.expect(usage=2, reserved=2)
    group.expect_on_nodes(2)
    memory.unmap(1, 1)
    group.expect(usage=1, reserved=1)
    memory.unmap(0, 1)
    group.expect(usage=0, reserved=0)
    group.expect_on_nodes(0)
    live.expect_pool(nr=2, free=2)


@case(
    "what a file reserved and used behind its new end is not charged any more",
    f"{V1_DOC} Reservation accounting; {HUGETLB_CGROUP} hugetlb_cgroup_uncharge_file_region()",
    pages=3,
)
def a_shorter_file_is_charged_less(live: Live, group: HugetlbGroup) -> None:
    file = new_memfd(live, _actor_in(live, group))
    memory = file.map(3)
    memory.touch(0)
    memory.touch(1)
    group.expect(usage=2, reserved=3)
    file.truncate(1)
    group.expect(usage=1, reserved=1)
    memory.unmap()
    file.truncate(0)
    group.expect(usage=0, reserved=0)
    live.expect_pool(nr=3, free=3)


@case(
    "a page that moves to another node stays charged, and so does its reservation, until it is given back",
    f"{HUGETLB_CGROUP} hugetlb_cgroup_migrate()",
)
def a_page_that_moves_stays_charged(live: Live, group: HugetlbGroup) -> None:
    memory, _there = _moved_page(live, group)
    group.expect(usage=1, reserved=1)
    memory.unmap()
    group.expect(usage=0, reserved=0)


@case(
    "numa_stat shows a page that moves on the node that it is on",
    f"{V1_DOC} numa_stat; {HUGETLB_CGROUP} hugetlb_cgroup_migrate(), since f47761999052",
    since="5.17",
)
def a_page_that_moves_is_shown_on_its_node(live: Live, group: HugetlbGroup) -> None:
    memory, there = _moved_page(live, group)
    group.expect_on_node(there, 1, {Quirk.MOVED_PAGE_OFF_NODES: 0})
    group.expect_on_nodes(1)
    memory.unmap()
    group.expect_on_nodes(0)


@case(
    "pages of one size are not charged for another size",
    f"{V1_DOC} multiple hugepage sizes; {HUGETLB_CGROUP} hugetlb_cgroup_charge_cgroup()",
    pages=1,
)
def each_size_is_charged_for_itself(live: Live, group: HugetlbGroup) -> None:
    actor = live.actor()
    group.add(actor)
    live.map(1, actor).touch()
    for size in live.sizes:
        used = 1 if size == live.size else 0
        HugetlbGroup(live if size == live.size else live.of_size(size), group.group).expect(usage=used, reserved=used)


@case(
    "a page of shared memory is charged to the group that touched it first, the reservation to the one that mapped it",
    f"{V2_DOC} Memory Ownership; {HUGETLB_CGROUP} hugetlb_cgroup_commit_charge()",
    pages=2,
)
def shared_pages_are_charged_to_the_first(live: Live, group: HugetlbGroup) -> None:
    first, second = group.child("first"), group.child("second")
    ours = live.map(2, _actor_in(live, first), shared=True)
    theirs = ours.seen_by(ours.actor.fork())
    second.add(theirs.actor)
    ours.touch(0)
    live.expect("what the page holds", 1, theirs.read(0))
    theirs.touch(1)
    live.expect("what the page holds", 1, ours.read(1))
    first.expect(usage=1, reserved=2)
    second.expect(usage=1, reserved=0)
    ours.actor.end()
    theirs.actor.end()
    for empty in (first, second, group):
        empty.expect(usage=0, reserved=0)


@case(
    "what a process was charged stays with its old group when it moves, what it touches then is charged to the new one",
    f"{V2_DOC} Memory Ownership; {HUGETLB_CGROUP} has no can_attach",
    pages=2,
)
def charges_do_not_move_with_a_process(live: Live, group: HugetlbGroup) -> None:
    old, new = group.child("old"), group.child("new")
    memory = live.map(2, _actor_in(live, old))
    memory.touch(0)
    new.add(memory.actor)
    old.expect(usage=1, reserved=2)
    new.expect(usage=0, reserved=0)
    memory.touch(1)
    old.expect(usage=1, reserved=2)
    new.expect(usage=1, reserved=0)
    group.expect(usage=2, reserved=2)
    memory.unmap()
    for empty in (old, new, group):
        empty.expect(usage=0, reserved=0)


@case(
    "the pages of a group that is removed are charged to its parent, until they are freed",
    f"{V1_DOC}; {HUGETLB_CGROUP} hugetlb_cgroup_css_offline()",
    pages=2,
)
def a_removed_group_leaves_its_pages_to_its_parent(live: Live, group: HugetlbGroup) -> None:
    memory, stays = _pages_of_a_removed_group(live, group)
    group.expect(usage=2, reserved=2)
    stays.expect(usage=0, reserved=0)
    memory.unmap()
    group.expect(usage=0, reserved=0)
    live.expect_pool(nr=2, free=2)


@case(
    "numa_stat of the parent shows the pages of a group that is removed, and none when they are freed",
    f"{V1_DOC} numa_stat; {HUGETLB_CGROUP} hugetlb_cgroup_move_parent(), since f47761999052",
    pages=2,
    since="5.17",
)
def a_removed_group_leaves_its_pages_in_numa_stat(live: Live, group: HugetlbGroup) -> None:
    memory, _stays = _pages_of_a_removed_group(live, group)
    # until then the pages are the removed group's
    group.group.wait_until_offline()
    group.expect_on_nodes(2, {Quirk.REMOVED_GROUP_OFF_NODES: 0})
    memory.unmap()
    # version 2 counts groups in as long as they are remembered, and so shows what is wrong only now
    group.group.wait_until_forgotten()
    group.expect_on_nodes(0, {Quirk.REMOVED_GROUP_OFF_NODES: -2})


# --- the memory controller -------------------------------------------------------------------------------------------
@VERSION_2.case(
    "hugetlb pages count for memory.current where the hierarchy is mounted with memory_hugetlb_accounting, else not",
    f"{V2_DOC} memory_hugetlb_accounting; mm/memcontrol.c mem_cgroup_charge_hugetlb()",
    pages=2,
)
def memory_counts_hugetlb_pages_if_mounted_so(live: Live) -> None:
    _expect_accounted(live, is_accounted=any(_ACCOUNTING in words for words in _options(live)))


@VERSION_2.case(
    "hugetlb pages count for memory.current after the hierarchy was mounted with memory_hugetlb_accounting",
    f"{V2_DOC} memory_hugetlb_accounting; kernel/cgroup/cgroup.c apply_cgroup_root_flags()",
    since="6.7",
    pages=2,
)
def memory_counts_hugetlb_pages_when_mounted_so(live: Live) -> None:
    mount_with_accounting(live)
    live.expect("mounts without the option", [], [words for words in _options(live) if _ACCOUNTING not in words])
    _expect_accounted(live, is_accounted=True)


def mount_with_accounting(live: Live) -> None:
    """Mount the hierarchy of version 2 with memory_hugetlb_accounting until the case ends.

    It is one hierarchy with one set of options, wherever it is mounted. Raises CannotRun where others have groups in
    it, whom that would concern, too.
    """
    mounts = [mount for mount in read_mounts(live.host) if mount.type == "cgroup2"]
    if not mounts:
        raise CannotRun("no hierarchy of version 2 is mounted")
    if "nr_descendants 0" not in (live.host.read(f"{mounts[0].point}/cgroup.stat") or "").splitlines():
        raise CannotRun("others have control groups, which the option would concern, too")
    before = [word for word in mounts[0].options.split(",") if word in _OPTIONS]

    def mount_as_before() -> None:
        live.host.unmount(live.host.mount(",".join(before), "cgroup2"))

    live.when_actors_have_ended(mount_as_before)
    live.mount_other(",".join([*before, _ACCOUNTING]), "cgroup2")


def _options(live: Live) -> list[list[str]]:
    return [mount.options.split(",") for mount in read_mounts(live.host) if mount.type == "cgroup2"]


def _expect_accounted(live: Live, *, is_accounted: bool) -> None:
    # two of them may be of two CPUs
    if 4 * CHARGED_AHEAD * live.base_page > live.size:
        raise CannotRun(f"each CPU may be charged for {CHARGED_AHEAD} base pages that nobody has, as much as a page")
    group = new_group(live, "memory", Version.TWO)
    actor = live.actor()
    group.add(actor)
    memory = live.map(2, actor)
    before = _memory_current(group)
    memory.touch(0)
    memory.touch(1)
    # page tables and the like are charged and given back, too, but are much less than half of a page
    found = round((_memory_current(group) - before) / live.size)
    live.expect("pages in memory.current", 2 if is_accounted else 0, found)
    memory.unmap()
    live.expect("pages in memory.current", 0, round((_memory_current(group) - before) / live.size))


def _moved_page(live: Live, group: HugetlbGroup) -> tuple[Memory, int]:
    """Return a page of a process of ``group`` that moved to another node, and that node. Raises CannotRun."""
    if len(live.nodes) < _TWO:
        raise CannotRun("pages move between nodes, of which this machine has one")
    for node in live.nodes:
        live.reserve(1, node)
    memory = live.map(1, _actor_in(live, group), noreserve=True)
    memory.touch()
    here = next(iter(memory.numa_maps().nodes))
    there = next(node for node in live.nodes if node != here)
    live.expect("status of move_pages", there, move_page(memory, 0, there))
    return memory, there


def _actor_in(live: Live, group: HugetlbGroup) -> Actor:
    actor = live.actor()
    group.add(actor)
    return actor


def _pages_of_a_removed_group(live: Live, group: HugetlbGroup) -> tuple[Memory, HugetlbGroup]:
    """Return two pages that a group was charged for, and the group that their process is in after it was removed."""
    goes, stays = group.child("goes"), group.child("stays")
    memory = live.map(2, _actor_in(live, goes))
    memory.touch(0)
    memory.touch(1)
    group.expect(usage=2, reserved=2)
    stays.add(memory.actor)
    goes.remove()
    return memory, stays


def _memory_current(group: ControlGroup) -> int:
    return parse_integer(group.read("memory.current") or "", f"{group.path}/memory.current")


class HugetlbGroups(LiveTest):
    """The hugetlb controller, for every page size of the machine.

    :avocado: enable
    """

    def test_version_1(self) -> None:
        """Every case in a hierarchy of version 1."""
        self.run_area(VERSION_1)

    def test_version_2(self) -> None:
        """Every case in the hierarchy of version 2."""
        self.run_area(VERSION_2)
