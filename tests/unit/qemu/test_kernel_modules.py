"""The order in which modules are loaded: each behind what it needs."""

import lzma
from pathlib import Path

import pytest

from hugepage_qa.qemu.kernel_modules import Module, load_order


def module(directory: Path, name: str, *depends: str, suffix: str = "ko") -> Path:
    """Return a file with the section of a module that tells what it needs, and something around it."""
    text = f"license=GPL\0depends={','.join(depends)}\0name={name}\0".encode()
    content = b"\x7fELF\xff\xfe" + text + b"\0depends on nothing\0"
    file = directory / f"{name}.{suffix}"
    file.write_bytes(lzma.compress(content) if suffix.endswith("xz") else content)
    return file


def names(order: list[Module]) -> list[str]:
    return [one.name for one in order]


def test_what_a_module_needs_comes_before_it(tmp_path: Path) -> None:
    files = [
        module(tmp_path, "ext4", "jbd2", "mbcache"),
        module(tmp_path, "jbd2", "crc32c"),
        module(tmp_path, "mbcache"),
        module(tmp_path, "crc32c"),
    ]
    assert names(load_order(files, ["ext4"])) == ["crc32c", "jbd2", "mbcache", "ext4"]


def test_each_is_loaded_once_and_nothing_that_nobody_wants(tmp_path: Path) -> None:
    files = [
        module(tmp_path, "virtio"),
        module(tmp_path, "virtio_pci", "virtio"),
        module(tmp_path, "virtio_blk", "virtio"),
        module(tmp_path, "unwanted", "virtio"),
    ]
    assert names(load_order(files, ["virtio_pci", "virtio_blk", "virtio"])) == ["virtio", "virtio_pci", "virtio_blk"]


def test_what_is_not_there_may_be_built_in(tmp_path: Path) -> None:
    files = [module(tmp_path, "ext4", "crc32c", "jbd2"), module(tmp_path, "jbd2")]
    assert names(load_order(files, ["virtio_pci", "ext4"])) == ["jbd2", "ext4"]
    assert load_order([], ["ext4"]) == []


@pytest.mark.parametrize("suffix", ["ko", "ko.xz"])
def test_a_name_may_have_either_kind_of_line(tmp_path: Path, suffix: str) -> None:
    files = [
        module(tmp_path, "hwpoison-inject", "crc32c-generic", suffix=suffix),
        module(tmp_path, "crc32c_generic", suffix=suffix),
    ]
    assert names(load_order(files, ["hwpoison_inject"])) == ["crc32c_generic", "hwpoison_inject"]


def test_a_packed_module_is_loaded_unpacked(tmp_path: Path) -> None:
    (one,) = load_order([module(tmp_path, "ext4", suffix="ko.xz")], ["ext4"])
    assert one.content == Module(module(tmp_path, "ext4")).content
    assert one.content.startswith(b"\x7fELF")


def test_a_file_without_such_a_section_needs_nothing(tmp_path: Path) -> None:
    (tmp_path / "odd.ko").write_bytes(b"depends=")
    assert Module(tmp_path / "odd.ko").depends == []
