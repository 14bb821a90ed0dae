"""What becomes of a guest on huge pages while it lives: it keeps its pages, to the page, and what is in them."""

import signal

from hugepage_qa.cases.case import Sizes
from hugepage_qa.cases.guest import guest_machine as drivers
from hugepage_qa.cases.guest.guest import Guest
from hugepage_qa.cases.guest.guests import GuestArea, Guests, guest_case, needs
from hugepage_qa.cases.guest.refusal import Meaning
from hugepage_qa.cases.live import Live
from hugepage_qa.plugins.guest_test import GuestTest
from hugepage_qa.qemu.guest.driver import State
from hugepage_qa.qemu.guest.guest_description import OnCrash
from hugepage_qa.sizes import MIB

QEMU, LIBVIRT = GuestArea("guest/life", drivers.QEMU), GuestArea("guest/life", drivers.LIBVIRT)
case = guest_case(QEMU, LIBVIRT)

RESET = "QEMU docs/interop/qmp-spec system_reset; libvirt.org/formatdomain.html on_reboot"
CRASH = "QEMU docs/specs/pvpanic.rst, -action panic=; libvirt.org/formatdomain.html on_crash, panic"
SAVE = "libvirt.org/html/libvirt-libvirt-domain.html virDomainManagedSave; QEMU prealloc=on"
PAUSE = "QEMU stop, cont; libvirt.org/html/libvirt-libvirt-domain.html virDomainSuspend"
DAEMON = "libvirt.org/daemons.html; mm/hugetlb.c free_huge_folio()"

NO_PANIC_DEVICE = "the guest's kernel has no driver for the device that tells of a panic"

#: an emulated kernel unpacks itself for 5 s after a reset: QEMU throws away what it has translated, page by page
_RESETS = 10
#: what is in use when a guest is saved, in bytes
_SAVED = 32 * MIB


def booted(guests: Guests, *, reboots: bool = False, on_crash: OnCrash | None = None) -> Guest:
    """Return a booted guest that has all pages of the pool."""
    guest = guests.new_with_pages(reboots=reboots, on_crash=on_crash)
    guest.boot()
    guest.expect_all_taken()
    return guest


def come_up_again(live: Live, guests: Guests, resets: int) -> None:
    """Expect a guest to come up in its pages after ``resets`` resets, each other one by its own kernel."""
    guest = booted(guests, reboots=True)
    pid = guest.pid
    for number in range(resets):
        (guest.reboot if number % 2 else guest.reset)()
        guest.expect_all_taken()
    live.expect("process id of its QEMU", pid, guest.pid)
    guest.keep_busy()
    guest.expect_busy()
    guest.expect_all_taken()
    guest.destroy()
    guests.expect_all_back(guest)


@case("a guest that is reset, and reboots, has its pages again in the same QEMU, and works in them", RESET)
def reset_and_rebooted(live: Live, guests: Guests) -> None:
    come_up_again(live, guests, 2)


@guest_case(QEMU)("a guest that is reset ten times has its pages each time", RESET, sizes=Sizes.DEFAULT)
def reset_ten_times(live: Live, guests: Guests) -> None:
    come_up_again(live, guests, _RESETS)


@case("a busy guest that is paused keeps its pages, and goes on with what was in them", PAUSE)
def paused(_live: Live, guests: Guests) -> None:
    guest = booted(guests)
    guest.keep_busy()
    guest.pause()
    guest.expect_state(State.PAUSED)
    guest.expect_all_taken()
    guest.resume()
    guest.expect_state(State.RUNNING)
    guest.expect_busy()
    guest.expect_all_taken()


@guest_case(LIBVIRT)(
    "a busy guest that libvirt saves gives its pages back, stays saved while they are short, and goes on with them",
    SAVE,
)
def managed_save(live: Live, guests: Guests) -> None:
    guest = booted(guests)
    guest.keep_busy(_SAVED)
    guest.managed_save()
    guest.expect_state(State.SAVED)
    guests.expect_all_free(guest.pages)
    live.set_nr(guest.pages - 1)
    guests.expect_refused(Meaning.SHORT_OF_PAGES, guest.start)
    guest.expect_state(State.SAVED)
    live.expect_pool(nr=guest.pages - 1, free=guest.pages - 1)
    live.reserve(guest.pages)
    guest.start()
    guest.expect_state(State.PAUSED)
    guest.expect_all_taken()
    guest.resume()
    guest.expect_busy()
    guest.destroy()
    guests.expect_all_back(guest)


@case("a guest that panics and is to be destroyed gives its pages back", CRASH)
def destroyed_on_crash(_live: Live, guests: Guests) -> None:
    guest = booted(guests, on_crash=OnCrash.DESTROY)
    needs(guest.can_tell_of_panics(), NO_PANIC_DEVICE)
    pid = guest.pid
    guest.panic()
    guest.await_end(pid)
    guests.expect_all_back(guest)


@case("a guest that panics and is to be preserved keeps its pages until it is destroyed", CRASH)
def preserved_on_crash(_live: Live, guests: Guests) -> None:
    guest = booted(guests, on_crash=OnCrash.PRESERVE)
    needs(guest.can_tell_of_panics(), NO_PANIC_DEVICE)
    guest.panic()
    guest.await_state(State.PANICKED)
    guest.expect_state(State.PANICKED)
    guest.expect_all_taken()
    guest.destroy()
    guests.expect_all_back(guest)


@case("a guest that panics and is to be restarted boots again in the same pages", CRASH)
def restarted_on_crash(live: Live, guests: Guests) -> None:
    guest = booted(guests, on_crash=OnCrash.RESTART)
    needs(guest.can_tell_of_panics(), NO_PANIC_DEVICE)
    pid = guest.pid
    guest.panic()
    guest.await_next_shell()
    live.expect("process id of its QEMU", pid, guest.pid)
    guest.expect_state(State.RUNNING)
    guest.expect_all_taken()
    guest.destroy()
    guests.expect_all_back(guest)


@guest_case(LIBVIRT)("a busy guest goes on when its daemon is killed, and the next daemon finds it", DAEMON)
def daemon_killed(live: Live, guests: Guests) -> None:
    guest = booted(guests)
    guest.keep_busy()
    pid = guest.pid
    guests.restart(signal.SIGKILL)
    live.expect("process id of its QEMU", pid, guest.pid)
    guest.expect_state(State.RUNNING)
    guest.expect_all_taken()
    guest.expect_busy()
    guest.destroy()
    guests.expect_all_back(guest)


class Life(GuestTest):
    def test_qemu(self) -> None:
        self.run_area(QEMU)

    def test_libvirt(self) -> None:
        self.run_area(LIBVIRT)
