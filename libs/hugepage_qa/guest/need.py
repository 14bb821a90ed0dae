"""What a guest must take of each pool, computed from its description: never read from a running one."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from hugepage_qa.guest.description import GuestDescription, MemoryDevice


@dataclass(frozen=True, order=True)
class Pool:
    """Huge pages of ``size`` bytes on ``node``; None for those of any node."""

    size: int
    node: int | None = None


def pages_needed(guest: GuestDescription) -> Mapping[Pool, int]:
    """Return the pages that ``guest`` takes at its start, all its cells together, of each pool.

    QEMU takes whole pages for each cell (file_ram_alloc() in system/physmem.c rounds up), and none for itself: its
    firmware, video memory and heap are ordinary pages.
    """
    need: Counter[Pool] = Counter()
    for cell in guest.cells:
        if cell.page is not None:
            need[Pool(cell.page, cell.node)] += whole_pages(cell.memory, cell.page)
    for device in guest.devices:
        if device.page is not None:
            need[Pool(device.page, guest.cells[device.cell].node)] += device_pages(device)
    return need


def device_pages(device: MemoryDevice) -> int:
    """Return the pages that a memory device takes when it is plugged in, not counting what the guest adds later."""
    if device.page is None or device.requested:
        return 0
    return whole_pages(device.memory, device.page)


def whole_pages(memory: int, page: int) -> int:
    """Return how many pages of ``page`` bytes hold ``memory`` bytes."""
    return -(-memory // page)
