"""Disks with empty file systems: made once, by what is installed."""

from pathlib import Path

import pytest

from hugepage_qa.errors import InputError
from hugepage_qa.qemu.empty_disks import MAKERS, empty_disks
from hugepage_qa.sizes import GIB


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only directory in which a maker is looked for."""
    directory = tmp_path / "programs"
    directory.mkdir()
    monkeypatch.setenv("PATH", str(directory))
    monkeypatch.setattr("hugepage_qa.process.child._SYSTEM_DIRECTORIES", "")
    return directory


def install(directory: Path, name: str, script: str) -> None:
    """Make a program that is told the file last."""
    program = directory / name
    program.write_text(f"#!/bin/sh\nfor file; do :; done\n{script}\n")
    program.chmod(0o755)


def test_without_a_maker_there_is_no_such_disk(programs: Path, tmp_path: Path) -> None:
    assert not list(programs.iterdir())
    assert empty_disks(tmp_path) == {}


def test_each_is_made_once_and_is_mostly_a_hole(programs: Path, tmp_path: Path) -> None:
    install(
        programs, "mkfs.xfs", f"echo made >> {tmp_path}/log; printf XFSB | /bin/dd of=$file conv=notrunc status=none"
    )
    for _time in range(2):
        disks = empty_disks(tmp_path)
        assert list(disks) == ["xfs"]
        with disks["xfs"].open("rb") as image:
            assert image.read(4) == b"XFSB"
    assert (tmp_path / "log").read_text() == "made\n"
    assert disks["xfs"].stat().st_size == GIB
    assert disks["xfs"].stat().st_blocks * 512 < GIB // 64


def test_a_maker_that_fails_leaves_nothing(programs: Path, tmp_path: Path) -> None:
    install(programs, "mkfs.btrfs", "echo 'no room' >&2; exit 1")
    with pytest.raises(InputError, match=r"mkfs\.btrfs makes no file system below .*: no room"):
        empty_disks(tmp_path)
    assert [file.name for file in (tmp_path / "disks").iterdir()] == ["btrfs.lock"]


@pytest.mark.parametrize("name", MAKERS)
def test_the_real_makers_understand_what_they_are_told(tmp_path: Path, name: str) -> None:
    if MAKERS[name].find() is None:
        pytest.skip(f"{MAKERS[name].program} is not installed")
    image = empty_disks(tmp_path)[name]
    # fs/xfs/libxfs/xfs_format.h XFS_SB_MAGIC; include/uapi/linux/btrfs_tree.h BTRFS_MAGIC; include/uapi/linux/magic.h
    # EXT4_SUPER_MAGIC
    place, magic = {
        "xfs": (0, b"XFSB"),
        "btrfs": (0x10040, b"_BHRfS_M"),
        "ext4-small-blocks": (0x438, b"\x53\xef"),
    }[name]
    with image.open("rb") as file:
        file.seek(place)
        assert file.read(len(magic)) == magic
