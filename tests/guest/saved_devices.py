"""Guests that libvirt saves have the pages of memory that was plugged into them again when they go on."""

import signal
from dataclasses import replace

from hugepage_qa.cases.case import Sizes
from hugepage_qa.cases.guest import guest_machine as drivers
from hugepage_qa.cases.guest.guests import GuestArea, Guests, guest_case, needs
from hugepage_qa.cases.guest.plugged_memory import (
    BLOCK,
    LEAST_MEMORY,
    ONLINE,
    dimm,
    needs_virtio_mem,
    nvdimm,
    with_room,
)
from hugepage_qa.cases.live import Live
from hugepage_qa.plugins.guest_test import GuestTest
from hugepage_qa.qemu.guest.driver import State
from hugepage_qa.qemu.guest.guest_description import DeviceKind, MemoryDevice, device_pages, whole_pages
from hugepage_qa.sizes import MIB, format_size

# what a larger page changes is QEMU's and the kernel's, and libvirt does the same with each
LIBVIRT = GuestArea("guest/saved-devices", drivers.LIBVIRT, sizes=Sizes.DEFAULT)
case = guest_case(LIBVIRT)

SAVED = (
    "libvirt.org/formatdomain.html memory-devices; libvirt.org/manpages/virsh.html save, restore, managedsave; QEMU"
    " docs/memory-hotplug.txt, docs/nvdimm.txt, virtio-mem-pci"
)

#: what a guest has in use while it is saved, in bytes
_BUSY = 64 * MIB


@case("memory that was plugged in is there when the daemon was started again, and when the guest is restored", SAVED)
def plugged_in_and_restored(live: Live, guests: Guests) -> None:
    first = dimm(live.size)
    second = replace(first, name="dimm1", memory=2 * first.memory)
    guest = with_room(guests, first, second, words=ONLINE)
    pages, more = device_pages(first), device_pages(second)
    nr = guest.pages + pages + more
    live.reserve(nr)
    guest.boot()
    memory = guest.memory
    guest.attach(first)
    guests.restart(signal.SIGTERM)
    guest.expect_state(State.RUNNING)
    live.expect_pool(nr=nr, free=more)
    guest.attach(second)
    guest.expect_memory(memory + first.memory + second.memory)
    live.expect_pool(nr=nr, free=0)
    saved = guest.save()
    live.expect_pool(nr=nr, free=nr)
    guest.restore(saved)
    live.expect_pool(nr=nr, free=0)
    guest.expect_mapped(**{format_size(live.size): pages + more})
    guest.resume()
    guest.expect_memory(memory + first.memory + second.memory)
    guest.detach(second)
    guests.await_free(more)
    live.expect_pool(nr=nr, free=more)
    guest.expect_memory(memory + first.memory)
    guest.detach(first)
    guests.await_free(more + pages)
    live.expect_pool(nr=nr, free=more + pages)
    guest.expect_mapped()
    guest.destroy()
    guests.expect_all_free(nr)


@case(
    "a guest with an NVDIMM, into which a DIMM and virtio-mem were plugged, has the pages of both again when it goes on"
    " after libvirt saved it",
    SAVED,
)
def plugged_in_and_saved(live: Live, guests: Guests) -> None:
    needs_virtio_mem(guests)
    virtio = MemoryDevice("virtio0", DeviceKind.VIRTIO_MEM, 2 * BLOCK, live.size, requested=BLOCK)
    first, plugged = nvdimm(None), (dimm(live.size), virtio)
    cell = guests.cell(LEAST_MEMORY // live.size)
    # each is aligned to its pages
    room = cell.memory + 3 * sum(device.memory for device in (first, *plugged))
    guest = guests.new(cell, max_memory=room, devices=(first,), words=ONLINE)
    more = device_pages(plugged[0]) + whole_pages(BLOCK, live.size)
    nr = guest.pages + more
    live.reserve(nr)
    guest.boot()
    needs(guest.has_virtio_driver("virtio_mem"), "the guest's kernel has no driver for virtio-mem")
    memory = guest.memory
    for device in plugged:
        guest.attach(device)
    guest.await_mapped(nr)
    guest.keep_busy(_BUSY)
    guest.expect_memory(memory + plugged[0].memory + BLOCK)
    guest.managed_save()
    guest.expect_state(State.SAVED)
    live.expect_pool(nr=nr, free=nr)
    guest.start()
    guest.expect_state(State.PAUSED)
    live.expect_pool(nr=nr, free=0)
    guest.expect_mapped(**{format_size(live.size): more})
    guest.resume()
    guest.expect_busy()
    guest.expect_memory(memory + plugged[0].memory + BLOCK)
    guest.destroy()
    guests.expect_all_free(nr)


class SavedDevices(GuestTest):
    def test_libvirt(self) -> None:
        self.run_area(LIBVIRT)
