"""A tree of the files that a kernel shows, on a live machine or captured, and what the texts in them mean."""

import os
import re
from collections.abc import Iterable, Mapping
from io import FileIO
from pathlib import Path
from typing import NoReturn, Protocol

from hugepage_qa.errors import InputError
from hugepage_qa.sizes import KIB


class Tree(Protocol):
    """Read access to kernel files; paths are relative to the root, without a leading slash."""

    def read(self, path: str) -> str | None:
        """Return the text of ``path``, or None where there is no such file or it cannot be read."""

    def names(self, path: str) -> list[str]:
        """Return the sorted names of the entries of directory ``path``; empty where there is none."""


class DirectoryTree:
    """Kernel files below a directory: ``/`` is the live machine."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)

    def read(self, path: str) -> str | None:
        try:
            # not as text, where the carriage return that a name may hold would end a line
            with FileIO(f"{self._root}/{path}") as file:
                return file.readall().decode(errors="replace")
        except OSError:
            # sysfs answers EINVAL or EIO for files that exist but have nothing to say
            return None

    def write(self, path: str, value: str) -> None:
        """Write ``value`` as a line, in one write, to a file that is no link. Raises OSError as the kernel says."""
        descriptor = os.open(f"{self._root}/{path}", os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.write(descriptor, f"{value}\n".encode())
        finally:
            os.close(descriptor)

    def names(self, path: str) -> list[str]:
        try:
            with os.scandir(f"{self._root}/{path}") as entries:
                return sorted(entry.name for entry in entries)
        except OSError:
            return []


class CapturedTree:
    """Kernel files held in memory: what a probe machine printed on its serial port."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self._files = dict(files)

    @property
    def files(self) -> Mapping[str, str]:
        """Every captured file: path without leading slash to text."""
        return self._files

    def read(self, path: str) -> str | None:
        return self._files.get(path)

    def names(self, path: str) -> list[str]:
        prefix = f"{path.rstrip('/')}/"
        return sorted({name[len(prefix) :].split("/", 1)[0] for name in self._files if name.startswith(prefix)})


# 20 digits hold every 64-bit number; more is no kernel output
_INTEGER = re.compile(r"-?[0-9]{1,20}")
_SIZE = re.compile(r"(?P<number>[0-9]{1,20})kB")
_SIZE_DIRECTORY = re.compile(r"hugepages-(?P<number>[0-9]{1,20})kB")


def malformed(path: str, line: int, text: str, expected: str) -> NoReturn:
    """Raise InputError: ``line`` (counted from 1) of ``path`` holds ``text`` and not what was expected."""
    raise InputError(f"/{path}, line {line}: {text[:120]!r}: expected {expected}")


def parse_integer(text: str, path: str, line: int = 1) -> int:
    """Return the decimal number ``text``, spaces around it allowed; InputError names ``path`` and ``line``."""
    if _INTEGER.fullmatch(text.strip()) is None:
        malformed(path, line, text, "a whole number")
    return int(text.strip())


def parse_number_or_size(text: str, path: str) -> int:
    """Return a plain number, or the bytes of a size such as ``2048kB`` (demote_size_show() in mm/hugetlb_sysfs.c)."""
    size = _SIZE.fullmatch(text.strip())
    return int(size["number"]) * KIB if size else parse_integer(text, path)


def read_integer(tree: Tree, path: str) -> int | None:
    """Return the number in the file ``path``, or None where there is no such file."""
    text = tree.read(path)
    return None if text is None else parse_integer(text, path)


def read_numbers(tree: Tree, directory: str, names: Iterable[str] | None = None) -> dict[str, int]:
    """Return the numbers in the files of ``directory``, in those called ``names``. Raises InputError for other text."""
    values = ((name, read_integer(tree, f"{directory}/{name}")) for name in names or tree.names(directory))
    return {name: value for name, value in values if value is not None}


def size_directories(tree: Tree, directory: str) -> dict[int, str]:
    """Return page size in bytes -> path, ascending, for each ``hugepages-<number>kB`` below ``directory``."""
    found = {}
    for name in tree.names(directory):
        if not name.startswith("hugepages-"):
            continue
        match = _SIZE_DIRECTORY.fullmatch(name)
        if match is None:
            raise InputError(f"/{directory}/{name}: expected a name such as hugepages-2048kB")
        found[int(match["number"]) * KIB] = f"{directory}/{name}"
    return dict(sorted(found.items()))


def size_name(size: int) -> str:
    """Return the kernel's name for what belongs to pages of ``size`` bytes, for example ``hugepages-2048kB``."""
    return f"hugepages-{size // KIB}kB"
