"""Where kernel files are read from: a live machine, a captured directory, a serial capture."""

import os
from collections.abc import Mapping
from io import FileIO
from pathlib import Path
from typing import Protocol


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
