"""Guests whose cells are bound to NUMA nodes, have page sizes of their own, or are locked in memory."""

from hugepage_qa.cases.guest import guest_machine as drivers
from hugepage_qa.cases.guest.guests import (
    NO_NODES,
    GuestArea,
    Guests,
    guest_case,
    needs,
)
from hugepage_qa.cases.guest.refusal import Meaning, find_meaning, without_process_ids
from hugepage_qa.cases.live import Live
from hugepage_qa.kernel.process_status import read_process_status
from hugepage_qa.machine.host import ObservedTree
from hugepage_qa.plugins.guest_test import GuestTest
from hugepage_qa.qemu.guest.driver import GuestError, State
from hugepage_qa.qemu.guest.guest_description import Access, Cell
from hugepage_qa.sizes import MIB, format_size

QEMU, LIBVIRT = GuestArea("guest/nodes", drivers.QEMU), GuestArea("guest/nodes", drivers.LIBVIRT)
case = guest_case(QEMU, LIBVIRT)

NUMA = "libvirt.org/formatdomain.html numatune memnode; QEMU memory-backend host-nodes=, policy=bind; mbind(2)"
PAGES = "libvirt.org/formatdomain.html hugepages page nodeset"


@case("a cell that is bound to a node takes its pages there and nowhere else", NUMA)
def bound_to_a_node(live: Live, guests: Guests) -> None:
    needs(bool(live.nodes), NO_NODES)
    node = live.nodes[-1]
    guest = guests.new(Cell(guests.pages * live.size, live.size, node))
    live.reserve(guests.pages, node)
    guest.start()
    live.expect_pool(nr=guests.pages, free=0)
    live.expect_pool(nr=guests.pages, free=0, node=node)
    guest.expect_on_nodes({node: guests.pages})
    guest.destroy()
    live.expect_pool(nr=guests.pages, free=guests.pages)


@case("a guest is refused when its node is short, however many pages another one has", NUMA, nodes=2)
def one_node_short(live: Live, guests: Guests) -> None:
    short, other = live.nodes[:2]
    live.reserve(guests.pages - 1, short)
    live.reserve(guests.pages, other)
    nr = 2 * guests.pages - 1
    guest = guests.new(Cell(guests.pages * live.size, live.size, short))
    guests.expect_refused(Meaning.SHORT_OF_PAGES, guest.start)
    guest.expect_state(State.OFF)
    live.expect_pool(nr=nr, free=nr)
    live.expect_pool(nr=guests.pages - 1, free=guests.pages - 1, node=short)
    live.reserve(guests.pages, short)
    guest.start()
    live.expect_pool(nr=guests.pages, free=0, node=short)
    live.expect_pool(nr=guests.pages, free=guests.pages, node=other)
    guest.expect_on_nodes({short: guests.pages})


@case("the cells of a guest take their pages each on its own node", NUMA, nodes=2)
def a_cell_on_each_node(live: Live, guests: Guests) -> None:
    nodes = live.nodes[:2]
    for node in nodes:
        live.reserve(guests.pages, node)
    guest = guests.new(*(Cell(guests.pages * live.size, live.size, node) for node in nodes))
    guest.start()
    for node in nodes:
        live.expect_pool(nr=guests.pages, free=0, node=node)
    guest.expect_on_nodes(dict.fromkeys(nodes, guests.pages))
    guest.expect_mapped()


@case("cells with pages of different sizes take each from the pool of its size", PAGES)
def cells_of_different_sizes(live: Live, guests: Guests) -> None:
    others = [size for size in live.sizes if size != live.size]
    needs(bool(others), f"this machine has pages of {format_size(live.size)} alone")
    other = live.of_size(others[0])
    pages = max(1, guests.pages * live.size // other.size) if other.size < live.size else 1
    live.reserve(guests.pages + 1)
    other.reserve(pages + 1)
    guest = guests.new(Cell(guests.pages * live.size, live.size), Cell(pages * other.size, other.size))
    guest.start()
    live.expect_pool(nr=guests.pages + 1, free=1)
    other.expect_pool(nr=pages + 1, free=1)
    guest.expect_mapped()
    guest.destroy()
    live.expect_pool(nr=guests.pages + 1, free=guests.pages + 1)
    other.expect_pool(nr=pages + 1, free=pages + 1)


@case("a cell on ordinary pages takes none of the pool", PAGES)
def a_cell_on_ordinary_pages(live: Live, guests: Guests) -> None:
    live.reserve(guests.pages + 1)
    guest = guests.new(Cell(guests.pages * live.size, live.size), Cell(64 * MIB, None))
    guest.start()
    live.expect_pool(nr=guests.pages + 1, free=1)
    guest.expect_mapped()


@case("a guest that is locked in memory takes the same pages", "mlockall(2); libvirt.org/formatdomain.html locked")
def locked(live: Live, guests: Guests) -> None:
    guest = guests.new(locked=True)
    live.reserve(guest.pages)
    try:
        guest.start()
    except GuestError as error:
        needs(find_meaning(str(error)) is not Meaning.MAY_NOT_LOCK, without_process_ids(str(error)))
        raise
    live.expect_pool(nr=guest.pages, free=0)
    guest.expect_mapped()
    status = read_process_status(ObservedTree(live.host), guest.pid)
    live.expect("whether its ordinary memory is locked", True, status is not None and status.locked > 0)


@case("content that may be discarded leaves the same pages free at the end", "libvirt.org/formatdomain.html discard")
def discarded(live: Live, guests: Guests) -> None:
    guest = guests.new(discard=True, access=Access.SHARED)
    live.reserve(guest.pages)
    guest.boot()
    guest.expect_all_taken()
    pid = guest.pid
    # only a QEMU that ends by itself discards, and punches holes into the file that it still maps
    guest.type("poweroff -f", "poweroff")
    guest.await_end(pid)
    guests.expect_all_back(guest)


class Nodes(GuestTest):
    """See main.fmf."""

    def test_qemu(self) -> None:
        self.run_area(QEMU)

    def test_libvirt(self) -> None:
        self.run_area(LIBVIRT)
