"""Swap for a case: a file of our own, which is known by its name, and removed after a crash, too."""

import mmap
import os
import stat
import sys
import tempfile
from collections.abc import Collection
from functools import partial
from pathlib import Path

from hugepage_qa.kernel.proc_tables import read_swaps
from hugepage_qa.kernel.tree import DirectoryTree
from hugepage_qa.kernel.uapi import ByteOrder
from hugepage_qa.machine import libc
from hugepage_qa.machine.kept_file import Repair, remove_by
from hugepage_qa.process.marks import PREFIX
from hugepage_qa.sizes import MIB

#: on a disk: the kernel cannot swap to the memory file systems that the directories of a run are in
_DIRECTORY = "var/tmp"
_NAME = f"{PREFIX}swap-"

# union swap_header in include/linux/swap.h: version, last page, number of bad pages; the magic ends the first page
HEADER_OFFSET = 1024
MAGIC = b"SWAPSPACE2"
_VERSION = 1


def swap_header(size: int, base_page: int, byte_order: ByteOrder) -> bytes:
    """Return what is at ``HEADER_OFFSET`` of a swap file of ``size`` bytes; ``MAGIC`` ends its first page."""
    numbers = (_VERSION, size // base_page - 1, 0)
    return b"".join(number.to_bytes(4, byte_order) for number in numbers)


def add_swap(size: int) -> str:
    """Have the kernel swap to a new file of ``size`` bytes and return its path. Raises OSError, and leaves no file."""
    descriptor, name = tempfile.mkstemp(prefix=_NAME, dir=f"/{_DIRECTORY}")
    try:
        with os.fdopen(descriptor, "wb") as file:
            # all of it is written: swapon(2) takes no file with holes
            for offset in range(0, size, MIB):
                file.write(bytes(min(MIB, size - offset)))
            file.seek(HEADER_OFFSET)
            file.write(swap_header(size, mmap.PAGESIZE, sys.byteorder))
            file.seek(mmap.PAGESIZE - len(MAGIC))
            file.write(MAGIC)
            file.flush()
            os.fsync(file.fileno())
        libc.swap_on(name)
    except OSError:
        Path(name).unlink()
        raise
    return name


def remove_swap(name: str) -> None:
    """Bring back what was swapped to a file of ``add_swap``, and remove it. Raises OSError."""
    libc.swap_off(name)
    Path(name).unlink()


def remove_swap_files(root: Path) -> list[Repair]:
    """Remove every file of ``add_swap`` below ``root``, in use or not."""
    used = read_swaps(DirectoryTree(root))
    return [_remove(f"/{_DIRECTORY}/{path.name}", path, used) for path in sorted(_our_files(root / _DIRECTORY))]


def _our_files(directory: Path) -> list[Path]:
    if not directory.is_dir():
        return []
    # anybody can write there: only what is a file and ours counts
    return [path for path in directory.iterdir() if path.name.startswith(_NAME) and _is_ours(path)]


def _is_ours(path: Path) -> bool:
    status = path.lstat()
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()


def _remove(name: str, path: Path, used: Collection[str]) -> Repair:
    is_used = name in used
    removal = partial(remove_swap, str(path)) if is_used else path.unlink
    return remove_by(removal, f"swap file {name}", "in use" if is_used else "a file")
