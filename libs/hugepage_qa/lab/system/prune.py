"""Roots and images that nobody needs any more; each root takes more than a GiB of the cache."""

import json
import struct
import time
from collections.abc import Collection
from pathlib import Path

from hugepage_qa.lab.cache import locked
from hugepage_qa.lab.system.arguments import DISK
from hugepage_qa.lab.system.layers import remove

_KEPT_SECONDS = 14 * 24 * 3600
"""How long a root stays that nobody asks for; asking renews it once a day."""

# QEMU documentation, The QCOW2 image format: magic, version, backing file offset and size
_QCOW2_HEADER = ">4sIQI"


def prune(cache: Path, in_use: Collection[str]) -> None:
    """Remove roots that were superseded or not asked for in two weeks, and their images, none that is ``in_use``."""
    roots, images = cache / "systems" / "roots", cache / "systems" / "images"
    with locked(cache / "systems" / "build.lock"):
        root_of = {image.name: _root_of(image / DISK) for image in images.glob("*") if image.is_dir()}
        kept = {_noted(note) for note in roots.glob("*.json")} | {root_of.get(name) for name in in_use}
        for name, root in root_of.items():
            if root not in kept:
                remove(images / name)
        for root_directory in roots.glob("*"):
            if root_directory.is_dir() and root_directory.name not in kept:
                remove(root_directory)


def _noted(note: Path) -> str | None:
    """Return the root that ``note`` remembers; a note of long ago is forgotten."""
    if time.time() - note.stat().st_mtime > _KEPT_SECONDS:
        note.unlink()
        return None
    try:
        return str(json.loads(note.read_text()))
    except ValueError:
        return None


def _root_of(disk: Path) -> str | None:
    """Return the name of the root that qcow2 file ``disk`` lies over, None when it is no such file."""
    try:
        with disk.open("rb") as file:
            header = file.read(struct.calcsize(_QCOW2_HEADER))
            magic, _, offset, size = struct.unpack(_QCOW2_HEADER, header)
            file.seek(offset)
            backing = file.read(size)
    except (OSError, struct.error):
        return None
    return Path(backing.decode(errors="replace")).parent.name if magic == b"QFI\xfb" else None
