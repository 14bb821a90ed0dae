"""Frames of memory that the kernel has for itself, as /proc/kpageflags tells of them; some of them a process can have.

Such memory cannot be moved, nor taken from who uses it.
"""

import mmap
from collections.abc import Iterator
from typing import Final

from hugepage_qa.cases.broken_memory import HWPOISON, need_memory_failure
from hugepage_qa.cases.frames import COMPOUND_HEAD, COMPOUND_TAIL, ZERO, flags_from, kpageflags
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.pinned_pages import new_ring
from hugepage_qa.cases.thp_memory import map_aligned, pmd_size
from hugepage_qa.kernel.memory_layout import Zone, read_zones
from hugepage_qa.kernel.uapi import MADV_NOHUGEPAGE, MAP_POPULATE
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.process.actor import Actor

# include/uapi/linux/kernel-page-flags.h
SLAB: Final = 1 << 7
PAGE_TABLE: Final = 1 << 26
RESERVED: Final = 1 << 32
#: of all zones together: those of a large machine would be read for minutes
_LOOKED_AT = 1 << 22
_AT_ONCE = 1 << 14
_PAGE_TABLES = 256
#: include/uapi/linux/io_uring.h: size of struct io_uring_params; where requests are mapped
_PARAMS, _REQUESTS = 120, 0x10000000
_ENTRIES = 4


def need_breakable_kernel_memory(live: Live) -> None:
    """Raise CannotRun where the kernel knows of no broken memory, and on machines that go on when the suite has ended.

    Memory of the kernel that broke stays so: nothing mends it as long as the kernel has it.
    """
    need_memory_failure(live)
    if not live.host.is_thrown_away():
        raise CannotRun("no memory of the kernel is broken on a machine that others use")


def reserved_frame(live: Live) -> int:
    """Return a frame that was never given to anybody, such as one of the kernel's own code. Raises CannotRun."""
    # the kernel itself lies in the first zones
    return _last_of_first_group(live, RESERVED, "reserved page", list(read_zones(live.host)))


def slab_frame(live: Live) -> int:
    """Return the frame of a slab of one base page: it goes back by itself when it is empty. Raises CannotRun."""
    return _last_of_first_group(live, SLAB, "slab of one base page", _from_the_last(live))


def zero_frame(live: Live) -> int:
    """Return the frame of zeroes, which all processes have where they have read alone. Raises CannotRun."""
    memory = map_aligned(live, 1, pmd_size(live), advice=MADV_NOHUGEPAGE)
    live.expect("what is read of memory that nobody has written", 0, memory.read())
    frame = memory.frame()
    if not kpageflags(live, memory.actor, [frame])[0] & ZERO:
        raise CannotRun("kpageflags does not show the page of zeroes")
    memory.actor.end()
    return frame


def map_ring(live: Live) -> Memory:
    """Return the base page of requests of io_uring(7), which belongs to the kernel, as an actor has it mapped.

    Raises CannotRun where the kernel has no io_uring or the machine forbids it.
    """
    actor = live.actor()
    ring, _params = new_ring(actor, _ENTRIES, bytes(_PARAMS))
    address = actor.mmap(live.base_page, READ_WRITE, mmap.MAP_SHARED | MAP_POPULATE, ring, _REQUESTS)
    return Memory(live, actor, address, 1, live.base_page)


def page_tables(live: Live) -> tuple[Actor, list[int]]:
    """Return an actor that has just got page tables, and frames of them, one or the other of somebody else perhaps.

    Raises CannotRun where they are not found: not all memory of a large machine is looked at.
    """
    actor = live.actor()
    # to commit it may be more than there is: 4 GiB with the hash page tables of powerpc
    memory = map_aligned(live, _PAGE_TABLES, pmd_size(live), actor=actor, advice=MADV_NOHUGEPAGE, prot=mmap.PROT_READ)
    words = {memory.read(page) for page in range(memory.pages)}
    live.expect("what is read of memory that nobody has written", {0}, words)
    for frames in _groups(live, PAGE_TABLE, _from_the_last(live)):
        # they lie side by side where they were taken one after the other, in two groups at most
        if len(frames) >= _PAGE_TABLES // 2:
            return actor, frames
    raise CannotRun("kpageflags shows no page tables that a process has just got")


def page_table_frame(live: Live) -> int:
    """Return the frame of a page table of an actor. Raises as ``page_tables`` does."""
    _actor, frames = page_tables(live)
    return frames[len(frames) // 2]


def _from_the_last(live: Live) -> list[Zone]:
    """Return the zones from the last one on: the first ones are for old devices."""
    return [*reversed(read_zones(live.host))]


def _last_of_first_group(live: Live, flag: int, what: str, zones: list[Zone]) -> int:
    # one that broke before is not looked for
    found = next((frames for frames in _groups(live, flag, zones, without=HWPOISON) if frames), None)
    if not found:
        raise CannotRun(f"kpageflags shows no {what}")
    return found[-1]


def _groups(live: Live, flag: int, zones: list[Zone], *, without: int = 0) -> Iterator[list[int]]:
    """Yield the frames of one base page that have ``flag``, and none of ``without``, of each stretch of memory.

    Raises CannotRun for a kernel without /proc/kpageflags.
    """
    actor, left = live.actor(), _LOOKED_AT
    for zone in zones:
        end = (zone.start_pfn or 0) + min(zone.spanned, left)
        for first in range(zone.start_pfn or end, end, _AT_ONCE):
            flags = flags_from(live, actor, first, min(_AT_ONCE, end - first))
            left -= len(flags)
            yield [
                first + number
                for number, found in enumerate(flags)
                if found & flag and not found & (COMPOUND_HEAD | COMPOUND_TAIL | without)
            ]
