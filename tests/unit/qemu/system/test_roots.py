"""Roots in the cache: built once, again when something has changed, and served while the network is away."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.qemu.system.conftest import FakeMmdebstrap

from hugepage_qa.errors import InputError
from hugepage_qa.qemu.system.debian_root import ChosenKernel, DebianRoot
from hugepage_qa.qemu.system.platforms import Platform
from hugepage_qa.qemu.system.root_layout import DISK_SIZE
from hugepage_qa.qemu.system.system_roots import SystemRoot, obtain_root

_PATH = "/usr/sbin:/sbin:/usr/bin:/bin"
pytestmark = pytest.mark.skipif(
    None in (shutil.which("sfdisk", path=_PATH), shutil.which("mke2fs", path=_PATH)),
    reason="sfdisk or mke2fs is not installed",
)

Obtain = Callable[..., SystemRoot]


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def obtain(tmp_path: Path, platform: Platform, said: list[str]) -> Obtain:
    """Return obtain(key, days): the root that ``key`` opens, asked for so many days after the last time."""
    cache = tmp_path / "cache"

    def ask(key: str = "key", days: float = 0) -> SystemRoot:
        for note in (cache / "systems" / "roots").glob("*.json"):
            then = note.stat().st_mtime - days * 24 * 3600
            os.utime(note, (then, then))
        packages = DebianRoot(platform, "bookworm", "types: deb\n", ChosenKernel())
        return obtain_root(cache, packages, key, report=said.append)

    return ask


def test_root_is_whole(obtain: Obtain, mmdebstrap: FakeMmdebstrap) -> None:
    root = obtain()
    assert root.release == "6.1.0-1-amd64"
    assert root.kernel.read_text() == "kernel 6.1.0-1-amd64\n"
    initramfs = root.initramfs(root.release)
    assert initramfs is not None
    assert initramfs.read_text() == "initramfs 6.1.0-1-amd64\n"
    assert root.initramfs("6.2") is None
    assert root.host_key == "ssh-ed25519 HOST"
    assert root.disk.stat().st_size == DISK_SIZE
    with root.disk.open("rb") as disk:
        disk.seek(65 << 20)
        # the magic number of ext4 in the first superblock
        assert disk.read(0x43A)[-2:] == b"\x53\xef"
    assert mmdebstrap.builds() == 1


def test_nothing_else_is_left(obtain: Obtain, mmdebstrap: FakeMmdebstrap) -> None:
    root = obtain()
    assert mmdebstrap.builds() == 1
    names = {path.name for path in root.directory.iterdir()}
    assert names - {f"{name}-{root.release}" for name in ("vmlinuz", "initrd.img")} == {
        "disk.raw",
        "lab.sources",
        "packages.json",
        "ssh_host_ed25519_key.pub",
    }
    assert len(list(root.directory.parent.iterdir())) == 2


def test_second_time_comes_from_the_cache(obtain: Obtain, mmdebstrap: FakeMmdebstrap) -> None:
    first = obtain()
    asked = len(mmdebstrap.arguments())
    assert obtain() == first
    assert len(mmdebstrap.arguments()) == asked


def test_next_day_the_versions_are_asked_again(obtain: Obtain, mmdebstrap: FakeMmdebstrap) -> None:
    first = obtain()
    assert obtain(days=2) == first
    assert mmdebstrap.arguments().count("--simulate") == 2
    mmdebstrap.offers(version="2.36-10")
    assert obtain(days=2) != first
    assert mmdebstrap.builds() == 2


def test_another_key_is_another_root(obtain: Obtain, mmdebstrap: FakeMmdebstrap) -> None:
    assert obtain("one") != obtain("two")
    assert mmdebstrap.builds() == 2


def test_root_of_last_time_serves_without_network(obtain: Obtain, mmdebstrap: FakeMmdebstrap, said: list[str]) -> None:
    first = obtain()
    mmdebstrap.offers(failure="no network")
    assert obtain(days=2) == first
    assert "no network; using the system image of last time" in said[-1]


def test_first_time_needs_the_network(obtain: Obtain, mmdebstrap: FakeMmdebstrap) -> None:
    mmdebstrap.offers(failure="no network")
    with pytest.raises(InputError, match="no network"):
        obtain()


@pytest.mark.parametrize("kernels", ["", "6.1.0 6.2.0"])
def test_root_without_one_kernel_is_refused_and_removed(
    obtain: Obtain, mmdebstrap: FakeMmdebstrap, tmp_path: Path, kernels: str
) -> None:
    mmdebstrap.offers(kernels=kernels)
    with pytest.raises(InputError, match="expected one kernel in /boot of the new root"):
        obtain()
    assert list((tmp_path / "cache" / "systems" / "roots").iterdir()) == []


def test_what_a_killed_build_left_is_removed(obtain: Obtain, mmdebstrap: FakeMmdebstrap, tmp_path: Path) -> None:
    left = tmp_path / "cache" / "systems" / "roots" / ".new-abc"
    (left / "root").mkdir(parents=True)
    obtain()
    assert mmdebstrap.builds() == 1
    assert not left.exists()


def test_damaged_note_is_not_believed(obtain: Obtain, mmdebstrap: FakeMmdebstrap) -> None:
    root = obtain()
    (note,) = root.directory.parent.glob("*.json")
    for damage in ("", "{}", '"absent"', "3"):
        note.write_text(damage)
        assert obtain() == root
    assert mmdebstrap.builds() == 1
