"""The hugetlb controller of control groups: what is charged to whom, and what stays when a group goes."""

from functools import partial

from hugepage_qa.cases.case import Area
from hugepage_qa.cases.control_group import Version, keeping_hierarchy
from hugepage_qa.cases.hugetlb_files import new_memfd
from hugepage_qa.cases.hugetlb_group import (
    HUGETLB_CGROUP,
    V1_DOC,
    V2_DOC,
    HugetlbGroup,
    charged_page_that_moved,
    hugetlb_case,
)
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest

VERSION_1 = Area("cgroup/charges-v1", around=keeping_hierarchy("hugetlb"))
VERSION_2 = Area("cgroup/charges-v2")
#: for a worker of the kernel to take a removed group offline
_OFFLINE_SECONDS = 60
case = partial(hugetlb_case, {Version.ONE: VERSION_1, Version.TWO: VERSION_2})


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
    memory, _there = charged_page_that_moved(live, group)
    group.expect(usage=1, reserved=1)
    memory.unmap()
    group.expect(usage=0, reserved=0)


@case(
    "numa_stat shows a page that moves on the node that it is on",
    f"{V1_DOC} numa_stat; {HUGETLB_CGROUP} hugetlb_cgroup_migrate(), since f47761999052",
    since="5.17",
)
def a_page_that_moves_is_shown_on_its_node(live: Live, group: HugetlbGroup) -> None:
    memory, there = charged_page_that_moved(live, group)
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
    # what is charged to it moves when it goes offline
    group.group.wait_until_offline()
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
    # a busy machine takes longer, and a kernel that is known for it never shows them
    seconds = 0 if live.has_bug(Quirk.REMOVED_GROUP_OFF_NODES) else _OFFLINE_SECONDS
    group.expect_on_nodes(2, {Quirk.REMOVED_GROUP_OFF_NODES: 0}, seconds=seconds)
    memory.unmap()
    # version 2 counts groups in as long as they are remembered, and so shows what is wrong only now
    group.group.wait_until_forgotten()
    group.expect_on_nodes(0, {Quirk.REMOVED_GROUP_OFF_NODES: -2})


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


class HugetlbCharges(LiveTest):
    def test_version_1(self) -> None:
        self.run_area(VERSION_1)

    def test_version_2(self) -> None:
        self.run_area(VERSION_2)
