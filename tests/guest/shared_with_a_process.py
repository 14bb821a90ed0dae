"""Guests whose memory another process has, too, such as virtiofsd, passt or DPDK: pages live as long as it does."""

from hugepage_qa.cases.case import Sizes
from hugepage_qa.cases.guest import guest_machine as drivers
from hugepage_qa.cases.guest.guest_readings import mapped_pages
from hugepage_qa.cases.guest.guests import GuestArea, Guests, guest_case, needs
from hugepage_qa.cases.live import Live
from hugepage_qa.machine.host import ObservedTree
from hugepage_qa.plugins.guest_test import GuestTest
from hugepage_qa.qemu.guest.console import NETWORK
from hugepage_qa.qemu.guest.driver import State
from hugepage_qa.qemu.guest.file_server import TAG
from hugepage_qa.qemu.guest.guest_description import Access, Source
from hugepage_qa.qemu.guest.numbered_lines import md5_of_lines
from hugepage_qa.sizes import MIB

QEMU, LIBVIRT = (
    GuestArea("guest/shared-with-a-process", driver, sizes=Sizes.DEFAULT) for driver in (drivers.QEMU, drivers.LIBVIRT)
)
case = guest_case(QEMU, LIBVIRT)

VHOST_USER = (
    "QEMU docs/interop/vhost-user.rst VHOST_USER_SET_MEM_TABLE; libvirt.org/kbase/virtiofs.html;"
    " mm/hugetlb.c free_huge_folio(); fs/hugetlbfs/inode.c hugetlbfs_evict_inode()"
)
VIRTIOFS = f"{VHOST_USER}; Documentation/filesystems/virtiofs.rst"

#: bytes of a file that the guest is given, and of one that it writes
_OF_HOST, _OF_GUEST = 4 * MIB, 2 * MIB


def expect_held(live: Live, guests: Guests, source: Source) -> None:
    """Expect the pages of a guest to be in use until QEMU and the process that it gave them to have both ended."""
    guest = guests.new_with_pages(source=source, access=Access.SHARED, has_peer=True)
    peer = guest.start_peer()

    def held() -> int:
        return mapped_pages(ObservedTree(live.host), peer).get(live.size, 0)

    guest.boot()
    needs(guest.has_virtio_driver(NETWORK[-1], *NETWORK[:-1]), f"the guest's kernel has no driver {NETWORK[-1]}")
    live.host.wait_until(lambda: held() == guest.pages)
    live.expect("pages that the other process maps", guest.pages, held())
    guest.expect_all_taken()
    guest.destroy()
    guest.expect_state(State.OFF)
    live.expect("pages that the other process maps without QEMU", guest.pages, held())
    live.expect_pool(nr=guest.pages, free=0)
    guest.end_peer()
    guests.expect_all_back(guest)


@case("pages in files that another process maps are in use until it ends, not only until QEMU does", VHOST_USER)
def held_by_a_file(live: Live, guests: Guests) -> None:
    expect_held(live, guests, Source.ANONYMOUS)


@case("pages of a memfd that another process maps are in use until it ends, not only until QEMU does", VHOST_USER)
def held_by_a_memfd(live: Live, guests: Guests) -> None:
    expect_held(live, guests, Source.MEMFD)


def expect_exchanged(live: Live, guests: Guests, source: Source) -> None:
    """Expect what virtiofsd puts into the memory of a guest, and what the guest does, to be there for the other."""
    needs(bool(guests.site.virtiofsd), "virtiofsd is not installed")
    guest = guests.new_with_pages(source=source, access=Access.SHARED, shares_files=True)
    guest.write_shared("of-host", _OF_HOST)
    guest.start_file_server()
    guest.boot()
    needs(guest.has_virtio_driver("virtiofs", "fuse"), "the guest's kernel has no virtiofs")
    guest.run(f"mkdir /files; mount -t virtiofs {TAG} /files")
    live.expect("what the guest reads", [md5_of_lines(_OF_HOST), "-"], guest.run("md5sum </files/of-host").split())
    guest.run(f"seq {_OF_GUEST} | head -c {_OF_GUEST} >/files/of-guest")
    live.expect("what virtiofsd has from the guest", md5_of_lines(_OF_GUEST), guest.shared_md5("of-guest"))
    guest.expect_all_taken()
    guest.destroy()
    # it ends when QEMU has hung up
    guests.await_free(guest.pages)
    guests.expect_all_back(guest)


@case("virtiofsd and a guest see in files what the other one writes into them", VIRTIOFS)
def files_through_a_file(live: Live, guests: Guests) -> None:
    expect_exchanged(live, guests, Source.ANONYMOUS)


@case("virtiofsd and a guest see in a memfd what the other one writes into it", VIRTIOFS)
def files_through_a_memfd(live: Live, guests: Guests) -> None:
    expect_exchanged(live, guests, Source.MEMFD)


class Shared(GuestTest):
    def test_qemu(self) -> None:
        self.run_area(QEMU)

    def test_libvirt(self) -> None:
        self.run_area(LIBVIRT)
