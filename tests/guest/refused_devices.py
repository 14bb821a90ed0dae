"""Memory devices that a guest cannot have are refused, each for its own reason, and cost it and the pool nothing."""

from collections.abc import Iterable
from dataclasses import replace

from hugepage_qa.cases.case import Sizes
from hugepage_qa.cases.guest import guest_machine as drivers
from hugepage_qa.cases.guest.guest import Guest
from hugepage_qa.cases.guest.guests import GuestArea, Guests, guest_case, needs
from hugepage_qa.cases.guest.plugged_memory import dimm, needs_virtio_mem, nvdimm, with_room
from hugepage_qa.cases.guest.refusal import Meaning
from hugepage_qa.cases.guest.refused_device import (
    RefusedDevice,
    every_refused_dimm,
    every_refused_nvdimm,
    every_refused_virtio_mem,
)
from hugepage_qa.cases.live import Live
from hugepage_qa.plugins.guest_test import GuestTest
from hugepage_qa.qemu.guest.driver import State
from hugepage_qa.qemu.guest.guest_description import SLOTS, Cell, DeviceKind, MemoryDevice, device_pages
from hugepage_qa.sizes import format_size

QEMU, LIBVIRT = (
    GuestArea("guest/refused-devices", driver, sizes=Sizes.DEFAULT) for driver in (drivers.QEMU, drivers.LIBVIRT)
)
case = guest_case(QEMU, LIBVIRT)

DIMMS = (
    "QEMU hw/mem/pc-dimm.c pc_dimm_pre_plug(), hw/mem/memory-device.c memory_device_pre_plug();"
    " libvirt src/qemu/qemu_domain.c qemuDomainDefValidateMemoryHotplug()"
)
VIRTIO_MEM = (
    "QEMU hw/virtio/virtio-mem.c virtio_mem_device_realize(), virtio_mem_set_block_size();"
    " libvirt src/conf/domain_validate.c virDomainMemoryDefValidate()"
)
NVDIMMS = (
    "QEMU hw/mem/nvdimm.c nvdimm_prepare_memory_region(), nvdimm_set_label_size();"
    " libvirt src/conf/domain_validate.c virDomainMemoryDefValidate()"
)


class Pages:
    """A guest beside whose memory devices are refused, and what it and the pool must have after each of them."""

    def __init__(self, live: Live, guests: Guests, guest: Guest, nr: int, plugged: int = 0) -> None:
        self._live = live
        self._guests = guests
        self._guest = guest
        self._nr = nr
        self._plugged = plugged

    def expect_refused_beside(self, refused: Iterable[RefusedDevice], device: MemoryDevice) -> None:
        """Expect each of ``refused``, which are ``device`` but for what is wrong, to be plugged in in vain."""
        for one in refused:
            words = words_of(self._guest, one, device)
            if words is not None and not one.kept:
                with self._live.about(str(one)):
                    self._guests.expect_refused(one.meaning, self._guest.attach_as, words)
                    self.expect_as_before()

    def expect_as_before(self) -> None:
        """Expect the guest to have its pages and those of what was plugged in, and the pool all others."""
        self._guest.expect_state(State.PAUSED)
        free = self._nr - self._guest.pages - self._plugged
        self._guests.await_free(free)
        self._live.expect_pool(nr=self._nr, free=free)
        self._guest.expect_mapped(**{format_size(self._live.size): self._plugged})


def words_of(guest: Guest, refused: RefusedDevice, device: MemoryDevice) -> str | None:
    """Return what the driver of ``guest`` takes for ``refused``, which is ``device`` but for what is wrong.

    None where it cannot be told so.
    """
    taken = guest.words_of(device)
    if guest.is_of_qemu_alone:
        return refused.for_monitor(taken) if refused.is_of_qemu else None
    return refused.for_libvirt(taken) if refused.is_of_libvirt else None


def expect_no_start_with(
    live: Live, guests: Guests, refused: Iterable[RefusedDevice], device: MemoryDevice, nr: int
) -> None:
    """Expect no guest to start with any of ``refused``, which are ``device`` but for what is wrong."""
    guest = with_room(guests, device, plugged=True, name="with-it")
    for one in refused:
        words = words_of(guest, one, device)
        if words is not None and not one.needs_neighbour:
            with live.about(f"{one}, from the start"):
                guests.expect_refused(one.meaning, guest.define_and_start_with, device, words)
                guest.expect_state(State.OFF)
                live.expect_pool(nr=nr, free=nr)


@case("a DIMM that a guest cannot have is refused, plugged in or at the start, and its pages stay free", DIMMS)
def each_dimm(live: Live, guests: Guests) -> None:
    first = dimm(live.size)
    second = replace(first, name="dimm1")
    guest = with_room(guests, first, second)
    pages = device_pages(first)
    # one that is no multiple of a page may have one more
    nr = guest.pages + 2 * pages + 1
    live.reserve(nr)
    guest.start()
    guest.attach(first)
    refused = [*every_refused_dimm(live.size, second.memory, address_of(guest), SLOTS)]
    beside = Pages(live, guests, guest, nr, pages)
    beside.expect_refused_beside(refused, second)
    # nothing of what was refused is in its way
    guest.attach(second)
    Pages(live, guests, guest, nr, 2 * pages).expect_as_before()
    guest.destroy()
    expect_no_start_with(live, guests, refused, second, nr)
    guests.expect_files()


def address_of(guest: Guest) -> int:
    """Return where the only memory device of a guest is."""
    [device] = guest.monitor("query-memory-devices")
    return int(device["data"]["addr"])


@case("a DIMM for which a guest has no slot left, or that is more than it may have, leaves its pages free", DIMMS)
def used_up(live: Live, guests: Guests) -> None:
    devices = [replace(dimm(live.size), name=f"dimm{number}") for number in range(SLOTS + 1)]
    pages = device_pages(devices[0])
    guest = with_room(guests, *devices)
    nr = guest.pages + len(devices) * pages
    live.reserve(nr)
    guest.start()
    for device in devices[:SLOTS]:
        guest.attach(device)
    guests.expect_refused(Meaning.NO_SLOT, guest.attach, devices[-1])
    Pages(live, guests, guest, nr, SLOTS * pages).expect_as_before()
    guest.destroy()
    # room for one, and slots for more
    memory = guest.description.memory
    guest = guests.new(Cell(memory, live.size), max_memory=memory + devices[0].memory, name="of-little-room")
    guest.start()
    guest.attach(devices[0])
    guests.expect_refused(Meaning.NO_ROOM, guest.attach, devices[1])
    Pages(live, guests, guest, nr, pages).expect_as_before()
    guest.destroy()
    # a page may be as large as all that the others have
    half = Cell(max(memory // 2, live.size), live.size)
    guest = guests.new(half, half, name="without-room")
    guest.start()
    guests.expect_refused(Meaning.NO_ROOM, guest.attach, devices[0])
    Pages(live, guests, guest, nr).expect_as_before()
    guest.destroy()
    guests.expect_all_free(nr)


@case("a virtio-mem device that a guest cannot have is refused, plugged in or at the start", VIRTIO_MEM)
def each_virtio_mem(live: Live, guests: Guests) -> None:
    needs_virtio_mem(guests)
    device = MemoryDevice("virtio0", DeviceKind.VIRTIO_MEM, 4 * live.size, live.size, requested=live.size)
    guest = with_room(guests, device)
    nr = guest.pages + 4
    live.reserve(nr)
    guest.start()
    refused = [*every_refused_virtio_mem(device.memory, live.size)]
    Pages(live, guests, guest, nr).expect_refused_beside(refused, device)
    guest.destroy()
    expect_no_start_with(live, guests, refused, device, nr)
    guests.expect_files()


@case("an NVDIMM that a guest cannot have is refused at the start, and the guest's pages stay free", NVDIMMS)
def each_nvdimm(live: Live, guests: Guests) -> None:
    device = nvdimm(None)
    guest = with_room(guests, device)
    live.reserve(guest.pages)
    expect_no_start_with(live, guests, every_refused_nvdimm(device.memory), device, guest.pages)
    guests.expect_files()


@guest_case(QEMU)("an NVDIMM is refused where the board of the guest has none", NVDIMMS)
def without_nvdimms(live: Live, guests: Guests) -> None:
    needs(guests.site.architecture in ("x86_64", "aarch64"), "only there a board is told to have NVDIMMs")
    device = nvdimm(None)
    guest = with_room(guests, device)
    live.reserve(guest.pages)
    guest.start()
    guests.expect_refused(Meaning.NO_NVDIMMS, guest.attach, device)
    Pages(live, guests, guest, guest.pages).expect_as_before()
    guest.destroy()
    guests.expect_all_back(guest)


class RefusedDevices(GuestTest):
    def test_qemu(self) -> None:
        self.run_area(QEMU)

    def test_libvirt(self) -> None:
        self.run_area(LIBVIRT)
