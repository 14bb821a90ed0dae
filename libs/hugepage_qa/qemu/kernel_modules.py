"""Modules of a kernel package, in the order in which they can be loaded."""

import lzma
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

_DEPENDS = re.compile(rb"\0depends=([\w,-]*)\0")


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
        """The module as the kernel loads it."""
        content = self.file.read_bytes()
        return lzma.decompress(content) if self.file.suffix == ".xz" else content

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
