"""tmt's ``provision: how: lab``: schema, keys, and what the guest does with a machine."""

import subprocess
import sys
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("tmt")

import tmt.container
import tmt.guest
import tmt.log
import tmt.steps.provision
import tmt.utils
from tests.unit.forked_tmt import run_tmt
from tests.unit.qemu.system.test_system_machine import RECORD
from tmt.guest import RebootMode
from tmt.utils.wait import Deadline, Waiting

from hugepage_qa.errors import InputError
from hugepage_qa.plugins import tmt_lab
from hugepage_qa.plugins.tmt_lab import GuestLab, LabGuestData
from hugepage_qa.qemu.system.machine_registry import Registry
from hugepage_qa.qemu.system.system_launch import SystemOptions
from hugepage_qa.qemu.system.system_machine import SystemMachine

OWN_KEYS = {"memory", "nodes", "cpus", "kernel", "append", "arch"}


def schema() -> dict[str, Any]:
    text = resources.files("hugepage_qa.plugins").joinpath("schemas/provision/lab.yaml").read_text()
    return dict(yaml.safe_load(text))


def test_schema_and_plugin_have_the_same_keys() -> None:
    known = set(map(tmt.container.key_to_option, LabGuestData.keys()))
    inherited = set(map(tmt.container.key_to_option, tmt.guest.GuestSshData.keys()))
    assert known - inherited - {"machine"} == OWN_KEYS
    properties = set(schema()["properties"])
    assert properties >= OWN_KEYS
    assert properties - known <= {"how", "name"}


def test_name_of_the_machine_is_no_key() -> None:
    assert "machine" not in dict(LabGuestData.options())
    assert set(dict(LabGuestData.options())) >= OWN_KEYS


@pytest.fixture
def lint(tmp_path: Path) -> Callable[[str], subprocess.CompletedProcess[str]]:
    """Return lint(provision): what tmt lint says of a plan with it, in a tree of its own."""
    tree = tmp_path / "tree"
    (tree / ".fmf").mkdir(parents=True)
    (tree / ".fmf" / "version").write_text("1\n")

    def run(provision: str) -> subprocess.CompletedProcess[str]:
        plan = f"summary: A plan\nprovision: {provision}\nexecute: {{how: tmt}}\n"
        (tree / "plan.fmf").write_text(plan)
        return run_tmt(tree, "lint", "--enforce-check", "C000")

    return run


@pytest.mark.parametrize(
    "provision",
    ["{how: lab, memory: 4G, nodes: 2}", "{how: lab, nodes: ['3G', '1G'], append: a=1, arch: x86_64, cpus: 4}"],
)
def test_lint_is_clean(lint: Callable[[str], subprocess.CompletedProcess[str]], provision: str) -> None:
    done = lint(provision)
    assert (done.returncode, "pass C000" in done.stdout) == (0, True), done.stdout + done.stderr


@pytest.mark.parametrize("provision", ["{how: lab, memory: 4}", "{how: lab, hugepages: 2}", "{how: lab, nodes: 0}"])
def test_lint_names_what_is_wrong(lint: Callable[[str], subprocess.CompletedProcess[str]], provision: str) -> None:
    done = lint(provision)
    assert done.returncode == 1
    assert "fail C000" in done.stdout


class Machine(SystemMachine):
    """A machine that remembers what was done to it."""

    done: list[str] = []  # noqa: RUF012 - the class is frozen
    up = True

    @property
    def running(self) -> bool:
        return self.up

    def press_reset(self) -> None:
        self.done.append("reset")

    def start(self) -> None:
        self.done.append("start")

    def power_cut(self) -> None:
        self.done.append("power cut")

    def wait(self, deadline: float = 1, *, other_than: str | None = None, since: int = 0) -> str:
        self.done.append(f"wait {deadline > 1} {other_than} {since}")
        return "second"


@pytest.fixture
def guest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GuestLab:
    """A guest whose machine is up."""
    monkeypatch.setenv("HUGEPAGE_QA_CACHE", str(tmp_path / "cache"))
    machine = Machine(RECORD, tmp_path)
    Machine.done, Machine.up = [], True
    monkeypatch.setattr(Registry, "find", lambda _self, _name: machine)
    monkeypatch.setattr(Registry, "drop", lambda _self, name: machine.done.append(f"drop {name}"))
    monkeypatch.setattr(SystemMachine, "shell", property(lambda _self: Shell()))
    data = LabGuestData(memory="4G", nodes="2", append="a=1", kernel="/k", machine="m", primary_address="127.0.0.1")
    one = GuestLab(data=data, name="default-0", logger=tmt.log.Logger.create())
    one.facts = tmt.guest.GuestFacts(in_sync=True)
    return one


class Shell:
    """ssh that answers."""

    def boot_id(self) -> str:
        return "first"


def waiting() -> Waiting:
    return Waiting(deadline=Deadline.from_seconds(60))


def reboots(monkeypatch: pytest.MonkeyPatch) -> list[RebootMode]:
    """Let tmt's own reboot do the action and the call after it; return the modes that it was asked for."""
    asked: list[RebootMode] = []

    def perform(
        _self: object, mode: RebootMode, action: Callable[[], None], _wait: object, **after: Callable[[], None] | None
    ) -> bool:
        asked.append(mode)
        action()
        trigger = after["post_trigger_action"]
        if trigger is not None:
            trigger()
        return True

    monkeypatch.setattr(tmt.guest.GuestSsh, "perform_reboot", perform)
    monkeypatch.setattr(GuestLab, "execute", lambda _self, command, **_options: Machine.done.append(str(command)))
    return asked


def test_hard_reboot_is_the_reset_button(guest: GuestLab, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = reboots(monkeypatch)
    assert guest.reboot(RebootMode.HARD, waiting=waiting())
    assert (asked, Machine.done) == ([RebootMode.HARD], ["reset", "wait True first 0"])


def test_machine_that_went_off_is_switched_on(guest: GuestLab, monkeypatch: pytest.MonkeyPatch) -> None:
    reboots(monkeypatch)
    Machine.up = False
    assert guest.reboot(RebootMode.HARD, waiting=waiting())
    assert Machine.done == ["start", "wait True first 0"]


def test_soft_reboot_is_the_systems_own(guest: GuestLab, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = reboots(monkeypatch)
    assert guest.reboot(command=tmt.utils.ShellScript("reboot now"), waiting=waiting())
    assert (asked, Machine.done) == ([RebootMode.SOFT], ["reboot now", "wait True first 0"])


def test_end(guest: GuestLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tmt.guest.GuestSsh, "stop", lambda _self: None)
    guest.stop()
    guest.remove()
    assert Machine.done == ["power cut", "drop m"]
    guest.remove()
    guest.stop()
    assert Machine.done == ["power cut", "drop m"]


def test_plan_becomes_a_machine(guest: GuestLab, monkeypatch: pytest.MonkeyPatch) -> None:
    asked_for: list[SystemOptions] = []

    def bring_up(_cache: Path, options: SystemOptions, **_options: Any) -> SystemMachine:
        asked_for.append(options)
        return Machine(RECORD, Path("/cache/machines/m"))

    monkeypatch.setattr(tmt_lab, "bring_up", bring_up)
    monkeypatch.setattr(GuestLab, "is_dry_run", False)
    monkeypatch.setattr(GuestLab, "assert_reachable", lambda _self: None)
    guest.machine = guest.primary_address = None
    guest.start()
    assert asked_for == [SystemOptions((2 << 30, 2 << 30), 2, Path("/k"), "a=1")]
    kept = guest.save()
    assert isinstance(kept, LabGuestData)
    assert (kept.machine, kept.primary_address, kept.port) == ("m", "127.0.0.1", RECORD.port)
    assert [str(key) for key in kept.key] == ["/key"]


def test_errors_are_lines_of_tmt(guest: GuestLab, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object, **_options: object) -> SystemMachine:
        raise InputError("memory: not enough")

    monkeypatch.setattr(tmt_lab, "bring_up", refuse)
    monkeypatch.setattr(GuestLab, "is_dry_run", False)
    with pytest.raises(tmt.utils.ProvisionError, match="memory: not enough"):
        guest.start()


@pytest.mark.parametrize(
    ("value", "expected"), [(None, None), (2, "2"), ("3G,1G", "3G,1G"), (["3G", "1G"], "3G,1G"), (("2G", "0"), "2G,0")]
)
def test_nodes_of_a_plan(value: object, expected: str | None) -> None:
    assert tmt_lab._normalize_nodes("nodes", value, tmt.log.Logger.create()) == expected


def test_library_needs_no_tmt() -> None:
    script = "import sys; sys.modules['tmt'] = None; import hugepage_qa.cli, hugepage_qa.qemu.system.system_launch"
    subprocess.run([sys.executable, "-c", script], check=True)
