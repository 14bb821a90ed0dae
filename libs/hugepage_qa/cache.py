"""The cache directory: private to one user, safe with several processes at once."""

import fcntl
import glob
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hugepage_qa.durable import replaced_file
from hugepage_qa.errors import InputError


def cache_directory() -> Path:
    """Return the cache directory: $HUGEPAGE_QA_CACHE or ~/.cache/hugepage-qa; it is created with mode 0700.

    Raises InputError when it cannot be written, or when somebody else could put kernels into it:
    a symbolic link, another owner, or write access for all.
    """
    named = os.environ.get("HUGEPAGE_QA_CACHE")
    path = Path(named) if named else _default_directory()
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise _refusal(path, f"cannot be created ({error.strerror})") from error
    if why := why_not_ours(path):
        raise _refusal(path, why)
    if not os.access(path, os.W_OK | os.X_OK):
        raise _refusal(path, "is not writable")
    return path.absolute()


def _default_directory() -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "")
    # the XDG specification tells to ignore a relative path
    return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "hugepage-qa"


def why_not_ours(directory: Path, writers: int = stat.S_IWOTH) -> str:
    """Return why somebody else could write into ``directory``, nothing where nobody can; OSError when it is not there.

    ``writers`` are the bits of the mode that may not be set.
    """
    status = directory.lstat()
    if stat.S_ISLNK(status.st_mode):
        return "is a symbolic link"
    if not stat.S_ISDIR(status.st_mode):
        return "is no directory"
    if status.st_uid != os.geteuid():
        return f"belongs to user id {status.st_uid}"
    return "is writable for others" if status.st_mode & writers else ""


def _refusal(path: Path, why: str) -> InputError:
    return InputError(f"cache directory {path} {why}: set HUGEPAGE_QA_CACHE to a directory of your own")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file ``path``, against other threads and processes; the kernel frees it if we are killed."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def held_alone(directory: Path, what: str) -> Iterator[None]:
    """Hold ``directory``, which is made, for ``what`` is done there; the kernel frees it if we are killed.

    Raises InputError where another process holds it.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"{directory}: another {what} is under way: wait for it, or stop it") from None
        yield


@contextmanager
def scratch_directory(cache: Path) -> Iterator[Path]:
    """Yield a new directory below ``cache``; removed after the block, or if we are killed by the next who asks."""
    place = cache / "scratch"
    with locked(place / ".lock"):
        for left in place.glob("[!.]*"):
            with suppress(FileNotFoundError):  # its owner removes it just now, without our lock
                _remove_if_left(left)
        directory = Path(tempfile.mkdtemp(dir=place))
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        os.close(descriptor)


@contextmanager
def working_directory(place: Path, prefix: str) -> Iterator[Path]:
    """Yield a new directory in ``place``, which others may write, whose name begins with ``prefix``.

    It is left to the caller. Our own of that prefix that nobody holds are removed before: who made them was killed.
    """
    for left in place.glob(f"{glob.escape(prefix)}*"):
        with suppress(OSError):  # its owner removes it just now
            if not why_not_ours(left, stat.S_IRWXG | stat.S_IRWXO):
                _remove_if_left(left)
    directory, descriptor = _made_and_held(place, prefix)
    try:
        yield directory
    finally:
        os.close(descriptor)


def _made_and_held(place: Path, prefix: str) -> tuple[Path, int]:
    """Return a new directory and the descriptor that holds it."""
    while True:
        directory = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        # somebody who came before our lock may have taken it for left
        if os.fstat(descriptor).st_nlink:
            return directory, descriptor
        os.close(descriptor)


def _remove_if_left(directory: Path) -> None:
    """Remove ``directory`` unless somebody holds its lock."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    else:
        shutil.rmtree(directory)
    finally:
        os.close(descriptor)


def write_atomically(path: Path, content: bytes) -> None:
    """Write ``content`` to ``path`` so that nobody ever reads half of it; a power cut may lose it."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with replaced_file(path) as new:
        new.write(content)
