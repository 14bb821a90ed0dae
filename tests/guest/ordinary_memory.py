"""Guests on ordinary memory: transparent huge pages as the policy says, and no page of a pool."""

from hugepage_qa.cases.case import Sizes
from hugepage_qa.cases.fragmentation import compact_if_short, expect_no_node_short, expect_no_shortage
from hugepage_qa.cases.guest import guest_machine as drivers
from hugepage_qa.cases.guest.guest import Guest
from hugepage_qa.cases.guest.guest_readings import transparent_bytes
from hugepage_qa.cases.guest.guests import GuestArea, Guests, guest_case, needs
from hugepage_qa.cases.khugepaged_clock import (
    KHUGEPAGED,
    PATIENT_SCANS,
    allow_absent,
    await_khugepaged,
    await_scans,
    quicken,
)
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.cases.thp_policy import set_policy
from hugepage_qa.kernel.counters import parse_meminfo, read_vmstat
from hugepage_qa.machine.host import ObservedTree
from hugepage_qa.plugins.guest_test import GuestTest
from hugepage_qa.qemu.guest.guest_description import Cell
from hugepage_qa.sizes import MIB, format_size

QEMU, LIBVIRT = (
    GuestArea("guest/ordinary-memory", driver, sizes=Sizes.ONCE) for driver in (drivers.QEMU, drivers.LIBVIRT)
)
case = guest_case(QEMU, LIBVIRT)

THP = "Documentation/admin-guide/mm/transhuge.rst enabled"
ADVISED = f"QEMU system/physmem.c ram_block_add(): MADV_HUGEPAGE; {THP}"
BALLOON = (
    "QEMU hw/virtio/virtio-balloon.c balloon_inflate_page(): MADV_DONTNEED of each page of the guest; madvise(2);"
    " mm/memory.c zap_pmd_range(): of a huge page that goes in part the PMD is split"
)
FILLED = "Documentation/admin-guide/mm/transhuge.rst max_ptes_none"

_MEMORY = 256 * MIB
#: what a balloon takes of it, what the guest writes when it has that back, more than it has free before, and what is
#: free there and on no list: what CPUs keep for themselves, and caches
_TAKEN, _WRITTEN, _ELSEWHERE = 128 * MIB, 96 * MIB, 16 * MIB
_FILE = ("/tmp/written", "written", _WRITTEN)


def under(live: Live, policy: str) -> None:
    """Set the ``policy`` for guests on ordinary memory.

    Raises CannotRun where memory is too fragmented for the huge pages that it allows.
    """
    needs(live.host.read("sys/kernel/mm/transparent_hugepage/enabled") is not None, "this kernel has no THP")
    size = pmd_size(live)
    # at both ends is what is no whole huge page
    needs(8 * size <= _MEMORY, f"a huge page of {format_size(size)} is too large for a guest of {format_size(_MEMORY)}")
    set_policy(live, policy)
    if policy != "never":
        compact_if_short(live, size, _MEMORY // size)
        expect_no_shortage(live, size, _MEMORY // size)


def started_under(live: Live, guests: Guests, policy: str) -> Guest:
    """Return a started guest on ordinary memory, which QEMU has touched, and no page of which is one of a pool."""
    under(live, policy)
    guest = guests.new(Cell(_MEMORY, None))
    guest.start()
    guest.expect_mapped()
    return guest


@case("with THP always a guest on ordinary memory is in transparent huge pages", THP)
def transparent_pages_always(live: Live, guests: Guests) -> None:
    started_under(live, guests, "always").expect_transparent_pages()


@case("with THP on advice a guest is, too: QEMU advises its memory", ADVISED)
def transparent_pages_on_advice(live: Live, guests: Guests) -> None:
    started_under(live, guests, "madvise").expect_transparent_pages()


@case("with THP never a guest has no transparent huge page, whatever QEMU advises", ADVISED)
def no_transparent_pages(live: Live, guests: Guests) -> None:
    guest = started_under(live, guests, "never")
    live.expect("bytes of QEMU in THP", 0, transparent_bytes(ObservedTree(live.host), guest.pid))


def with_balloon(live: Live, guests: Guests) -> Guest:
    """Return a booted guest with a balloon, all of whose memory is there and most of it in huge pages.

    No further huge page is made of it, neither at a fault nor by khugepaged.
    """
    under(live, "always")
    guest = guests.new(Cell(_MEMORY, None), balloon=True)
    guest.boot()
    needs(guest.has_virtio_driver("virtio_balloon"), "the guest's kernel has no driver for balloons")
    needs(guest.base_page % live.base_page == 0, "a page of the guest is no whole page of the host")
    guest.expect_transparent_pages()
    set_policy(live, "never")
    live.expect("bytes of the guest that are there", _MEMORY, there(guest))
    return guest


def there(guest: Guest) -> int:
    """Return how many bytes of a guest its QEMU has, in memory or in swap."""
    return sum(one.rss + one.fields.get("Swap", 0) for one in guest.mapped_memory)


def in_huge_pages(guest: Guest) -> int:
    """Return how many bytes of a guest are mapped as huge pages."""
    return sum(one.anon_huge_pages for one in guest.mapped_memory)


def inflate(live: Live, guest: Guest) -> None:
    """Have the balloon take its part, and expect the host to have it back to the page."""
    live.expect("memory of the guest with a balloon", _MEMORY - _TAKEN, guest.set_balloon(_MEMORY - _TAKEN))
    # a page that the guest moves out of its balloon is absent until it is used
    live.host.wait_until(lambda: there(guest) == _MEMORY - _TAKEN)
    live.expect("bytes of the guest that are there", _MEMORY - _TAKEN, there(guest))


def write_without_it(live: Live, guest: Guest) -> None:
    """Have the balloon give all back, and the guest write more than it had free before."""
    live.expect("memory of the guest without it", _MEMORY, guest.set_balloon(_MEMORY))
    guest.write_file(*_FILE)


# libvirt does no more than ask for it
@guest_case(QEMU)(
    "a balloon gives memory in transparent huge pages back page by page, which splits them, and what the guest uses of"
    " it again comes small where the policy is never",
    BALLOON,
)
def balloon(live: Live, guests: Guests) -> None:
    guest = with_balloon(live, guests)
    size, huge = pmd_size(live), in_huge_pages(guest)
    splits = read_vmstat(ObservedTree(live.host))["thp_split_pmd"]
    inflate(live, guest)
    left = in_huge_pages(guest)
    live.notes.append(f"{format_size(huge)} in THP, {format_size(left)} beside the balloon")
    most = (_MEMORY - _TAKEN) // size * size
    live.expect(f"whether no more than {most} bytes are in THP", True, left <= min(huge, most))
    split = read_vmstat(ObservedTree(live.host))["thp_split_pmd"] - splits
    gone = (huge - left) // size
    live.expect(f"whether the kernel has split {gone} PMDs or more", True, split >= gone)
    free = parse_meminfo(guest.run("grep MemFree /proc/meminfo"), "/proc/meminfo of the guest")["MemFree"]
    write_without_it(live, guest)
    least = _MEMORY - _TAKEN + max(0, _WRITTEN - free - _ELSEWHERE)
    live.expect(f"whether {least} bytes are there, up to all", True, least <= there(guest) <= _MEMORY)
    live.expect(f"whether no more than {left} bytes are in THP", True, in_huge_pages(guest) <= left)
    guest.expect_written(*_FILE)
    guest.destroy()


@guest_case(QEMU)(
    "khugepaged fills nothing that a balloon has taken where no page of a huge one may be absent, and makes huge pages"
    " of what is back",
    FILLED,
)
def balloon_beside_khugepaged(live: Live, guests: Guests) -> None:
    guest = with_balloon(live, guests)
    inflate(live, guest)
    size = pmd_size(live)
    # not below: where no page may be absent, drop_caches splits huge pages that are zero in part (Linux 6.12,
    # mm/huge_memory.c thp_underused())
    compact_if_short(live, size, _MEMORY // size)
    allow_absent(live, 0)
    quicken(live)
    live.set_knob(f"{KHUGEPAGED}/defrag", "1")
    set_policy(live, "madvise")
    await_scans(live)
    live.expect("whether no byte is there that the balloon has", True, there(guest) <= _MEMORY - _TAKEN)
    live.expect("memory of the guest with a balloon", _MEMORY - _TAKEN, guest.balloon)
    # what the guest touches comes small, and khugepaged does not begin before it has written all
    set_policy(live, "never")
    write_without_it(live, guest)
    left = in_huge_pages(guest)
    set_policy(live, "madvise")
    if not await_khugepaged(live, lambda: in_huge_pages(guest) > left, PATIENT_SCANS):
        expect_no_node_short(live, size, _WRITTEN // size)
    live.expect(f"whether more than {left} bytes are in THP", True, in_huge_pages(guest) > left)
    guest.expect_written(*_FILE)
    guest.destroy()


class OrdinaryMemory(GuestTest):
    def test_qemu(self) -> None:
        self.run_area(QEMU)

    def test_libvirt(self) -> None:
        self.run_area(LIBVIRT)
