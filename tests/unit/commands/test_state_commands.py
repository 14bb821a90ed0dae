"""``hugepage-qa state``, as people use it."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from hugepage_qa.commands import state_commands as module
from hugepage_qa.commands.state_commands import state
from hugepage_qa.errors import InputError
from hugepage_qa.machine import restore
from hugepage_qa.machine.journal import Journal, find_journal
from hugepage_qa.machine.knobs import Knob
from hugepage_qa.machine.protection import require_root
from hugepage_qa.machine.run_lock import hold_run_lock

FILES = {
    "proc/sys/kernel/random/boot_id": "11111111-2222-3333-4444-555555555555\n",
    "proc/sys/vm/min_free_kbytes": "1000\n",
    "proc/self/mounts": "",
    "run/motd": "",
    "etc/systemd/system/x": "",
}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="ascii")
    monkeypatch.delenv("HUGEPAGE_QA_STATE", raising=False)
    monkeypatch.setattr(module, "_ROOT", tmp_path)
    monkeypatch.setattr(module, "require_root", lambda _: None)
    monkeypatch.setattr(restore, "_PAUSE_SECONDS", 0)
    return tmp_path


@pytest.fixture
def journal(root: Path) -> Journal:
    return find_journal(root)


def run(*arguments: str, code: int = 0) -> str:
    result = invoke(*arguments)
    assert result.exit_code == code, result.output
    return result.output


def refused(*arguments: str) -> str:
    result = invoke(*arguments)
    assert isinstance(result.exception, InputError)
    return str(result.exception)


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(state, arguments)


def change(root: Path, text: str = "2000\n") -> None:
    (root / "proc/sys/vm/min_free_kbytes").write_text(text, encoding="ascii")


def boot(root: Path, number: int) -> None:
    path = root / "proc/sys/kernel/random/boot_id"
    path.write_text(f"{number:08d}-2222-3333-4444-555555555555\n", encoding="ascii")


def test_save_and_restore(root: Path, journal: Journal) -> None:
    assert run("save") == f"saved to {journal.path}\n"
    change(root)
    first, last = run("restore").splitlines()
    assert first == "vm/min_free_kbytes: put back to 1000, was 2000"
    assert last.startswith("the machine is as run ")
    assert (root / "proc/sys/vm/min_free_kbytes").read_text(encoding="ascii") == "1000\n"
    assert run("restore") == f"nothing is saved in {journal.path}: there is nothing to put back\n"


@pytest.mark.usefixtures("root")
def test_what_is_saved_is_not_written_over(journal: Journal) -> None:
    run("save")
    before = journal.read()
    assert "is saved already: expected none, restore it first" in refused("save")
    assert journal.read() == before


def test_what_could_not_be_put_back(root: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    run("save")
    change(root)
    monkeypatch.setattr(Knob, "write", refuse)
    output = run("restore", code=1)
    assert "vm/min_free_kbytes: NOT put back: wanted 1000, found 2000\n" in output
    assert f"what was not put back stays in {journal.path}" in output
    monkeypatch.undo()


def test_at_boot(root: Path, journal: Journal) -> None:
    run("save")
    journal.expect_reboot("a")
    boot(root, 1)
    assert run("restore", "--boot").startswith("left alone: run ")
    assert journal.read() is not None
    boot(root, 2)
    assert "the machine was booted since" in run("restore", "--boot")
    assert journal.read() is None


def test_a_person_does_not_wait_for_the_reboot(root: Path, journal: Journal) -> None:
    run("save")
    journal.expect_reboot("a")
    boot(root, 1)
    assert "the machine was booted since" in run("restore")
    assert journal.read() is None


def test_another_run(root: Path) -> None:
    with hold_run_lock(root):
        for command in ("save", "restore"):
            assert f"in use by process {os.getpid()} " in refused(command)


@pytest.mark.parametrize("command", ["save", "restore", "install-unit", "remove-unit"])
def test_not_root(root: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setattr(module, "require_root", require_root)
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    assert refused(command) == f"state {command}: expected to be root, found user id 4711: use sudo"
    assert sorted(path.name for path in (root / "run").iterdir()) == ["motd"]


def test_unit(root: Path) -> None:
    assert run("install-unit").startswith(f"installed {root}/etc/systemd/system/hugepage-qa-restore.service")
    assert run("remove-unit") == f"removed {root}/etc/systemd/system/hugepage-qa-restore.service\n"


# --- show ---


def shown() -> dict[str, Any]:
    document = json.loads(run("show", "--json"))
    assert isinstance(document, dict)
    assert set(document) == {"holder", "journal", "saved", "now", "changes", "unknown"}
    return document


def test_show_nothing(journal: Journal) -> None:
    assert run("show").splitlines() == [
        "in use by nobody",
        f"nothing is saved in {journal.path}",
        "  vm/min_free_kbytes: 1000",
    ]
    document = shown()
    assert (document["holder"], document["saved"], document["changes"]) == (None, None, [])
    assert document["now"]["knobs"] == {"proc/sys/vm/min_free_kbytes": "1000"}


def test_show_changes(root: Path, journal: Journal, tmp_path: Path) -> None:
    run("save")
    assert run("show").splitlines()[2] == "the machine is as saved"
    change(root)
    journal.keep_file(tmp_path / "file")
    journal.keep_arguments("grubby", ["quiet", "ro"])
    journal.expect_reboot("a")
    with hold_run_lock(root):
        lines = run("show").splitlines()
    assert lines[0].startswith(f"in use by process {os.getpid()} ")
    assert lines[1].startswith(f"saved in {journal.path} by run ")
    assert lines[2:] == [
        "its run goes on after a reboot",
        f"  file {tmp_path}/file: to be put back to nothing",
        "  kernel arguments (grubby): to be put back to quiet ro",
        "  vm/min_free_kbytes: 1000 before, 2000 after",
    ]
    document = shown()
    assert document["changes"] == ["vm/min_free_kbytes: 1000 before, 2000 after"]
    assert document["saved"]["arguments"] == {"loader": "grubby", "arguments": ["quiet", "ro"]}


def test_show_after_a_boot(root: Path) -> None:
    run("save")
    change(root)
    boot(root, 1)
    assert "the machine was booted since" in run("show")
    assert shown()["changes"] == []


def test_show_without_root(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    run("save")
    monkeypatch.setattr(Journal, "read", lambda _: (_ for _ in ()).throw(InputError("journal: cannot be read")))
    monkeypatch.setattr(module, "read_holder", refuse)
    lines = run("show").splitlines()
    assert lines == [
        "not known: who changes the machine (Permission denied)",
        "not known: journal: cannot be read",
        "  vm/min_free_kbytes: 1000",
    ]
    assert shown()["unknown"] == ["who changes the machine (Permission denied)", "journal: cannot be read"]
    assert (root / "run").is_dir()
