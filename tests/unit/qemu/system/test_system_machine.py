"""A machine whose QEMU is a small program: how it starts, fails and is waited for."""

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from hugepage_qa.errors import InputError
from hugepage_qa.qemu.system.secure_shell import SecureShell
from hugepage_qa.qemu.system.system_arguments import PID_FILE
from hugepage_qa.qemu.system.system_machine import Record, SystemMachine, kill_emulator
from hugepage_qa.schema import build, find_violation

# goes to the background as QEMU does, with its pid file locked
QEMU = f"""
import fcntl, os, sys, time
if os.fork():
    os._exit(0)
os.setsid()
file = os.open({PID_FILE!r}, os.O_CREAT | os.O_RDWR, 0o600)
fcntl.lockf(file, fcntl.LOCK_EX)
with open("../m.serial.log", "a") as log:
    log.write(sys.argv[1].replace("|", "\\n"))
null = os.open(os.devnull, os.O_RDWR)
for stream in range(3):
    os.dup2(null, stream)
time.sleep(float(sys.argv[2]))
"""

RECORD = Record(
    name="m",
    architecture="x86_64",
    memory=(1 << 30, 0),
    cpus=2,
    accelerator="tcg",
    kernel="6.1.0",
    words="",
    image="abc",
    key=Path("/key"),
    port=1,
    command=("qemu-system-x86_64",),
)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Callable[..., SystemMachine]]:
    """Return machine(serial, seconds): it prints ``serial`` and lives for ``seconds``."""
    directory = tmp_path / "m"
    directory.mkdir()

    def make(serial: str = "", seconds: float = 60) -> SystemMachine:
        command = (sys.executable, "-c", QEMU, serial, str(seconds))
        return SystemMachine(replace(RECORD, command=command), directory)

    yield make
    kill_emulator(directory / PID_FILE)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """What the machine says when it is asked for its boot id, one after the other, the last one for ever."""
    given: list[str | None] = [None]
    monkeypatch.setattr(
        SecureShell, "boot_id", lambda _self, _timeout=1.0: given.pop(0) if len(given) > 1 else given[0]
    )
    return given


def wait_until_running(machine: SystemMachine) -> None:
    while not machine.running:
        pass


def test_record_survives_its_file() -> None:
    fields = json.loads(json.dumps(asdict(RECORD), default=str))
    assert find_violation(fields, "hugepage_qa.qemu.system", "machine") is None
    assert build(Record, fields) == RECORD


@pytest.mark.parametrize(
    "change",
    [{"port": 0}, {"port": "1"}, {"image": "../x"}, {"memory": []}, {"extra": 1}, {"command": [1]}, {"command": []}],
)
def test_damaged_records_are_seen(change: dict[str, object]) -> None:
    fields = {**json.loads(json.dumps(asdict(RECORD), default=str)), **change}
    assert find_violation(fields, "hugepage_qa.qemu.system", "machine")


def test_machine_comes_up(machine: Callable[..., SystemMachine], answers: list[str | None]) -> None:
    answers[:] = [None, "first"]
    one = machine()
    assert not one.running
    one.start()
    wait_until_running(one)
    one.require_running()
    assert one.wait(60) == "first"
    with pytest.raises(InputError, match="is running already"):
        one.power_on()


def test_reboot_is_over_when_the_boot_id_is_another(
    machine: Callable[..., SystemMachine], answers: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr(SecureShell, "run", lambda _self, command: asked.append(command))
    one = machine()
    one.start()
    wait_until_running(one)
    answers[:] = ["first", "first", None, "second"]
    assert one.reboot(60) == "second"
    assert asked == [["systemctl", "reboot"]]


def test_power_cut_and_power_on(machine: Callable[..., SystemMachine], answers: list[str | None]) -> None:
    answers[:] = ["up"]
    one = machine("boot|")
    one.start()
    wait_until_running(one)
    one.power_cut()
    assert not one.running
    with pytest.raises(InputError, match="machine m is off, or its QEMU has died"):
        one.require_running()
    assert one.power_on(60) == "up"
    wait_until_running(one)
    assert one.serial_log.read_text() == "boot\nboot\n"


def test_qemu_that_refuses_is_quoted(tmp_path: Path) -> None:
    script = "import sys; sys.exit('warning: x\\nqemu: -m: not enough')"
    one = SystemMachine(replace(RECORD, command=(sys.executable, "-c", script)), tmp_path)
    with pytest.raises(InputError, match="machine m: qemu: -m: not enough"):
        one.start()


@pytest.mark.parametrize(
    ("serial", "seconds", "what"),
    [
        ("[1.0] Kernel panic - not syncing: VFS|", 60, "Kernel panic - not syncing: VFS; last on the console: "),
        ("one|two|\x1b[0mthree|four|", 0, r"QEMU ended; last on the console: two \| three \| four; see .*m.serial.log"),
        ("Loading|", 60, r"ssh never came up within 0\.1 s; last on the console: Loading"),
    ],
)
@pytest.mark.usefixtures("answers")
def test_machine_that_does_not_come_up(
    machine: Callable[..., SystemMachine], serial: str, seconds: float, what: str
) -> None:
    one = machine(serial, seconds)
    one.start()
    while not (one.serial_log.exists() and one.serial_log.read_text().endswith("\n")):
        pass
    with pytest.raises(InputError, match=what):
        one.wait(0.1 if seconds and "panic" not in serial else 60)


@pytest.mark.usefixtures("answers")
def test_panic_of_an_earlier_boot_does_not_count(machine: Callable[..., SystemMachine]) -> None:
    one = machine("Loading|")
    one.serial_log.write_text("Kernel panic - not syncing: VFS\n")
    with pytest.raises(InputError, match="ssh never came up"):
        one.power_on(0.1)


@pytest.mark.usefixtures("answers")
def test_machine_that_does_not_reboot(machine: Callable[..., SystemMachine], answers: list[str | None]) -> None:
    answers[:] = ["same"]
    one = machine()
    one.start()
    wait_until_running(one)
    with pytest.raises(InputError, match="it did not reboot within 0 s"):
        one.wait(0, other_than="same")
