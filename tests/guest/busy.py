"""Guests that are busy in their memory while the machine changes it: the pool, THP, swap. No content is lost."""

from contextlib import suppress

from hugepage_qa.cases.case import Sizes
from hugepage_qa.cases.control_group import Version, new_group
from hugepage_qa.cases.fragmentation import compact_if_short, expect_no_shortage
from hugepage_qa.cases.guest import guest_machine as drivers
from hugepage_qa.cases.guest.guest import Guest
from hugepage_qa.cases.guest.guest_readings import swapped_bytes, transparent_bytes
from hugepage_qa.cases.guest.guests import GuestArea, Guests, guest_case, needs
from hugepage_qa.cases.khugepaged_clock import PATIENT_SCANS, await_khugepaged
from hugepage_qa.cases.khugepaged_work import put_to_work
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.swapped import need_swap
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.cases.thp_policy import set_policy
from hugepage_qa.machine.host import ObservedTree
from hugepage_qa.oracle.rules import HUGETLB_DOC
from hugepage_qa.plugins.guest_test import GuestTest
from hugepage_qa.qemu.guest.guest_description import Allocation, Cell
from hugepage_qa.sizes import MIB

QEMU = GuestArea("guest/busy", drivers.QEMU)
# what a larger page changes is QEMU's and the kernel's, and libvirt does the same with each
LIBVIRT = GuestArea("guest/busy", drivers.LIBVIRT, sizes=Sizes.DEFAULT)
case = guest_case(QEMU, LIBVIRT)

RESIZED = f"{HUGETLB_DOC} nr_hugepages: pages in use become surplus, and go when they are free"
FAULTED = "Documentation/admin-guide/mm/transhuge.rst enabled; QEMU prealloc=off"
COLLAPSED = "Documentation/admin-guide/mm/transhuge.rst khugepaged"
SWAPPED = "Documentation/admin-guide/mm/transhuge.rst thp_swpout; Documentation/admin-guide/cgroup-v2.rst memory.high"

_MEMORY = 256 * MIB
#: what a guest on ordinary memory is busy in, and what it keeps besides without touching it
_BUSY, _IDLE = 96 * MIB, 64 * MIB
#: what it touches for the first time once khugepaged is at work
_MORE = 8 * MIB
#: files of a memory controller: what is used, and what takes a limit, at which it is reclaimed at once; no limit
_FILES = {
    Version.ONE: ("memory.usage_in_bytes", "memory.limit_in_bytes", "-1"),
    Version.TWO: ("memory.current", "memory.high", "max"),
}


@case("a pool that grows and shrinks, also to nothing, leaves a busy guest its pages and what is in them", RESIZED)
def pool_resized(live: Live, guests: Guests) -> None:
    guest = guests.new(guests.cell(2))
    pages = guest.pages
    live.reserve(pages)
    guest.boot()
    guest.keep_busy()
    for nr in (pages + 1, pages, pages // 2, 0, pages + 1, 0, pages):
        if nr > pages:
            live.reserve(nr)
        else:
            live.set_nr(nr)
        live.expect_pool(nr=max(nr, pages), free=max(0, nr - pages), surplus=max(0, pages - nr))
        if nr > pages:
            # what comes and goes beside the guest is not the guest's
            others = live.map(nr - pages)
            others.fill()
            guest.expect_busy()
            others.expect_filled()
            others.actor.end()
        guest.expect_busy()
        guest.expect_mapped()
    live.set_nr(0)
    live.expect_pool(nr=pages, free=0, surplus=pages)
    guest.destroy()
    live.expect_pool(nr=0, free=0)


def on_ordinary_memory(live: Live, guests: Guests, policy: str) -> Guest:
    """Return a booted guest on ordinary memory, busy in some of it, which it has got as it touched it.

    Raises CannotRun where memory is too fragmented for huge pages.
    """
    needs(live.host.read("sys/kernel/mm/transparent_hugepage/enabled") is not None, "this kernel has no THP")
    size = pmd_size(live)
    needs(8 * size <= _BUSY, "a huge page is too large for what a guest is busy in")
    set_policy(live, policy)
    compact_if_short(live, size, _MEMORY // size)
    expect_no_shortage(live, size, _MEMORY // size)
    guest = guests.new(Cell(_MEMORY, None), name="on-ordinary-memory", allocation=Allocation.ON_DEMAND)
    guest.boot()
    guest.keep_busy(_BUSY)
    guest.expect_busy()
    guest.expect_mapped()
    return guest


def transparent(live: Live, guest: Guest) -> int:
    """Return the bytes of its QEMU in transparent huge pages."""
    return transparent_bytes(ObservedTree(live.host), guest.pid)


def expect_transparent(live: Live, guest: Guest) -> None:
    """Expect half of what a guest is busy in, or more, in transparent huge pages.

    The rest may lie where something else was mapped first, or where no free block was left.
    """
    found = transparent(live, guest)
    live.expect("whether half of what the guest is busy in is in THP", True, 2 * found >= _BUSY)


@case("of two busy guests one has exactly its pages of the pool, and the other huge pages as it faults them", FAULTED)
def beside_transparent_pages(live: Live, guests: Guests) -> None:
    guest = guests.new_with_pages(name="on-huge-pages")
    guest.boot()
    guest.keep_busy()
    other = on_ordinary_memory(live, guests, "always")
    expect_transparent(live, other)
    guest.expect_all_taken()
    for one in (guest, other):
        one.expect_busy()
    guest.destroy()
    guests.expect_all_back(guest)
    other.expect_busy()


@case("khugepaged makes huge pages of the memory of a busy guest", COLLAPSED, sizes=Sizes.ONCE)
def collapsed(live: Live, guests: Guests) -> None:
    guest = on_ordinary_memory(live, guests, "never")
    live.expect("bytes of QEMU in THP", 0, transparent(live, guest))
    put_to_work(live)
    # what was mapped under "never" is not on its list: the next fault of the process puts it there
    guest.write_file("/tmp/more", "more", _MORE)
    await_khugepaged(live, lambda: 2 * transparent(live, guest) >= _BUSY, PATIENT_SCANS)
    expect_transparent(live, guest)
    guest.expect_busy()


def swapped_out_in_part(live: Live, guests: Guests, version: Version) -> None:
    """Expect a guest in huge pages to live on, with all that it holds, when half of what it leaves alone is in swap."""
    need_swap(live, _MEMORY)
    usage, limit, unlimited = _FILES[version]
    group = new_group(live, "memory", version)
    guests.enter_group(group.path)
    try:
        guest = on_ordinary_memory(live, guests, "always")
        guest.write_file("/tmp/idle", "idle", _IDLE)
        guest.run("md5sum /tmp/idle >/tmp/sum")
        expect_transparent(live, guest)

        def is_out() -> bool:
            # not kept: at its limit a guest would be throttled, or killed
            with suppress(OSError):
                group.write(limit, str(max(_IDLE, int(group.read(usage) or 0) - _IDLE)))
            group.write(limit, unlimited)
            return 2 * swapped_bytes(ObservedTree(live.host), guest.pid) >= _IDLE

        live.host.wait_until(is_out)
        found = swapped_bytes(ObservedTree(live.host), guest.pid)
        live.expect(f"whether half of {_IDLE} bytes are in swap", True, 2 * found >= _IDLE)
        guest.expect_busy()
        live.expect("what the guest has kept", "/tmp/idle: OK", guest.run("md5sum -c /tmp/sum").strip())
        guest.destroy()
    finally:
        guests.enter_group(None)


@guest_case(QEMU)(
    "a guest in huge pages that version 1 of the memory controller swaps out lives on", SWAPPED, sizes=Sizes.ONCE
)
def swapped_out_v1(live: Live, guests: Guests) -> None:
    swapped_out_in_part(live, guests, Version.ONE)


@guest_case(QEMU)(
    "a guest in huge pages that version 2 of the memory controller swaps out lives on", SWAPPED, sizes=Sizes.ONCE
)
def swapped_out_v2(live: Live, guests: Guests) -> None:
    swapped_out_in_part(live, guests, Version.TWO)


class Busy(GuestTest):
    def test_qemu(self) -> None:
        self.run_area(QEMU)

    def test_libvirt(self) -> None:
        self.run_area(LIBVIRT)
