"""Programs are put on a disk, even if the directory of the run is none."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from hugepage_qa.kernel.tree import CapturedTree
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.machine.real_machine import find_disk

FILE_SYSTEMS = "nodev\ttmpfs\nnodev\toverlay\n\text4\n\txfs\n"


def tree(*mounts: str) -> CapturedTree:
    lines = "".join(f"some {mount} 0 0\n" for mount in mounts)
    return CapturedTree({"proc/self/mounts": lines, "proc/filesystems": FILE_SYSTEMS})


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HUGEPAGE_QA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_directory_of_the_run_if_it_is_on_a_disk(cache: Path, tmp_path: Path) -> None:
    with ExitStack() as stack:
        assert find_disk(tmp_path, tree("/ xfs rw", f"{cache} tmpfs rw"), stack) == tmp_path


@pytest.mark.parametrize("mount", ["tmpfs rw", "overlay rw", "ext4 rw,noexec"])
def test_a_directory_in_the_cache_if_not(mount: str, cache: Path, tmp_path: Path) -> None:
    with ExitStack() as stack:
        found = find_disk(tmp_path, tree(f"{tmp_path} {mount}", f"{cache} ext4 rw", "/ ext4 rw"), stack)
        assert found.parent == cache
    assert list(cache.iterdir()) == []


def test_a_mount_that_another_one_hides_does_not_count(cache: Path, tmp_path: Path) -> None:
    with ExitStack() as stack:
        found = find_disk(tmp_path, tree(f"{tmp_path} ext4 rw", f"{tmp_path} tmpfs rw", f"{cache} ext4 rw"), stack)
        assert found.parent == cache


def test_without_any_disk_it_is_said_what_there_is(cache: Path, tmp_path: Path) -> None:
    with ExitStack() as stack, pytest.raises(CannotRun, match=f"{tmp_path} is on tmpfs, {cache} is on tmpfs, /var/tmp"):
        find_disk(tmp_path, tree("/ tmpfs rw"), stack)
