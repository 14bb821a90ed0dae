"""A swap file of ours is one that swapon(8) would take, and none is left behind; those of others stay."""

import errno
import mmap
import os
import struct
from pathlib import Path

import pytest

from hugepage_qa.machine import libc, swap_file
from hugepage_qa.machine.kept_file import NOTHING
from hugepage_qa.machine.swap_file import add_swap, remove_swap, remove_swap_files
from hugepage_qa.sizes import MIB

from .conftest import write

TITLE = "Filename Type Size Used Priority\n"


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(swap_file, "_DIRECTORY", str(tmp_path).lstrip("/"))
    return tmp_path


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    done: list[str] = []
    for name in ("swap_on", "swap_off"):
        monkeypatch.setattr(libc, name, lambda file, name=name: done.append(f"{name} {file}"))
    return done


def test_a_swap_file_is_written_in_whole_and_has_a_header(directory: Path, calls: list[str]) -> None:
    name = add_swap(MIB + 8192)
    assert calls == [f"swap_on {name}"]
    status = Path(name).stat()
    assert (status.st_size, status.st_mode & 0o777) == (MIB + 8192, 0o600)
    # as much on the disk as it is long: no holes
    assert status.st_blocks * 512 >= status.st_size
    header = Path(name).read_bytes()[: mmap.PAGESIZE]
    assert header.endswith(b"SWAPSPACE2")
    # version, last page, bad pages (union swap_header)
    assert header[1024:1036] == struct.pack("=III", 1, status.st_size // mmap.PAGESIZE - 1, 0)
    remove_swap(name)
    assert calls[1:] == [f"swap_off {name}"]
    assert list(directory.iterdir()) == []


def test_a_refused_swap_file_is_removed(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_file: str) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(libc, "swap_on", refuse)
    with pytest.raises(OSError, match="Invalid argument"):
        add_swap(MIB)
    assert list(directory.iterdir()) == []


def test_what_a_killed_run_left_is_removed(machine: Path, calls: list[str]) -> None:
    for name in ("hugepage-qa-swap-a", "hugepage-qa-swap-b", "swap-of-others"):
        write(machine / "var/tmp" / name, "")
    (machine / "var/tmp/hugepage-qa-swap-link").symlink_to(machine / "etc")
    write(
        machine / "proc/swaps",
        f"{TITLE}/var/tmp/hugepage-qa-swap-b file 64 0 -2\n/var/tmp/swap-of-others file 64 0 -3\n",
    )
    repairs = remove_swap_files(machine)
    assert [(one.subject, one.before, one.after) for one in repairs] == [
        ("swap file /var/tmp/hugepage-qa-swap-a", "a file", NOTHING),
        ("swap file /var/tmp/hugepage-qa-swap-b", "in use", NOTHING),
    ]
    assert calls == [f"swap_off {machine}/var/tmp/hugepage-qa-swap-b"]
    assert sorted(path.name for path in (machine / "var/tmp").iterdir()) == ["hugepage-qa-swap-link", "swap-of-others"]


def test_a_swap_file_that_cannot_go_is_told(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_file: str) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(libc, "swap_off", refuse)
    write(machine / "var/tmp/hugepage-qa-swap-a", "")
    write(machine / "proc/swaps", f"{TITLE}/var/tmp/hugepage-qa-swap-a file 64 0 -2\n")
    (repair,) = remove_swap_files(machine)
    assert repair.after == "in use (Cannot allocate memory)"
    assert (machine / "var/tmp/hugepage-qa-swap-a").exists()
