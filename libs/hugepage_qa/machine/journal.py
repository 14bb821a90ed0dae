"""The journal: on the disk before the first change, so that whoever comes after a crash can put the machine back."""

import fcntl
import os
import secrets
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from hugepage_qa.cache import why_not_ours
from hugepage_qa.durable import remove_durably, write_durably
from hugepage_qa.errors import InputError
from hugepage_qa.machine.kept_file import read_kept_file
from hugepage_qa.machine.saved_state import (
    ExpectedReboot,
    KeptArguments,
    Record,
    format_record,
    parse_record,
)
from hugepage_qa.process.marks import PREFIX

#: the environment variable that names another directory for the journal
STATE = "HUGEPAGE_QA_STATE"

_DIRECTORY = "var/lib/hugepage-qa"
_BOOT_ID = "proc/sys/kernel/random/boot_id"


class Journal:
    """The file journal.json in a directory that only its owner can use.

    Every change is on the disk when the call that makes it returns; a call that raises has changed nothing.
    Processes of one run may add to it at the same time.
    """

    def __init__(self, directory: Path) -> None:
        """Use ``directory``, which need not exist before ``begin``."""
        self._directory = directory

    @property
    def path(self) -> Path:
        """The file journal.json."""
        return self._directory / "journal.json"

    def read(self) -> Record | None:
        """Return what it holds, None when there is no journal.

        Raises InputError for a file that is not ours to judge: unreadable, corrupt, foreign, of a later version.
        """
        try:
            text = self.path.read_text(encoding="utf-8")
            _refuse_foreign(self._directory)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise InputError(f"journal {self.path}: cannot be read ({error.strerror}): expected to be root") from error
        except UnicodeDecodeError as error:
            raise self._refusal(f"no text ({error.reason})") from error
        try:
            return parse_record(text)
        except ValueError as error:
            raise self._refusal(str(error)) from error

    def begin(self, record: Record) -> None:
        """Write ``record`` in place of any that there is. Raises InputError when it cannot be on the disk."""
        with self._writing("the machine was not changed"):
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            _refuse_foreign(self._directory)
            self._write(record)

    def remove(self) -> None:
        """Remove it: the machine is as it was. Raises InputError."""
        with self._writing("the machine is put back"):
            remove_durably(self.path)

    def keep_file(self, path: Path) -> None:
        """Keep content, mode and owner of the file ``path``, or that there is none, before its first change.

        Raises InputError for what is no regular file, and when the journal cannot be written: change nothing then.
        """
        file = read_kept_file(path)

        def add(record: Record) -> Record:
            known = any(other.path == file.path for other in record.files)
            return record if known else replace(record, files=(*record.files, file))

        self._amend(add)

    def keep_arguments(self, loader: str, arguments: Sequence[str]) -> None:
        """Keep the kernel ``arguments`` of the entry that boots next before their first change. Raises InputError."""
        kept = KeptArguments(loader, tuple(arguments))
        self._amend(lambda record: replace(record, arguments=record.arguments or kept))

    def add_scratch(self, directory: Path) -> None:
        """Have ``directory`` (named ``hugepage-qa-*``) unmounted below and removed with the run. Raises InputError."""
        if not directory.is_absolute() or not directory.name.startswith(PREFIX) or ".." in directory.parts:
            raise InputError(f"scratch directory {directory}: expected an absolute path that ends in {PREFIX}*")
        self._amend(lambda record: replace(record, scratch=tuple(dict.fromkeys((*record.scratch, str(directory))))))

    def make_scratch(self, parent: Path) -> Path:
        """Make a directory in ``parent`` and return it; it goes with the run, whenever that is killed.

        Raises InputError for a parent that is not absolute, OSError when the directory cannot be made.
        """
        directory = parent / f"{PREFIX}{secrets.token_hex(4)}"
        self.add_scratch(directory)
        directory.mkdir(mode=0o700)
        return directory

    def expect_reboot(self, token: str) -> None:
        """Have the next boot leave the machine as it is, for the start with the same ``token``. Raises InputError."""
        self._amend(lambda record: replace(record, expected_reboot=ExpectedReboot(token)))

    def forget_reboot(self) -> None:
        """Take ``expect_reboot`` back: the machine does not reboot after all. Raises InputError."""
        self._amend(lambda record: replace(record, expected_reboot=None))

    def arrive(self, boot_id: str) -> None:
        """Note that the expected reboot has led to the boot ``boot_id``. Raises InputError."""

        def note(record: Record) -> Record:
            expected = record.expected_reboot
            return record if expected is None else replace(record, expected_reboot=replace(expected, arrived=boot_id))

        self._amend(note)

    def _amend(self, change: Callable[[Record], Record]) -> None:
        self._read_existing()
        with self._writing("nothing was changed"), _exclusive(self._directory):
            self._write(change(self._read_existing()))

    def _read_existing(self) -> Record:
        record = self.read()
        if record is None:
            raise InputError(f"journal {self.path}: expected a run that protects the machine, found none")
        return record

    def _write(self, record: Record) -> None:
        try:
            text = format_record(record)
        except ValueError as error:
            raise InputError(f"journal {self.path}: cannot hold {error}") from error
        write_durably(self.path, text, mode=0o600)

    @contextmanager
    def _writing(self, consequence: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = error.strerror or str(error)
            raise InputError(
                f"journal {self.path}: cannot be written ({reason}), {consequence}: free its disk, or set {STATE} to a"
                " directory on another one"
            ) from error

    def _refusal(self, why: str) -> InputError:
        return InputError(
            f"journal {self.path}: {why}: expected what this hugepage-qa wrote; the file is kept: put the machine back"
            " by what it says, or reboot, then remove it"
        )


def find_journal(root: Path = Path("/")) -> Journal:
    """Return the journal of the machine below ``root``: in $HUGEPAGE_QA_STATE or /var/lib/hugepage-qa."""
    named = os.environ.get(STATE)
    return Journal(Path(named).absolute() if named else root / _DIRECTORY)


def read_boot_id(root: Path = Path("/")) -> str:
    """Return the id of the running boot. Raises InputError where the kernel does not tell it."""
    try:
        return (root / _BOOT_ID).read_text(encoding="ascii").strip()
    except OSError as error:
        raise InputError(f"/{_BOOT_ID}: cannot be read ({error.strerror}): expected a mounted /proc") from error


@contextmanager
def _exclusive(directory: Path) -> Iterator[None]:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _refuse_foreign(directory: Path) -> None:
    """Raise InputError for a directory in which somebody else could write what we do as root."""
    if why := why_not_ours(directory, stat.S_IWGRP | stat.S_IWOTH):
        raise InputError(f"state directory {directory} {why}: expected one that only root can use, set {STATE} to it")
