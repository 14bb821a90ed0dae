"""The hugetlbfs that libvirt puts guests into: which one that is, and whose is what it makes there."""

import signal

from hugepage_qa.cases.case import Sizes
from hugepage_qa.cases.guest import guest_machine as drivers
from hugepage_qa.cases.guest.guests import GuestArea, Guests, guest_case, needs
from hugepage_qa.cases.guest.refusal import Meaning
from hugepage_qa.cases.live import Live
from hugepage_qa.kernel.uapi import AT_FDCWD, NOBODY
from hugepage_qa.plugins.guest_test import GuestTest
from hugepage_qa.process.actor import Actor
from hugepage_qa.qemu.guest.driver import State
from hugepage_qa.qemu.guest.guest_description import Cell, whole_pages
from hugepage_qa.sizes import format_size

LIBVIRT = GuestArea("guest/hugetlbfs-mounts", drivers.LIBVIRT, sizes=Sizes.DEFAULT)
case = guest_case(LIBVIRT)

MOUNTS = "libvirt src/qemu/qemu.conf.in hugetlbfs_mount; src/qemu/qemu_conf.c qemuGetDomainHugepagePath()"
OWNERS = (
    "libvirt src/qemu/qemu.conf.in user, dynamic_ownership;"
    " src/qemu/qemu_process.c qemuProcessBuildDestroyMemoryPaths()"
)
LATER = f"{MOUNTS}; src/util/virfile.c virFileFindHugeTLBFS()"

# struct statx of include/uapi/linux/stat.h, the same on all architectures
_STATX_MODE_AND_OWNER, _STATX_SIZE, _OWNER_AT, _MODE_AT = 0x1A, 256, 20, 28
_PERMISSIONS = 0o7777


def owner_and_mode(actor: Actor, path: str) -> tuple[int, int, str]:
    """Return the user and the group that own ``path``, and its permissions in octal. Raises OSError."""
    words = AT_FDCWD, path, 0, _STATX_MODE_AND_OWNER, bytes(_STATX_SIZE)
    _zero, (*_path, status) = actor.call_with_buffers("statx", *words)
    user, group = actor.uapi.unpack("II", status[_OWNER_AT : _OWNER_AT + 8])
    [mode] = actor.uapi.unpack("H", status[_MODE_AT : _MODE_AT + 2])
    return user, group, oct(mode & _PERMISSIONS)


def directories_of_guests(live: Live, point: str) -> list[str]:
    """Return the directories of running guests in the mount ``point``."""
    return live.host.names(f"{point}/libvirt/qemu".lstrip("/"))


@case("a guest is in the hugetlbfs that qemu.conf names, whatever else is mounted while it runs", MOUNTS)
def where_qemu_conf_says(live: Live, guests: Guests) -> None:
    guest, other = guests.new(), guests.new(name="other")
    live.reserve(guest.pages + other.pages)
    guest.start()
    named = guests.site.mounts[live.size]
    guest.expect_in(named)
    mounted_later = live.mount()
    live.expect_pool(nr=guest.pages + other.pages, free=other.pages)
    guest.expect_mapped()
    other.start()
    other.expect_in(named)
    live.expect("what is in the other mount", [], live.host.names(mounted_later.lstrip("/")))
    live.expect_pool(nr=guest.pages + other.pages, free=0)
    live.unmount(mounted_later)
    guest.destroy()
    live.expect_pool(nr=guest.pages + other.pages, free=guest.pages)
    other.expect_mapped()


@case(
    "a hugetlbfs of another page size that is mounted while a guest runs is used once the daemon was started again",
    LATER,
)
def mounted_later(live: Live, configured: Guests) -> None:
    sizes = [size for size in live.sizes if size != live.size]
    needs(bool(sizes), f"this machine has pages of {format_size(live.size)} alone")
    guests, other = Guests(live, drivers.LIBVIRT_LOOKING_FOR_MOUNTS), live.of_size(sizes[0])
    pages = whole_pages(configured.pages * live.size, other.size)
    guest = guests.new(Cell(configured.pages * live.size, live.size))
    of_other = guests.new(Cell(pages * other.size, other.size), name="of-another-size")
    live.reserve(guest.pages)
    other.reserve(pages)
    guests.unmount_pages(other.size)
    guests.restart(signal.SIGTERM)
    guest.start()
    guest.expect_in(guests.site.mounts[live.size])
    guests.expect_refused(Meaning.NO_SUCH_SIZE, of_other.start)
    point = guests.mount_pages(other.size)
    guests.restart(signal.SIGTERM)
    guest.expect_state(State.PAUSED)
    of_other.start()
    of_other.expect_in(point)
    of_other.expect_mapped()
    guest.expect_mapped()
    live.expect_pool(nr=guest.pages, free=0)
    other.expect_pool(nr=pages, free=0)
    of_other.destroy()
    other.expect_pool(nr=pages, free=pages)
    guest.destroy()
    live.expect_pool(nr=guest.pages, free=guest.pages)


@case("what libvirt makes for a guest in a mount is its user's alone, and goes with the guest", OWNERS)
def owners(live: Live, configured: Guests) -> None:
    guests = Guests(live, drivers.LIBVIRT_OF_NOBODY)
    guest = guests.new(Cell(configured.pages * live.size, live.size), name="of-nobody")
    point, kernel = guests.site.mounts[live.size], guests.site.kernel
    actor = live.actor()
    live.reserve(guest.pages)
    for _ in range(2):
        guest.start()
        guest.expect_all_taken()
        for directory in (f"{point}/libvirt", f"{point}/libvirt/qemu"):
            # its group is that of whoever starts the daemon
            user, _group, mode = owner_and_mode(actor, directory)
            live.expect("owner and mode of a directory for all guests", (0, "0o755"), (user, mode))
        [own] = directories_of_guests(live, point)
        found = owner_and_mode(actor, f"{point}/libvirt/qemu/{own}")
        live.expect("owner and mode of the directory of the guest", (NOBODY, NOBODY, "0o700"), found)
        live.expect("owner of its kernel", NOBODY, owner_and_mode(actor, kernel)[0])
        guest.destroy()
        live.expect("owner of its kernel when it has ended", 0, owner_and_mode(actor, kernel)[0])
        live.expect("directories of guests", [], directories_of_guests(live, point))
        live.expect_pool(nr=guest.pages, free=guest.pages)
        guest.define()


class Mounts(GuestTest):
    def test_libvirt(self) -> None:
        self.run_area(LIBVIRT)
