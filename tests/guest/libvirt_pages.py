"""What libvirt tells of the pools, and the pools that it changes, are those of the kernel."""

import re

from hugepage_qa.cases.guest.guest_machine import LIBVIRT as DRIVER
from hugepage_qa.cases.guest.guests import (
    NO_NODES,
    GuestArea,
    Guests,
    guest_case,
    needs,
)
from hugepage_qa.cases.guest.refusal import Meaning
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.pool_view import read_pool_view
from hugepage_qa.kernel.nodes import node_directories, parse_list
from hugepage_qa.machine.host import ObservedTree
from hugepage_qa.plugins.guest_test import GuestTest
from hugepage_qa.sizes import KIB, format_size

LIBVIRT = GuestArea("guest/libvirt-pages", DRIVER)
case = guest_case(LIBVIRT)

FREE = "virNodeGetFreePages(), virsh freepages"
VIRSH = "libvirt.org/manpages/virsh.html freepages, allocpages: pagesize with a unit, --cellno, --all, --add"
ALLOCATE = "virNodeAllocPages(), virsh allocpages"
#: what libvirt takes for all of them
ANY_NODE = -1

TOPOLOGY = "virConnectGetCapabilities(), host/topology/cells/cell"
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


@case("each node gets its pages by its number, and the machine by none", ALLOCATE)
def allocate_pages_of_all(live: Live, guests: Guests) -> None:
    needs(bool(live.nodes), NO_NODES)
    live.reserve(2 * len(live.nodes))
    live.set_nr(0)
    for number, node in enumerate(live.nodes, start=1):
        guests.allocate_pages(live.size, 1, node, add=True)
        live.expect_pool(nr=number, free=number)
        live.expect_pool(nr=1, free=1, node=node)
    nodes = len(live.nodes)
    guests.allocate_pages(live.size, nodes, ANY_NODE, add=True)
    live.expect_pool(nr=2 * nodes, free=2 * nodes)
    before = live.before.pools[live.size].nr
    guests.allocate_pages(live.size, before + 1, ANY_NODE, add=False)
    live.expect_pool(nr=1, free=1)
    found = guests.free_pages(live.size, ANY_NODE)
    live.expect("free pages of all nodes, as libvirt tells", read_pool_view(live.host).pools[live.size].free, found)
    guests.allocate_pages(live.size, before, ANY_NODE, add=False)
    live.expect_pool(nr=0, free=0)


@case("who may only read changes no pool", ALLOCATE)
def read_only(live: Live, guests: Guests) -> None:
    live.reserve(1)
    for node in (*live.nodes, ANY_NODE):
        guests.expect_refused(Meaning.READ_ONLY, guests.allocate_pages_read_only, live.size, 1, node)
        live.expect_pool(nr=1, free=1)


@case("neither a page size nor a node that is not there has pages, and base pages are no pool", f"{FREE}; {ALLOCATE}")
def what_is_not_there(live: Live, guests: Guests) -> None:
    live.reserve(1)
    absent_size = next(live.size << shift for shift in range(1, 64) if live.size << shift not in live.sizes)
    absent_node = max(live.nodes, default=0) + 1
    for meaning, size, node in (
        (Meaning.NO_SUCH_SIZE, absent_size, 0),
        (Meaning.NO_SUCH_NODE, live.size, absent_node),
    ):
        guests.expect_refused(meaning, guests.free_pages, size, node)
        guests.expect_refused(meaning, guests.add_page, size, node)
        live.expect_pool(nr=1, free=1)
    guests.expect_refused(Meaning.NOT_CHANGEABLE, guests.add_page, live.base_page, 0)
    live.expect_pool(nr=1, free=1)


@case("virsh takes the size of pages with each unit, tells and changes the pools of one node and of all", VIRSH)
def by_virsh(live: Live, guests: Guests) -> None:
    needs(bool(live.nodes), NO_NODES)
    node = live.nodes[0]
    of_node = ("--cellno", str(node))
    before = read_pool_view(live.host).nodes[node][live.size].nr
    live.reserve(2 + len(live.nodes), node)
    live.set_nr(0, node)
    kib = live.size // KIB
    # without a unit it is KiB
    for size in (f"{kib}", f"{kib}kib", format_size(live.size), f"{live.size}b"):
        with live.about(f"page size {size}"):
            guests.virsh("allocpages", size, "1", "--add", *of_node)
            live.expect_pool(nr=1, free=1, node=node)
            guests.virsh("allocpages", size, str(before + 2), *of_node)
            live.expect_pool(nr=2, free=2, node=node)
            free = read_pool_view(live.host).nodes[node][live.size].free
            told = guests.virsh("freepages", *of_node, "--pagesize", size)
            live.expect("what virsh freepages tells", f"{kib}KiB: {free}", told.strip())
            guests.virsh("allocpages", size, str(before), *of_node)
            live.expect_pool(nr=0, free=0, node=node)
    guests.virsh("allocpages", str(kib), "1", "--add", "--all")
    for one in live.nodes:
        live.expect_pool(nr=1, free=1, node=one)
    told = guests.virsh("freepages", "--all")
    expected = {
        (node, size // KIB): pool.free
        for node, pools in read_pool_view(live.host).nodes.items()
        for size, pool in pools.items()
    }
    # base pages come and go
    live.expect("what virsh freepages --all tells of huge pages", expected, free_by_virsh(told, live.base_page // KIB))
    for words in (
        ("freepages", *of_node, "--pagesize", "-1"),
        ("allocpages", "-1", "1", *of_node),
        ("allocpages", str(kib), "-1", *of_node),
    ):
        guests.expect_refused(Meaning.NOT_A_NUMBER, guests.virsh, *words)
    live.expect_pool(nr=len(live.nodes), free=len(live.nodes))


def free_by_virsh(told: str, base_kib: int) -> dict[tuple[int, int], int]:
    """Return node and KiB of a page -> free pages, but for base pages, as virsh freepages --all has it."""
    found: dict[tuple[int, int], int] = {}
    node = ANY_NODE
    for line in told.splitlines():
        if heading := re.fullmatch(r"Node (\d+):", line):
            node = int(heading[1])
        elif (pool := re.fullmatch(r"(\d+)KiB: (\d+)", line)) and int(pool[1]) != base_kib:
            found[node, int(pool[1])] = int(pool[2])
    return found


@case("the capabilities have base pages, distances and processors of every node as the kernel has", TOPOLOGY)
def nodes_of_the_host(live: Live, guests: Guests) -> None:
    needs(bool(live.nodes), NO_NODES)
    live.reserve(1)
    told = guests.host_cells()
    tree = ObservedTree(live.host)
    directories = node_directories(tree)
    live.expect("nodes that libvirt tells of", sorted(map(str, directories)), sorted(told))
    pools = read_pool_view(live.host).nodes
    for node, directory in directories.items():
        with live.about(f"node {node}"):
            in_pools = sum(size * pool.nr for size, pool in pools[node].items())
            found = told[str(node)]
            base = (live.node_meminfo(node)["MemTotal"] - in_pools) // live.base_page
            live.expect("base pages", base, found["pages"].get(str(live.base_page // KIB)))
            distances = (tree.read(f"{directory}/distance") or "").split()
            expected = dict(zip(map(str, directories), map(int, distances), strict=True))
            live.expect("distances", expected, found["distances"])
            cpus = parse_list(tree.read(f"{directory}/cpulist") or "", "cpulist")
            live.expect("processors", sorted(map(str, cpus)), sorted(found["cpus"]))
    live.expect_pool(nr=1, free=1)


class LibvirtPages(GuestTest):
    def test_libvirt(self) -> None:
        self.run_area(LIBVIRT)
