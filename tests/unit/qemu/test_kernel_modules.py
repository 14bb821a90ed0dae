"""The order in which modules are loaded: each behind what it needs."""

import gzip
import lzma
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import zstandard

from hugepage_qa.errors import InputError
from hugepage_qa.qemu.kernel_modules import Module, load_order


def _zstd_stream(content: bytes) -> bytes:
    """Return what ``zstd < module`` prints: a frame without its size."""
    packer = zstandard.ZstdCompressor().compressobj()
    return packer.compress(content) + packer.flush()


PACK: Mapping[str, Callable[[bytes], bytes]] = {
    "ko": bytes,
    "ko.gz": gzip.compress,
    "ko.xz": lzma.compress,
    "ko.zst": zstandard.compress,
}


def module(directory: Path, name: str, *depends: str, suffix: str = "ko") -> Path:
    """Return a file with the section of a module that tells what it needs, and something around it."""
    text = f"license=GPL\0depends={','.join(depends)}\0name={name}\0".encode()
    content = b"\x7fELF\xff\xfe" + text + b"\0depends on nothing\0"
    file = directory / f"{name}.{suffix}"
    file.write_bytes(PACK[suffix](content))
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


@pytest.mark.parametrize("suffix", PACK)
def test_a_name_may_have_either_kind_of_line(tmp_path: Path, suffix: str) -> None:
    files = [
        module(tmp_path, "hwpoison-inject", "crc32c-generic", suffix=suffix),
        module(tmp_path, "crc32c_generic", suffix=suffix),
    ]
    assert names(load_order(files, ["hwpoison_inject"])) == ["crc32c_generic", "hwpoison_inject"]


@pytest.mark.parametrize("suffix", PACK)
def test_a_packed_module_is_loaded_unpacked(tmp_path: Path, suffix: str) -> None:
    one, other = load_order([module(tmp_path, "ext4", "jbd2", suffix=suffix), module(tmp_path, "jbd2")], ["ext4"])
    assert (one.name, other.name) == ("jbd2", "ext4")
    assert other.content == Module(module(tmp_path, "ext4", "jbd2")).content
    assert other.content.startswith(b"\x7fELF")


def test_a_frame_that_does_not_tell_its_size_is_unpacked(tmp_path: Path) -> None:
    content = module(tmp_path, "ext4", "jbd2").read_bytes()
    (tmp_path / "ext4.ko.zst").write_bytes(_zstd_stream(content))
    assert Module(tmp_path / "ext4.ko.zst").content == content


@pytest.mark.parametrize("suffix", ["ko.gz", "ko.xz", "ko.zst"])
def test_a_module_that_cannot_be_unpacked_is_named(tmp_path: Path, suffix: str) -> None:
    file = module(tmp_path, "ext4", suffix=suffix)
    for broken in (b"no such thing", file.read_bytes()[:-5]):
        file.write_bytes(broken)
        with pytest.raises(InputError, match=r"ext4\.ko\.\w+: a module that cannot be unpacked"):
            load_order([file], ["ext4"])


def test_a_file_without_such_a_section_needs_nothing(tmp_path: Path) -> None:
    (tmp_path / "odd.ko").write_bytes(b"depends=")
    assert Module(tmp_path / "odd.ko").depends == []
