"""Disks with an empty file system of each kind that can be made here, for machines that write to copies of them."""

import hashlib
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hugepage_qa.cache import locked
from hugepage_qa.errors import InputError
from hugepage_qa.process.child import find_installed, run_to_end
from hugepage_qa.sizes import GIB

_SIZE = GIB


@dataclass(frozen=True)
class Maker:
    """The program that makes a file system, what it is told before the file, and the name to mount it by."""

    program: str
    options: tuple[str, ...]
    file_system: str

    def find(self) -> str | None:
        """Return the path of the program, None where it is not installed."""
        return find_installed(self.program)


#: disk -> what makes its file system; with small blocks several of them are a base page on each architecture
MAKERS: Mapping[str, Maker] = {
    "xfs": Maker("mkfs.xfs", ("-q", "-K"), "xfs"),
    "btrfs": Maker("mkfs.btrfs", ("-q", "--nodiscard"), "btrfs"),
    "ext4-small-blocks": Maker(
        "mke2fs", ("-q", "-F", "-t", "ext4", "-b", "1024", "-E", "lazy_itable_init=1,nodiscard"), "ext4"
    ),
}


def empty_disks(cache: Path) -> dict[str, Path]:
    """Return disk -> image of it, with its file system, for those whose maker is installed; made once below ``cache``.

    Raises InputError where a maker fails.
    """
    found = {name: (maker, program) for name, maker in MAKERS.items() if (program := maker.find())}
    return {name: _made(name, (program, *maker.options), cache / "disks") for name, (maker, program) in found.items()}


def _made(name: str, command: tuple[str, ...], directory: Path) -> Path:
    # another maker, or other options, make another one
    digest = hashlib.sha256(f"{command} {Path(command[0]).stat().st_mtime_ns} {_SIZE}".encode()).hexdigest()
    image = directory / f"{name}-{digest[:16]}.img"
    directory.mkdir(parents=True, exist_ok=True)
    with locked(directory / f"{name}.lock"):
        if not image.exists():
            with tempfile.TemporaryDirectory(dir=directory, prefix=".made-") as scratch:
                unfinished = Path(scratch, image.name)
                unfinished.touch()
                os.truncate(unfinished, _SIZE)  # a hole: what is empty takes no room
                done = run_to_end([*command, str(unfinished)])
                if done.returncode != 0:
                    said = done.stderr.strip()[:200]
                    raise InputError(f"{command[0]} makes no file system below {directory}: {said}")
                unfinished.rename(image)
    return image
