"""Two drivers on this machine as two hosts between which guests migrate, and what has to be true at each step."""

import hashlib
from dataclasses import dataclass
from functools import cache

from hugepage_qa.cases.guest.guest import Guest
from hugepage_qa.cases.guest.guest_machine import ELSEWHERE, AskedDriver
from hugepage_qa.cases.guest.guests import Guests
from hugepage_qa.cases.live import Live
from hugepage_qa.oracle.pool.pool_kernel import PoolKernel
from hugepage_qa.qemu.guest.driver import State

#: the lines that a guest writes are the numbers up to this one: no two pages have the same content
_LAST = 1_000_000
_FILE = "/tmp/lines"  # noqa: S108 - in the guest


@dataclass(frozen=True)
class _Look:
    """The pages that the target maps, and those that are free and reserved in the pool, at one moment."""

    mapped: int
    free: int
    reserved: int


class TwoHosts:
    """Guests ``here`` and guests ``there``: each driver has directories, a daemon and a hugetlbfs of its own.

    The pool is the machine's, so both take their pages from one.
    """

    def __init__(self, live: Live, driver: str) -> None:
        """Raises CannotRun where the machine has no such driver."""
        names = (driver, ELSEWHERE[driver])
        for name in names:
            # its hugetlbfs has to be there before the other one's files are counted
            AskedDriver(live.host, name)
        self._live = live
        self.here, self.there = (Guests(live, name) for name in names)

    def expect_at_source(self, source: Guest, target: Guest, nr: int) -> None:
        """Expect a guest to go on where it was, with its memory as it wrote it, and its ``target`` to have no page.

        The pool has ``nr`` pages.
        """
        target.expect_state(State.OFF)
        source.expect_state(State.RUNNING)
        self._live.expect_pool(nr=nr, free=nr - source.pages)
        source.expect_mapped()
        self.expect_lines(source)

    def expect_at_both(self, source: Guest, target: Guest, nr: int) -> None:
        """Expect both to have all their pages, as they have while memory is on the way."""
        self._live.expect_pool(nr=nr, free=nr - source.pages - target.pages)
        source.expect_mapped()
        target.expect_mapped()

    def expect_at_target(self, source: Guest, target: Guest, nr: int, **more: int) -> None:
        """Expect a guest to go on as ``target`` with the memory that it wrote, and ``source`` to have no page.

        ``more`` are pages of a size besides those that the target is started with.
        """
        source.expect_state(State.OFF)
        self.expect_lines(target)
        target.expect_state(State.RUNNING)
        self._live.expect_pool(nr=nr, free=nr - target.pages - sum(more.values()))
        target.expect_mapped(**more)

    def expect_each_page_once(self, source: Guest, target: Guest, nr: int) -> None:
        """Expect each page of the pool to be the source's, mapped by the target, or free and the target's to come.

        It is true at every moment of a post-copy, in which pages come to the target one by one.
        """
        source.expect_mapped()
        looks = [self._look(target)]

        def is_still() -> bool:
            looks.append(self._look(target))
            return looks[-1] == looks[-2] and looks[-1].free + looks[-1].mapped == nr - source.pages

        # a page is out of the pool before it is mapped
        self._live.host.wait_until(is_still)
        rest = nr - source.pages - looks[-1].mapped
        self._live.expect("free pages while memory follows", rest, looks[-1].free)
        restored = PoolKernel(self._live.kernel_version).unmapping_restores_reservation
        self._live.expect("of these, reserved", rest if restored else 0, looks[-1].reserved)

    def expect_all_back(self, *guests: Guest) -> None:
        """Expect ``guests`` to be off, and the pool, which has as many pages as they need, and files as before."""
        for guest in guests:
            guest.expect_state(State.OFF)
        pages = sum(guest.pages for guest in guests)
        self._live.expect_pool(nr=pages, free=pages)
        self.here.expect_files()

    def write_lines(self, guest: Guest) -> None:
        """Have a guest write some MiB into its memory, in which no two pages are alike."""
        guest.run(f"seq 1 {_LAST} >{_FILE}")

    def expect_lines(self, guest: Guest) -> None:
        """Expect what a guest has in its memory to be what it wrote, page for page."""
        found = guest.run(f"md5sum <{_FILE}").split()[0]
        self._live.expect(f"lines in the memory of {guest.name}", _md5_of_lines(), found)

    def _look(self, target: Guest) -> _Look:
        mapped, pool = target.mapped, self._live.pool()
        return _Look(mapped, pool.free, pool.resv)


@cache
def _md5_of_lines() -> str:
    lines = "".join(f"{number}\n" for number in range(1, _LAST + 1))
    return hashlib.md5(lines.encode(), usedforsecurity=False).hexdigest()
