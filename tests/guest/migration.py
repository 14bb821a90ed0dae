"""Guests that migrate have their pages once when they have arrived, and where they were when they have not."""

from hugepage_qa.cases.case import Sizes
from hugepage_qa.cases.fragmentation import compact_if_short, expect_no_shortage
from hugepage_qa.cases.guest import guest_machine as drivers
from hugepage_qa.cases.guest.guest import Guest
from hugepage_qa.cases.guest.guests import GuestArea, guest_case, needs
from hugepage_qa.cases.guest.refusal import Meaning
from hugepage_qa.cases.guest.two_hosts import TwoHosts
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.cases.thp_policy import set_policy
from hugepage_qa.kernel.uapi import NOBODY
from hugepage_qa.plugins.guest_test import GuestTest
from hugepage_qa.qemu.guest.driver import State
from hugepage_qa.qemu.guest.guest_description import Cell, DeviceKind, MemoryDevice, whole_pages
from hugepage_qa.sizes import MIB, format_size

QEMU, LIBVIRT = GuestArea("guest/migration", drivers.QEMU), GuestArea("guest/migration", drivers.LIBVIRT)
case = guest_case(QEMU, LIBVIRT, cast=TwoHosts)
qemu_case = guest_case(QEMU, cast=TwoHosts)

MIGRATION = (
    "QEMU docs/devel/migration; libvirt.org/migration.html; mm/hugetlb.c hugetlb_acct_memory(), free_huge_folio()"
)
POSTCOPY = (
    "QEMU docs/devel/migration, Postcopy; Documentation/admin-guide/mm/userfaultfd.rst UFFDIO_COPY;"
    " mm/hugetlb.c hugetlb_mfill_atomic_pte(), __unmap_hugepage_range() (df7a6d1f6405)"
)
PERMISSION = "Documentation/admin-guide/sysctl/vm.rst unprivileged_userfaultfd; QEMU docs/devel/migration, Postcopy"
VIRTIO_MEM = "QEMU hw/virtio/virtio-mem.c: what is unplugged is not sent; docs/devel/migration"
THP = "Documentation/admin-guide/mm/transhuge.rst enabled; QEMU docs/devel/migration"
TO_ORDINARY = "a guest goes from huge pages to ordinary ones and back, and takes pages where they are huge"

#: what a kernel boots in that prepares for memory above 4 GiB
_MEMORY = 256 * MIB
#: the least that Linux takes on x86 and arm64 at once: a memory block, or a section
_BLOCK = 128 * MIB
#: what libvirt is told of memory that is in no file; it is what it takes anyway
_ANONYMOUS = '<source type="anonymous" />'
#: in the guest
_ONLINE = "/sys/devices/system/memory/auto_online_blocks"


@case(
    "a host that is short of pages takes no guest, which goes on; one that has them takes it, page for page", MIGRATION
)
def moved(live: Live, hosts: TwoHosts) -> None:
    source, target = hosts.here.new(), hosts.there.new()
    nr = source.pages + target.pages
    live.reserve(nr - 1)
    hosts.boot_busy(source)
    hosts.there.expect_refused(Meaning.SHORT_OF_PAGES, source.begin_migration, target)
    hosts.expect_at_source(source, target, nr - 1)
    live.reserve(nr)
    source.begin_migration(target)
    hosts.expect_at_both(source, target, nr)
    hosts.expect_moved(source, target, nr)


@case(
    "a guest whose migration is cancelled, or whose target is killed, goes on, and the target holds no page", MIGRATION
)
def cancelled_and_lost(live: Live, hosts: TwoHosts) -> None:
    source, target = hosts.here.new(), hosts.there.new()
    nr = source.pages + target.pages
    live.reserve(nr)
    hosts.boot_busy(source)
    source.begin_migration(target)
    hosts.expect_at_both(source, target, nr)
    pid = target.pid
    source.cancel_migration()
    target.await_end(pid)
    hosts.expect_at_source(source, target, nr)
    source.begin_migration(target)
    hosts.expect_at_both(source, target, nr)
    target.kill()
    hosts.there.expect_refused(Meaning.QEMU_LOST, source.finish_migration)
    hosts.expect_at_source(source, target, nr)
    source.destroy()
    hosts.expect_all_back(nr, source, target)


# what a larger page changes is QEMU's and the kernel's, and libvirt does the same with each
@guest_case(LIBVIRT, cast=TwoHosts)(TO_ORDINARY, MIGRATION, sizes=Sizes.DEFAULT)
@qemu_case(TO_ORDINARY, MIGRATION)
def to_ordinary_pages_and_back(live: Live, hosts: TwoHosts) -> None:
    huge = hosts.here.new()
    ordinary = hosts.there.new(Cell(huge.description.memory, None))
    live.reserve(huge.pages)
    hosts.boot_busy(huge)
    for source, target in ((huge, ordinary), (ordinary, huge)):
        # with huge pages libvirt takes none, and it wants both sides to say the same
        source.begin_migration(target, definition=target.definition.replace(_ANONYMOUS, ""))
        hosts.expect_at_both(source, target, huge.pages)
        source.finish_migration()
        hosts.expect_at_target(source, target, huge.pages)
    huge.destroy()
    hosts.expect_all_back(huge.pages, huge, ordinary)


@case("post-copy places whole huge pages as the guest touches them; each page of the pool is somewhere once", POSTCOPY)
def postcopy(live: Live, hosts: TwoHosts) -> None:
    source, target = hosts.here.new(), hosts.there.new()
    nr = source.pages + target.pages
    live.reserve(nr)
    hosts.boot_busy(source)
    source.begin_migration(target, postcopy=True)
    hosts.expect_each_page_once(source, target, nr)
    # while its shell and its program take turns QEMU that emulates sees all that it writes (tlb_set_dirty()): with
    # little to send it would be there before its CPUs are moved
    source.expect_busy()
    source.start_postcopy()
    hosts.expect_each_page_once(source, target, nr)
    if not live.is_gigantic:
        # a page of 1 GiB would be on its way for minutes
        target.expect_busy()
    hosts.expect_moved(source, target, nr)


@qemu_case(
    "post-copy is refused where the kernel gives QEMU no userfaultfd, and no page is lost",
    PERMISSION,
    sizes=Sizes.BUDDY,
)
def postcopy_without_userfaultfd(live: Live, hosts: TwoHosts) -> None:
    live.set_knob("proc/sys/vm/unprivileged_userfaultfd", "0")
    # what others of the name left in the directory is not this user's
    source, target = hosts.here.new(), hosts.there.new(name="of-nobody")
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
    hosts.expect_all_back(nr, source, target)


def with_device(live: Live, hosts: TwoHosts, device: MemoryDevice, plugged: int) -> tuple[Guest, Guest]:
    """Return a booted guest and its target, which is started with the device.

    The pool has the pages of both, and ``plugged`` pages for the device of each.
    """
    cell = Cell(max(hosts.here.pages * live.size, _MEMORY), live.size)
    # the device is aligned to its pages
    room = cell.memory + 3 * device.memory
    source = hosts.here.new(cell, max_memory=room)
    target = hosts.there.new(cell, max_memory=room, devices=(device,))
    live.reserve(2 * (source.pages + plugged))
    source.boot()
    # what is not movable would not go there first
    source.run(f"[ ! -e {_ONLINE} ] || echo online_movable >{_ONLINE}")
    return source, target


@case(
    "a guest with virtio-mem has at its target the pages of what it uses of the device, no more and no less",
    VIRTIO_MEM,
    sizes=Sizes.BUDDY,
)
def with_virtio_mem(live: Live, hosts: TwoHosts) -> None:
    needs(hosts.here.site.architecture in ("x86_64", "aarch64"), "QEMU has virtio-mem on x86_64 and aarch64 alone")
    memory = max(2 * live.size, _BLOCK)
    device = MemoryDevice("virtio0", DeviceKind.VIRTIO_MEM, memory, live.size, requested=memory // 2)
    plugged = whole_pages(device.requested, live.size)
    source, target = with_device(live, hosts, device, plugged)
    nr = 2 * (source.pages + plugged)
    needs(source.has_virtio_driver("virtio_mem"), "the guest's kernel has no driver for virtio-mem")
    source.attach(device)
    source.await_mapped(source.pages + plugged)
    live.expect_pool(nr=nr, free=nr - source.pages - plugged)
    source.keep_busy(_BLOCK // 4)
    source.begin_migration(target, definition=source.definition_as(target))
    source.expect_mapped(**{format_size(live.size): plugged})
    source.finish_migration()
    hosts.expect_at_target(source, target, nr, plugged)
    whole = whole_pages(memory, live.size)
    hosts.there.expect_refused(Meaning.MORE_THAN_THE_DEVICE, target.request, device, memory + live.size)
    target.request(device, memory)
    target.await_mapped(target.pages + whole)
    live.expect_pool(nr=nr, free=nr - target.pages - whole)
    target.expect_mapped(**{format_size(live.size): whole})
    target.destroy()
    hosts.expect_all_back(nr, source, target)


@case("a guest that is busy in transparent huge pages is migrated with what it writes", THP, sizes=Sizes.ONCE)
def in_transparent_pages(live: Live, hosts: TwoHosts) -> None:
    needs(live.host.read("sys/kernel/mm/transparent_hugepage/enabled") is not None, "this kernel has no THP")
    size = pmd_size(live)
    needs(8 * size <= _MEMORY, f"a huge page of {format_size(size)} is too large for a guest of {format_size(_MEMORY)}")
    set_policy(live, "always")
    compact_if_short(live, size, 2 * _MEMORY // size)
    expect_no_shortage(live, size, 2 * _MEMORY // size)
    source, target = hosts.here.new(Cell(_MEMORY, None)), hosts.there.new(Cell(_MEMORY, None))
    hosts.boot_busy(source)
    source.expect_transparent_pages()
    source.begin_migration(target)
    source.expect_busy()
    source.finish_migration()
    source.expect_state(State.OFF)
    target.expect_busy()
    target.expect_mapped()


class Migration(GuestTest):
    def test_qemu(self) -> None:
        self.run_area(QEMU)

    def test_libvirt(self) -> None:
        self.run_area(LIBVIRT)
