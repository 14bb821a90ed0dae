"""Guests of users without privileges: huge pages are theirs where a hugetlbfs or a memfd gives them some."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from hugepage_qa.cases.guest import guest_machine as drivers
from hugepage_qa.cases.guest.guest import Guest
from hugepage_qa.cases.guest.guests import GuestArea, Guests, guest_case
from hugepage_qa.cases.guest.refusal import Meaning
from hugepage_qa.cases.live import Live
from hugepage_qa.kernel.uapi import NOBODY
from hugepage_qa.plugins.guest_test import GuestTest
from hugepage_qa.qemu.guest.driver import State
from hugepage_qa.qemu.guest.guest_description import Access, Source

#: libvirt chooses users for a whole daemon
QEMU = GuestArea("guest/users", drivers.QEMU)
case = guest_case(QEMU)

MOUNT = "Documentation/admin-guide/mm/hugetlbpage.rst uid=, gid=, mode="
MEMFD = "memfd_create(2) MFD_HUGETLB; fs/hugetlbfs/inode.c hugetlb_file_setup(): only shmget(2) needs a privilege"

#: the overflow user, who owns nothing


@contextmanager
def without_privileges(guests: Guests) -> Iterator[Guest]:
    """Yield a guest that is started by a user who may write no file but sockets of his guests."""
    guests.run_as(NOBODY)
    try:
        yield guests.new(name="of-nobody")
    finally:
        guests.run_as(None)
        guests.give_mounts_to(0)


def expect_started_by_nobody(live: Live, guests: Guests, guest: Guest) -> None:
    """Expect a guest to start without privileges in a pool that has its pages, and all to be back when it is gone."""
    guests.expect_started(guest)
    status = live.host.read(f"proc/{guest.pid}/status") or ""
    users = re.findall(r"^Uid:\t(\d+)\t(\d+)\t(\d+)\t(\d+)$", status, re.MULTILINE)
    live.expect("users of QEMU (real, effective, saved, of files)", [(str(NOBODY),) * 4], users)
    guest.destroy()
    guests.expect_all_back(guest)


@case("a guest of a user without privileges takes exactly its pages from a hugetlbfs that is his", MOUNT)
def in_a_mount_of_his(live: Live, guests: Guests) -> None:
    with without_privileges(guests) as guest:
        guests.give_mounts_to(NOBODY)
        expect_started_by_nobody(live, guests, guest)


@case("a guest is refused in a hugetlbfs that its user may not write, and starts in it when he may", MOUNT)
def in_a_mount_of_others(live: Live, guests: Guests) -> None:
    with without_privileges(guests) as guest:
        live.reserve(guest.pages)
        guests.expect_refused(Meaning.NOT_PERMITTED, guest.start)
        guest.expect_state(State.OFF)
        live.expect_pool(nr=guest.pages, free=guest.pages)
        guests.give_mounts_to(NOBODY)
        expect_started_by_nobody(live, guests, guest)


@case("a guest of a user without privileges takes exactly its pages as a memfd, with no mount of his", MEMFD)
def as_a_memfd(live: Live, guests: Guests) -> None:
    with without_privileges(guests):
        guest = guests.new(name="of-nobody-in-memfd", source=Source.MEMFD, access=Access.SHARED)
        expect_started_by_nobody(live, guests, guest)


class Users(GuestTest):
    def test_qemu(self) -> None:
        self.run_area(QEMU)
