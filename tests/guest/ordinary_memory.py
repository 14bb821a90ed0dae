"""Guests on ordinary memory: transparent huge pages as the policy says, and no page of a pool."""

from hugepage_qa.cases.case import Sizes
from hugepage_qa.cases.fragmentation import compact_if_short, expect_no_shortage
from hugepage_qa.cases.guest import guest_machine as drivers
from hugepage_qa.cases.guest.guest import Guest
from hugepage_qa.cases.guest.guest_readings import transparent_bytes
from hugepage_qa.cases.guest.guests import GuestArea, Guests, guest_case, needs
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.cases.thp_policy import set_policy
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

_MEMORY = 256 * MIB


def started_under(live: Live, guests: Guests, policy: str) -> Guest:
    """Return a started guest on ordinary memory, which QEMU has touched, and no page of which is one of a pool.

    Raises CannotRun where memory is too fragmented for the huge pages that ``policy`` allows.
    """
    needs(live.host.read("sys/kernel/mm/transparent_hugepage/enabled") is not None, "this kernel has no THP")
    size = pmd_size(live)
    # at both ends is what is no whole huge page
    needs(8 * size <= _MEMORY, f"a huge page of {format_size(size)} is too large for a guest of {format_size(_MEMORY)}")
    set_policy(live, policy)
    if policy != "never":
        compact_if_short(live, size, _MEMORY // size)
        expect_no_shortage(live, size, _MEMORY // size)
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


class OrdinaryMemory(GuestTest):
    """See main.fmf."""

    def test_qemu(self) -> None:
        self.run_area(QEMU)

    def test_libvirt(self) -> None:
        self.run_area(LIBVIRT)
