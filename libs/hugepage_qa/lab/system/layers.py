"""Directories in the cache that are named after what went into them, and appear whole or not at all."""

import hashlib
import json
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_UNFINISHED = ".new-"


def digest_of(ingredients: object) -> str:
    """Return the name of the layer that is made of ``ingredients`` (anything that JSON can hold)."""
    return hashlib.sha256(json.dumps(ingredients, sort_keys=True).encode()).hexdigest()[:32]


@contextmanager
def new_layer(final: Path) -> Iterator[Path]:
    """Yield an empty directory beside ``final`` that takes this name at the end, and goes away on an error.

    The caller holds a lock against others who build in this directory: what they left when they were killed is removed.
    """
    final.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    for left in final.parent.glob(f"{_UNFINISHED}*"):
        remove(left)
    directory = Path(tempfile.mkdtemp(dir=final.parent, prefix=_UNFINISHED))
    try:
        yield directory
        directory.rename(final)
    finally:
        remove(directory)


def remove(directory: Path) -> None:
    """Remove ``directory`` with all that is in it, if it is there.

    Not by shutil: a root whose building was killed may still have the host's /dev mounted in it.
    """
    subprocess.run(["rm", "-rf", "--one-file-system", "--", str(directory)], check=True)  # noqa: S607
