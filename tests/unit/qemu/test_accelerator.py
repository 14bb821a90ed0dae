"""An accelerator counts only after a guest has booted under it."""

import platform
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.qemu.conftest import OFFER

from hugepage_qa.errors import InputError
from hugepage_qa.qemu import accelerator
from hugepage_qa.qemu.boards import find_board

Install = Callable[[Path, str, str], None]

BOARD = find_board("x86_64")


class Host:
    """A host on which guests boot under ``working`` accelerators; counts the tries."""

    #: an emulator with both accelerators
    emulator = ""

    def __init__(self, *working: str) -> None:
        self.working = working
        self.tries: list[str] = []
        self.said: list[str] = []

    def reaches_init(self, accelerator: str, deadline: float) -> bool:
        assert deadline > 0
        self.tries.append(accelerator)
        return accelerator in self.working

    def choose(self, cache: Path, cpu: str = "max", emulator: str | None = None) -> str:
        return accelerator.choose_accelerator(
            BOARD, BOARD.cpus[cpu], emulator or self.emulator, cache, self.reaches_init, report=self.said.append
        )


@pytest.fixture(autouse=True)
def host_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, install: Install) -> None:
    install(tmp_path / "bin", "qemu", OFFER)
    monkeypatch.setattr(Host, "emulator", str(tmp_path / "bin" / "qemu"))
    (tmp_path / "kvm").touch()
    (tmp_path / "cpuinfo").write_text("model name\t: Some CPU\nflags\t\t: pse pdpe1gb\n\nmodel name\t: second\n")
    monkeypatch.setattr(accelerator, "_DEVICE", tmp_path / "kvm")
    monkeypatch.setattr(accelerator, "_CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")


def test_working_kvm_is_used_and_remembered(tmp_path: Path) -> None:
    host = Host("kvm", "tcg")
    assert [host.choose(tmp_path), host.choose(tmp_path)] == ["kvm", "kvm"]
    assert host.tries == ["kvm"]


def test_kvm_that_hangs_costs_its_deadline_once(tmp_path: Path) -> None:
    host = Host("tcg")
    assert [host.choose(tmp_path), host.choose(tmp_path)] == ["tcg", "tcg"]
    assert host.tries == ["kvm", "tcg"]
    assert any("no probe guest came up" in line for line in host.said)


def test_kernel_that_boots_nowhere_proves_nothing_about_kvm(tmp_path: Path) -> None:
    assert Host().choose(tmp_path) == "tcg"
    assert Host("kvm", "tcg").choose(tmp_path) == "kvm"


@pytest.mark.parametrize("change", ["emulator", "cpu", "host"])
def test_answer_does_not_outlive_its_conditions(
    tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch, install: Install
) -> None:
    Host("tcg").choose(tmp_path)
    host = Host("kvm")
    if change == "host":
        monkeypatch.setattr(platform, "release", lambda: "another")
    install(tmp_path / "bin", "another", OFFER)
    names = {"emulator": {"emulator": str(tmp_path / "bin" / "another")}, "cpu": {"cpu": "qemu64"}, "host": {}}[change]
    assert host.choose(tmp_path, **names) == "kvm"


def test_no_device_means_no_try(tmp_path: Path) -> None:
    (tmp_path / "kvm").unlink()
    host = Host("kvm")
    assert host.choose(tmp_path) == "tcg"
    assert host.tries == []


def test_other_architecture_means_no_try(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert Host("kvm").choose(tmp_path) == "tcg"


def test_host_without_gigantic_pages_cannot_stand_for_max(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("flags\t\t: pse\n\n")
    assert Host("kvm").choose(tmp_path) == "tcg"
    assert Host("kvm").choose(tmp_path, cpu="qemu64") == "kvm"


ONLY_KVM = OFFER.replace(r"tcg\n", "")


def test_an_emulator_without_tcg_takes_kvm_or_says_what_is_missing(tmp_path: Path, install: Install) -> None:
    install(tmp_path / "bin", "only-kvm", ONLY_KVM)
    emulator = str(tmp_path / "bin" / "only-kvm")
    with pytest.raises(InputError, match="has no -accel tcg: it has kvm, under which no such machine comes up"):
        Host().choose(tmp_path, emulator=emulator)
    assert Host("kvm").choose(tmp_path, emulator=emulator) == "kvm"


def test_an_emulator_without_kvm_is_not_tried_with_it(tmp_path: Path, install: Install) -> None:
    install(tmp_path / "bin", "only-tcg", OFFER.replace(r"kvm\n", ""))
    host = Host("kvm", "tcg")
    assert host.choose(tmp_path, emulator=str(tmp_path / "bin" / "only-tcg")) == "tcg"
    assert host.tries == []
