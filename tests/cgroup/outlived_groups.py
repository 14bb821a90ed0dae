"""The hugetlb controller of control groups: pages that somebody holds when their file has gone, and their group."""

from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area
from hugepage_qa.cases.control_group import Version, keeping_hierarchy
from hugepage_qa.cases.hugetlb_files import new_memfd
from hugepage_qa.cases.hugetlb_group import HUGETLB_CGROUP, V1_DOC, HugetlbGroup, hugetlb_case
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.pinned_pages import pipe_with, word_from
from hugepage_qa.plugins.avocado_test import LiveTest

VERSION_1 = Area("cgroup/outlived-groups-v1", around=keeping_hierarchy("hugetlb"))
VERSION_2 = Area("cgroup/outlived-groups-v2")
case = partial(hugetlb_case, {Version.ONE: VERSION_1, Version.TWO: VERSION_2})


@case(
    "a page that a pipe holds stays charged to its group when its file has gone, and to the one above when that group"
    " has, too, until the pipe lets it go; what was reserved for the file is charged no more, and what was charged as"
    " reserved for the page itself is, as long as there is the page",
    f"{V1_DOC} Reservation accounting; vmsplice(2); {HUGETLB_CGROUP} hugetlb_cgroup_css_offline(),"
    " hugetlb_cgroup_uncharge_file_region(); mm/hugetlb.c free_huge_folio()",
    pages=2,
)
def held_page_outlives_its_group(live: Live, group: HugetlbGroup) -> None:
    stays = group.child("stays")
    for number, (noreserve, goes_first) in enumerate(product((False, True), repeat=2)):
        goes = group.child(f"goes-{number}")
        file = new_memfd(live, goes.actor())
        memory = file.map(2, noreserve=noreserve)
        memory.touch(0, 7)
        # a page that nothing is reserved for is charged as reserved, too
        its_own = 1 if noreserve else 0
        with live.about(f"without a reservation {noreserve}, the group goes before the page {goes_first}"):
            goes.expect(usage=1, reserved=1 if noreserve else 2)
            reader = pipe_with(live, memory)
            memory.unmap()
            file.truncate(0)
            goes.expect(usage=1, reserved=its_own)
            live.expect_pool(nr=2, free=1)
            stays.add(file.actor)
            if goes_first:
                goes.remove()
                goes.group.wait_until_offline()
                group.expect(usage=1, reserved=its_own)
            live.expect("what comes out of the pipe", 7, word_from(live, file.actor, reader))
            for each in (group, stays) if goes_first else (goes, group, stays):
                each.expect(usage=0, reserved=0)
            live.expect_pool(nr=2, free=2)
        file.actor.end()


class OutlivedGroups(LiveTest):
    def test_version_1(self) -> None:
        self.run_area(VERSION_1)

    def test_version_2(self) -> None:
        self.run_area(VERSION_2)
