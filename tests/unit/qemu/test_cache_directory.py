"""The cache directory belongs to one user."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from hugepage_qa.cache import cache_directory, locked, scratch_directory, write_atomically
from hugepage_qa.errors import InputError


def test_default_follows_xdg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HUGEPAGE_QA_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_directory() == tmp_path / "xdg" / "hugepage-qa"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_directory() == tmp_path / ".cache" / "hugepage-qa"


def test_it_is_created_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUGEPAGE_QA_CACHE", str(tmp_path / "a" / "b"))
    assert cache_directory().stat().st_mode & 0o777 == 0o700


def test_symbolic_link_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.setenv("HUGEPAGE_QA_CACHE", str(tmp_path / "link"))
    with pytest.raises(InputError, match="link is a symbolic link"):
        cache_directory()


def test_directory_that_everybody_can_write_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o1777)
    monkeypatch.setenv("HUGEPAGE_QA_CACHE", str(tmp_path / "open"))
    with pytest.raises(InputError, match="writable for others"):
        cache_directory()


def test_directory_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUGEPAGE_QA_CACHE", str(tmp_path / "mine"))
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.raises(InputError, match="belongs to user id"):
        cache_directory()


def test_file_in_its_place_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HUGEPAGE_QA_CACHE", str(tmp_path / "file"))
    with pytest.raises(InputError, match="cannot be created"):
        cache_directory()


def test_lock_excludes_threads_too(tmp_path: Path) -> None:
    inside = threading.Event()
    with locked(tmp_path / "lock"):
        thread = threading.Thread(target=lambda: enter(tmp_path / "lock", inside))
        thread.start()
        assert not inside.wait(0.1)
    assert inside.wait(2)
    thread.join()


def enter(path: Path, inside: threading.Event) -> None:
    with locked(path):
        inside.set()


def test_half_written_file_never_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(tmp_path / "x", b"data")
    assert list(tmp_path.iterdir()) == []


def test_a_scratch_directory_goes_with_its_block(tmp_path: Path) -> None:
    with scratch_directory(tmp_path) as directory:
        (directory / "file").touch()
        with scratch_directory(tmp_path) as another:
            assert directory.is_dir(), "it is in use"
            assert another != directory
    assert not directory.exists()


def test_a_scratch_directory_of_a_killed_process_is_removed_by_the_next(tmp_path: Path) -> None:
    code = "import os, pathlib, sys; from hugepage_qa.cache import scratch_directory\n"
    code += "with scratch_directory(pathlib.Path(sys.argv[1])): os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    (left,) = (tmp_path / "scratch").glob("[!.]*")
    with scratch_directory(tmp_path):
        assert not left.exists()


def test_a_directory_that_its_owner_removes_meanwhile_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "scratch" / "gone"
    monkeypatch.setattr(Path, "glob", lambda _self, _pattern: iter([gone]))
    with scratch_directory(tmp_path) as directory:
        assert directory.is_dir()
