"""Guests that go on where others have booted, all that see the same from one file, or boot by themselves."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from hugepage_qa.qemu.guest.booted_states import BootedStates
from hugepage_qa.qemu.guest.driver import Driver, GuestError
from hugepage_qa.qemu.guest.guest_description import (
    Access,
    Allocation,
    Cell,
    DeviceKind,
    GuestDescription,
    MemoryDevice,
    OnCrash,
)
from hugepage_qa.qemu.guest.guest_site import Site
from hugepage_qa.sizes import GIB, MIB

USUAL = GuestDescription("guest", (Cell(128 * MIB, 2 * MIB),))


class Doing:
    """What a driver does to boot guests; it may refuse."""

    _boot = Driver._boot

    def __init__(
        self,
        booted: BootedStates | None,
        *,
        saves: Exception | None = None,
        goes_on: Exception | None = None,
        starts: Exception | None = None,
    ) -> None:
        self._booted = booted
        self._saves, self._goes_on, self._starts = saves, goes_on, starts
        self.done: list[str] = []

    def boot(self) -> int:
        return Driver.boot(cast(Driver, self), "guest", "seen", 1)

    def start(self, _name: str, _paused: bool) -> None:
        self.done.append("start")
        if self._starts:
            raise self._starts

    def await_output(self, _name: str, _pattern: str, _seconds: float) -> None:
        self.done.append("await")

    def save(self, _name: str, path: str) -> None:
        self.done.append("save")
        if self._saves:
            raise self._saves
        Path(path).write_text("memory", encoding="ascii")

    def go_on(self, _name: str, path: str) -> None:
        self.done.append("go on")
        if self._goes_on:
            raise self._goes_on
        assert Path(path).read_text(encoding="ascii") == "memory"

    def end(self, _name: str) -> None:
        self.done.append("end")

    def resume(self, _name: str) -> None:
        self.done.append("resume")


@pytest.fixture
def files(tmp_path: Path, site: Site) -> Site:
    for name in ("qemu", "kernel", "initramfs"):
        (tmp_path / name).write_text(name, encoding="ascii")
    return replace(site, emulator=f"{tmp_path}/qemu", kernel=f"{tmp_path}/kernel", initramfs=f"{tmp_path}/initramfs")


@pytest.fixture
def states(tmp_path: Path, files: Site) -> BootedStates:
    return BootedStates(tmp_path / "booted", "qemu", files)


def test_one_boots_and_those_after_it_go_on(states: BootedStates) -> None:
    first, second = Doing(states), Doing(states)
    assert (first.boot(), second.boot()) == (0, 0)
    assert first.done == ["start", "await", "save", "go on", "resume"]
    assert second.done == ["go on", "resume"]


def test_without_a_place_for_states_each_boots() -> None:
    doing = Doing(None)
    assert doing.boot() == 1
    assert doing.done == ["start", "await"]


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), GuestError("migration failed: Unable to write to socket")]
)
def test_what_cannot_be_saved_is_nothing_that_a_guest_is_judged_by(states: BootedStates, error: Exception) -> None:
    doing = Doing(states, saves=error)
    assert doing.boot() == 1
    assert doing.done == ["start", "await", "save", "end", "start", "await"]
    assert states.find("seen") is None


def test_a_state_that_cannot_be_read_is_dropped(states: BootedStates) -> None:
    Doing(states).boot()
    doing = Doing(states, goes_on=GuestError("qemu-system-x86_64: load of migration failed: Invalid argument"))
    assert doing.boot() == 1
    assert states.find("seen") is None


def test_a_guest_that_is_refused_its_pages_is_refused_at_its_boot(states: BootedStates) -> None:
    Doing(states).boot()
    short = GuestError("unable to map backing store for guest RAM: Cannot allocate memory")
    doing = Doing(states, goes_on=short, starts=short)
    with pytest.raises(GuestError, match="Cannot allocate memory"):
        doing.boot()
    assert doing.done == ["go on", "end", "start"]


@pytest.mark.parametrize(
    "other",
    [
        lambda site: replace(site, cpu="host"),
        lambda site: replace(site, words="quiet"),
        lambda site: _written(site, site.kernel),
        lambda site: _written(site, site.emulator),
    ],
)
def test_another_machine_has_other_states(
    states: BootedStates, tmp_path: Path, files: Site, other: Callable[[Site], Site]
) -> None:
    Doing(states).boot()
    assert BootedStates(tmp_path / "booted", "qemu", files).find("seen") is not None
    assert BootedStates(tmp_path / "booted", "libvirt", files).find("seen") is None
    assert BootedStates(tmp_path / "booted", "qemu", other(files)).find("seen") is None


def _written(site: Site, file: str) -> Site:
    Path(file).write_text("another one", encoding="ascii")
    return site


def test_those_that_nobody_needs_go(states: BootedStates, tmp_path: Path) -> None:
    for number in range(60):
        with states.new(str(number)) as path:
            path.write_text("memory", encoding="ascii")
        found = states.find(str(number))
        assert found is not None
        os.utime(found, (number, number))
        states.find("0")
    assert len(list((tmp_path / "booted").iterdir())) == 48
    assert states.find("0") is not None
    assert states.find("1") is None
    assert states.find("59") is not None


def test_what_lies_under_a_guest_it_does_not_see() -> None:
    of_gib = replace(USUAL, cells=(Cell(128 * MIB, GIB),))
    for alike in (of_gib, replace(USUAL, access=Access.SHARED), replace(USUAL, reboots=True)):
        assert alike.seen_inside == USUAL.seen_inside
    destroyed, preserved = (replace(USUAL, on_crash=reaction) for reaction in (OnCrash.DESTROY, OnCrash.PRESERVE))
    assert destroyed.seen_inside == preserved.seen_inside != USUAL.seen_inside
    seen = {
        one.seen_inside
        for one in (
            USUAL,
            replace(USUAL, cells=(Cell(256 * MIB, 2 * MIB),)),
            replace(USUAL, cells=(Cell(64 * MIB, 2 * MIB),) * 2),
            replace(USUAL, max_memory=GIB),
            replace(USUAL, balloon=True),
            replace(USUAL, balloon=True, reports_free_pages=True),
            replace(USUAL, words="hugepages=1"),
            replace(USUAL, name="other"),
        )
    }
    assert len(seen) == 8


@pytest.mark.parametrize(
    "by_itself",
    [
        replace(USUAL, cells=(Cell(128 * MIB, None),)),
        replace(USUAL, allocation=Allocation.ON_DEMAND),
        replace(USUAL, access=Access.SHARED, has_peer=True),
        replace(USUAL, access=Access.SHARED, shares_files=True),
        replace(USUAL, has_disk=True),
        replace(USUAL, max_memory=GIB, devices=(MemoryDevice("dimm0", DeviceKind.DIMM, 128 * MIB, 2 * MIB),)),
    ],
)
def test_a_guest_that_has_more_to_do_at_its_boot_boots_by_itself(by_itself: GuestDescription) -> None:
    assert by_itself.seen_inside is None
