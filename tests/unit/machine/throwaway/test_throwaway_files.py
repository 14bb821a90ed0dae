"""A throwaway machine reads, writes, makes and mounts as the real one does, and says the same."""

import os
import stat
from pathlib import Path

import pytest
from tests.unit.machine.throwaway.backends import Backend, below, outcome

from hugepage_qa.errors import InputError
from hugepage_qa.machine.host import Host
from hugepage_qa.machine.real_machine import RealMachine
from hugepage_qa.machine.throwaway_machine import ThrowawayMachine
from hugepage_qa.sizes import MIB


@pytest.mark.parametrize("operation", ["read", "observe"])
@pytest.mark.parametrize("name", ["text", "binary", "link", "dangling", "none", "empty", "text/none"])
def test_files_are_read_as_on_the_real_machine(
    machine: ThrowawayMachine, real: RealMachine, files: Path, operation: str, name: str
) -> None:
    found = outcome(machine, operation, below(files / name))
    assert found == outcome(real, operation, below(files / name))
    assert isinstance(found, str) == (name in ("text", "binary", "link"))


def test_a_file_that_is_too_large_says_so(machine: ThrowawayMachine, tmp_path: Path) -> None:
    file = tmp_path / "large"
    file.touch()
    os.truncate(file, 64 * MIB + 1)
    with pytest.raises(InputError, match=r"/large: larger than the 64 MiB that the agent reads"):
        Host(machine).read(str(file).lstrip("/"))


@pytest.mark.parametrize("name", ["", "empty", "text", "none"])
def test_names_are_as_on_the_real_machine(machine: ThrowawayMachine, real: RealMachine, files: Path, name: str) -> None:
    found = outcome(machine, "names", below(files / name))
    assert found == outcome(real, "names", below(files / name))
    assert bool(found) == (not name)


@pytest.mark.parametrize("name", ["text", "none", "empty", "link", "dangling", "text/none"])
def test_writes_are_done_and_refused_as_on_the_real_machine(either: Backend, files: Path, name: str) -> None:
    expected = {
        "none": (FileNotFoundError, 2),
        "empty": (IsADirectoryError, 21),
        "link": (OSError, 40),
        "dangling": (OSError, 40),
        "text/none": (NotADirectoryError, 20),
    }
    assert outcome(either, "write", below(files / name), "ä") == expected.get(name)
    assert (files / "text").read_bytes().startswith("ä".encode() if name == "text" else b"one")


def test_a_value_that_a_file_refuses_is_refused_as_on_the_real_machine(either: Backend) -> None:
    assert outcome(either, "write", "dev/full", "text") == (OSError, 28)


def test_directories_are_made_and_removed_as_on_the_real_machine(either: Backend, files: Path) -> None:
    made = str(files / "made")
    assert outcome(either, "make_directory", made) is None
    assert stat.S_ISDIR((files / "made").stat().st_mode)
    assert outcome(either, "make_directory", made) == (FileExistsError, 17)
    assert outcome(either, "remove_directory", made) is None
    assert outcome(either, "remove_directory", made) == (FileNotFoundError, 2)
    assert outcome(either, "remove_directory", str(files)) == (OSError, 39)


def test_a_file_system_is_as_on_the_real_machine(machine: ThrowawayMachine, real: RealMachine, files: Path) -> None:
    assert outcome(machine, "file_system", "/proc") == outcome(real, "file_system", "/proc")
    assert outcome(machine, "file_system", str(files / "none")) == outcome(real, "file_system", str(files / "none"))


def test_a_mount_that_is_refused_leaves_no_directory(either: Backend, tmp_path: Path) -> None:
    found = outcome(either, "mount", "", "no-such-file-system")
    assert found in [(OSError, 19), (PermissionError, 1)]
    assert not list(tmp_path.rglob("no-such-file-system-*"))


def test_a_point_to_mount_on_is_a_new_directory(either: Backend) -> None:
    first, second = (Path(either.perform("mount_point", ["tmpfs"])) for _ in range(2))
    assert first != second
    assert not list(first.iterdir())
    assert not list(second.iterdir())


def test_a_directory_that_nothing_is_mounted_on_is_not_unmounted(either: Backend) -> None:
    point = either.perform("mount_point", ["tmpfs"])
    assert outcome(either, "unmount", point, 0.1) in [(OSError, 22), (PermissionError, 1)]
    assert Path(point).is_dir()
