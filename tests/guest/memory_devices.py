"""Memory that is plugged into and out of running guests takes pages of its own size and gives them back."""

from dataclasses import replace
from typing import Any

from hugepage_qa.cases.case import Sizes
from hugepage_qa.cases.guest import guest_machine as drivers
from hugepage_qa.cases.guest.guest import Guest
from hugepage_qa.cases.guest.guests import NO_NODES, GuestArea, Guests, guest_case, needs
from hugepage_qa.cases.guest.plugged_memory import (
    BLOCK,
    LEAST_MEMORY,
    ONLINE,
    dimm,
    needs_virtio_mem,
    nvdimm,
    with_room,
)
from hugepage_qa.cases.guest.refusal import Meaning
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.pages_of_a_node import missing_node
from hugepage_qa.kernel.uapi import AT_FDCWD
from hugepage_qa.plugins.guest_test import GuestTest
from hugepage_qa.qemu.guest.driver import State
from hugepage_qa.qemu.guest.guest_description import (
    Access,
    Cell,
    DeviceKind,
    MemoryDevice,
    Source,
    device_pages,
    whole_pages,
)
from hugepage_qa.sizes import MIB, format_size

QEMU = GuestArea("guest/memory-devices", drivers.QEMU)
# what a larger page changes is QEMU's and the kernel's, and libvirt does the same with each
LIBVIRT = GuestArea("guest/memory-devices", drivers.LIBVIRT, sizes=Sizes.DEFAULT)
case = guest_case(QEMU, LIBVIRT)

HOTPLUG = "libvirt.org/formatdomain.html memory-devices; QEMU docs/memory-hotplug.txt, pc-dimm"
BACKING = "QEMU memory-backend host-nodes=, share=, discard-data=; libvirt src/qemu/qemu_command.c"
VIRTIO_MEM = "libvirt.org/formatdomain.html memory-devices virtio-mem; QEMU virtio-mem-pci"
NVDIMM = "libvirt.org/formatdomain.html memory-devices nvdimm; QEMU docs/nvdimm.txt"
MIXED = f"{HOTPLUG}; {VIRTIO_MEM}; QEMU docs/nvdimm.txt"

#: what a guest has in use while memory comes and goes, in bytes
_BUSY = 64 * MIB


@case("memory that is plugged into a busy guest takes its pages at once, and gives them back plugged out", HOTPLUG)
def plugged_in_and_out(live: Live, guests: Guests) -> None:
    device = dimm(live.size)
    guest = with_room(guests, device, words=ONLINE)
    pages = device_pages(device)
    live.reserve(guest.pages + pages)
    guest.boot()
    live.expect_pool(nr=guest.pages + pages, free=pages)
    guest.keep_busy(_BUSY)
    memory = guest.memory
    guest.attach(device)
    live.expect_pool(nr=guest.pages + pages, free=0)
    guest.expect_mapped(**{format_size(live.size): pages})
    guest.expect_memory(memory + device.memory)
    guest.detach(device)
    guests.await_free(pages)
    live.expect_pool(nr=guest.pages + pages, free=pages)
    guest.expect_mapped()
    guest.expect_memory(memory)
    guest.expect_busy()
    guest.destroy()
    guests.expect_all_free(guest.pages + pages)


@case("a guest that is reset has its plugged memory, and the pages of it, again", HOTPLUG)
def plugged_in_and_reset(live: Live, guests: Guests) -> None:
    device = dimm(live.size)
    guest = with_room(guests, device, words=ONLINE, reboots=True)
    pages = device_pages(device)
    live.reserve(guest.pages + pages)
    guest.boot()
    memory = guest.memory
    guest.attach(device)
    guest.reset()
    guest.expect_memory(memory + device.memory)
    live.expect_pool(nr=guest.pages + pages, free=0)
    guest.expect_mapped(**{format_size(live.size): pages})


@case("memory whose pages are not there is refused, the guest goes on, and takes it once they are", HOTPLUG)
def plugged_in_short(live: Live, guests: Guests) -> None:
    device = dimm(live.size)
    guest = with_room(guests, device)
    pages = device_pages(device)
    live.reserve(guest.pages + pages - 1)
    guest.start()
    guests.expect_refused(Meaning.SHORT_OF_PAGES, guest.attach, device)
    guest.expect_state(State.PAUSED)
    live.expect_pool(nr=guest.pages + pages - 1, free=pages - 1)
    guest.expect_mapped()
    live.reserve(guest.pages + pages)
    guest.attach(device)
    live.expect_pool(nr=guest.pages + pages, free=0)
    guest.expect_mapped(**{format_size(live.size): pages})


@case("plugged memory takes pages of its own size, whatever those of the guest are", HOTPLUG)
def pages_of_another_size(live: Live, guests: Guests) -> None:
    others = [size for size in live.sizes if size != live.size]
    needs(bool(others), f"this machine has pages of {format_size(live.size)} alone")
    device = dimm(live.size)
    guest = with_room(guests, device, page=others[0])
    pages = device_pages(device)
    of_guest = live.of_size(others[0])
    guest_pages = whole_pages(guest.description.memory, others[0])
    of_guest.reserve(guest_pages)
    live.reserve(pages)
    guest.start()
    live.expect_pool(nr=pages, free=pages)
    guest.attach(device)
    live.expect_pool(nr=pages, free=0)
    of_guest.expect_pool(nr=guest_pages, free=0)
    guest.expect_mapped(**{format_size(live.size): pages})
    guest.destroy()
    live.expect_pool(nr=pages, free=pages)
    of_guest.expect_pool(nr=guest_pages, free=guest_pages)


@case("memory that is plugged into a guest on ordinary pages takes pages of its own size", HOTPLUG)
def into_ordinary_memory(live: Live, guests: Guests) -> None:
    device = dimm(live.size)
    guest = guests.new(Cell(LEAST_MEMORY, None), max_memory=LEAST_MEMORY + 3 * device.memory)
    pages = device_pages(device)
    live.reserve(pages)
    guest.start()
    live.expect_pool(nr=pages, free=pages)
    guest.attach(device)
    live.expect_pool(nr=pages, free=0)
    guest.expect_mapped(**{format_size(live.size): pages})
    guest.destroy()
    guests.expect_all_free(pages)


@case(
    "plugged memory is bound, shared and discarded as its own device says, whatever its guest does",
    f"{HOTPLUG}; {BACKING}",
    sizes=Sizes.DEFAULT,
)
def as_its_device_says(live: Live, guests: Guests) -> None:
    needs(bool(live.nodes), NO_NODES)
    device, node = dimm(live.size), live.nodes[-1]
    guest = with_room(guests, device, words=ONLINE)
    pages = device_pages(device)
    for one in live.nodes:
        live.reserve(guest.pages + pages, one)
    nr = len(live.nodes) * (guest.pages + pages)
    guest.boot()
    for plugged in (
        replace(device, node=node),
        replace(device, access=Access.SHARED),
        replace(device, access=Access.SHARED, discard=True),
        replace(device, node=node, access=Access.SHARED, discard=True),
    ):
        with live.about(f"node={plugged.node} access={plugged.access} discard={plugged.discard}"):
            there = live.pool(node)
            guest.attach(plugged)
            live.expect_pool(nr=nr, free=nr - guest.pages - pages)
            if plugged.node is not None:
                live.expect_pool(nr=there.nr, free=there.free - pages, node=node)
            expect_backend_of(live, guest, plugged)
            guest.detach(plugged)
            guests.await_free(nr - guest.pages)
            # what is discarded is free before it is unmapped
            live.host.wait_until(lambda: not sharing_of(guest, device))
            live.expect_pool(nr=nr, free=nr - guest.pages)
    guest.destroy()
    guests.expect_all_free(nr)


def sharing_of(guest: Guest, device: MemoryDevice) -> list[bool]:
    """Return for each mapping as large as ``device``, as which no cell is, whether it is shared."""
    return [shared for shared, memory, _there in guest.hugetlb_mappings if memory == device.memory]


def expect_backend_of(live: Live, guest: Guest, device: MemoryDevice) -> None:
    """Expect QEMU and the kernel to have the memory of ``device`` as that says."""
    is_shared = device.access is Access.SHARED
    live.expect("whether it is mapped as shared", [is_shared], sharing_of(guest, device))
    bound = ("default", []) if device.node is None else ("bind", [device.node])
    told = [
        (one["policy"], one["host-nodes"], one["share"], guest.property_of(f"/objects/{one['id']}", "discard-data"))
        for one in guest.backends(device.memory)
    ]
    live.expect("policy, nodes, sharing and discarding of it", [(*bound, is_shared, bool(device.discard))], told)


@case("memory that a guest starts with in a DIMM is taken with that of its board, or the guest is refused", HOTPLUG)
def cold_plugged(live: Live, guests: Guests) -> None:
    device = dimm(live.size)
    guest = with_room(guests, device, plugged=True)
    guests.expect_refused_then_started(guest, guest.pages - 1)
    guest.destroy()
    guests.expect_all_back(guest)


@case("memory that a guest has started with in a DIMM gives its pages back when it is plugged out", HOTPLUG)
def cold_plugged_and_out(live: Live, guests: Guests) -> None:
    architecture = guests.site.architecture
    needs(architecture in ("x86_64", "aarch64"), f"on {architecture} it is memory of the board to the guest's kernel")
    device = dimm(live.size)
    guest = with_room(guests, device, plugged=True, words=ONLINE)
    pages = device_pages(device)
    live.reserve(guest.pages)
    guest.boot()
    guest.expect_all_taken()
    memory = guest.memory
    guest.detach(device)
    guests.await_free(pages)
    live.expect_pool(nr=guest.pages, free=pages)
    live.expect("huge pages in its QEMU", guest.pages - pages, guest.mapped)
    guest.expect_memory(memory - device.memory)
    guest.destroy()
    guests.expect_all_back(guest)


@case(
    "an NVDIMM in an ordinary file takes no page of the pool that the guest beside it is in",
    NVDIMM,
    sizes=Sizes.DEFAULT,
)
def nvdimm_beside(_live: Live, guests: Guests) -> None:
    guest = with_room(guests, nvdimm(None), plugged=True)
    guests.expect_started(guest)
    guest.destroy()
    guests.expect_all_back(guest)


@case(
    "an NVDIMM in a file of hugetlbfs takes its pages, and keeps them when the guest has ended",
    NVDIMM,
    sizes=Sizes.DEFAULT,
)
def nvdimm_in_huge_pages(live: Live, guests: Guests) -> None:
    device = nvdimm(live.size)
    # else what is written stays in the guest (libvirt)
    guest = with_room(guests, device, plugged=True, access=Access.SHARED)
    guests.expect_started(guest)
    guest.destroy()
    guest.expect_state(State.OFF)
    live.expect_pool(nr=guest.pages, free=guest.pages - device_pages(device))
    live.actor().call("unlinkat", AT_FDCWD, guest.nvdimm_file(device), 0)
    guests.expect_all_back(guest)


@case(
    "a guest with a DIMM, an NVDIMM and virtio-mem has the pages of all three, also when it is restored",
    MIXED,
    sizes=Sizes.DEFAULT,
)
def of_several_kinds(live: Live, guests: Guests) -> None:
    needs_virtio_mem(guests)
    virtio = MemoryDevice("virtio0", DeviceKind.VIRTIO_MEM, 2 * BLOCK, live.size, requested=BLOCK)
    guest = with_room(guests, dimm(live.size), nvdimm(None), virtio, plugged=True)
    requested = whole_pages(BLOCK, live.size)
    nr = guest.pages + requested + 1
    live.reserve(nr)
    guest.boot()
    needs(guest.has_virtio_driver("virtio_mem"), "the guest's kernel has no driver for virtio-mem")
    guest.await_mapped(guest.pages + requested)
    live.expect_pool(nr=nr, free=1)
    guest.expect_mapped(**{format_size(live.size): requested})
    saved = guest.save()
    live.expect_pool(nr=nr, free=nr)
    guest.restore(saved)
    live.expect_pool(nr=nr, free=1)
    guest.expect_mapped(**{format_size(live.size): requested})
    guest.resume()
    live.expect("the guest that was restored", "here", guest.run("echo here").strip())
    guest.destroy()
    live.expect_pool(nr=nr, free=nr)


@guest_case(LIBVIRT)(
    "a memory device of a page size for which there is no hugetlbfs is put into no other one, plugged in or at the"
    " start",
    HOTPLUG,
)
def no_mount_of_such_pages(live: Live, guests: Guests) -> None:
    expect_no_such_pages(live, guests)


@case(
    "a memory device whose page size there is not is refused, plugged in or at the start", HOTPLUG, sizes=Sizes.DEFAULT
)
def no_such_page_size(live: Live, guests: Guests) -> None:
    expect_no_such_pages(live, guests, source=Source.MEMFD, access=Access.SHARED)


@guest_case(LIBVIRT)(
    "a memory device of a node that the machine does not have is refused, plugged in or at the start",
    f"{HOTPLUG}; mbind(2) EINVAL",
    sizes=Sizes.DEFAULT,
)
def no_such_node(live: Live, guests: Guests) -> None:
    needs(bool(live.nodes), NO_NODES)
    device = replace(dimm(live.size), node=missing_node(live))
    guest = with_room(guests, device)
    nr = guest.pages + device_pages(device)
    live.reserve(nr)
    guest.start()
    guests.expect_refused(Meaning.NO_SUCH_NODE, guest.attach, device)
    guest.expect_state(State.PAUSED)
    live.expect_pool(nr=nr, free=nr - guest.pages)
    guest.expect_mapped()
    guest.destroy()
    from_the_start = with_room(guests, device, plugged=True, name="with-it")
    guests.expect_refused(Meaning.NO_SUCH_NODE, from_the_start.start)
    from_the_start.expect_state(State.OFF)
    live.expect_pool(nr=nr, free=nr)


def expect_no_such_pages(live: Live, guests: Guests, **options: Any) -> None:
    """Expect a DIMM of a page size that the machine has not to be refused by a guest with these ``options``."""
    absent = next(live.size << shift for shift in range(1, 64) if live.size << shift not in live.sizes)
    device = MemoryDevice("dimm0", DeviceKind.DIMM, max(absent, BLOCK), absent)
    guest = with_room(guests, device, **options)
    live.reserve(guest.pages)
    guest.start()
    guests.expect_refused(Meaning.NO_SUCH_SIZE, guest.attach, device)
    guest.expect_state(State.PAUSED)
    guest.expect_all_taken()
    guest.destroy()
    from_the_start = with_room(guests, device, plugged=True, name="with-it", **options)
    guests.expect_refused(Meaning.NO_SUCH_SIZE, from_the_start.start)
    from_the_start.expect_state(State.OFF)
    live.expect_pool(nr=guest.pages, free=guest.pages)


class MemoryDevices(GuestTest):
    def test_qemu(self) -> None:
        self.run_area(QEMU)

    def test_libvirt(self) -> None:
        self.run_area(LIBVIRT)
