"""One run at a time: the lock on the machine, which names its holder."""

import fcntl
import json
import os
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from hugepage_qa.errors import InputError
from hugepage_qa.process.process_table import has_ended

#: below the root directory; only root may write there, and it is empty after a boot
LOCK = "run/hugepage-qa.lock"

_LONGEST_DESCRIPTION = 4096
_NAMELESS = "another run"

_DEADLINE_SECONDS = 10.0
_PAUSE_SECONDS = 0.02


@dataclass(frozen=True)
class Holder:
    """Who changes the machine: process, command line, and since when (ISO 8601)."""

    pid: int
    command: str
    since: str

    def __str__(self) -> str:
        return f"process {self.pid} ({self.command}) since {self.since}"


def this_process() -> Holder:
    """Return what others are told of us."""
    # an argument need not be valid text
    command = shlex.join(sys.orig_argv).encode("utf-8", "replace").decode()
    return Holder(os.getpid(), command, datetime.now().astimezone().isoformat(timespec="seconds"))


@contextmanager
def hold_run_lock(root: Path) -> Iterator[Holder]:
    """Hold the lock of the machine whose files lie below ``root``.

    The kernel frees it when we end, however that happens (flock(2)); programs that we start do not inherit it.
    Raises InputError, which names the holder, when another run has it.
    """
    path = root / LOCK
    descriptor = _lock(path)
    holder = this_process()
    try:
        os.pwrite(descriptor, json.dumps(asdict(holder)).encode(), 0)
        yield holder
    finally:
        # while we still hold it: whoever opened it meanwhile sees that the name is gone, and starts again
        path.unlink(missing_ok=True)
        os.close(descriptor)


def read_holder(root: Path) -> str | None:
    """Return who holds the lock, in words, or None when it is free. Raises OSError when that cannot be seen."""
    try:
        descriptor = os.open(root / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return str(_read(descriptor) or _NAMELESS)
    else:
        return None
    finally:
        os.close(descriptor)


def _lock(path: Path) -> int:
    """Return a descriptor of the locked file ``path``, empty."""
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while True:
        descriptor = _open(path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _read(descriptor)
            os.close(descriptor)
            # killed while it started a program: the new process has the lock until it executes that
            if holder is not None and has_ended(holder.pid) and time.monotonic() < deadline:
                time.sleep(_PAUSE_SECONDS)
                continue
            raise InputError(f"this machine is in use by {holder or _NAMELESS}: wait until it ends") from None
        # the run before us may have removed the file between our two calls: then our lock is on no name
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), path.lstat()):
                os.ftruncate(descriptor, 0)
                return descriptor
        os.close(descriptor)


def _open(path: Path) -> int:
    try:
        # nobody else may open it: whoever can open it can lock it
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise InputError(f"lock file {path}: cannot be opened ({error.strerror}): expected to be root") from error


def _read(descriptor: int) -> Holder | None:
    try:
        return Holder(**json.loads(os.pread(descriptor, _LONGEST_DESCRIPTION, 0)))
    except (ValueError, TypeError):  # it is being written
        return None
