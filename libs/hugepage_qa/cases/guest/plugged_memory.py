"""Memory that cases plug into guests: devices of a size that Linux takes, and guests that have room for them."""

from typing import Any

from hugepage_qa.cases.guest.guest import Guest
from hugepage_qa.cases.guest.guests import Guests, needs
from hugepage_qa.qemu.guest.guest_description import Cell, DeviceKind, MemoryDevice
from hugepage_qa.sizes import MIB

#: the least that Linux takes on x86 and arm64 at once: a memory block, or a section
BLOCK = 128 * MIB
#: what a guest does with plugged memory by itself; only what is movable can be given back
ONLINE = "memhp_default_state=online_movable"
#: what a kernel boots in that prepares for memory above 4 GiB
LEAST_MEMORY = 256 * MIB


def dimm(size: int) -> MemoryDevice:
    """Return a DIMM of one page of ``size`` bytes, or of as many as make a block of memory."""
    return MemoryDevice("dimm0", DeviceKind.DIMM, max(size, BLOCK), size)


def nvdimm(size: int | None) -> MemoryDevice:
    """Return an NVDIMM in pages of ``size`` bytes, or in an ordinary file."""
    return MemoryDevice("nvdimm0", DeviceKind.NVDIMM, max(size or 0, BLOCK), size)


def needs_virtio_mem(guests: Guests) -> None:
    """Raise CannotRun where QEMU has no such device."""
    needs(guests.site.architecture in ("x86_64", "aarch64"), f"QEMU has no virtio-mem on {guests.site.architecture}")


def with_room(
    guests: Guests,
    *devices: MemoryDevice,
    page: int | None = None,
    node: int | None = None,
    plugged: bool = False,
    **options: Any,
) -> Guest:
    """Return a guest of the usual size on pages of ``page`` bytes, of ``node``, that has room for the devices.

    With ``plugged`` it starts with them.
    """
    size = page or guests.live.size
    memory = max(guests.pages * guests.live.size, LEAST_MEMORY, size)
    whole = memory + sum(device.memory for device in devices)
    # each device is aligned to its pages
    room = whole + sum(2 * device.memory for device in devices)
    return guests.new(Cell(memory, size, node), max_memory=room, devices=devices if plugged else (), **options)
