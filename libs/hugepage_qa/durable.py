"""Files that survive a power cut: written whole, and on the disk when the call returns."""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

#: ends the name of a file that is being written, so that no directory of *.conf or *.json files takes it for one
_UNFINISHED = ".new"


def write_durably(path: Path, content: bytes | str, *, mode: int = 0o644, owner: tuple[int, int] | None = None) -> None:
    """Replace the file ``path`` by ``content``; ``owner`` is a user id and a group id, by default our own.

    Whenever power is cut, the file is the old one or the new one. Raises OSError; the old file is kept then.
    """
    with replaced_file(path) as new:
        if owner is not None:
            os.fchown(new.fileno(), *owner)
        os.fchmod(new.fileno(), mode)
        new.write(content.encode() if isinstance(content, str) else content)
        new.flush()
        os.fsync(new.fileno())
    sync_directory(path.parent)


@contextmanager
def replaced_file(path: Path) -> Iterator[IO[bytes]]:
    """Yield a new file, private to us, that becomes ``path`` after the block: nobody ever reads half of it.

    Of several writers at once each has a file of its own. Raises OSError; the old file is kept then.
    """
    _remove_what_killed_writers_left(path)
    with _new_file(path) as new:
        try:
            yield new
            new.flush()
            Path(new.name).rename(path)
        except BaseException:
            with suppress(OSError):
                Path(new.name).unlink()
            raise


def _new_file(path: Path) -> IO[bytes]:
    """Return a file beside ``path`` whose lock is held until it is closed, so that it is no left one to others."""
    while True:
        new = tempfile.NamedTemporaryFile(  # noqa: SIM115 - whoever gets it closes it
            dir=path.parent, prefix=f".{path.name}.", suffix=_UNFINISHED, delete=False
        )
        with suppress(OSError):  # NFS may have no locks: nobody can lock it there, and so nobody removes it
            fcntl.flock(new, fcntl.LOCK_EX)
        # somebody may have locked and removed it before we have locked it
        if os.fstat(new.fileno()).st_nlink:
            return new
        new.close()


def _remove_what_killed_writers_left(path: Path) -> None:
    try:
        there = [*path.parent.iterdir()]
    except PermissionError:  # who may write there need not be allowed to list what there is
        return
    for left in there:
        if left.name.startswith(f".{path.name}.") and left.name.endswith(_UNFINISHED):
            with suppress(OSError):  # it is somebody else's, or in use
                _remove_if_left(left)


def _remove_if_left(file: Path) -> None:
    """Remove ``file``, made by a writer, unless that one still holds its lock. Raises OSError."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        file.unlink()
    finally:
        os.close(descriptor)


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
