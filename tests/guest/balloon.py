"""Memory that guests on huge pages give back: to a balloon, or because they report it as free."""

import errno
from dataclasses import dataclass

from hugepage_qa.cases.case import Sizes
from hugepage_qa.cases.guest import guest_machine as drivers
from hugepage_qa.cases.guest.guest import Guest
from hugepage_qa.cases.guest.guests import GuestArea, Guests, guest_case, needs
from hugepage_qa.cases.live import Live
from hugepage_qa.kernel.memory_layout import read_free_blocks
from hugepage_qa.kernel.tree import CapturedTree
from hugepage_qa.oracle.pool.pool_kernel import PoolKernel
from hugepage_qa.plugins.guest_test import GuestTest
from hugepage_qa.qemu.guest.guest_description import Cell, DeviceKind, MemoryDevice, device_pages
from hugepage_qa.sizes import MIB

QEMU = GuestArea("guest/balloon", drivers.QEMU)
# what a larger page changes is QEMU's and the kernel's, and libvirt does the same with each
LIBVIRT = GuestArea("guest/balloon", drivers.LIBVIRT, sizes=Sizes.DEFAULT)
case = guest_case(QEMU, LIBVIRT)

BALLOON = "QEMU hw/virtio/virtio-balloon.c virtio_balloon_handle_output(): what one request has whole is given back"
REPORTING = (
    "QEMU hw/virtio/virtio-balloon.c virtio_balloon_handle_report(): what is no whole page of the host is ignored;"
    " mm/page_reporting.c; mm/hugetlb.c __unmap_hugepage_range() (df7a6d1f6405)"
)
COMPACTED = "mm/balloon_compaction.c; drivers/virtio/virtio_balloon.c virtballoon_migratepage()"

#: what a kernel boots in, with as much to spare
_MEMORY = 256 * MIB
#: a block of memory
_PLUGGED = 128 * MIB
#: what one request to inflate a balloon can hold (drivers/virtio/virtio_balloon.c: 256 pages of 4 KiB)
_REQUEST = MIB
#: what a guest reports are free blocks of at least this size (pageblock_order), of none a gigantic page
_REPORTED_BLOCK = 2 * MIB
#: it reports nothing of a zone that has less free than 32 such blocks and its low watermark
_REPORTED_ZONE = 96 * MIB
#: two seconds after a block came free (PAGE_REPORTING_DELAY), and a part of them each time
_REPORTED_SECONDS = 6
#: a line of /proc/vmstat, with CONFIG_BALLOON_COMPACTION
_MOVED = "balloon_migrate"
#: what scatters free memory: pieces, each of so many bytes, and as many between them
_PIECES, _PIECE = 32, MIB
#: what the guest writes before and after it has reported, in bytes
_KEPT, _WRITTEN = 4 * MIB, 64 * MIB
#: free pages that no list of free blocks has: those that CPUs keep for themselves
_ON_CPUS = 16 * MIB


@dataclass(frozen=True)
class GuestMemory:
    """Free memory of a guest by its own /proc/buddyinfo: whole ``pages`` that it reports, and ``other`` bytes."""

    pages: int
    other: int


def with_balloon(live: Live, guests: Guests, reports_free_pages: bool = False) -> Guest:
    """Return a booted guest with a balloon; it has all pages of the pool."""
    memory = max(guests.pages * live.size, _MEMORY)
    guest = guests.new_with_pages(Cell(memory, live.size), balloon=True, reports_free_pages=reports_free_pages)
    guest.boot()
    guest.expect_all_taken()
    write(guest, "kept", _KEPT)
    needs(guest.has_virtio_driver("virtio_balloon"), "the guest's kernel has no driver for balloons")
    return guest


@case("a balloon gives pages of the host back that one request of it has whole, and no larger ones", BALLOON)
def balloon(live: Live, guests: Guests) -> None:
    guest = with_balloon(live, guests)
    memory = guest.description.memory
    live.expect("memory of the guest with a balloon", memory * 3 // 4, guest.set_balloon(memory * 3 // 4))
    back = expect_reserved(live, guests, guest)
    if live.size > _REQUEST:
        live.expect("pages that are back", 0, back)
    elif live.size <= _REQUEST // 4:
        # a request need not begin where a page does
        live.expect("whether pages are back", True, back > 0)
    live.expect("memory of the guest without it", memory, guest.set_balloon(memory))
    # uses what it has back
    write(guest, "written", _WRITTEN)
    expect_content(guest)
    expect_reserved(live, guests, guest)
    guest.destroy()
    guests.expect_all_back(guest)


@case(
    "pages that a guest reports as free go back to the pool whole, stay reserved for it alone since Linux 6.9, and come"
    " again as it uses them",
    REPORTING,
)
def free_pages_are_reported(live: Live, guests: Guests) -> None:
    guest = with_balloon(live, guests, reports_free_pages=True)
    free = expect_reported(live, guest)
    back = expect_reserved(live, guests, guest)
    if live.is_gigantic:
        live.expect("pages that are back", 0, back)
    elif live.size <= _REPORTED_BLOCK:
        live.expect("whether a quarter of the guest is back", True, 4 * back >= guest.pages)
    if PoolKernel(live.kernel_version).unmapping_restores_reservation:
        live.expect_errno(errno.ENOMEM, live.map, 1)
    write(guest, "written", _WRITTEN)
    came = back - expect_reserved(live, guests, guest)
    least = max(0, _WRITTEN - free.other - _ON_CPUS) // live.size
    live.expect(f"whether {least} pages or more came again", True, came >= least)
    expect_content(guest)
    guest.run("rm /tmp/written")
    expect_reported(live, guest)
    guest.destroy()
    guests.expect_all_back(guest)


@case(
    "a balloon holds memory that was plugged in, too, and the pool has what the guest has taken",
    BALLOON,
    sizes=Sizes.DEFAULT,
)
def balloon_with_plugged_memory(live: Live, guests: Guests) -> None:
    guest, dimm = with_balloon_and_room(live, guests)
    nr = guest.pages + device_pages(dimm)
    guest.attach(dimm)
    live.expect_pool(nr=nr, free=0)
    whole = guest.description.memory + dimm.memory
    live.expect("memory of the guest without its balloon", whole, guest.set_balloon(whole))
    # the board alone has not as much to give
    left = guest.description.memory * 3 // 4
    live.expect("memory of the guest with its balloon", left, guest.set_balloon(left))
    expect_given_back(live, guest, nr)
    live.expect("memory of the guest without it again", whole, guest.set_balloon(whole))
    write(guest, "kept", _KEPT)
    write(guest, "written", _WRITTEN)
    expect_content(guest)
    guest.destroy()
    live.expect_pool(nr=nr, free=nr)


@case(
    "memory that is plugged in while a balloon is inflated takes its own pages, and the balloon keeps what it has",
    BALLOON,
    sizes=Sizes.DEFAULT,
)
def plugged_in_beside_a_balloon(live: Live, guests: Guests) -> None:
    guest, dimm = with_balloon_and_room(live, guests)
    memory, pages = guest.description.memory, device_pages(dimm)
    nr = guest.pages + pages
    write(guest, "kept", _KEPT)
    live.expect("memory of the guest with its balloon", memory * 3 // 4, guest.set_balloon(memory * 3 // 4))
    back = expect_given_back(live, guest, nr, free=pages)
    inside = guest.memory
    guest.attach(dimm)
    guest.expect_memory(inside + dimm.memory)
    # QEMU counts what the balloon lacks of all memory that there is by then
    live.expect("memory of the guest with its balloon", memory * 3 // 4 + dimm.memory, guest.balloon)
    live.expect("pages that are back", back, expect_given_back(live, guest, nr))
    write(guest, "written", _WRITTEN)
    expect_content(guest)
    whole = memory + dimm.memory
    live.expect("memory of the guest without it again", whole, guest.set_balloon(whole))
    expect_content(guest)
    guest.destroy()
    guests.expect_all_free(nr)


def with_balloon_and_room(live: Live, guests: Guests) -> tuple[Guest, MemoryDevice]:
    """Return a booted guest with a balloon, and a DIMM that it has room for: the pool has the pages of both."""
    dimm = MemoryDevice("dimm0", DeviceKind.DIMM, max(live.size, _PLUGGED), live.size)
    memory = max(guests.pages * live.size, _MEMORY)
    guest = guests.new(Cell(memory, live.size), balloon=True, max_memory=memory + 3 * dimm.memory)
    live.reserve(guest.pages + device_pages(dimm))
    guest.boot()
    needs(guest.has_virtio_driver("virtio_balloon"), "the guest's kernel has no driver for balloons")
    guest.run("echo online >/sys/devices/system/memory/auto_online_blocks")
    return guest, dimm


def expect_given_back(live: Live, guest: Guest, nr: int, free: int = 0) -> int:
    """Expect the pages of the pool but ``free`` ones to be mapped by the guest, or back, and return how many are."""
    back = nr - free - guest.mapped
    restored = PoolKernel(live.kernel_version).unmapping_restores_reservation
    live.expect_pool(nr=nr, free=back + free, resv=back if restored else 0)
    if live.size > _REQUEST:
        live.expect("pages that are back", 0, back)
    return back


@guest_case(QEMU)(
    "pages of a balloon that lie scattered are moved when the guest compacts its memory, and no whole block is lost",
    COMPACTED,
    sizes=Sizes.DEFAULT,
)
def compacted(live: Live, guests: Guests) -> None:
    guest = with_balloon(live, guests)
    needs(_MOVED in guest.run("cat /proc/vmstat"), "the guest's kernel moves no pages of balloons")
    memory = guest.description.memory
    # every other piece of memory is free when the balloon takes as much, and the rest of them when it has
    piece = f"head -c {_PIECE} /tmp/kept"
    guest.run("mkdir /tmp/first /tmp/second")
    guest.run(f"for number in $(seq {_PIECES}); do {piece} >/tmp/first/$number; {piece} >/tmp/second/$number; done")
    guest.run("rm -r /tmp/first")
    live.expect("pages of the empty balloon that were moved", 0, moved_pages(guest))
    less = memory - _PIECES * _PIECE
    live.expect("memory of the guest with a balloon", less, guest.set_balloon(less))
    guest.run("rm -r /tmp/second")
    before = free_blocks(guest)
    guest.run("echo 1 >/proc/sys/vm/compact_memory")
    after = free_blocks(guest)
    live.notes.append(f"{before} free blocks, {after} when memory was compacted")
    live.expect("whether pages of the balloon were moved", True, moved_pages(guest) > 0)
    # as many where the guest has compacted by itself before (vm.compaction_proactiveness)
    live.expect("whether as many blocks are free, or more", True, after >= before)
    expect_reserved(live, guests, guest)
    live.expect("memory of the guest without it", memory, guest.set_balloon(memory))
    write(guest, "written", _WRITTEN)
    expect_content(guest)
    guest.destroy()
    guests.expect_all_back(guest)


def free_blocks(guest: Guest) -> int:
    """Return how many blocks as large as those that it reports the guest has free."""
    return read_free_memory(guest, _REPORTED_BLOCK, least=0).pages


def moved_pages(guest: Guest) -> int:
    """Return how many pages of balloons its kernel has moved."""
    return int(guest.run(f"grep {_MOVED} /proc/vmstat").split()[-1])


def expect_reported(live: Live, guest: Guest) -> GuestMemory:
    """Expect at least the pages of the blocks that the guest has free to be back in the pool, and return these."""

    def missing(free: GuestMemory) -> int:
        return max(0, free.pages - (guest.pages - guest.mapped))

    live.host.wait_until(lambda: not missing(read_free_memory(guest, live.size)), _REPORTED_SECONDS)
    free = read_free_memory(guest, live.size)
    live.host.wait_until(lambda: not missing(free))
    live.expect("free pages of the guest that are not back", 0, missing(free))
    return free


def expect_reserved(live: Live, guests: Guests, guest: Guest) -> int:
    """Expect pages that the guest has given back to be in the pool, reserved for it since Linux 6.9 (df7a6d1f6405)."""
    return guests.expect_rest_in_pool(guest, reserved=PoolKernel(live.kernel_version).unmapping_restores_reservation)


def read_free_memory(guest: Guest, page: int, least: int = _REPORTED_ZONE) -> GuestMemory:
    """Return what the guest's kernel has free; it reports whole pages of ``page`` bytes of the host.

    Zones with less than ``least`` bytes count as if nothing in them were whole.
    """
    base = guest.base_page
    pages = other = 0
    for zone in read_free_blocks(CapturedTree({"proc/buddyinfo": guest.run("cat /proc/buddyinfo")})):
        blocks = {base << order: count for order, count in enumerate(zone.counts)}
        free = sum(size * count for size, count in blocks.items())
        smallest = max(page, _REPORTED_BLOCK)
        whole = sum(size * count for size, count in blocks.items() if size >= smallest) if free >= least else 0
        pages += whole // page
        other += free - whole
    return GuestMemory(pages, other)


def write(guest: Guest, name: str, length: int) -> None:
    """Have the guest write ``length`` bytes of lines that are the name of the file."""
    guest.write_file(f"/tmp/{name}", name, length)


def expect_content(guest: Guest) -> None:
    """Expect what the guest has written before it gave pages back, and into those that came again."""
    for name, length in (("kept", _KEPT), ("written", _WRITTEN)):
        guest.expect_written(f"/tmp/{name}", name, length)


class Balloon(GuestTest):
    def test_qemu(self) -> None:
        self.run_area(QEMU)

    def test_libvirt(self) -> None:
        self.run_area(LIBVIRT)
