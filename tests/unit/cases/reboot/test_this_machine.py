"""The running machine: its log, sysctl.d and tmt-reboot; and the command without tmt."""

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from hugepage_qa.cases.reboot import reboot_machine
from hugepage_qa.cases.reboot.reboot_machine import MachineUnderTest
from hugepage_qa.commands import reboot_cases as command
from hugepage_qa.errors import InputError


def program(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("journal", "ring", "found"),
    [
        ("echo Linux version 6.1; echo journal", "echo Linux version 6.1; echo ring", "journal"),
        ("exit 1", "echo Linux version 6.1; echo ring", "ring"),
        ("echo the end only", "echo Linux version 6.1; echo ring", "ring"),
    ],
)
def test_log_with_its_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, journal: str, ring: str, found: str
) -> None:
    commands = ((program(tmp_path / "journalctl", journal),), (program(tmp_path / "dmesg", ring),))
    monkeypatch.setattr(reboot_machine, "_LOGS", commands)
    monkeypatch.setattr(reboot_machine, "_STARTED", ("true",))
    facts, log = MachineUnderTest("true").read()
    assert log.splitlines()[1] == found
    assert [line.text for line in facts.log][1] == found
    assert facts.release


def test_log_that_was_emptied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reboot_machine, "_LOGS", (("/no/such/journalctl",), (program(tmp_path / "dmesg", "echo end"),)))
    monkeypatch.setattr(reboot_machine, "_STARTED", ("true",))
    with pytest.raises(InputError, match=r"^kernel log: its beginning is neither in journalctl -k -b nor in dmesg"):
        MachineUnderTest("true").read()


def test_sysctl_file_comes_and_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reboot_machine, "OWN_FILE", tmp_path / "99-hugepage-qa.conf")
    MachineUnderTest("true").persist(12)
    assert (tmp_path / "99-hugepage-qa.conf").read_text().endswith("vm.nr_hugepages = 12\n")
    MachineUnderTest("true").persist(None)
    MachineUnderTest("true").persist(None)
    assert list(tmp_path.iterdir()) == []


def test_sysctl_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reboot_machine, "OWN_FILE", tmp_path / "no" / "99-hugepage-qa.conf")
    with pytest.raises(InputError, match=r"99-hugepage-qa\.conf: cannot be written"):
        MachineUnderTest("true").persist(12)


def test_reboot_that_tmt_refuses(tmp_path: Path) -> None:
    MachineUnderTest("true").reboot()
    with pytest.raises(InputError, match="ended with exit code 3: no reboot"):
        MachineUnderTest(program(tmp_path / "tmt-reboot", "exit 3")).reboot()
    with pytest.raises(InputError, match="cannot be run"):
        MachineUnderTest("/no/such/tmt-reboot").reboot()


# --- the command ---


@pytest.fixture
def under_tmt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the data directory of a test that tmt runs as root."""
    program(tmp_path / "tmt-reboot", "exit 0")
    monkeypatch.setenv("PATH", str(tmp_path))
    data = tmp_path / "data"
    data.mkdir()
    monkeypatch.setenv("TMT_TEST_DATA", str(data))
    monkeypatch.delenv("TMT_REBOOT_COUNT", raising=False)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    return data


def run() -> InputError:
    result = CliRunner().invoke(command.reboot_cases, [])
    assert isinstance(result.exception, InputError), result.output
    return result.exception


@pytest.mark.usefixtures("under_tmt")
def test_without_tmt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert str(run()) == (
        "reboot-cases: expected tmt to start it, there is no tmt-reboot in PATH: run the tests in tests/reboot"
    )
    monkeypatch.delenv("TMT_TEST_DATA")
    assert "there is no TMT_TEST_DATA" in str(run())


def test_without_its_directory(under_tmt: Path) -> None:
    under_tmt.rmdir()
    assert str(run()) == f"TMT_TEST_DATA={under_tmt}: expected a directory"


@pytest.mark.usefixtures("under_tmt")
def test_not_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert str(run()).startswith("reboot-cases: expected to be root")


@pytest.mark.usefixtures("under_tmt")
def test_a_boot_number_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMT_REBOOT_COUNT", "one")
    assert str(run()) == "TMT_REBOOT_COUNT=one: expected a whole number"


def test_a_chain_that_cannot_go_on_is_an_error_to_tmt(under_tmt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMT_REBOOT_COUNT", "4")
    error = run()
    (entry,) = yaml.safe_load((under_tmt / "results.yaml").read_text())
    assert (entry["name"], entry["result"], entry["note"]) == ("/", "error", [str(error)])
