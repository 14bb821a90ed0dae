"""Huge pages inside a guest that lies on huge pages: pools of its own, of which the machine's pool sees nothing."""

from hugepage_qa.cases.guest import guest_machine as drivers
from hugepage_qa.cases.guest.guests import GuestArea, Guests, guest_case
from hugepage_qa.cases.guest.pool_in_guest import POOL_FILE, expect_pool_of_its_own, room_for_a_pool
from hugepage_qa.cases.live import Live
from hugepage_qa.oracle.rules import HUGETLB_DOC
from hugepage_qa.plugins.guest_test import GuestTest

QEMU, LIBVIRT = GuestArea("guest/nested", drivers.QEMU), GuestArea("guest/nested", drivers.LIBVIRT)
case = guest_case(QEMU, LIBVIRT)

#: reserved at the guest's boot
_POOL = 4


@case("a guest on huge pages reserves, uses and gives back huge pages of its own", f"{HUGETLB_DOC}, in the guest")
def pool_of_its_own(live: Live, guests: Guests) -> None:
    guest = guests.new_with_pages(room_for_a_pool(live.size))
    guest.boot()
    expect_pool_of_its_own(live, guest, guest.run)


@case("a pool that is reserved at the guest's boot is there, whatever it lies on", f"{HUGETLB_DOC} hugepages=")
def pool_from_boot(live: Live, guests: Guests) -> None:
    guest = guests.new_with_pages(room_for_a_pool(live.size), words=f"hugepages={_POOL}")
    guest.boot_by_itself()
    live.expect("nr_hugepages in the guest", str(_POOL), guest.run(f"cat {POOL_FILE}").strip())
    live.expect_pool(nr=guest.pages, free=0)


class Nested(GuestTest):
    def test_qemu(self) -> None:
        self.run_area(QEMU)

    def test_libvirt(self) -> None:
        self.run_area(LIBVIRT)
