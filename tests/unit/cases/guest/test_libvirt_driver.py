"""What libvirt's binding answers, as the driver hands it on; the binding is a fake."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hugepage_qa.errors import InputError
from hugepage_qa.qemu.guest.driver import GuestError, State
from hugepage_qa.qemu.guest.guest_site import NotHere, Site
from hugepage_qa.qemu.guest.libvirt_daemon import PrivateDaemon
from hugepage_qa.qemu.guest.libvirt_driver import LibvirtDriver

#: the domain of errors on the way to the daemon
RPC = 7


class LibvirtError(Exception):
    def __init__(self, message: str, code: int = 1, domain: int = 10) -> None:
        super().__init__(message)
        self.code, self.domain = code, domain

    def get_error_domain(self) -> int:
        return self.domain

    def get_error_code(self) -> int:
        return self.code


class Domain:
    """A domain whose start fails with ``refusal``, if there is one."""

    def __init__(self, refusal: str = "", state: int = 5, code: int = 1, saved: int = 0) -> None:
        self.refusal, self.now, self.code, self.saved = refusal, state, code, saved

    def state(self) -> tuple[int, int]:
        return self.now, 0

    def hasManagedSaveImage(self) -> int:  # noqa: N802 - libvirt's name
        return self.saved

    def createWithFlags(self, _flags: int) -> None:  # noqa: N802 - libvirt's name
        if self.refusal:
            raise LibvirtError(self.refusal, self.code)
        self.now = 3


class Connection:
    def __init__(self, domain: Domain | None) -> None:
        self.domain = domain
        self.dead = False

    def lookupByName(self, name: str) -> Domain:  # noqa: N802 - libvirt's name
        if self.dead:
            raise LibvirtError("Cannot recv data: Connection reset by peer", 38, RPC)
        if self.domain is None:
            raise LibvirtError(f"Domain not found: no domain with matching name '{name}'", 42)
        return self.domain

    def close(self) -> None:
        self.dead = True


def binding(connection: Connection | None) -> Any:
    def connect(uri: str) -> Connection:
        if connection is None:
            raise LibvirtError(f"Failed to connect socket to '{uri}'", 38, RPC)
        connection.dead = False
        return connection

    return SimpleNamespace(
        libvirtError=LibvirtError,
        registerErrorHandler=lambda *_: None,
        open=connect,
        VIR_DOMAIN_START_PAUSED=1,
        VIR_DOMAIN_XML_MIGRATABLE=8,
        VIR_ERR_NO_DOMAIN=42,
        VIR_ERR_OPERATION_TIMEOUT=68,
        VIR_FROM_RPC=RPC,
        VIR_FROM_REMOTE=13,
        VIR_DOMAIN_RUNNING=1,
        VIR_DOMAIN_SHUTOFF=5,
        VIR_DOMAIN_CRASHED=6,
    )


class Daemon(PrivateDaemon):
    """Does not run, and keeps the process ids and the logs of guests below ``root``."""

    uri = "qemu:///system"
    said = "error : Driver state\n initialization failed\n"
    _seen_outside = Path()

    def __init__(self, root: Path = Path("/nonexistent")) -> None:
        self._seen_outside = root
        self.told: list[object] = []

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.told.append(number)

    def start(self) -> None:
        self.told.append("start")


def driver(
    monkeypatch: pytest.MonkeyPatch, site: Site, connection: Connection | None, daemon: Daemon | None = None
) -> LibvirtDriver:
    monkeypatch.setitem(sys.modules, "libvirt", binding(connection))
    return LibvirtDriver(site, daemon or Daemon())


def test_without_the_binding(monkeypatch: pytest.MonkeyPatch, site: Site) -> None:
    monkeypatch.setitem(sys.modules, "libvirt", None)
    with pytest.raises(NotHere, match="libvirt-python is not installed"):
        LibvirtDriver(site, cast(PrivateDaemon, None))


def test_a_daemon_that_does_not_answer(monkeypatch: pytest.MonkeyPatch, site: Site) -> None:
    with pytest.raises(InputError, match="Failed to connect"):
        driver(monkeypatch, site, None)


@pytest.mark.parametrize(
    ("domain", "state"),
    [
        (Domain(state=1), State.RUNNING),
        (Domain(state=3), State.PAUSED),
        (Domain(state=5), State.OFF),
        (Domain(state=5, saved=1), State.SAVED),
        (Domain(state=6), State.PANICKED),
    ],
)
def test_states_in_libvirts_words(monkeypatch: pytest.MonkeyPatch, site: Site, domain: Domain, state: State) -> None:
    assert driver(monkeypatch, site, Connection(domain)).state("guest") is state


def test_a_refused_start_is_handed_on_in_one_line(monkeypatch: pytest.MonkeyPatch, site: Site) -> None:
    guests = driver(monkeypatch, site, Connection(Domain("internal error:\n  unable to map")))
    with pytest.raises(GuestError) as caught:
        guests.start("guest", paused=True)
    assert str(caught.value) == "internal error: unable to map"
    assert guests.state("guest") is State.OFF


@pytest.mark.parametrize(
    "message",
    [
        "failed to connect to monitor socket: Connection refused",
        "internal error: process exited while connecting to monitor",
    ],
)
def test_a_qemu_that_ended_before_libvirt_knew_why_is_asked_in_its_log(
    monkeypatch: pytest.MonkeyPatch, site: Site, tmp_path: Path, message: str
) -> None:
    said = "qemu-system-x86_64: unable to map backing store for guest RAM: Cannot allocate memory"
    refused = Domain(message)
    guests = driver(monkeypatch, site, Connection(refused), Daemon(tmp_path))
    with pytest.raises(InputError, match="its log cannot be read"):
        guests.start("guest", paused=False)
    log = tmp_path / "var/log/libvirt/qemu/guest.log"
    log.parent.mkdir(parents=True)
    log.write_text("LC_ALL=C \\\n/usr/bin/qemu-system-x86_64 \\\n-name guest=guest\n")
    with pytest.raises(InputError, match="does not tell why"):
        guests.start("guest", paused=False)
    log.write_text(f"{log.read_text()}2026-11-22T22:00:00.123456Z {said}\nshutting down, reason=failed\n")
    with pytest.raises(GuestError, match="unable to map backing store"):
        guests.start("guest", paused=False)
    # what it said at an earlier start is not why it ended now
    log.write_text(f"{log.read_text()}2026-11-22 22:01:00.000+0000: starting up libvirt version: 9.0.0\n")
    with pytest.raises(InputError, match="does not tell why"):
        guests.start("guest", paused=False)


def test_a_domain_that_libvirt_does_not_know_is_off(monkeypatch: pytest.MonkeyPatch, site: Site) -> None:
    assert driver(monkeypatch, site, Connection(None)).state("guest") is State.OFF


def test_a_daemon_that_dies_is_no_guest_that_is_off(monkeypatch: pytest.MonkeyPatch, site: Site) -> None:
    connection = Connection(Domain())
    guests = driver(monkeypatch, site, connection)
    connection.dead = True
    with pytest.raises(
        InputError, match="Connection reset by peer; its daemon said: error : Driver state initialization failed"
    ):
        guests.state("guest")


def test_a_daemon_that_is_busy_refuses_nothing(monkeypatch: pytest.MonkeyPatch, site: Site) -> None:
    domain = Domain("Timed out during operation: cannot acquire state change lock", code=68)
    with pytest.raises(InputError, match="Timed out during operation"):
        driver(monkeypatch, site, Connection(domain)).start("guest", paused=True)


def test_a_guest_without_a_process(monkeypatch: pytest.MonkeyPatch, site: Site) -> None:
    with pytest.raises(GuestError, match="no process is the QEMU of guest"):
        driver(monkeypatch, site, Connection(Domain())).pid("guest")


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """Yield what can be killed in place of a QEMU."""
    with subprocess.Popen(["/bin/sleep", "60"]) as sleeper:
        yield sleeper
        sleeper.kill()


def test_a_daemon_that_is_started_again_is_connected_again(
    monkeypatch: pytest.MonkeyPatch, site: Site, process: subprocess.Popen[bytes]
) -> None:
    daemon = Daemon()
    connection = Connection(Domain(state=3))
    guests = driver(monkeypatch, site, connection, daemon)
    connection.dead = True
    guests.restart(signal.SIGTERM, None)
    assert guests.state("guest") is State.PAUSED
    guests.restart(signal.SIGKILL, process.pid)
    assert process.wait() == -signal.SIGKILL
    assert daemon.told == [signal.SIGTERM, "start", signal.SIGKILL, "start"]


def test_a_start_that_loses_its_daemon_refuses_nothing(monkeypatch: pytest.MonkeyPatch, site: Site) -> None:
    daemon = Daemon()
    domain = Domain("Timed out during operation", code=68)
    guests = driver(monkeypatch, site, Connection(domain), daemon)
    guests.start_interrupted("guest", 0)
    assert daemon.told == [signal.SIGKILL, "start"]
    assert guests.state("guest") is State.OFF


class DomainOfProcess(Domain):
    """A domain that is off when ``process`` has ended; a start that ``refusal`` is for fails then."""

    def __init__(self, process: subprocess.Popen[bytes], refusal: str) -> None:
        super().__init__(refusal)
        self.process = process

    def createWithFlags(self, flags: int) -> None:  # noqa: N802 - libvirt's name
        if self.refusal:
            self.process.wait()
        super().createWithFlags(flags)

    def state(self) -> tuple[int, int]:
        return (5 if self.process.poll() is not None else self.now), 0


@pytest.mark.parametrize("message", ["", "internal error: process exited while connecting to monitor"])
def test_a_guest_that_is_killed_in_its_start_is_off_then(
    monkeypatch: pytest.MonkeyPatch, site: Site, tmp_path: Path, process: subprocess.Popen[bytes], message: str
) -> None:
    """Nor has it to have said why it ended, of which libvirt knows nothing then."""
    guests = driver(monkeypatch, site, Connection(DomainOfProcess(process, message)), Daemon(tmp_path))
    pid_file = tmp_path / "run/libvirt/qemu/guest.pid"
    pid_file.parent.mkdir(parents=True)
    pid_file.write_text(f"{process.pid}\n")
    guests.start_killed("guest", 0)
    assert process.wait() == -signal.SIGKILL
    assert guests.state("guest") is State.OFF


class DomainWithMemory(Domain):
    """A running domain with this XML."""

    def __init__(self, devices: str) -> None:
        super().__init__(state=1)
        self.devices = devices
        self.updated: list[str] = []

    def XMLDesc(self, flags: int = 0) -> str:  # noqa: N802 - libvirt's name
        kind = " type='migratable'" if flags else ""
        return f"<domain{kind}><devices>{self.devices}</devices></domain>"

    def detachDevice(self, device: str) -> None:  # noqa: N802 - libvirt's name
        self.updated.append(device)
        self.devices = ""

    def updateDeviceFlags(self, device: str) -> None:  # noqa: N802 - libvirt's name
        self.updated.append(device)


def test_a_virtio_mem_device_is_asked_by_the_address_that_libvirt_gave_it(
    monkeypatch: pytest.MonkeyPatch, site: Site
) -> None:
    domain = DomainWithMemory(
        "<memory model='dimm'/><memory model='virtio-mem'><target><requested unit='KiB'>0</requested></target>"
        "<alias name='virtiomem0'/></memory>"
    )
    guests = driver(monkeypatch, site, Connection(domain))
    guests.request("guest", "<memory model='virtio-mem'/>", 2 << 20)
    [device] = domain.updated
    assert '<requested unit="b">2097152</requested>' in device
    assert '<alias name="virtiomem0" />' in device
    domain.updated.clear()
    guests.detach("guest", "<memory model='virtio-mem'/>")
    assert '<alias name="virtiomem0" />' in domain.updated.pop()
    domain.devices = "<memory model='dimm'/>"
    with pytest.raises(GuestError, match="guest has no virtio-mem device"):
        guests.request("guest", "", 0)


def test_a_guest_is_elsewhere_what_it_is_here_with_the_files_of_there(
    monkeypatch: pytest.MonkeyPatch, site: Site
) -> None:
    plugged = "<memory model='dimm'><address slot='1'/></memory>"
    domain = DomainWithMemory(f"<source path='{site.directory}/guest.console'/>{plugged}")
    guests = driver(monkeypatch, site, Connection(domain))
    expected = f"<domain type='migratable'><devices><source path='/there/guest.console'/>{plugged}</devices></domain>"
    assert guests.definition_elsewhere("guest", "<domain/>", "/there") == expected
