"""Without QEMU or libvirt the cases are skipped with the reason, and those of the other driver are not."""

import errno
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.cases.recorded import recorded_cases
from tests.unit.cases.still_machine import StillMachine

from hugepage_qa.cases.guest import guest_machine
from hugepage_qa.cases.guest.guests import GuestArea, Guests, guest_case
from hugepage_qa.cases.judge import judge
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.result import Verdict
from hugepage_qa.errors import InputError
from hugepage_qa.machine.host import Host
from hugepage_qa.qemu.guest import libvirt_daemon
from hugepage_qa.qemu.guest.driver import GuestError
from hugepage_qa.qemu.guest.guest_site import NotHere, Site
from hugepage_qa.qemu.guest.libvirt_driver import LibvirtDriver
from hugepage_qa.qemu.guest.qemu_driver import QemuDriver
from hugepage_qa.qemu.installed_emulator import NotOffered
from hugepage_qa.sizes import MIB


def verdict(driver: str) -> tuple[Verdict, str]:
    area = GuestArea("guest/any", driver)

    @guest_case(area)("statement", "source")
    def any_case(_live: Live, guests: Guests) -> None:
        guests.new()

    with ExitStack() as stack:
        host = Host(guest_machine.GuestMachine(StillMachine(), Path("/nonexistent"), None, stack))
        judgement = judge(area, area.cases[0], host, 2 * MIB)
    assert judgement is not None
    return judgement.verdict, judgement.reason


def test_no_emulator(monkeypatch: pytest.MonkeyPatch) -> None:
    def default_site(*_arguments: object) -> None:
        raise NotHere("qemu-system-x86_64 is not installed")

    monkeypatch.setattr(guest_machine, "default_site", default_site)
    assert verdict("qemu") == (Verdict.SKIP, "qemu-system-x86_64 is not installed")


def test_an_emulator_that_has_not_what_a_guest_is_made_of(monkeypatch: pytest.MonkeyPatch, site: Site) -> None:
    def define(*_arguments: object) -> None:
        raise NotOffered("qemu-kvm has no -device virtio-mem-pci: it has others")

    driver = SimpleNamespace(site=lambda: asdict(site), destroy=lambda _name: None, define=define)
    monkeypatch.setattr(guest_machine.GuestMachine, "_start_qemu", lambda _machine: driver)
    assert verdict("qemu") == (Verdict.SKIP, "qemu-kvm has no -device virtio-mem-pci: it has others")


def test_no_binding_of_libvirt(monkeypatch: pytest.MonkeyPatch) -> None:
    def import_libvirt() -> None:
        raise NotHere("the Python package libvirt-python is not installed")

    monkeypatch.setattr(guest_machine, "import_libvirt", import_libvirt)
    assert verdict("libvirt") == (Verdict.SKIP, "the Python package libvirt-python is not installed")


def test_a_daemon_that_does_not_come_up_is_an_error_and_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says nothing of the kernel."""
    tried = []

    def import_libvirt() -> None:
        tried.append("once")
        raise GuestError("libvirtd does not answer: no such user")

    monkeypatch.setattr(guest_machine, "import_libvirt", import_libvirt)
    with ExitStack() as stack:
        machine = guest_machine.GuestMachine(StillMachine(), Path("/nonexistent"), None, stack)
        for _ in range(2):
            with pytest.raises(InputError, match="driver libvirt: libvirtd does not answer: no such user"):
                machine.perform("guest", ["libvirt", "site"])
    assert tried == ["once"]
    found, reason = verdict("libvirt")
    assert found is Verdict.ERROR
    assert "libvirtd does not answer" in reason


def test_what_breaks_around_a_guest_is_an_error_and_what_is_refused_a_failure(
    monkeypatch: pytest.MonkeyPatch, site: Site
) -> None:
    answers: dict[str, Any] = {"site": asdict(site), "destroy": None}

    def perform(name: str) -> Callable[..., Any]:
        def act(*_arguments: object) -> Any:
            if isinstance(answers.get(name), Exception):
                raise answers[name]
            return answers.get(name)

        return act

    driver = SimpleNamespace(**{name: perform(name) for name in ("site", "define", "destroy")})
    monkeypatch.setattr(guest_machine.GuestMachine, "_start_qemu", lambda _machine: driver)
    answers["define"] = OSError(errno.EMFILE, "Too many open files")
    assert verdict("qemu") == (
        Verdict.ERROR,
        "InputError: driver qemu: define: [Errno 24] Too many open files",
    )
    answers["define"] = GuestError("fork: Cannot allocate memory")
    assert verdict("qemu")[0] is Verdict.ERROR
    answers["define"] = InputError("QEMU of guest does not answer within 300 s")
    assert verdict("qemu")[0] is Verdict.ERROR
    answers["define"] = GuestError("unable to map backing store for guest RAM: Cannot allocate memory")
    found, reason = verdict("qemu")
    assert found is Verdict.FAIL
    assert "unable to map backing store" in reason


def test_what_was_asked_of_a_driver_in_a_record_is_a_method_of_it() -> None:
    asked = {
        (event["arguments"][0], event["arguments"][1], len(event["arguments"]) - 2)
        for recorded in recorded_cases(lambda area: isinstance(area, GuestArea))
        for event in recorded.events
        if event["operation"] == guest_machine.GUEST
    }
    assert {"start", "race", "restart", "receive", "send"} <= {method for _driver, method, _count in asked}
    for driver, method, count in asked:
        kind = QemuDriver if driver.startswith(guest_machine.QEMU) else LibvirtDriver
        signature(getattr(kind, method)).bind("self", *range(count))


def test_libvirt_without_its_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As Debian's packages of the daemon alone leave a machine."""
    monkeypatch.setattr(libvirt_daemon, "_PLACES", (str(tmp_path),))
    (tmp_path / "libvirtd").touch(mode=0o755)
    monkeypatch.setattr(libvirt_daemon, "CONFIGURATION", tmp_path / "etc" / "libvirt")
    with pytest.raises(NotHere, match="libvirt-clients"):
        libvirt_daemon.find_daemon()
