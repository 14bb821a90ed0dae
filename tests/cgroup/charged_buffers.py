"""The hugetlb controller of control groups: pages that a file gets since a buffer for a device is made of its holes."""

import fcntl
import os
from functools import partial

from hugepage_qa.cases.case import Area
from hugepage_qa.cases.control_group import Version, keeping_hierarchy
from hugepage_qa.cases.hugetlb_files import new_memfd
from hugepage_qa.cases.hugetlb_group import V1_DOC, V2_DOC, HugetlbGroup, hugetlb_case
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.udmabuf import Part, create_buffer, open_device
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Refused

VERSION_1 = Area("cgroup/charged-buffers-v1", around=keeping_hierarchy("hugetlb"))
VERSION_2 = Area("cgroup/charged-buffers-v2")
case = partial(hugetlb_case, {Version.ONE: VERSION_1, Version.TWO: VERSION_2})


@case(
    "a page that a file gets since a buffer is made of a hole of it is charged as one that is touched, to the group of"
    " who makes the buffer, until file and buffer have gone; beyond the limit the buffer is refused and takes no page",
    f"{V1_DOC}; {V2_DOC} hugetlb.<hugepagesize>.max; mm/memfd.c memfd_alloc_folio(); mm/hugetlb.c"
    " alloc_hugetlb_folio()",
    pages=3,
    since="6.12",  # memfd_pin_folios(): before, buffers took no holes
)
def pages_of_holes(live: Live, group: HugetlbGroup) -> None:
    group.limit(2)
    actor = group.actor()
    device = open_device(live, actor)
    file = new_memfd(live, actor, os.MFD_ALLOW_SEALING, pages=3)
    file.seal(fcntl.F_SEAL_SHRINK)
    memory = file.map(3)
    memory.touch(0)
    group.expect(usage=1, reserved=3)
    create_buffer(actor, device, [Part(file.descriptor, 0, live.base_page)])
    group.expect(usage=1, reserved=3)
    create_buffer(actor, device, [Part(file.descriptor, live.size, live.base_page)])
    live.expect_pool(nr=3, free=1, resv=1)
    group.expect_usage(2, {Quirk.BUFFER_PAGE_UNCHARGED: 1})
    try:
        create_buffer(actor, device, [Part(file.descriptor, 2 * live.size, live.base_page)])
    except Refused:
        live.expect_pool(nr=3, free=1, resv=1)
    else:
        live.fail("buffer of a page beyond the limit", "refused", "made")
    group.expect(usage=2, reserved=3, refusals=1)
    memory.unmap()
    actor.end()
    live.host.wait_until(lambda: live.pool().free == 3)
    live.expect_pool(nr=3, free=3)
    group.expect(usage=0, reserved=0, refusals=1)


class ChargedBuffers(LiveTest):
    def test_version_1(self) -> None:
        self.run_area(VERSION_1)

    def test_version_2(self) -> None:
        self.run_area(VERSION_2)
