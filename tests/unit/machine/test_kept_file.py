"""Files that a reboot does not reset."""

import errno
import os
from pathlib import Path

import pytest

from hugepage_qa.errors import InputError
from hugepage_qa.machine import kept_file
from hugepage_qa.machine.kept_file import NOTHING, read_kept_file, restore_file


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "grub"
    path.write_bytes(b'LINE="a"\n\xff')
    path.chmod(0o640)
    return path


def test_unchanged(path: Path, tmp_path: Path) -> None:
    assert restore_file(read_kept_file(path)) == []
    assert restore_file(read_kept_file(tmp_path / "none")) == []


def test_content_and_mode(path: Path) -> None:
    kept = read_kept_file(path)
    path.write_text("other", encoding="ascii")
    path.chmod(0o600)
    (repair,) = restore_file(kept)
    assert repair.succeeded
    assert repair.before == f"'other' (mode 0600, owner {os.getuid()}:{os.getgid()})"
    assert path.read_bytes() == b'LINE="a"\n\xff'
    assert path.stat().st_mode & 0o777 == 0o640


def test_mode_alone(path: Path) -> None:
    kept = read_kept_file(path)
    path.chmod(0o600)
    (repair,) = restore_file(kept)
    assert repair.succeeded
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_file_that_was_not_there(tmp_path: Path) -> None:
    kept = read_kept_file(tmp_path / "new")
    (tmp_path / "new").touch()
    (repair,) = restore_file(kept)
    assert str(repair).startswith(f"file {tmp_path}/new: removed, was ''")
    assert not (tmp_path / "new").exists()


def test_a_file_that_is_gone(path: Path) -> None:
    kept = read_kept_file(path)
    path.unlink()
    (repair,) = restore_file(kept)
    assert (repair.succeeded, repair.before) == (True, NOTHING)
    assert restore_file(kept) == []


def test_texts_that_look_the_same_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "long"
    path.write_text("x" * 100 + "a", encoding="ascii")
    kept = read_kept_file(path)
    path.write_text("x" * 100 + "b", encoding="ascii")
    (repair,) = restore_file(kept)
    assert repair.before != repair.wanted
    assert repair.succeeded


@pytest.mark.parametrize("there", [True, False])
def test_what_cannot_be_put_back(path: Path, monkeypatch: pytest.MonkeyPatch, there: bool) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    kept = read_kept_file(path) if there else read_kept_file(path.with_name("other"))
    Path(kept.path).write_text("changed", encoding="ascii")
    monkeypatch.setattr(kept_file, "write_durably", refuse)
    monkeypatch.setattr(kept_file, "remove_durably", refuse)
    (repair,) = restore_file(kept)
    assert not repair.succeeded
    assert "'changed'" in repair.after
    assert "Read-only file system" in repair.after


def test_no_links_pipes_and_devices(tmp_path: Path, path: Path) -> None:
    (tmp_path / "link").symlink_to(path)
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe", "."):
        with pytest.raises(InputError, match="cannot be kept"):
            read_kept_file(tmp_path / name)
    with pytest.raises(InputError, match="at most 1048576 bytes"):
        (tmp_path / "large").write_bytes(bytes((1 << 20) + 1))
        read_kept_file(tmp_path / "large")


@pytest.mark.parametrize("name", ["relative", "/etc/../etc/passwd"])
def test_paths_that_are_not_plain(name: str) -> None:
    with pytest.raises(InputError, match=r"expected an absolute path without \.\."):
        read_kept_file(Path(name))


def test_a_link_in_its_place_is_replaced_and_not_followed(path: Path, tmp_path: Path) -> None:
    kept = read_kept_file(path)
    other = tmp_path / "other"
    other.touch()
    path.unlink()
    path.symlink_to(other)
    (repair,) = restore_file(kept)
    assert repair.succeeded
    assert "cannot be kept" in repair.before
    assert other.read_bytes() == b""
    assert not path.is_symlink()
