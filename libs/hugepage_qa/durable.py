"""Files that survive a power cut: written whole, and on the disk when the call returns."""

import os
from contextlib import suppress
from pathlib import Path


def write_durably(path: Path, content: bytes | str, *, mode: int = 0o644, owner: tuple[int, int] | None = None) -> None:
    """Replace the file ``path`` by ``content``; ``owner`` is a user id and a group id, by default our own.

    Whenever power is cut, the file is the old one or the new one. Raises OSError; the old file is kept then.
    """
    new = path.with_name(f".{path.name}.new")
    # what a killed writer has left; made anew, so that it cannot be a file or link of somebody else
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            if owner is not None:
                os.fchown(descriptor, *owner)
            os.fchmod(descriptor, mode)
            stream.write(content.encode() if isinstance(content, str) else content)
            stream.flush()
            os.fsync(descriptor)
        new.rename(path)
    except BaseException:
        with suppress(OSError):
            new.unlink()
        raise
    sync_directory(path.parent)


def remove_durably(path: Path) -> None:
    """Remove the file ``path``, for good when the call returns; it may be gone already. Raises OSError."""
    path.unlink(missing_ok=True)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Have the names in the directory ``path`` on the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
