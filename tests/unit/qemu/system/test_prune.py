"""What goes out of the cache, and what must stay."""

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from hugepage_qa.qemu.system.system_images import create_overlay, prune

pytestmark = pytest.mark.skipif(shutil.which("qemu-img") is None, reason="qemu-img is not installed")

DAY = 24 * 3600


class Cache:
    """A cache with roots and images over them."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, root: str, image: str, *, noted_days_ago: float | None) -> None:
        roots, images = self.path / "systems" / "roots", self.path / "systems" / "images"
        (roots / root).mkdir(parents=True, exist_ok=True)
        (images / image).mkdir(parents=True)
        (roots / root / "disk.raw").write_bytes(b"\0" * 1024)
        create_overlay(roots / root / "disk.raw", "raw", images / image / "disk.qcow2")
        if noted_days_ago is not None:
            note = roots / f"note-{root}.json"
            note.write_text(json.dumps(root))
            then = time.time() - noted_days_ago * DAY
            os.utime(note, (then, then))

    def names(self) -> list[str]:
        directories = [*(self.path / "systems").glob("*/*/")]
        return sorted(path.name for path in directories if path.is_dir())


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path)


def test_what_is_asked_for_stays(cache: Cache) -> None:
    cache.add("root1", "image1", noted_days_ago=0)
    cache.add("root2", "image2", noted_days_ago=13)
    prune(cache.path, [])
    assert cache.names() == ["image1", "image2", "root1", "root2"]


def test_superseded_root_goes_with_its_images(cache: Cache) -> None:
    cache.add("old", "old-a", noted_days_ago=None)
    cache.add("old", "old-b", noted_days_ago=None)
    cache.add("new", "new-a", noted_days_ago=0)
    prune(cache.path, [])
    assert cache.names() == ["new", "new-a"]


def test_root_that_nobody_asked_for_goes(cache: Cache) -> None:
    cache.add("root", "image", noted_days_ago=15)
    prune(cache.path, [])
    assert cache.names() == []


def test_machines_keep_what_they_lie_over(cache: Cache) -> None:
    cache.add("old", "old-a", noted_days_ago=None)
    cache.add("older", "older-a", noted_days_ago=None)
    prune(cache.path, ["old-a"])
    assert cache.names() == ["old", "old-a"]


def test_machine_over_an_image_that_is_gone_keeps_nothing(cache: Cache) -> None:
    cache.add("old", "old-a", noted_days_ago=None)
    prune(cache.path, ["absent"])
    assert cache.names() == []


def test_overlay_moves_with_the_cache(cache: Cache, tmp_path: Path) -> None:
    cache.add("root", "image", noted_days_ago=0)
    (tmp_path / "systems").rename(tmp_path / "moved")
    disk = tmp_path / "moved" / "images" / "image" / "disk.qcow2"
    subprocess.run(["qemu-img", "check", "-q", str(disk)], check=True)  # noqa: S607
    described = subprocess.run(
        ["qemu-img", "info", "--backing-chain", "--output=json", str(disk)],  # noqa: S607
        capture_output=True,
        text=True,
        check=True,
    )
    assert len(json.loads(described.stdout)) == 2
