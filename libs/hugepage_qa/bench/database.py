"""A private database: an empty one is made, its server runs, and each block starts from a copy of the filled one."""

import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from hugepage_qa.bench.program import run_program
from hugepage_qa.bench.server import private_directory

_COPY_SECONDS = 600.0


@dataclass(frozen=True)
class Database(ABC):
    """A database in ``directory``, which belongs to nobody: its files, and the socket of its server beside them."""

    directory: Path

    @abstractmethod
    def fill_directory(self) -> None:
        """Put an empty database into the directory. Raises InputError."""

    @abstractmethod
    def running(self, settings: Mapping[str, str]) -> AbstractContextManager[int]:
        """Run the server with ``settings`` and yield its process id. Raises InputError when it does not come up."""

    @contextmanager
    def made(self) -> Iterator[Self]:
        """Make the directory with an empty database, and remove it after the block. Raises InputError."""
        with private_directory(self.directory):
            self.fill_directory()
            yield self

    @contextmanager
    def copied(self, directory: Path) -> Iterator[Self]:
        """Yield a copy of it, which must not run, in a new directory that is removed after the block."""
        try:
            run_program(["cp", "-a", "--reflink=auto", self.directory, directory], deadline=_COPY_SECONDS)
            yield replace(self, directory=directory)
        finally:
            # a copy that fails may have begun, on a full disk above all
            if directory.exists():
                shutil.rmtree(directory)
