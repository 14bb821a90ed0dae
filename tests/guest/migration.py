"""Guests that migrate have their pages once when they have arrived, and where they were when they have not."""

from hugepage_qa.cases.guest import guest_machine as drivers
from hugepage_qa.cases.guest.guests import GuestArea, guest_case
from hugepage_qa.cases.guest.refusal import Meaning
from hugepage_qa.cases.guest.two_hosts import TwoHosts
from hugepage_qa.cases.live import Live
from hugepage_qa.kernel.uapi import NOBODY
from hugepage_qa.plugins.guest_test import GuestTest
from hugepage_qa.qemu.guest.guest_description import Cell

QEMU, LIBVIRT = GuestArea("guest/migration", drivers.QEMU), GuestArea("guest/migration", drivers.LIBVIRT)
case = guest_case(QEMU, LIBVIRT, cast=TwoHosts)
qemu_case = guest_case(QEMU, cast=TwoHosts)

MIGRATION = (
    "QEMU, Migration framework; libvirt.org/migration.html; mm/hugetlb.c hugetlb_acct_memory(), free_huge_folio()"
)
POSTCOPY = (
    "QEMU, Postcopy; Documentation/admin-guide/mm/userfaultfd.rst UFFDIO_COPY; mm/hugetlb.c hugetlb_mfill_atomic_pte()"
)
PERMISSION = "Documentation/admin-guide/sysctl/vm.rst unprivileged_userfaultfd; QEMU, Postcopy"


@case(
    "a host that is short of pages takes no guest, which goes on; one that has them takes it, page for page", MIGRATION
)
def moved(live: Live, hosts: TwoHosts) -> None:
    source, target = hosts.here.new(), hosts.there.new()
    nr = source.pages + target.pages
    live.reserve(nr - 1)
    source.boot()
    hosts.write_lines(source)
    hosts.there.expect_refused(Meaning.SHORT_OF_PAGES, source.begin_migration, target)
    hosts.expect_at_source(source, target, nr - 1)
    live.reserve(nr)
    source.begin_migration(target)
    hosts.expect_at_both(source, target, nr)
    source.finish_migration()
    hosts.expect_at_target(source, target, nr)
    target.destroy()
    hosts.expect_all_back(source, target)


@case(
    "a guest whose migration is cancelled, or whose target is killed, goes on, and the target holds no page", MIGRATION
)
def cancelled_and_lost(live: Live, hosts: TwoHosts) -> None:
    source, target = hosts.here.new(), hosts.there.new()
    nr = source.pages + target.pages
    live.reserve(nr)
    source.boot()
    hosts.write_lines(source)
    source.begin_migration(target)
    hosts.expect_at_both(source, target, nr)
    pid = target.pid
    source.cancel_migration()
    target.await_end(pid)
    hosts.expect_at_source(source, target, nr)
    source.begin_migration(target)
    hosts.expect_at_both(source, target, nr)
    target.kill()
    hosts.there.expect_refused(Meaning.TARGET_LOST, source.finish_migration)
    hosts.expect_at_source(source, target, nr)
    source.destroy()
    hosts.expect_all_back(source, target)


@qemu_case("a guest goes from huge pages to ordinary ones and back, and takes pages where they are huge", MIGRATION)
def to_ordinary_pages_and_back(live: Live, hosts: TwoHosts) -> None:
    huge = hosts.here.new()
    ordinary = hosts.there.new(Cell(huge.description.memory, None))
    live.reserve(huge.pages)
    huge.boot()
    hosts.write_lines(huge)
    for source, target in ((huge, ordinary), (ordinary, huge)):
        source.begin_migration(target)
        hosts.expect_at_both(source, target, huge.pages)
        source.finish_migration()
        hosts.expect_at_target(source, target, huge.pages)
    huge.destroy()
    hosts.expect_all_back(huge)


@case("post-copy places whole huge pages as the guest touches them; each page of the pool is somewhere once", POSTCOPY)
def postcopy(live: Live, hosts: TwoHosts) -> None:
    source, target = hosts.here.new(), hosts.there.new()
    nr = source.pages + target.pages
    live.reserve(nr)
    source.boot()
    hosts.write_lines(source)
    source.begin_migration(target, postcopy=True)
    hosts.expect_each_page_once(source, target, nr)
    source.start_postcopy()
    hosts.expect_lines(target)
    hosts.expect_each_page_once(source, target, nr)
    source.finish_migration()
    hosts.expect_at_target(source, target, nr)
    target.destroy()
    hosts.expect_all_back(source, target)


@qemu_case("post-copy is refused where the kernel gives QEMU no userfaultfd, and no page is lost", PERMISSION)
def postcopy_without_userfaultfd(live: Live, hosts: TwoHosts) -> None:
    live.set_knob("proc/sys/vm/unprivileged_userfaultfd", "0")
    source, target = hosts.here.new(), hosts.there.new()
    nr = source.pages + target.pages
    live.reserve(nr)
    source.start()
    hosts.there.run_as(NOBODY)
    hosts.there.give_mounts_to(NOBODY)
    try:
        hosts.there.expect_refused(Meaning.NO_USERFAULTFD, lambda: source.begin_migration(target, postcopy=True))
    finally:
        hosts.there.run_as(None)
        hosts.there.give_mounts_to(0)
    live.expect_pool(nr=nr, free=target.pages)
    source.expect_mapped()
    source.destroy()
    hosts.expect_all_back(source, target)


class Migration(GuestTest):
    """See main.fmf."""

    def test_qemu(self) -> None:
        self.run_area(QEMU)

    def test_libvirt(self) -> None:
        self.run_area(LIBVIRT)
