"""The systemd unit that puts a machine back at boot."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hugepage_qa.errors import InputError
from hugepage_qa.machine.resume import install_unit, remove_unit

UNIT = "etc/systemd/system/hugepage-qa-restore.service"
LINK = "etc/systemd/system/sysinit.target.wants/hugepage-qa-restore.service"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("HUGEPAGE_QA_STATE", raising=False)
    (tmp_path / "etc/systemd/system").mkdir(parents=True)
    return tmp_path


def settings(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))


def test_install_and_remove(root: Path) -> None:
    for _ in range(2):
        assert install_unit(root) == root / UNIT
    found = settings((root / UNIT).read_text(encoding="utf-8"))
    assert found["ExecStart"] == f'"{sys.executable}" "-P" "-m" "hugepage_qa" "state" "restore" "--boot"'
    assert found["ConditionPathExists"] == str(root / "var/lib/hugepage-qa/journal.json")
    assert found["RequiresMountsFor"] == f'"{root}/var/lib/hugepage-qa"'
    assert found["Environment"] == ""
    assert "systemd-sysctl.service" in found["Before"].split()
    assert (root / UNIT).stat().st_mode & 0o777 == 0o644
    assert (root / LINK).readlink() == Path("../hugepage-qa-restore.service")
    assert (root / LINK).resolve() == root / UNIT
    for _ in range(2):
        assert remove_unit(root) == root / UNIT
    assert [path for path in root.rglob("*") if not path.is_dir()] == []


def test_another_directory(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUGEPAGE_QA_STATE", '/var/100% "$a"')
    install_unit(root)
    found = settings((root / UNIT).read_text(encoding="utf-8"))
    assert found["Environment"] == r'"HUGEPAGE_QA_STATE=/var/100%% \"$a\""'
    assert found["RequiresMountsFor"] == r'"/var/100%% \"$a\""'
    assert found["ConditionPathExists"] == '/var/100%% "$a"/journal.json'


def test_no_program_is_run_for_what_a_path_holds(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/opt/a $b %c/python")
    install_unit(root)
    found = settings((root / UNIT).read_text(encoding="utf-8"))
    assert found["ExecStart"].startswith('"/opt/a $$b %%c/python" "-P"')


def test_what_systemd_says_of_it(root: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    result = subprocess.run(
        [analyze, "verify", "--recursive-errors=no", str(install_unit(root))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "hugepage-qa-restore.service" not in result.stderr


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "etc").touch()
    with pytest.raises(InputError, match=r"cannot be written \(Not a directory\): expected to be root"):
        install_unit(tmp_path)
