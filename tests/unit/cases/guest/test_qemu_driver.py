"""An emulator that does not do what it should is an error with its own words, and nothing of it is left."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from hugepage_qa.errors import InputError
from hugepage_qa.qemu.guest import qemu_process
from hugepage_qa.qemu.guest.driver import GuestError, State
from hugepage_qa.qemu.guest.guest_site import Site
from hugepage_qa.qemu.guest.qemu_driver import QemuDriver
from hugepage_qa.qemu.installed_emulator import NotOffered

pytest.importorskip("qemu.qmp")


def driver(site: Site, tmp_path: Path, script: str) -> QemuDriver:
    emulator = tmp_path / "qemu"
    emulator.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    emulator.chmod(0o755)
    found = QemuDriver(replace(site, emulator=str(emulator), directory=str(tmp_path)))
    found.define("guest", json.dumps(["-name", "guest"]))
    return found


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo unable to map backing store for guest RAM: Cannot allocate memory >&2; exit 1", "unable to map"),
        ("exit 7", "QEMU ended with exit code 7"),
        ("kill -BUS $$", "QEMU ended with exit code -7"),
        ("printf 'two\\nlines\\n' >&2; exit 1", "two lines"),
    ],
)
def test_a_start_that_fails(site: Site, tmp_path: Path, script: str, said: str) -> None:
    guests = driver(site, tmp_path, script)
    with pytest.raises(GuestError) as caught:
        guests.start("guest", paused=True)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert guests.state("guest") is State.OFF
    with pytest.raises(GuestError, match="does not run"):
        guests.pid("guest")


def test_an_emulator_that_was_killed_tells_nothing_of_the_kernel(site: Site, tmp_path: Path) -> None:
    guests = driver(site, tmp_path, "kill -9 $$")
    with pytest.raises(InputError, match="QEMU of guest was killed"):
        guests.start("guest", paused=True)
    assert guests.state("guest") is State.OFF


def test_an_emulator_that_does_not_answer_in_time_tells_nothing_of_the_kernel(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(qemu_process, "_START_SECONDS", 0.1)
    guests = driver(site, tmp_path, "sleep 60")
    with pytest.raises(InputError, match="QEMU of guest does not answer"):
        guests.start("guest", paused=True)
    assert guests.state("guest") is State.OFF


def test_an_emulator_that_is_not_there(site: Site, tmp_path: Path) -> None:
    guests = QemuDriver(replace(site, emulator=str(tmp_path / "none"), directory=str(tmp_path)))
    guests.define("guest", "[]")
    with pytest.raises(GuestError, match="No such file"):
        guests.start("guest", paused=False)
    assert guests.state("guest") is State.OFF


def test_of_those_that_race_each_has_its_own_refusal(site: Site, tmp_path: Path) -> None:
    guests = driver(site, tmp_path, 'echo "$2 is short" >&2; exit 1')
    guests.define("other", json.dumps(["-name", "other"]))
    assert guests.race(["guest", "other"]) == ["guest is short", "other is short"]


def test_a_guest_that_nobody_started_is_off(site: Site, tmp_path: Path) -> None:
    guests = driver(site, tmp_path, "exit 1")
    assert guests.state("nobody") is State.OFF
    guests.destroy("nobody")
    guests.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes somebody else")
def test_a_user_without_privileges_reads_all_and_writes_his_own(site: Site, tmp_path: Path) -> None:
    secret, sockets = tmp_path / "secret", tmp_path / "sockets"
    secret.mkdir(mode=0o700)
    (secret / "kernel").write_text("kernel", encoding="utf-8")
    sockets.mkdir()
    guests = driver(
        site, sockets, f"id -u >&2; cat {secret}/kernel >&2; touch {sockets}/own || exit 2; touch {secret}/x; exit 1"
    )
    guests.run_as(65534)
    with pytest.raises(GuestError, match=r"65534 kernel.*Permission denied") as caught:
        guests.start("guest", paused=True)
    assert str(caught.value).count("Permission denied") == 1
    assert (sockets / "own").stat().st_uid == 65534
    guests.run_as(None)
    with pytest.raises(GuestError, match=r"^0 kernel$"):
        guests.start("guest", paused=True)
    assert sockets.stat().st_uid == 0


def test_a_control_group_is_entered_before_the_emulator_starts(site: Site, tmp_path: Path) -> None:
    guests = driver(site, tmp_path, f'cat "{tmp_path}/cgroup.procs" >&2; echo $$ >&2; exit 1')
    (tmp_path / "cgroup.procs").touch()
    guests.enter_group(str(tmp_path))
    with pytest.raises(GuestError) as caught:
        guests.start("guest", paused=True)
    written, itself = str(caught.value).split()
    assert written == itself


def test_nothing_is_started_that_the_emulator_has_not(site: Site, tmp_path: Path) -> None:
    guests = driver(site, tmp_path, f'[ "$2" = help ] || touch {tmp_path}/started\necho none; echo kvm')
    guests.define("guest", json.dumps(["-accel", "tcg"]))
    with pytest.raises(NotOffered, match="qemu has no -accel tcg: it has none, kvm"):
        guests.start("guest", paused=True)
    assert guests.state("guest") is State.OFF
    assert not (tmp_path / "started").exists()
