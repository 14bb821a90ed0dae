"""The guests of a case, each case registered for the drivers that it makes sense with and run for each page size."""

import signal
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.guest.guest import Guest
from hugepage_qa.cases.guest.guest_machine import AskedDriver
from hugepage_qa.cases.guest.guest_readings import hugetlbfs_files, hugetlbfs_mounts
from hugepage_qa.cases.guest.refusal import Meaning, find_meaning, refusal
from hugepage_qa.cases.judge import NOTHING_LEFT
from hugepage_qa.cases.live import Live
from hugepage_qa.errors import InputError
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.oracle.compare import Difference
from hugepage_qa.qemu.guest.driver import Driver, GuestError, State
from hugepage_qa.qemu.guest.guest_description import Cell, GuestDescription, whole_pages
from hugepage_qa.qemu.guest.guest_site import Site
from hugepage_qa.qemu.guest.libvirt_driver import LibvirtDriver
from hugepage_qa.qemu.guest.qemu_driver import QemuDriver
from hugepage_qa.sizes import MIB

#: what the tiny guest boots in, with room to spare
_MEMORY = 128 * MIB


class Guests:
    """The guests of one case under one driver; after the case they are ended, and nothing of them may be left."""

    def __init__(self, live: Live, driver: str) -> None:
        """Raises CannotRun where the machine has no such driver."""
        self.live = live
        self._driver = AskedDriver(live.host, driver)
        self._guests: list[Guest] = []
        # a driver that the same case starts later brings its own, and counts its files by itself
        self._mounts = hugetlbfs_mounts(live.host)
        self._files = self._files_now()
        live.when_actors_have_ended(self._end)

    @property
    def pages(self) -> int:
        """How many pages the guest of a case has, unless the case says otherwise."""
        return whole_pages(_MEMORY, self.live.size)

    def cell(self, least: int = 1) -> Cell:
        """Return the memory of the usual guest, or of ``least`` pages where it has fewer: of 1 GiB one is enough.

        A case that has some of its pages missing needs two.
        """
        return Cell(max(self.pages, least) * self.live.size, self.live.size)

    @property
    def site(self) -> Site:
        """What the guests are started with."""
        return self._driver.site

    def new(self, *cells: Cell, name: str = "guest", **options: Any) -> Guest:
        """Define a guest with ``cells``, by default the usual one. Raises GuestError."""
        description = GuestDescription(f"hugepage-qa-{name}", cells or (self.cell(),), **options)
        guest = Guest(self.live, self._driver, description)
        self._guests.append(guest)
        guest.define()
        return guest

    def new_with_pages(self, *cells: Cell, **options: Any) -> Guest:
        """Define a guest as ``new`` does, and have the pool have as many pages as it needs. Raises GuestError."""
        guest = self.new(*cells, **options)
        self.live.reserve(guest.pages)
        return guest

    def race(self, *guests: Guest) -> list[str]:
        """Start all at once, and return for each why it was refused, empty for one that runs. Raises InputError."""
        refusals = self._driver.ask(Driver.race, [guest.name for guest in guests])
        for why in map(refusal, refusals):
            if isinstance(why, InputError):
                raise why
        return refusals

    def enter_group(self, path: str | None) -> None:
        """Have guests that are started from now on in the control group ``path``; None has them out of it."""
        self._driver.ask(Driver.enter_group, path)

    def run_as(self, user: int | None) -> None:
        """Have guests that are started from now on be the processes of ``user``, None for ours (QEMU alone)."""
        self._driver.ask(QemuDriver.run_as, user)

    def give_mounts_to(self, user: int) -> None:
        """Have ``user`` own the hugetlbfs that guests have their memory in (QEMU alone)."""
        self._driver.ask(QemuDriver.give_mounts, user)

    def restart(self, number: signal.Signals, *, killed: Guest | None = None) -> None:
        """End the daemon with the signal ``number`` and start it again; ``killed`` loses its QEMU meanwhile."""
        self._driver.ask(LibvirtDriver.restart, int(number), killed.pid if killed else None)

    def unmount_pages(self, size: int) -> None:
        """Take each hugetlbfs of pages of ``size`` bytes from the daemon, which has to be started again to notice."""
        self._driver.ask(LibvirtDriver.unmount_pages, size)

    def mount_pages(self, size: int) -> str:
        """Mount a hugetlbfs of pages of ``size`` bytes where the daemon alone sees it, and return where."""
        return self._driver.ask(LibvirtDriver.mount_pages, size)

    def free_pages(self, size: int, node: int) -> int:
        """Return the free pages of a node as libvirt tells them."""
        return self._driver.ask(LibvirtDriver.free_pages, size, node)

    def allocate_pages(self, size: int, pages: int, node: int, *, add: bool) -> None:
        """Have libvirt set the pool of a node to ``pages``, or ``add`` as many."""
        self._driver.ask(LibvirtDriver.allocate_pages, size, pages, node, add)

    def add_page(self, size: int, node: int) -> None:
        """Have libvirt add a page to the pool of a node."""
        self.allocate_pages(size, 1, node, add=True)

    def allocate_pages_read_only(self, size: int, pages: int, node: int) -> None:
        """Ask libvirt to add pages to the pool of a node, as a client that may only read."""
        self._driver.ask(LibvirtDriver.allocate_pages_read_only, size, pages, node)

    def virsh(self, *words: str) -> str:
        """Return what the program virsh prints for ``words``."""
        return self._driver.ask(LibvirtDriver.virsh, [*words])

    def host_cells(self) -> Mapping[str, Mapping[str, Mapping[str, int]]]:
        """Return node -> ``pages``, ``distances`` and ``cpus``, as in libvirt's capabilities."""
        return self._driver.ask(LibvirtDriver.host_cells)

    def page_sizes(self) -> Mapping[str, Mapping[str, int]]:
        """Return node -> page size in KiB -> pages, as in libvirt's capabilities."""
        return self._driver.ask(LibvirtDriver.page_sizes)

    def expect_meaning(self, meaning: Meaning, message: str) -> None:
        """Expect ``message`` to mean this; a message with another meaning is shown."""
        self.live.expect(f"meaning of {message!r}", meaning, find_meaning(message))

    def expect_refused(self, meaning: Meaning, call: Callable[..., Any], *arguments: Any) -> None:
        """Expect ``call`` to be refused with a message of this ``meaning``, and no file to be left of it."""
        before = self._files_now()
        try:
            call(*arguments)
        except GuestError as error:
            self.expect_meaning(meaning, str(error))
        else:
            self.live.expect("the driver", f"a refusal: {meaning.value}", "success")
        self.live.expect("files in hugetlbfs", sorted(before), sorted(self._files_now()))

    def expect_refused_then_started(self, guest: Guest, free: int) -> None:
        """Expect a guest to be refused with ``free`` pages in the pool, and to start with all that it needs."""
        self.live.reserve(free)
        self.expect_refused(Meaning.SHORT_OF_PAGES, guest.start)
        guest.expect_state(State.OFF)
        self.live.expect_pool(nr=free, free=free)
        self.expect_started(guest)

    def expect_started(self, guest: Guest) -> None:
        """Expect a guest to start in a pool that has its pages and no others."""
        self.live.reserve(guest.pages)
        guest.start()
        guest.expect_state(State.PAUSED)
        guest.expect_all_taken()

    def expect_all_back(self, guest: Guest) -> None:
        """Expect a guest to be off, and the pool, which has the pages of this guest, and hugetlbfs to be as before."""
        guest.expect_state(State.OFF)
        self.expect_all_free(guest.pages)

    def expect_all_free(self, pages: int) -> None:
        """Expect all ``pages`` of the pool to be free, and the files in hugetlbfs to be as before."""
        self.live.expect_pool(nr=pages, free=pages)
        self.expect_files()

    def expect_rest_in_pool(self, guest: Guest, *, reserved: bool) -> int:
        """Expect each page of the pool, which has those of ``guest``, to be mapped by it or free, and none both.

        ``reserved`` tells whether the free ones have to be reserved for it. Returns how many are free.
        """
        self.await_free_or_mapped(guest)
        rest = guest.pages - guest.mapped
        self.live.expect_pool(nr=guest.pages, free=rest, resv=rest if reserved else 0)
        return rest

    def await_free(self, pages: int) -> None:
        """Wait for a while until the pool has ``pages`` free pages.

        QEMU tells that memory is unplugged before it frees it, which waits for all its threads (call_rcu()).
        """
        self.live.host.wait_until(lambda: self.live.pool().free == pages)

    def await_free_or_mapped(self, guest: Guest) -> None:
        """Wait for a while until each page of the pool is free, or mapped by ``guest``: none is being cleared."""

        def none_is_on_its_way() -> bool:
            pool = self.live.pool()
            return pool.nr == pool.free + guest.mapped

        self.live.host.wait_until(none_is_on_its_way)

    def expect_files(self) -> None:
        """Expect the files in hugetlbfs to be those that were there before the case."""
        found = self._files_now()
        self.live.expect("files in hugetlbfs", sorted(self._files), sorted(found))

    def _files_now(self) -> frozenset[str]:
        return hugetlbfs_files(self.live.host, self._mounts)

    def destroy_all(self) -> None:
        """End all of them, and let their driver forget them."""
        while self._guests:
            self._driver.ask(Driver.destroy, self._guests.pop().name)

    def _end(self) -> None:
        self.destroy_all()
        left = sorted(self._files_now() - self._files)
        if left:
            self.live.differences.append(Difference("files in hugetlbfs", NOTHING_LEFT, "none", ", ".join(left)))


#: what a case does with its guests: the second argument is what ``guest_case`` was told, else Guests
GuestAct = Callable[[Live, Any], None]
#: makes the guests of a case, under the driver of a name
Cast = Callable[[Live, str], object]


class GuestArea(Area):
    """The cases of one file with one of the drivers that ``machine`` names."""

    def __init__(self, name: str, driver: str, *, sizes: Sizes = Sizes.EACH) -> None:
        super().__init__(f"{name}/{driver}", sizes=sizes)
        self.driver = driver


def guest_case(*areas: GuestArea, cast: Cast = Guests) -> Callable[..., Callable[[GuestAct], GuestAct]]:
    """Return what makes functions cases of ``areas``; its arguments are those of ``Area.case``.

    They act on what ``cast`` makes.
    """

    def case(
        statement: str, source: str, *, sizes: Sizes | None = None, nodes: int = 1
    ) -> Callable[[GuestAct], GuestAct]:
        def register(act: GuestAct) -> GuestAct:
            for area in areas:
                area.case(statement, source, sizes=sizes, nodes=nodes)(with_guests(act, area.driver, cast))
            return act

        return register

    return case


def with_guests(act: GuestAct, driver: str, cast: Cast = Guests) -> Callable[[Live], None]:
    """Return what a case does that has guests under ``driver``; a refusal that it does not expect is a difference."""

    @wraps(act)
    def act_with_guests(live: Live) -> None:
        try:
            act(live, cast(live, driver))
        except GuestError as error:
            live.fail("the driver", "no refusal", str(error))

    return act_with_guests


#: why a case on NUMA nodes cannot run
NO_NODES = "this kernel has no NUMA nodes (CONFIG_NUMA)"


def needs(fact: bool, otherwise: str) -> None:
    """Raise CannotRun with the reason ``otherwise`` unless ``fact``."""
    if not fact:
        raise CannotRun(otherwise)
