"""Modules of a kernel package, in the order in which they can be loaded."""

import gzip
import lzma
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from hugepage_qa.errors import InputError

_DEPENDS = re.compile(rb"\0depends=([\w,-]*)\0")


def _unpack_zstd(content: bytes) -> bytes:
    import zstandard  # noqa: PLC0415 - few kernels have such modules

    # a frame that was written as a stream does not tell its size, which ZstdDecompressor.decompress() asks for
    unpacker = zstandard.ZstdDecompressor().decompressobj()
    try:
        unpacked = unpacker.decompress(content)
    except zstandard.ZstdError as error:
        raise ValueError(error) from error
    if not unpacker.eof:
        raise ValueError("its end is missing")
    return unpacked


#: how modules are packed (MODULE_COMPRESS_* in kernel/module/Kconfig): end of the file name -> what unpacks them
_UNPACK: Mapping[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.decompress,
    ".xz": lzma.decompress,
    ".zst": _unpack_zstd,
}


@dataclass(frozen=True)
class Module:
    """A file of a module, compressed or not; its name is the kernel's, with ``_`` for ``-``."""

    file: Path

    @property
    def name(self) -> str:
        """What other modules call it."""
        return self.file.name.partition(".ko")[0].replace("-", "_")

    @cached_property
    def content(self) -> bytes:
        """The module as the kernel loads it. Raises InputError for one that cannot be unpacked."""
        content = self.file.read_bytes()
        unpack = _UNPACK.get(self.file.suffix)
        try:
            return unpack(content) if unpack else content
        except (OSError, EOFError, ValueError, lzma.LZMAError, zlib.error) as error:
            raise InputError(f"{self.file}: a module that cannot be unpacked: {error}") from error

    @property
    def depends(self) -> list[str]:
        """The names of the modules that it needs (section .modinfo)."""
        found = _DEPENDS.search(self.content)
        return [name.replace("-", "_") for name in found[1].decode().split(",") if name] if found else []


def load_order(files: Iterable[Path], wanted: Iterable[str]) -> list[Module]:
    """Return those of ``files`` that the modules ``wanted`` need, each behind what it needs itself.

    What is not among the files may be built into the kernel.
    """
    there = {module.name: module for module in map(Module, files)}
    ordered: dict[str, Module] = {}
    for name in wanted:
        ordered.update((module.name, module) for module in _with_needs(name, there))
    return list(ordered.values())


def _with_needs(name: str, there: dict[str, Module]) -> Iterator[Module]:
    if module := there.get(name):
        for needed in module.depends:
            yield from _with_needs(needed, there)
        yield module
