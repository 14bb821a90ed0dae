"""Files that survive a power cut."""

import errno
import os
import stat
from pathlib import Path

import pytest

from hugepage_qa.durable import remove_durably, write_durably


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


def test_what_a_killed_writer_has_left_is_not_followed(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"precious")
    (tmp_path / ".file.new").symlink_to(other)
    write_durably(tmp_path / "file", b"new")
    assert other.read_bytes() == b"precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "other"]
