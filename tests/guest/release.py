"""However a guest ends, all its pages are back in the pool, and no file of it is left in hugetlbfs."""

import math
import os
import random
import re
import signal

from hugepage_qa.cases.case import Sizes
from hugepage_qa.cases.guest import guest_machine as drivers
from hugepage_qa.cases.guest.guest import Guest
from hugepage_qa.cases.guest.guests import GuestArea, Guests, guest_case, needs
from hugepage_qa.cases.guest.refusal import Meaning
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.run_settings import guest_cycles, random_seed
from hugepage_qa.plugins.guest_test import GuestTest
from hugepage_qa.qemu.guest.driver import State
from hugepage_qa.qemu.guest.numbered_lines import md5_of_lines
from hugepage_qa.sizes import MIB

QEMU, LIBVIRT = GuestArea("guest/release", drivers.QEMU), GuestArea("guest/release", drivers.LIBVIRT)
case = guest_case(QEMU, LIBVIRT)

RELEASE = "mm/hugetlb.c free_huge_folio(), hugetlb_unreserve_pages(); fs/hugetlbfs/inode.c hugetlbfs_evict_inode()"
DAEMON = f"{RELEASE}; libvirt.org/daemons.html"
DIRECT = f"{RELEASE}; QEMU block/file-posix.c, cache.direct=on; block/bio.c __bio_release_pages(); open(2) O_DIRECT"

#: bytes of a disk
_DISK = 8 * MIB
#: in the guest: a line for each time that it has read its disk
_READ = "/tmp/read"
#: QEMU starts and allocates its memory in the first tenths of a second, and boots its guest until the last of these
_KILLED_AFTER_SECONDS = (0.01, 3.0)


@case("a guest that powers off gives its pages back", RELEASE)
def power_off(_live: Live, guests: Guests) -> None:
    guest = guests.new_with_pages()
    guest.boot()
    guest.expect_all_taken()
    guest.power_off()
    guests.expect_all_back(guest)


@case("a guest whose kernel panics gives its pages back", RELEASE)
def panic(_live: Live, guests: Guests) -> None:
    guest = guests.new_with_pages()
    guest.boot()
    pid = guest.pid
    guest.panic()
    guest.await_end(pid)
    guests.expect_all_back(guest)


@case("a guest whose QEMU is killed gives its pages back, and starts again", RELEASE)
def killed(_live: Live, guests: Guests) -> None:
    guest = guests.new_with_pages()
    guest.start()
    guest.expect_all_taken()
    guest.kill()
    guests.expect_all_back(guest)
    guest.start()
    guest.expect_all_taken()


@case("QEMU killed at any moment of a start leaves no page and no file behind", RELEASE)
def killed_at_random_moments(_live: Live, guests: Guests) -> None:
    moments = random.Random(random_seed(os.environ))  # noqa: S311 - no secret
    guest = guests.new_with_pages()
    for _ in range(guest_cycles(os.environ)):
        guest.start_killed(round(math.exp(moments.uniform(*map(math.log, _KILLED_AFTER_SECONDS))), 3))
        guests.expect_all_back(guest)


@case("starting and destroying a guest again and again loses no page and leaves no file", RELEASE)
def cycles(live: Live, guests: Guests) -> None:
    guest = guests.new_with_pages()
    for _ in range(guest_cycles(os.environ)):
        guest.start()
        live.expect_pool(nr=guest.pages, free=0)
        guest.destroy()
        guests.expect_all_back(guest)
        guest.define()


@case(
    "guests that are destroyed while they read a disk past the page cache leave no page of theirs pinned",
    DIRECT,
    sizes=Sizes.DEFAULT,
)
def cycles_with_a_disk(live: Live, guests: Guests) -> None:
    guest = guests.new(has_disk=True)
    guest.write_disk(_DISK)
    live.reserve(guest.pages)
    guest.boot()
    needs(guest.has_virtio_driver("virtio_blk"), "the guest's kernel has no driver for disks of virtio")
    guest.run("mount -t devtmpfs none /dev")
    # in the background, as long as it lives
    guest.run(f"{{ while :; do echo 1 >/proc/sys/vm/drop_caches; md5sum </dev/vda >>{_READ}; done & }}")
    # one that has been booted costs seconds, one that goes on none
    saved = guest.save()
    for _ in range(guest_cycles(os.environ)):
        guests.expect_all_back(guest)
        guest.restore(saved)
        guest.resume()
        guest.expect_all_taken()
        live.expect("files that QEMU has open with O_DIRECT", 1, open_files_with_direct_io(live, guest))
        # the first of them may be half over
        read_twice = f"[ $(cat {_READ} 2>/dev/null | wc -l) -ge 2 ]"
        found = guest.run(f"rm -f {_READ}; until {read_twice}; do sleep 0.1; done; sort -u {_READ}")
        live.expect("what the guest reads", [md5_of_lines(_DISK), "-"], found.split())
        guest.destroy()
    guests.expect_all_back(guest)


def open_files_with_direct_io(live: Live, guest: Guest) -> int:
    """Return how many files the QEMU of a guest has open past the page cache."""
    directory = f"proc/{guest.pid}/fdinfo"
    told = [live.host.observe(f"{directory}/{name}") or "" for name in live.host.names(directory)]
    flags = [int(found[1], 8) for found in map(re.compile(r"^flags:\t(\d+)$", re.MULTILINE).search, told) if found]
    return sum(bool(one & live.host.uapi.o_direct) for one in flags)


@case("a saved guest gives its pages back, and is restored with them but not without", RELEASE)
def saved_and_restored(live: Live, guests: Guests) -> None:
    guest = guests.new_with_pages()
    guest.boot()
    guest.run("echo remembered >/tmp/note")
    saved = guest.save()
    guests.expect_all_back(guest)
    live.set_nr(guest.pages - 1)
    guests.expect_refused(Meaning.SHORT_OF_PAGES, guest.restore, saved)
    guest.expect_state(State.OFF)
    live.expect_pool(nr=guest.pages - 1, free=guest.pages - 1)
    live.reserve(guest.pages)
    guest.restore(saved)
    guest.expect_all_taken()
    guest.resume()
    live.expect("what the guest remembers", "remembered", guest.run("cat /tmp/note").strip())
    guest.destroy()
    guests.expect_all_back(guest)


def restarted(live: Live, guests: Guests, number: signal.Signals) -> None:
    """Expect a guest to outlive its daemon, which the signal ends, with its pages, and to give them back later."""
    guest = guests.new_with_pages()
    guest.start()
    pid = guest.pid
    guests.restart(number)
    live.expect("process id of its QEMU", pid, guest.pid)
    guest.expect_state(State.PAUSED)
    guest.expect_all_taken()
    guest.destroy()
    guests.expect_all_back(guest)


@guest_case(LIBVIRT)("a guest keeps its pages while its daemon is started again", DAEMON)
def daemon_restarted(live: Live, guests: Guests) -> None:
    restarted(live, guests, signal.SIGTERM)


@guest_case(LIBVIRT)("a guest keeps its pages when its daemon is killed", DAEMON)
def daemon_killed(live: Live, guests: Guests) -> None:
    restarted(live, guests, signal.SIGKILL)


@guest_case(LIBVIRT)("a guest that ends while no daemon runs is off, with all pages back, for the next one", RELEASE)
def killed_without_daemon(_live: Live, guests: Guests) -> None:
    guest = guests.new_with_pages()
    guest.start()
    pid = guest.pid
    guests.restart(signal.SIGKILL, killed=guest)
    # the daemon looks for it while it answers already
    guest.await_end(pid)
    guests.expect_all_back(guest)
    guest.start()
    guest.expect_all_taken()


@guest_case(LIBVIRT)("a daemon that is killed in the middle of starts loses no page", RELEASE)
def daemon_killed_in_a_start(_live: Live, guests: Guests) -> None:
    moments = random.Random(random_seed(os.environ))  # noqa: S311 - no secret
    guest = guests.new_with_pages()
    for _ in range(3):
        guest.start_interrupted(round(moments.uniform(0, 1), 3))
        guest.destroy()
        guests.expect_all_back(guest)
        guest.define()


class Release(GuestTest):
    def test_qemu(self) -> None:
        self.run_area(QEMU)

    def test_libvirt(self) -> None:
        self.run_area(LIBVIRT)
