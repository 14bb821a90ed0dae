"""Guests whose memory is in cells, bound to nodes or in devices have it, and its pages, where they arrive."""

from collections import Counter

from hugepage_qa.cases.case import Sizes
from hugepage_qa.cases.guest import guest_machine as drivers
from hugepage_qa.cases.guest.guest import Guest
from hugepage_qa.cases.guest.guests import NO_NODES, GuestArea, guest_case, needs
from hugepage_qa.cases.guest.plugged_memory import BLOCK, LEAST_MEMORY, ONLINE, dimm, nvdimm
from hugepage_qa.cases.guest.two_hosts import TwoHosts
from hugepage_qa.cases.live import Live
from hugepage_qa.kernel.uapi import AT_FDCWD
from hugepage_qa.plugins.guest_test import GuestTest
from hugepage_qa.qemu.guest.domain_xml import with_tuning
from hugepage_qa.qemu.guest.driver import State
from hugepage_qa.qemu.guest.guest_description import (
    Access,
    Cell,
    DeviceKind,
    MemoryDevice,
    device_pages,
)
from hugepage_qa.sizes import MIB

QEMU, LIBVIRT = GuestArea("guest/migrated-memory", drivers.QEMU), GuestArea("guest/migrated-memory", drivers.LIBVIRT)
case = guest_case(QEMU, LIBVIRT, cast=TwoHosts)
libvirt_case = guest_case(LIBVIRT, cast=TwoHosts)

CELLS = "libvirt.org/formatdomain.html hugepages page nodeset, cell memAccess; QEMU docs/devel/migration"
NODES = "libvirt.org/formatdomain.html numatune memnode; QEMU memory-backend host-nodes=, policy=bind; mbind(2)"
MODES = "libvirt.org/formatdomain.html numatune memory mode, memnode mode; set_mempolicy(2), mbind(2)"
NVDIMM = "libvirt.org/formatdomain.html memory-devices nvdimm; QEMU docs/nvdimm.txt, docs/devel/migration"
HOTPLUG = "QEMU docs/memory-hotplug.txt, pc-dimm: the target is started with what was plugged in; docs/devel/migration"

#: of a cell on ordinary pages
_ORDINARY = 64 * MIB
#: mode of a guest -> that of its first cell, and the policies that both have
_MODES = {
    "strict": ("preferred", "bind", "preferred"),
    "interleave": ("strict", "interleave", "bind"),
    "preferred": ("interleave", "preferred", "interleave"),
    # it leaves memory to the group of the guest, and libvirt takes no other mode beside it
    "restrictive": ("restrictive", "default", "default"),
}


def move(live: Live, source: Guest, target: Guest, nr: int, definition: str | None = None, *, kept: int = 0) -> None:
    """Send a guest that has begun with stopped CPUs, and expect its pages at both ends, and then at its target.

    The pool has ``nr`` pages, of which a file at the source keeps some. What a guest that runs finds in its memory
    ``guest/migration`` looks at.
    """
    source.begin_migration(target, definition=definition)
    live.expect_pool(nr=nr, free=nr - source.pages - target.pages)
    source.finish_migration()
    source.expect_state(State.OFF)
    target.expect_state(State.PAUSED)
    live.expect_pool(nr=nr, free=nr - target.pages - kept)
    target.expect_mapped()


@case(
    "a guest with a cell on huge pages and one on ordinary pages, both shared and to be discarded, takes pages for the"
    " first alone",
    CELLS,
)
def cells(live: Live, hosts: TwoHosts) -> None:
    pair = Cell(hosts.here.pages * live.size, live.size), Cell(_ORDINARY, None)
    both = (hosts.here, hosts.there)
    source, target = (one.new(*pair, access=Access.SHARED, discard=True) for one in both)
    nr = source.pages + target.pages
    live.reserve(nr)
    source.start()
    move(live, source, target, nr)
    target.destroy()
    hosts.expect_all_back(nr, source, target)


@libvirt_case(
    "a guest whose cells are bound to nodes has the pages of each on its node where it arrives",
    NODES,
    sizes=Sizes.BUDDY,
)
def bound_to_nodes(live: Live, hosts: TwoHosts) -> None:
    needs(bool(live.nodes), NO_NODES)
    ends = live.nodes[0], live.nodes[-1]
    pair = [Cell(hosts.here.pages * live.size, live.size, node) for node in ends]
    source, target = hosts.here.new(*pair), hosts.there.new(*pair)
    on_each = Counter[int]()
    for node in ends:
        on_each[node] += hosts.here.pages
    # enough on each node for all of both
    there = source.pages + target.pages
    for node in on_each:
        live.reserve(there, node)
    nr = there * len(on_each)
    source.start()
    move(live, source, target, nr)
    target.expect_on_nodes(on_each)
    for node, pages in on_each.items():
        live.expect_pool(nr=there, free=there - pages, node=node)
    target.destroy()
    hosts.expect_all_back(nr, source, target)


@libvirt_case(
    "a guest that arrives has the policies that its mode, and that of its first cell, say", MODES, sizes=Sizes.DEFAULT
)
def in_each_mode(live: Live, hosts: TwoHosts) -> None:
    needs(bool(live.nodes), NO_NODES)
    first, last = live.nodes[0], live.nodes[-1]
    pair = [Cell(hosts.here.pages * live.size, live.size) for _ in range(2)]
    source, target = hosts.here.new(*pair), hosts.there.new(*pair)
    there = source.pages + target.pages
    for node in {first, last}:
        live.reserve(there, node)
    nr = there * len({first, last})
    for mode, (mode_of_first, policy, policy_of_first) in _MODES.items():
        tuning = (
            f'<numatune><memory mode="{mode}" nodeset="{last}"/>'
            f'<memnode cellid="0" mode="{mode_of_first}" nodeset="{first}"/></numatune>'
        )
        nodes = ([], []) if policy == "default" else ([first], [last])
        with live.about(tuning):
            source.define_and_start(with_tuning(source.definition, tuning))
            move(live, source, target, nr, with_tuning(target.definition, tuning))
            target.expect_policies(zip((policy_of_first, policy), nodes, strict=True))
            if policy != "default":
                target.expect_on_nodes(Counter({first: hosts.here.pages}) + Counter({last: hosts.here.pages}))
            target.destroy()
    hosts.expect_all_back(nr, source, target)


@case(
    "a guest that was migrated with a DIMM from its start and one that was plugged in has the pages of both, once",
    HOTPLUG,
    sizes=Sizes.BUDDY,
)
def with_plugged_memory(live: Live, hosts: TwoHosts) -> None:
    first = dimm(live.size)
    second = MemoryDevice("dimm1", DeviceKind.DIMM, first.memory, live.size)
    cell = Cell(max(hosts.here.pages * live.size, LEAST_MEMORY), live.size)
    # each is aligned to its pages
    room = cell.memory + 6 * first.memory
    source = hosts.here.new(cell, max_memory=room, devices=(first,), words=ONLINE)
    target = hosts.there.new(cell, max_memory=room, devices=(first, second), words=ONLINE)
    nr = 2 * target.pages
    live.reserve(nr)
    source.boot()
    source.attach(second)
    source.keep_busy(BLOCK // 2)
    source.begin_migration(target, definition=source.definition_as(target))
    hosts.expect_at_both(source, target, nr, device_pages(second))
    hosts.expect_moved(source, target, nr)


@case(
    "a guest with an NVDIMM in a file of hugetlbfs has the pages of that file where it arrives, and the file that it"
    " leaves keeps its own",
    NVDIMM,
    sizes=Sizes.DEFAULT,
)
def with_an_nvdimm(live: Live, hosts: TwoHosts) -> None:
    device = nvdimm(live.size)
    cell = Cell(max(hosts.here.pages * live.size, LEAST_MEMORY), live.size)
    source, target = (
        # else what is written stays in the guest (libvirt)
        host.new(cell, max_memory=cell.memory + 3 * device.memory, devices=(device,), access=Access.SHARED)
        for host in (hosts.here, hosts.there)
    )
    nr, kept = source.pages + target.pages, device_pages(device)
    live.reserve(nr)
    source.start()
    left, there = (guest.nvdimm_file(device) for guest in (source, target))
    move(live, source, target, nr, source.definition_as(target).replace(left, there), kept=kept)
    target.destroy()
    live.expect_pool(nr=nr, free=nr - 2 * kept)
    for file in (left, there):
        live.actor().call("unlinkat", AT_FDCWD, file, 0)
    hosts.expect_all_back(nr, source, target)


class MigratedMemory(GuestTest):
    def test_qemu(self) -> None:
        self.run_area(QEMU)

    def test_libvirt(self) -> None:
        self.run_area(LIBVIRT)
