"""Places in the address space of an actor: free ones, its end, and ordinary memory that is put there."""

import errno
import mmap

from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.kernel.uapi import MAP_FIXED_NOREPLACE
from hugepage_qa.process.actor import Actor, Refused

#: more than any address has
_ADDRESS_BITS = 64


def free_place(live: Live, actor: Actor, pages: int) -> int:
    """Return an address, aligned to huge pages, where ``actor`` has nothing mapped on ``pages`` huge pages."""
    place = live.map(pages, actor, noreserve=True)
    place.unmap()
    return place.address


def ordinary_memory(live: Live, actor: Actor, pages: int, at: int = 0) -> Memory:
    """Map ``pages`` base pages, at an address where nothing is mapped if one is given.

    Raises Refused, and Failed where they are mapped elsewhere.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | (MAP_FIXED_NOREPLACE if at else 0)
    address = actor.mmap(pages * live.base_page, READ_WRITE, flags, address=at)
    if at and address != at:
        live.fail("the address of MAP_FIXED_NOREPLACE", f"{at:#x}", f"{address:#x}")
    return Memory(live, actor, address, pages, live.base_page)


def end_of_addresses(live: Live, actor: Actor) -> int:
    """Return where the address space ends (TASK_SIZE): no base page can be mapped from there on."""
    low, high = 0, (1 << _ADDRESS_BITS) // live.base_page
    while low < high:
        middle = (low + high) // 2
        if _is_address(live, actor, middle * live.base_page):
            low = middle + 1
        else:
            high = middle
    return low * live.base_page


def _is_address(live: Live, actor: Actor, address: int) -> bool:
    try:
        ordinary_memory(live, actor, 1, address).unmap()
    except Refused as refusal:
        # EEXIST: something is mapped there; EPERM: below vm.mmap_min_addr, for those without rights
        return refusal.errno in (errno.EEXIST, errno.EPERM)
    return True
