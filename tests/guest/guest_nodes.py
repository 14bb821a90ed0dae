"""Guests whose cells are bound to NUMA nodes, have page sizes of their own, or are locked in memory."""

from hugepage_qa.cases.case import Sizes
from hugepage_qa.cases.guest import guest_machine as drivers
from hugepage_qa.cases.guest.guests import NO_NODES, GuestArea, Guests, guest_case, needs
from hugepage_qa.cases.guest.refusal import Meaning, find_meaning, without_process_ids
from hugepage_qa.cases.live import Live
from hugepage_qa.kernel.nodes import parse_list
from hugepage_qa.kernel.process_status import read_process_status
from hugepage_qa.machine.host import ObservedTree
from hugepage_qa.plugins.guest_test import GuestTest
from hugepage_qa.qemu.guest.domain_xml import with_tuning
from hugepage_qa.qemu.guest.driver import GuestError, State
from hugepage_qa.qemu.guest.guest_description import Access, Cell
from hugepage_qa.sizes import MIB, format_size

QEMU, LIBVIRT = GuestArea("guest/guest-nodes", drivers.QEMU), GuestArea("guest/guest-nodes", drivers.LIBVIRT)
case = guest_case(QEMU, LIBVIRT)

NUMA = "libvirt.org/formatdomain.html numatune memnode; QEMU memory-backend host-nodes=, policy=bind; mbind(2)"
MODES = "libvirt.org/formatdomain.html numatune memory mode, memnode mode; set_mempolicy(2), mbind(2)"
PINNED = "libvirt.org/formatdomain.html cputune emulatorpin; mbind(2): a policy knows no processors"
ONLINE = "sys/devices/system/cpu/online"
PAGES = "libvirt.org/formatdomain.html hugepages page nodeset"


@case("a cell that is bound to a node takes its pages there and nowhere else", NUMA)
def bound_to_a_node(live: Live, guests: Guests) -> None:
    needs(bool(live.nodes), NO_NODES)
    *others, node = live.nodes
    guest = guests.new(Cell(guests.pages * live.size, live.size, node))
    # enough of them where it is not to take any
    for one in live.nodes:
        live.reserve(guests.pages, one)
    nr = guests.pages * len(live.nodes)
    guest.start()
    live.expect_pool(nr=nr, free=nr - guests.pages)
    live.expect_pool(nr=guests.pages, free=0, node=node)
    for other in others:
        live.expect_pool(nr=guests.pages, free=guests.pages, node=other)
    guest.expect_on_nodes({node: guests.pages})
    guest.destroy()
    live.expect_pool(nr=nr, free=nr)


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


@guest_case(LIBVIRT)(
    "the memory of a guest has the policy that its mode says, for all cells and for each", MODES, sizes=Sizes.DEFAULT
)
def each_mode(live: Live, guests: Guests) -> None:
    needs(bool(live.nodes), NO_NODES)
    node = live.nodes[0]
    pages = guests.pages
    live.reserve(pages, node)
    whole = guests.new(Cell(pages * live.size, live.size))
    # what is plugged in later needs cells
    in_a_cell = guests.new(Cell(pages * live.size, live.size), name="of-a-cell", max_memory=2 * pages * live.size)
    for mode, policy in (("strict", "bind"), ("interleave", "interleave"), ("preferred", "preferred")):
        of_all = f'<numatune><memory mode="{mode}" nodeset="{node}"/></numatune>'
        of_one = f'<numatune><memnode cellid="0" mode="{mode}" nodeset="{node}"/></numatune>'
        for guest, tuning in ((whole, of_all), (in_a_cell, of_all), (in_a_cell, of_one)):
            with live.about(tuning):
                guest.define_and_start(with_tuning(guest.definition, tuning))
                live.expect_pool(nr=pages, free=0, node=node)
                guest.expect_policy(policy, [node])
                guest.expect_on_nodes({node: pages})
                guest.destroy()
                live.expect_pool(nr=pages, free=pages)


@guest_case(LIBVIRT)(
    "a mode that names two nodes has pages of both: all that there are, or as many of each",
    MODES,
    nodes=2,
    sizes=Sizes.DEFAULT,
)
def modes_of_two_nodes(live: Live, guests: Guests) -> None:
    nodes = live.nodes[:2]
    half = guests.pages // 2
    guest = guests.new(Cell(2 * half * live.size, live.size))
    # strict takes what there is, wherever it begins; interleave as much of each, wherever there is more
    for mode, policy, there in (("strict", "bind", half), ("interleave", "interleave", 2 * half)):
        tuning = f'<numatune><memory mode="{mode}" nodeset="{nodes[0]},{nodes[1]}"/></numatune>'
        with live.about(tuning):
            for node in nodes:
                live.reserve(there, node)
            guest.define_and_start(with_tuning(guest.definition, tuning))
            for node in nodes:
                live.expect_pool(nr=there, free=there - half, node=node)
            guest.expect_policy(policy, nodes)
            guest.expect_on_nodes(dict.fromkeys(nodes, half))
            guest.destroy()
            live.expect_pool(nr=2 * there, free=2 * there)


@guest_case(LIBVIRT)(
    "a restrictive mode leaves the policy of the memory to the group of the guest", MODES, sizes=Sizes.DEFAULT
)
def restrictive(live: Live, guests: Guests) -> None:
    needs(bool(live.nodes), NO_NODES)
    node = live.nodes[0]
    live.reserve(guests.pages, node)
    guest = guests.new()
    guest.define_and_start(
        with_tuning(guest.definition, f'<numatune><memory mode="restrictive" nodeset="{node}"/></numatune>')
    )
    live.expect_pool(nr=guest.pages, free=0, node=node)
    guest.expect_policy("default", [])
    guest.expect_on_nodes({node: guest.pages})


@guest_case(LIBVIRT)(
    "memory that is bound to a node comes from there, on whatever processor QEMU's own thread is",
    PINNED,
    sizes=Sizes.DEFAULT,
)
def emulator_thread_elsewhere(live: Live, guests: Guests) -> None:
    needs(bool(live.nodes), NO_NODES)
    node, cpus = live.nodes[0], online_processors(live)
    live.reserve(guests.pages, node)
    guest = guests.new()
    for cpu in (cpus[0], cpus[-1]):
        with live.about(f"emulator thread on processor {cpu}"):
            pinned = f'<cputune><emulatorpin cpuset="{cpu}"/></cputune>'
            bound = f'<numatune><memory mode="strict" nodeset="{node}"/></numatune>'
            guest.define_and_start(with_tuning(guest.definition, pinned, bound))
            status = read_process_status(ObservedTree(live.host), guest.pid)
            live.expect("processors of QEMU's own thread", (cpu,), status.cpus if status else ())
            guest.expect_policy("bind", [node])
            guest.expect_on_nodes({node: guest.pages})
            live.expect_pool(nr=guest.pages, free=0, node=node)
            guest.destroy()
            live.expect_pool(nr=guest.pages, free=guest.pages)


def online_processors(live: Live) -> tuple[int, ...]:
    """Return the processors that are switched on."""
    return parse_list(live.host.read(ONLINE) or "0", ONLINE)


@case("a guest that is locked in memory takes the same pages", "mlockall(2); libvirt.org/formatdomain.html locked")
def locked(live: Live, guests: Guests) -> None:
    guest = guests.new_with_pages(locked=True)
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
def discarded(_live: Live, guests: Guests) -> None:
    guest = guests.new_with_pages(discard=True, access=Access.SHARED)
    guest.boot()
    guest.expect_all_taken()
    # only a QEMU that ends by itself discards, and punches holes into the file that it still maps
    guest.power_off()
    guests.expect_all_back(guest)


class Nodes(GuestTest):
    def test_qemu(self) -> None:
        self.run_area(QEMU)

    def test_libvirt(self) -> None:
        self.run_area(LIBVIRT)
