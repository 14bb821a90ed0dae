"""virtio-mem in huge pages: a device has pages for what its guest uses of it, and gives them back."""

from dataclasses import replace

from hugepage_qa.cases.case import Sizes
from hugepage_qa.cases.guest import guest_machine as drivers
from hugepage_qa.cases.guest.guest import Guest
from hugepage_qa.cases.guest.guests import NO_NODES, GuestArea, Guests, guest_case, needs
from hugepage_qa.cases.guest.plugged_memory import BLOCK, ONLINE, dimm, needs_virtio_mem, with_room
from hugepage_qa.cases.guest.refusal import Meaning
from hugepage_qa.cases.live import Live
from hugepage_qa.plugins.guest_test import GuestTest
from hugepage_qa.qemu.guest.domain_xml import with_tuning
from hugepage_qa.qemu.guest.guest_description import DeviceKind, MemoryDevice, device_pages
from hugepage_qa.sizes import MIB, format_size

QEMU = GuestArea("guest/virtio-mem", drivers.QEMU)
# what a larger page changes is QEMU's and the kernel's, and libvirt does the same with each
LIBVIRT = GuestArea("guest/virtio-mem", drivers.LIBVIRT, sizes=Sizes.DEFAULT)
case = guest_case(QEMU, LIBVIRT)
libvirt_case = guest_case(LIBVIRT)

VIRTIO_MEM = "libvirt.org/formatdomain.html memory-devices virtio-mem; QEMU virtio-mem-pci"
MODES = f"{VIRTIO_MEM}; libvirt.org/formatdomain.html numatune memory mode; mbind(2)"
UNPLUGGED = f"{VIRTIO_MEM}; QEMU hw/virtio/virtio-mem.c virtio_mem_unplug_request_check()"

#: since when QEMU plugs such a device out
_PLUGS_OUT = (8, 1)
#: restrictive leaves memory to the group of the guest
_POLICIES_OF_MODES = {"strict": "bind", "interleave": "interleave", "preferred": "preferred", "restrictive": "default"}
#: what a guest has in use while memory comes and goes, in bytes
_BUSY = 64 * MIB


@case("a virtio-mem device that the guest was asked to use nothing of takes no page", VIRTIO_MEM)
def of_nothing(live: Live, guests: Guests) -> None:
    needs_virtio_mem(guests)
    device = replace(dimm(live.size), name="virtio0", kind=DeviceKind.VIRTIO_MEM)
    guest = with_room(guests, device)
    live.reserve(guest.pages + 1)
    guest.start()
    guest.attach(device)
    live.expect_pool(nr=guest.pages + 1, free=1)
    guest.expect_mapped()
    guest.destroy()
    guests.expect_all_free(guest.pages + 1)


def with_virtio_mem(live: Live, guests: Guests, missing: int, node: int | None = None) -> tuple[Guest, MemoryDevice]:
    """Return a booted guest and a device in it, in a pool that lacks ``missing`` pages of what both can need.

    Both are bound to ``node``, if there is one.
    """
    needs_virtio_mem(guests)
    device = MemoryDevice("virtio0", DeviceKind.VIRTIO_MEM, max(2 * live.size, BLOCK), live.size)
    guest = with_room(guests, device, node=node)
    live.reserve(guest.pages + device_pages(device) - missing, node)
    guest.boot()
    needs(guest.has_virtio_driver("virtio_mem"), "the guest's kernel has no driver for virtio-mem")
    # what is not movable cannot be given back
    guest.run("echo online_movable >/sys/devices/system/memory/auto_online_blocks")
    guest.attach(device)
    return guest, device


@case("a virtio-mem device takes pages for what the guest uses of it, and gives them back", VIRTIO_MEM)
def grows_and_shrinks(live: Live, guests: Guests) -> None:
    guest, device = with_virtio_mem(live, guests, missing=0)
    pages = device_pages(device)
    nr = guest.pages + pages
    live.expect_pool(nr=nr, free=pages)
    guest.request(device, device.memory // 2)
    guest.await_mapped(guest.pages + pages // 2)
    live.expect_pool(nr=nr, free=pages - pages // 2)
    guest.expect_mapped(**{format_size(live.size): pages // 2})
    guest.request(device, 0)
    guests.await_free(pages)
    live.expect_pool(nr=nr, free=pages)
    guest.expect_mapped()
    guest.destroy()
    guests.expect_all_free(nr)


@case(
    "a virtio-mem device that its guest uses cannot be plugged out, and one that it does not leaves nothing behind",
    UNPLUGGED,
)
def plugged_out(live: Live, guests: Guests) -> None:
    guest, device = with_virtio_mem(live, guests, missing=0)
    pages = device_pages(device)
    nr = guest.pages + pages
    can_be_plugged_out = guest.emulator_version >= _PLUGS_OUT

    def expect_used() -> None:
        guest.request(device, device.memory)
        guest.await_mapped(nr)
        why = Meaning.IN_USE if can_be_plugged_out else Meaning.NOT_PLUGGED_OUT
        guests.expect_refused(why, guest.detach, device)
        live.expect_pool(nr=nr, free=0)
        guest.expect_mapped(**{format_size(live.size): pages})
        guest.request(device, 0)
        guests.await_free(pages)

    expect_used()
    if can_be_plugged_out:
        guest.detach(device)
    else:
        guests.expect_refused(Meaning.NOT_PLUGGED_OUT, guest.detach, device)
    told = [(one["policy"], one["host-nodes"]) for one in guest.backends(device.memory)]
    live.expect("policy and nodes of what QEMU has of it", [] if can_be_plugged_out else [("default", [])], told)
    live.expect_pool(nr=nr, free=pages)
    guest.expect_mapped()
    if can_be_plugged_out:
        guest.attach(device)
    expect_used()
    guest.destroy()
    guests.expect_all_free(nr)


@case("a virtio-mem device that is there from the start has its pages through a save and a reset", VIRTIO_MEM)
def saved_and_reset(live: Live, guests: Guests) -> None:
    needs_virtio_mem(guests)
    whole = max(2 * live.size, BLOCK)
    device = MemoryDevice("virtio0", DeviceKind.VIRTIO_MEM, whole, live.size, requested=whole // 2)
    guest = with_room(guests, device, words=ONLINE, reboots=True, plugged=True)
    nr = guest.pages + device.requested // live.size

    def expect_requested() -> None:
        guest.await_mapped(nr)
        live.expect_pool(nr=nr, free=0)
        guest.expect_mapped(**{format_size(live.size): nr - guest.pages})

    live.reserve(nr)
    guest.boot()
    live.expect_pool(nr=nr, free=nr - guest.pages)
    needs(guest.has_virtio_driver("virtio_mem"), "the guest's kernel has no driver for virtio-mem")
    expect_requested()
    guest.keep_busy(_BUSY)
    saved = guest.save()
    live.expect_pool(nr=nr, free=nr)
    guest.restore(saved)
    guest.resume()
    expect_requested()
    guest.expect_busy()
    guest.reset()
    # QEMU takes all of it back at a reset, until the driver asks again (virtio_mem_system_reset())
    live.expect_pool(nr=nr, free=nr - guest.pages)
    guest.has_virtio_driver("virtio_mem")
    expect_requested()
    guest.destroy()
    live.expect_pool(nr=nr, free=nr)


@case("a guest that wants more of a virtio-mem device than there are pages gets no more, and lives on", VIRTIO_MEM)
def short(live: Live, guests: Guests) -> None:
    guest, device = with_virtio_mem(live, guests, missing=1)
    pages = device_pages(device)
    guest.request(device, device.memory)
    live.expect("the guest that is short of pages", "here", guest.run("sleep 1; echo here").strip())
    # it may have got a part
    guests.await_free_or_mapped(guest)
    live.expect_pool(nr=guest.pages + pages - 1, free=guest.pages + pages - 1 - guest.mapped)
    live.reserve(guest.pages + pages)
    # it tries again by itself, but not soon
    guest.request(device, 0)
    guests.await_free(pages)
    guest.request(device, device.memory)
    guest.await_mapped(guest.pages + pages)
    live.expect_pool(nr=guest.pages + pages, free=0)
    guest.expect_mapped(**{format_size(live.size): pages})


@case(
    "a virtio-mem device of a cell that is bound to a node takes pages of this node, and gives them back",
    VIRTIO_MEM,
    sizes=Sizes.DEFAULT,
)
def on_a_node(live: Live, guests: Guests) -> None:
    needs(bool(live.nodes), NO_NODES)
    node = live.nodes[-1]
    guest, device = with_virtio_mem(live, guests, missing=0, node=node)
    pages = device_pages(device)
    guest.request(device, device.memory)
    guest.await_mapped(guest.pages + pages)
    guest.expect_mapped(**{format_size(live.size): pages})
    live.expect_pool(nr=guest.pages + pages, free=0, node=node)
    guest.expect_on_nodes({node: guest.pages + pages})
    guest.request(device, 0)
    guests.await_free(pages)
    live.expect_pool(nr=guest.pages + pages, free=pages, node=node)
    guest.expect_on_nodes({node: guest.pages})


@libvirt_case(
    "a virtio-mem device has the policy that the mode of its guest says, and takes and gives back pages of its node",
    MODES,
)
def of_each_mode(live: Live, guests: Guests) -> None:
    needs(bool(live.nodes), NO_NODES)
    needs_virtio_mem(guests)
    node = live.nodes[0]
    device = MemoryDevice("virtio0", DeviceKind.VIRTIO_MEM, max(2 * live.size, BLOCK), live.size)
    guest, pages = with_room(guests, device, words=ONLINE), device_pages(device)
    nr = guest.pages + pages
    live.reserve(nr, node)
    for mode, policy in _POLICIES_OF_MODES.items():
        tuning = f'<numatune><memory mode="{mode}" nodeset="{node}"/></numatune>'
        with live.about(tuning):
            guest.define_as(with_tuning(guest.definition, tuning))
            guest.boot()
            needs(guest.has_virtio_driver("virtio_mem"), "the guest's kernel has no driver for virtio-mem")
            guest.attach(device)
            guest.request(device, device.memory)
            guest.await_mapped(nr)
            guest.expect_mapped(**{format_size(live.size): pages})
            live.expect_pool(nr=nr, free=0, node=node)
            guest.expect_policy(policy, [] if policy == "default" else [node], mappings=2)
            guest.expect_on_nodes({node: nr})
            guest.request(device, 0)
            guests.await_free(pages)
            live.expect_pool(nr=nr, free=pages, node=node)
            guest.expect_on_nodes({node: guest.pages})
            guest.destroy()
            live.expect_pool(nr=nr, free=nr, node=node)


def booted_in_mode(
    live: Live, guests: Guests, mode: str, nodes: str, pools: dict[int, int], device: MemoryDevice
) -> Guest:
    """Return a booted guest with the device, all of which it is asked to use, and ``mode`` for memory of ``nodes``.

    ``pools`` are the pages of each node besides those of the guest.
    """
    guest = with_room(guests, device, words=ONLINE)
    for node, pages in pools.items():
        live.reserve(guest.pages + pages, node)
    tuning = f'<numatune><memory mode="{mode}" nodeset="{nodes}"/></numatune>'
    guest.define_as(with_tuning(guest.definition, tuning))
    guest.boot()
    needs(guest.has_virtio_driver("virtio_mem"), "the guest's kernel has no driver for virtio-mem")
    guest.attach(device)
    guest.request(device, device.memory)
    return guest


def expect_on_two_nodes(live: Live, guest: Guest, pools: dict[int, int], on_each: dict[int, int]) -> None:
    """Expect all pages that a guest of ``booted_in_mode`` can have to be where ``on_each`` says, and to come back."""
    mapped = sum(on_each.values())
    guest.await_mapped(mapped)
    guest.expect_mapped(**{format_size(live.size): mapped - guest.pages})
    guest.expect_on_nodes(on_each)
    for node, pages in pools.items():
        live.expect_pool(nr=guest.pages + pages, free=guest.pages + pages - on_each.get(node, 0), node=node)
    guest.destroy()
    nr = sum(guest.pages + pages for pages in pools.values())
    live.expect_pool(nr=nr, free=nr)


def virtio_mem(live: Live) -> MemoryDevice:
    """Return a device of which two pages, or more, can be used."""
    return MemoryDevice("virtio0", DeviceKind.VIRTIO_MEM, max(2 * live.size, BLOCK), live.size)


@libvirt_case("a virtio-mem device of a guest that is interleaved has as many pages of each node", MODES, nodes=2)
def interleaved(live: Live, guests: Guests) -> None:
    needs_virtio_mem(guests)
    here, there = live.nodes[:2]
    pages = device_pages(virtio_mem(live))
    pools = dict.fromkeys((here, there), pages)
    guest = booted_in_mode(live, guests, "interleave", f"{here},{there}", pools, virtio_mem(live))
    half = (guest.pages + pages) // 2
    expect_on_two_nodes(live, guest, pools, dict.fromkeys((here, there), half))


@libvirt_case(
    "a virtio-mem device of a guest that is bound to a node has no page of another one where these do not suffice",
    MODES,
    nodes=2,
)
def bound_and_short(live: Live, guests: Guests) -> None:
    needs_virtio_mem(guests)
    here, there = live.nodes[:2]
    device, pages = virtio_mem(live), device_pages(virtio_mem(live))
    pools = {here: pages // 2, there: pages}
    guest = booted_in_mode(live, guests, "strict", f"{here}", pools, device)
    live.expect("the guest that is short of pages", "here", guest.run("sleep 1; echo here").strip())
    guests.await_free_or_mapped(guest)
    live.expect_pool(nr=guest.pages + pages, free=guest.pages + pages, node=there)
    live.reserve(guest.pages + pages, here)
    # it tries again by itself, but not soon
    guest.request(device, 0)
    guests.await_free(guest.pages + 2 * pages)
    guest.request(device, device.memory)
    expect_on_two_nodes(live, guest, dict.fromkeys((here, there), pages), {here: guest.pages + pages})


class VirtioMem(GuestTest):
    def test_qemu(self) -> None:
        self.run_area(QEMU)

    def test_libvirt(self) -> None:
        self.run_area(LIBVIRT)
