"""The hugetlb controller of control groups: what is charged to whom, and what stays when a group goes.

Hugetlb pages are charged by the memory controller, too, where the hierarchy is mounted so.
"""

import errno
import signal
from collections.abc import Mapping
from functools import partial

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.control_group import ControlGroup, Version, keeping_hierarchy, new_group
from hugepage_qa.cases.group_statistics import expect_statistics
from hugepage_qa.cases.hugetlb_accounting import (
    ACCOUNTING,
    accounted_group,
    mount_options,
    mount_with_accounting,
    need_small_charges,
)
from hugepage_qa.cases.hugetlb_files import new_memfd
from hugepage_qa.cases.hugetlb_group import HUGETLB_CGROUP, V1_DOC, V2_DOC, HugetlbGroup, hugetlb_case
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.memory_policy import MOVE_STRICTLY, bind, move_page
from hugepage_qa.kernel.tree import parse_integer
from hugepage_qa.kernel.uapi import MADV_POPULATE_WRITE
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest

VERSION_1 = Area("cgroup/charges-v1", around=keeping_hierarchy("hugetlb"))
VERSION_2 = Area("cgroup/charges-v2")
case = partial(hugetlb_case, {Version.ONE: VERSION_1, Version.TWO: VERSION_2})

_TWO = 2
#: more than what a group is charged for besides could hide
_MISSED = 4


@case(
    "reservations are charged when memory is mapped, pages when they are touched, and both go when it is unmapped",
    f"{V1_DOC}; {V2_DOC} HugeTLB Interface Files; {HUGETLB_CGROUP}",
    pages=2,
)
def charges_follow_the_pages(live: Live, group: HugetlbGroup) -> None:
    actor = group.actor()
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
    file = new_memfd(live, group.actor())
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
    actor = group.actor()
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
    ours = live.map(2, first.actor(), shared=True)
    theirs = ours.fork()
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
    "reservations of several groups side by side in one file are each given back to the group that made them",
    f"{V1_DOC} Reservation accounting; {HUGETLB_CGROUP}; mm/hugetlb.c has_same_uncharge_info(), region_del()",
    pages=6,
)
def reservations_side_by_side(live: Live, group: HugetlbGroup) -> None:
    first, second = group.child("first"), group.child("second")
    file = new_memfd(live, pages=6)
    # in this order each of them meets what another one has on both sides
    for each, page in ((first, 0), (first, 4), (second, 2), (second, 5), (first, 1), (second, 3)):
        theirs = file.actor.fork()
        each.add(theirs)
        live.map(1, theirs, fd=file.descriptor, first=page, shared=True).unmap()
        theirs.end()
    for pages in (6, 5, 4, 2, 1, 0):
        file.truncate(pages)
        of_first, of_second = sum(page < pages for page in (0, 1, 4)), sum(page < pages for page in (2, 3, 5))
        first.expect(usage=0, reserved=of_first)
        second.expect(usage=0, reserved=of_second)
        group.expect(usage=0, reserved=of_first + of_second)
    live.expect_pool(nr=6, free=6)


@case(
    "what a process was charged stays with its old group when it moves, what it touches then is charged to the new one",
    f"{V2_DOC} Memory Ownership; {HUGETLB_CGROUP} has no can_attach",
    pages=2,
)
def charges_do_not_move_with_a_process(live: Live, group: HugetlbGroup) -> None:
    old, new = group.child("old"), group.child("new")
    memory = live.map(2, old.actor())
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
    "numa_stat of a group has the pages of the groups below it, too, on their nodes, and no longer when they are freed",
    f"{V1_DOC} numa_stat; {HUGETLB_CGROUP} hugetlb_cgroup_read_numa_stat(), since f47761999052",
    pages=2,
    since="5.17",
)
def pages_of_groups_below_are_in_numa_stat(live: Live, group: HugetlbGroup) -> None:
    below = [group.child(name) for name in ("first", "second")]
    memories = [live.map(1, each.actor()) for each in below]
    for count, (each, memory) in enumerate(zip(below, memories, strict=True), start=1):
        memory.touch()
        each.expect_on_nodes(1)
        group.expect_on_nodes(count, with_groups_below=True)
    for left, (each, memory) in zip((1, 0), zip(below, memories, strict=True), strict=True):
        memory.unmap()
        each.expect_on_nodes(0)
        group.expect_on_nodes(left, with_groups_below=True)


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
    _expect_accounted(live, is_accounted=any(ACCOUNTING in words for words in mount_options(live)))


@VERSION_2.case(
    "hugetlb pages count for memory.current after the hierarchy was mounted with memory_hugetlb_accounting",
    f"{V2_DOC} memory_hugetlb_accounting; kernel/cgroup/cgroup.c apply_cgroup_root_flags()",
    since="6.7",
    pages=2,
)
def memory_counts_hugetlb_pages_when_mounted_so(live: Live) -> None:
    mount_with_accounting(live)
    live.expect("mounts without the option", [], [words for words in mount_options(live) if ACCOUNTING not in words])
    _expect_accounted(live, is_accounted=True)


def _expect_accounted(live: Live, *, is_accounted: bool) -> None:
    need_small_charges(live)
    group = new_group(live, "memory", Version.TWO)
    actor = group.actor()
    memory = live.map(2, actor)
    before = _memory_current(group)
    memory.touch(0)
    memory.touch(1)
    # page tables and the like are charged and given back, too, but are much less than half of a page
    found = round((_memory_current(group) - before) / live.size)
    live.expect("pages in memory.current", 2 if is_accounted else 0, found)
    memory.unmap()
    live.expect("pages in memory.current", 0, round((_memory_current(group) - before) / live.size))


@VERSION_2.case(
    "who finds the pool empty is charged nothing in memory.current for the pages that it did not get, touched or asked"
    " for, where the hierarchy is mounted with memory_hugetlb_accounting",
    f"{V2_DOC} memory_hugetlb_accounting; mm/hugetlb.c alloc_hugetlb_folio()",
    since="6.7",
    sizes=Sizes.BUDDY,
)
def memory_counts_no_page_that_was_not_had(live: Live) -> None:
    need_small_charges(live)
    mount_with_accounting(live)
    group = new_group(live, "memory", Version.TWO)
    for shared in (False, True):
        actor = group.actor()
        memory = live.map(_MISSED, actor, noreserve=True, shared=shared)
        before = _memory_current(group)
        for page in range(_MISSED):
            live.expect_signal(signal.SIGBUS, memory.touch, page)
            live.expect_errno(errno.EFAULT, memory.advise, MADV_POPULATE_WRITE, page, 1)
        found = round((_memory_current(group) - before) / live.size)
        live.expect(f"pages in memory.current, shared {shared}", 0, found)
        actor.end()


@VERSION_2.case(
    "a page that moves to another node counts for memory.current as before, until it is given back, where the hierarchy"
    " is mounted with memory_hugetlb_accounting",
    f"{V2_DOC} memory_hugetlb_accounting; mm/memcontrol.c mem_cgroup_migrate(); mm/hugetlb.c move_hugetlb_state()",
    since="6.7",
)
def memory_counts_a_page_that_moves(live: Live) -> None:
    group = accounted_group(live)
    memory, _there = _moved_page(live, group)
    live.expect("pages in memory.current", 1, round(_memory_current(group.group) / live.size))
    memory.unmap()
    live.expect("pages in memory.current", 0, round(_memory_current(group.group) / live.size))


@VERSION_2.case(
    "hugetlb in memory.numa_stat of a group, and of the one above it, has pages that move to another node and back on"
    " the node that each is on, and none when they are given back, and memory.stat has as many as before, where the"
    " hierarchy is mounted with memory_hugetlb_accounting",
    f"{V2_DOC} memory.stat hugetlb, memory.numa_stat; mm/hugetlb.c move_hugetlb_lruvec_stat()",
    since="7.3",  # before, a page that moved was told on the node where it had been
    nodes=2,
    sizes=Sizes.BUDDY,
)
def memory_shows_pages_that_move_on_their_nodes(live: Live) -> None:
    above = accounted_group(live)
    group = above.child("below")
    for node in live.nodes:
        live.reserve(_TWO, node)
    here, there = live.nodes[:2]
    for shared in (False, True):
        with live.about(f"shared {shared}"):
            memory = live.map(_TWO, group.actor(), noreserve=True, shared=shared)
            bind(memory, [here])
            for page in range(_TWO):
                memory.touch(page)
            _expect_memory_on_nodes(live, (group, above), {here: 2, there: 0})
            live.expect("status of move_pages", there, move_page(memory, 1, there))
            _expect_memory_on_nodes(live, (group, above), {here: 1, there: 1})
            for node, other in ((there, here), (here, there)):
                bind(memory, [node], MOVE_STRICTLY)
                _expect_memory_on_nodes(live, (group, above), {node: 2, other: 0})
            memory.unmap()
            _expect_memory_on_nodes(live, (group, above), {here: 0, there: 0})


def _expect_memory_on_nodes(live: Live, groups: tuple[HugetlbGroup, ...], pages: Mapping[int, int]) -> None:
    """Expect as many hugetlb pages of each node in memory.numa_stat of ``groups``, and all of them in memory.stat."""
    for each in groups:
        on_nodes = {f"hugetlb N{node}": count * live.size for node, count in pages.items()}
        expect_statistics(live, each.group, on_nodes, "memory.numa_stat")
        expect_statistics(live, each.group, {"hugetlb": sum(pages.values()) * live.size})


@case(
    "of two groups that go, each leaves what was charged to it to the one above them, and what the other one has stays",
    f"{V1_DOC}; {HUGETLB_CGROUP} hugetlb_cgroup_css_offline(), hugetlb_cgroup_move_parent()",
    pages=2,
)
def groups_go_one_by_one(live: Live, group: HugetlbGroup) -> None:
    stays, *going = (group.child(name) for name in ("stays", "first", "second"))
    memories = [live.map(1, each.actor(), noreserve=True) for each in going]
    for memory in memories:
        memory.touch()
        stays.add(memory.actor)
    going[0].remove()
    # what is charged to it moves when it goes offline
    going[0].group.wait_until_offline()
    going[1].expect(usage=1, reserved=1)
    group.expect(usage=2, reserved=2)
    memories[0].unmap()
    going[1].expect(usage=1, reserved=1)
    group.expect(usage=1, reserved=1)
    going[1].remove()
    going[1].group.wait_until_offline()
    group.expect(usage=1, reserved=1)
    stays.expect(usage=0, reserved=0)
    memories[1].unmap()
    group.expect(usage=0, reserved=0)
    live.expect_pool(nr=2, free=2)


def _moved_page(live: Live, group: HugetlbGroup) -> tuple[Memory, int]:
    """Return a page of a process of ``group`` that moved to another node, and that node. Raises CannotRun."""
    if len(live.nodes) < _TWO:
        raise CannotRun("pages move between nodes, of which this machine has one")
    for node in live.nodes:
        live.reserve(1, node)
    memory = live.map(1, group.actor(), noreserve=True)
    memory.touch()
    here = next(iter(memory.numa_maps().nodes))
    there = next(node for node in live.nodes if node != here)
    live.expect("status of move_pages", there, move_page(memory, 0, there))
    return memory, there


def _pages_of_a_removed_group(live: Live, group: HugetlbGroup) -> tuple[Memory, HugetlbGroup]:
    """Return two pages that a group was charged for, and the group that their process is in after it was removed."""
    goes, stays = group.child("goes"), group.child("stays")
    memory = live.map(2, goes.actor())
    memory.touch(0)
    memory.touch(1)
    group.expect(usage=2, reserved=2)
    stays.add(memory.actor)
    goes.remove()
    return memory, stays


def _memory_current(group: ControlGroup) -> int:
    return parse_integer(group.read("memory.current") or "", f"{group.path}/memory.current")


class HugetlbCharges(LiveTest):
    def test_version_1(self) -> None:
        self.run_area(VERSION_1)

    def test_version_2(self) -> None:
        self.run_area(VERSION_2)
