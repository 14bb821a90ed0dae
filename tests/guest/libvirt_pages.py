"""What libvirt tells of the pools, and the pools that it changes, are those of the kernel."""

from hugepage_qa.cases.guest.guest_machine import LIBVIRT as DRIVER
from hugepage_qa.cases.guest.guests import (
    NO_NODES,
    GuestArea,
    Guests,
    guest_case,
    needs,
)
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.pool_view import read_pool_view
from hugepage_qa.plugins.guest_test import GuestTest
from hugepage_qa.sizes import KIB

LIBVIRT = GuestArea("guest/libvirt-pages", DRIVER)
case = guest_case(LIBVIRT)

FREE = "virNodeGetFreePages(), virsh freepages"
ALLOCATE = "virNodeAllocPages(), virsh allocpages"
CAPABILITIES = "virConnectGetCapabilities(), host/topology/cells/cell/pages"


def expect_free_as_in_sysfs(live: Live, guests: Guests) -> None:
    """Expect libvirt to tell the free pages of every node and page size that the kernel shows."""
    view = read_pool_view(live.host)
    for node, pools in view.nodes.items():
        for size, pool in pools.items():
            found = guests.free_pages(size, node)
            live.expect(f"free pages of {size // KIB} KiB on node {node}, as libvirt tells", pool.free, found)


@case("libvirt tells the free pages that the kernel shows, before, while and after a guest has some", FREE)
def free_pages(live: Live, guests: Guests) -> None:
    live.reserve(guests.pages + 1)
    expect_free_as_in_sysfs(live, guests)
    guest = guests.new()
    guest.start()
    live.expect_pool(nr=guests.pages + 1, free=1)
    expect_free_as_in_sysfs(live, guests)
    guest.destroy()
    live.expect_pool(nr=guests.pages + 1, free=guests.pages + 1)
    expect_free_as_in_sysfs(live, guests)


@case("the capabilities have every page size of the machine, with the pages in its pool", CAPABILITIES)
def capabilities(live: Live, guests: Guests) -> None:
    live.reserve(2)
    view = read_pool_view(live.host)
    found = guests.page_sizes()
    for node, pools in view.nodes.items():
        for size, pool in pools.items():
            told = found.get(str(node), {}).get(str(size // KIB))
            live.expect(f"pages of {size // KIB} KiB on node {node} in the capabilities", pool.nr, told)
    live.expect_pool(nr=2, free=2)


@case("libvirt adds pages to the pool of a node, sets it, and takes them away", ALLOCATE)
def allocate_pages(live: Live, guests: Guests) -> None:
    needs(bool(live.nodes), NO_NODES)
    node = live.nodes[0]
    before = read_pool_view(live.host).nodes[node][live.size].nr
    live.reserve(2, node)
    live.set_nr(0, node)
    guests.allocate_pages(live.size, 2, node, add=True)
    live.expect_pool(nr=2, free=2)
    live.expect_pool(nr=2, free=2, node=node)
    guests.allocate_pages(live.size, before + 1, node, add=False)
    live.expect_pool(nr=1, free=1)
    live.expect_pool(nr=1, free=1, node=node)
    guests.allocate_pages(live.size, before, node, add=False)
    live.expect_pool(nr=0, free=0)


class LibvirtPages(GuestTest):
    """See main.fmf."""

    def test_libvirt(self) -> None:
        self.run_area(LIBVIRT)
