"""States of guests that have booted, kept in files: whoever has the same to see goes on from one, and boots no more.

An emulated kernel needs seconds up to its shell, and does the same each time.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path

from hugepage_qa.qemu.guest.guest_site import Site

#: of 65 to 85 MiB each; pages of 2M and 1G need some 40
_MOST = 48
_SUFFIX = ".state"


class BootedStates:
    """Those below ``directory`` of guests of one ``kind`` of driver, on ``site``: with its emulator and its kernel."""

    def __init__(self, directory: Path, kind: str, site: Site) -> None:
        self._directory = directory
        self._kind = kind
        self._site = site

    @cached_property
    def _made_of(self) -> list[object]:
        site = self._site
        emulator = Path(site.emulator).stat()
        # files in the cache have the time at which they were needed last
        content = [_digest(file) for file in (site.kernel, site.initramfs)]
        return [
            self._kind,
            site.emulator,
            emulator.st_size,
            emulator.st_mtime_ns,
            site.machine,
            site.cpu,
            site.words,
            *content,
        ]

    def find(self, seen: str) -> Path | None:
        """Return the state of a guest that sees ``seen``, None where there is none yet."""
        path = self.path(seen)
        with suppress(FileNotFoundError):
            # those that were needed last are kept
            os.utime(path)
            return path
        return None

    @contextmanager
    def new(self, seen: str) -> Iterator[Path]:
        """Yield an empty file; what the block has written to it is the state of a guest that sees ``seen``.

        When the block raises, there is none.
        """
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._directory, prefix=".new-") as scratch:
            path = Path(scratch, "state")
            path.touch(mode=0o600)
            yield path
            path.rename(self.path(seen))
        for old in sorted(self._directory.glob(f"*{_SUFFIX}"), key=_last_needed)[:-_MOST]:
            old.unlink(missing_ok=True)

    def drop(self, seen: str) -> None:
        """Remove a state that cannot be read."""
        self.path(seen).unlink(missing_ok=True)

    def path(self, seen: str) -> Path:
        """Return where the state of a guest that sees ``seen`` is, if there is one."""
        name = hashlib.sha256(json.dumps([*self._made_of, seen]).encode()).hexdigest()
        return self._directory / f"{name}{_SUFFIX}"


def _digest(path: str) -> str:
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _last_needed(file: Path) -> int:
    with suppress(FileNotFoundError):
        return file.stat().st_mtime_ns
    return 0
