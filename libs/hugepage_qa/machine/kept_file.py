"""Files that a reboot does not reset, such as /etc/sysctl.d/99-hugepage-qa.conf: kept, put back, and how that went."""

import base64
import hashlib
import os
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from hugepage_qa.durable import remove_durably, write_durably
from hugepage_qa.errors import InputError
from hugepage_qa.sizes import MIB

#: stands for a file, a mount or a value that is not there
NOTHING = "nothing"


@dataclass(frozen=True)
class Repair:
    """One subject that was not as ``wanted``: its value ``before`` it was put back, and ``after``."""

    subject: str
    wanted: str
    before: str
    after: str

    @property
    def succeeded(self) -> bool:
        """Whether it is as wanted now."""
        return self.after == self.wanted

    def __str__(self) -> str:
        if self.succeeded and self.wanted == NOTHING:
            return f"{self.subject}: removed, was {self.before}"
        if self.succeeded:
            return f"{self.subject}: put back to {self.wanted}, was {self.before}"
        return f"{self.subject}: NOT put back: wanted {self.wanted}, found {self.after}"


def unrestored(repairs: Iterable[Repair]) -> tuple[Repair, ...]:
    """Return those of ``repairs`` that did not succeed."""
    return tuple(repair for repair in repairs if not repair.succeeded)


def remove_by(removal: Callable[[], None], subject: str, before: str) -> Repair:
    """Call ``removal`` and return what came of it; ``before`` tells what is there, and stays if that fails."""
    try:
        removal()
    except OSError as error:
        return Repair(subject, NOTHING, before, f"{before} ({error.strerror})")
    return Repair(subject, NOTHING, before, NOTHING)


_LARGEST = 1 * MIB
_SHOWN = 60


@dataclass(frozen=True)
class KeptFile:
    """A regular file: ``content`` in base64, or None when there is no file; mode, user id and group id."""

    path: str
    content: str | None
    mode: int = 0
    user: int = 0
    group: int = 0

    def __str__(self) -> str:
        if self.content is None:
            return NOTHING
        content = base64.b64decode(self.content)
        text = content.decode(errors="backslashreplace")
        if len(text) > _SHOWN:
            # what is not shown must be told apart, too
            text = f"{text[:_SHOWN]}... sha256 {hashlib.sha256(content).hexdigest()}"
        return f"{text!r} (mode {self.mode:04o}, owner {self.user}:{self.group})"


def read_kept_file(path: Path) -> KeptFile:
    """Return the file ``path`` as it is. Raises InputError for a path that is not absolute, and for no regular file."""
    if not path.is_absolute() or ".." in path.parts:
        raise InputError(f"file {path}: expected an absolute path without ..")
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return KeptFile(str(path), None)
    except OSError as error:
        raise InputError(f"file {path}: cannot be kept ({error.strerror}): expected a regular file") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST:
            raise InputError(f"file {path}: cannot be kept: expected a regular file of at most {_LARGEST} bytes")
        content = base64.b64encode(os.read(descriptor, _LARGEST)).decode()
    finally:
        os.close(descriptor)
    return KeptFile(str(path), content, stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid)


def restore_file(wanted: KeptFile) -> list[Repair]:
    """Put the file back and return what that took; empty when it is as it was."""
    path = Path(wanted.path)
    subject, before = f"file {path}", _describe(path)
    if before == str(wanted):
        return []
    try:
        if wanted.content is None:
            remove_durably(path)
        else:
            content = base64.b64decode(wanted.content)
            write_durably(path, content, mode=wanted.mode, owner=(wanted.user, wanted.group))
    except OSError as error:
        return [Repair(subject, str(wanted), before, f"{_describe(path)}: {error.strerror}")]
    return [Repair(subject, str(wanted), before, _describe(path))]


def _describe(path: Path) -> str:
    """Return the file as it is now, or why it cannot be seen."""
    try:
        return str(read_kept_file(path))
    except InputError as error:
        return str(error)
