"""Two drivers on this machine as two hosts between which guests migrate, and what has to be true at each step."""

import re
from dataclasses import dataclass

from hugepage_qa.cases.guest.guest import Guest
from hugepage_qa.cases.guest.guest_machine import ELSEWHERE, AskedDriver
from hugepage_qa.cases.guest.guests import Guests
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.pool_view import Counters
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.oracle.pool.pool_kernel import PoolKernel
from hugepage_qa.qemu.accelerator import TCG
from hugepage_qa.qemu.guest.driver import GuestError, State
from hugepage_qa.sizes import MIB, format_size

#: what a guest writes and checks while it is sent, in bytes: more than goes over in a second at first
_BUSY = 32 * MIB


#: what the busy program says of the first word that is wrong: its place, what was found and what was expected
_WRONG = re.compile(r"\d+ words are wrong, the first at (\w+): (\w+) instead of (\w+)")
#: of a word there (process/programs/busy_memory.c): bytes of a line, what its number is multiplied with, and where the
#: round begins
_LINE, _FACTOR, _ROUND, _WORD = 64, 0x9E3779B97F4A7C15, 40, (1 << 64) - 1


def is_of_earlier_round(found: str) -> bool:
    """Tell whether the first wrong word that a busy guest has ``found`` is one that it had written there before.

    A kernel that loses memory gives back zeros or what is of another place. One that keeps a copy too long gives back
    the same, so this tells nothing where the kernel has a part in it.
    """
    said = _WRONG.fullmatch(found)
    if said is None:
        return False
    offset, word, expected = (int(number, 0) for number in said.groups())
    place = offset // _LINE * _FACTOR & _WORD
    (rounds, unlike), (last, wrong) = (divmod(one ^ place, 1 << _ROUND) for one in (word, expected))
    return unlike == wrong == 0 and 0 < rounds < last


@dataclass(frozen=True)
class Look:
    """The pages that the target maps, and the pool before and after that was read."""

    mapped: int
    before: Counters
    after: Counters

    def is_of_one_moment(self, pages: int) -> bool:
        """Whether none of the target's ``pages`` was on its way: one is out of the pool before it is mapped."""
        return self.before == self.after and self.after.free + self.mapped == pages


class TwoHosts:
    """Guests ``here`` and guests ``there``: each driver has directories, a daemon and a hugetlbfs of its own.

    The pool is the machine's, so both take their pages from one. ``plugged`` are the pages that a guest has besides
    those that it was started with.
    """

    def __init__(self, live: Live, driver: str) -> None:
        """Raises CannotRun where the machine has no such driver."""
        names = (driver, ELSEWHERE[driver])
        for name in names:
            # its hugetlbfs has to be there before the other one's files are counted
            AskedDriver(live.host, name)
        self._live = live
        # before files are counted, where a case ends in the middle
        live.when_actors_have_ended(self._destroy_all)
        self.here, self.there = (Guests(live, name) for name in names)

    def boot_busy(self, guest: Guest) -> None:
        """Boot a guest, and have it write and check memory from now on."""
        guest.boot()
        guest.keep_busy(_BUSY)

    def expect_at_source(self, source: Guest, target: Guest, nr: int) -> None:
        """Expect a guest to go on where it was, and its ``target`` to have no page.

        The pool has ``nr`` pages.
        """
        target.expect_state(State.OFF)
        source.expect_state(State.RUNNING)
        self._live.expect_pool(nr=nr, free=nr - source.pages)
        source.expect_mapped()
        source.expect_busy()

    def expect_at_both(self, source: Guest, target: Guest, nr: int, plugged: int = 0) -> None:
        """Expect both to have all their pages, as they have while memory is on the way."""
        self._live.expect_pool(nr=nr, free=nr - source.pages - plugged - target.pages)
        source.expect_mapped(**self._pages(plugged))
        target.expect_mapped()
        source.expect_busy()

    def expect_at_target(self, source: Guest, target: Guest, nr: int, plugged: int = 0) -> None:
        """Expect a guest to go on as ``target``, and ``source`` to have no page."""
        source.expect_state(State.OFF)
        found = target.find_in_memory()
        # what is dirty is QEMU's own account under TCG, and no kernel's
        was_sent_too_early = self.there.site.accelerator == TCG and is_of_earlier_round(found)
        if not was_sent_too_early:
            target.expect_found_right(found)
        target.expect_state(State.RUNNING)
        self._live.expect_pool(nr=nr, free=nr - target.pages - plugged)
        target.expect_mapped(**self._pages(plugged))
        if was_sent_too_early:
            raise CannotRun("QEMU emulates this guest, and sent pages as they were before the guest wrote to them last")

    def expect_moved(self, source: Guest, target: Guest, nr: int) -> None:
        """End a migration, expect the guest to go on as ``target``, and all ``nr`` pages to be back when that ends."""
        source.finish_migration()
        self.expect_at_target(source, target, nr)
        target.destroy()
        self.expect_all_back(nr, source, target)

    def expect_each_page_once(self, source: Guest, target: Guest, nr: int) -> None:
        """Expect each page of the pool to be the source's, mapped by the target, or free and the target's to come.

        It is true at every moment of a post-copy, in which pages come to the target one by one. Raises CannotRun where
        that is over before it can be looked at: a source that has sent all is gone, under libvirt at once.
        """
        try:
            source.expect_mapped()
        except GuestError as error:
            # one that has failed tells so
            source.finish_migration()
            raise CannotRun("this machine is too slow to look at a migration while it runs") from error
        looks: list[Look] = []

        def is_still() -> bool:
            looks.append(self._look(target))
            return looks[-1].is_of_one_moment(nr - source.pages)

        self._live.host.wait_until(is_still)
        rest = nr - source.pages - looks[-1].mapped
        self._live.expect("free pages while memory follows", rest, looks[-1].after.free)
        restored = PoolKernel(self._live.kernel_version).unmapping_restores_reservation
        self._live.expect("of these, reserved", rest if restored else 0, looks[-1].after.resv)

    def expect_all_back(self, nr: int, *guests: Guest) -> None:
        """Expect ``guests`` to be off, all ``nr`` pages of the pool to be free, and files to be as before."""
        for guest in guests:
            guest.expect_state(State.OFF)
        self.here.expect_all_free(nr)

    def _destroy_all(self) -> None:
        for guests in (self.here, self.there):
            guests.destroy_all()

    def _pages(self, plugged: int) -> dict[str, int]:
        return {format_size(self._live.size): plugged} if plugged else {}

    def _look(self, target: Guest) -> Look:
        before = self._live.pool()
        return Look(target.mapped, before, self._live.pool())
