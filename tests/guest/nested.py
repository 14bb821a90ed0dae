"""Huge pages inside a guest that lies on huge pages: pools of its own, of which the machine's pool sees nothing."""

from hugepage_qa.guest import machine as drivers
from hugepage_qa.guest.case import GuestArea, guest_case
from hugepage_qa.guest.description import Cell
from hugepage_qa.guest.guests import Guests
from hugepage_qa.guest.need import whole_pages
from hugepage_qa.kernel.meminfo import parse_meminfo
from hugepage_qa.live.live import Live
from hugepage_qa.model.rules import HUGETLB_DOC
from hugepage_qa.plugins.guest_test import GuestTest
from hugepage_qa.sizes import MIB

QEMU, LIBVIRT = GuestArea("guest/nested", drivers.QEMU), GuestArea("guest/nested", drivers.LIBVIRT)
case = guest_case(QEMU, LIBVIRT)

#: of the guest's memory: its own pool, and what lies in it
_POOL = 4
_FILE = 3
_MEMORY = 256 * MIB

_POOL_FILE = "/proc/sys/vm/nr_hugepages"


@case("a guest on huge pages reserves, uses and gives back huge pages of its own", f"{HUGETLB_DOC}, in the guest")
def pool_of_its_own(live: Live, guests: Guests) -> None:
    pages = max(guests.pages, whole_pages(_MEMORY, live.size))
    guest = guests.new(Cell(pages * live.size, live.size))
    live.reserve(pages)
    guest.boot()

    def expect_inside(total: int, free: int) -> None:
        meminfo = parse_meminfo(guest.run("cat /proc/meminfo"), "/proc/meminfo of the guest")
        live.expect("HugePages_Total in the guest", total, meminfo.get("HugePages_Total"))
        live.expect("HugePages_Free in the guest", free, meminfo.get("HugePages_Free"))
        live.expect_pool(nr=pages, free=0)

    size = parse_meminfo(guest.run("cat /proc/meminfo"), "/proc/meminfo of the guest")["Hugepagesize"]
    expect_inside(0, 0)
    guest.run(f"echo {_POOL} >{_POOL_FILE}")
    expect_inside(_POOL, _POOL)
    guest.run("mkdir /huge; mount -t hugetlbfs none /huge")
    guest.run(f"fallocate -l {_FILE * size} /huge/file")
    expect_inside(_POOL, _POOL - _FILE)
    guest.run("rm /huge/file")
    expect_inside(_POOL, _POOL)
    guest.run(f"echo 0 >{_POOL_FILE}")
    expect_inside(0, 0)
    guest.expect_mapped()


@case("a pool that is reserved at the guest's boot is there, whatever it lies on", f"{HUGETLB_DOC} hugepages=")
def pool_from_boot(live: Live, guests: Guests) -> None:
    pages = max(guests.pages, whole_pages(_MEMORY, live.size))
    guest = guests.new(Cell(pages * live.size, live.size), words=f"hugepages={_POOL}")
    live.reserve(pages)
    guest.boot()
    live.expect("nr_hugepages in the guest", str(_POOL), guest.run(f"cat {_POOL_FILE}").strip())
    live.expect_pool(nr=pages, free=0)


class Nested(GuestTest):
    """See main.fmf."""

    def test_qemu(self) -> None:
        self.run_area(QEMU)

    def test_libvirt(self) -> None:
        self.run_area(LIBVIRT)
