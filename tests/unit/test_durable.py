"""Files that survive a power cut."""

import errno
import fcntl
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from hugepage_qa.durable import remove_durably, replaced_file, write_durably


def test_content_mode_and_replacement(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old, and longer")
    write_durably(path, b"new", mode=0o640, owner=(os.getuid(), os.getgid()))
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert list(tmp_path.iterdir()) == [path]


def test_file_and_directory_are_on_the_disk_before_it_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    steps = []

    def note(descriptor: int) -> None:
        kind = "directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file"
        steps.append((kind, path.exists()))

    monkeypatch.setattr(os, "fsync", note)
    write_durably(path, b"new")
    # the content before it has its name, the name after it
    assert steps == [("file", False), ("directory", True)]
    steps.clear()
    remove_durably(path)
    assert steps == [("directory", False)]
    remove_durably(path)


@pytest.mark.parametrize("call", ["fsync", "fchmod"])
def test_a_failure_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "file"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match="No space left"):
        write_durably(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_two_writers_at_once_leave_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with replaced_file(path) as first:
        first.write(b"half of the first, ")
        write_durably(path, b"second")
        assert path.read_bytes() == b"second"
        first.write(b"and the other half")
    assert path.read_bytes() == b"half of the first, and the other half"
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_writer_has_left_is_removed_by_the_next(tmp_path: Path) -> None:
    path = tmp_path / "file"
    code = "import os, pathlib, sys; from hugepage_qa.durable import replaced_file\n"
    code += "with replaced_file(pathlib.Path(sys.argv[1])): os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    (left,) = tmp_path.iterdir()
    write_durably(path, b"new")
    assert not left.exists()
    assert path.read_bytes() == b"new"


def test_what_looks_like_left_is_not_followed(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"precious")
    (tmp_path / ".file.0.new").symlink_to(other)
    os.mkfifo(tmp_path / ".file.1.new")
    write_durably(tmp_path / "file", b"new")
    assert other.read_bytes() == b"precious"
    assert (tmp_path / "file").read_bytes() == b"new"


def test_a_file_that_another_writer_took_for_left_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between its making and its locking nobody holds it."""
    taken: list[Path] = []

    def take(stream: IO[bytes], _operation: int) -> None:
        if not taken:
            taken.append(Path(stream.name))
            taken[0].unlink()

    monkeypatch.setattr(fcntl, "flock", take)
    write_durably(tmp_path / "file", b"new")
    assert taken
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"new"]


def test_a_directory_that_may_not_be_listed_can_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbid(_directory: Path) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    path = tmp_path / "file"
    with monkeypatch.context() as patches:
        patches.setattr(Path, "iterdir", forbid)
        with replaced_file(path) as new:
            new.write(b"new")
    assert path.read_bytes() == b"new"
