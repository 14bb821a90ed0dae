"""A machine under test is always put back: after success, failure, exceptions, signals, and at the next start.

SIGINT, SIGTERM and SIGHUP end what a run does, but never the saving and putting back around it.
"""

import os
import secrets
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from hugepage_qa.errors import InputError
from hugepage_qa.machine import libc
from hugepage_qa.machine.boot_loader.find_loader import find_boot_loader
from hugepage_qa.machine.journal import Journal, find_journal, read_boot_id
from hugepage_qa.machine.kept_file import Repair, unrestored
from hugepage_qa.machine.restore import Restoration, put_back, restore
from hugepage_qa.machine.resume import goes_on
from hugepage_qa.machine.run_lock import Holder, hold_run_lock
from hugepage_qa.machine.saved_state import MachineState, Record
from hugepage_qa.process.marks import PREFIX, RUN, RUN_DIRECTORY

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# added to the number of the signal, as shells do
_SIGNALLED = 128


class StopSignals:
    """While it is entered, stop signals wait; inside ``let_through`` the first of them raises.

    SIGINT raises KeyboardInterrupt, the others SystemExit with 128 + number. Signals that are ignored stay ignored.
    What waits until the end is delivered then. Enter it in the main thread; raises InputError in another one.
    """

    def __init__(self) -> None:
        self._passing = False
        self._waiting: list[int] = []
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        try:
            for number in _SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._receive)
        except ValueError as error:
            raise InputError(f"a machine can be protected in the main thread only: {error}") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._waiting and error is None:
            signal.raise_signal(self._waiting[0])

    @contextmanager
    def let_through(self) -> Iterator[None]:
        """Let a stop signal raise in the body, also one that has come before."""
        self._passing = True
        try:
            if self._waiting:
                self._raise(self._waiting.pop())
            yield
        finally:
            self._passing = False

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        if self._passing:
            self._raise(number)
        self._waiting.append(number)

    def _raise(self, number: int) -> None:
        # one is enough: what follows is putting back
        self._passing = False
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(_SIGNALLED + number)


Say = Callable[[str], None]


@dataclass
class Protection:
    """A machine that may be changed now.

    ``resumed`` tells that the run goes on after a reboot that it has asked for. ``scratch`` is a directory for
    mounts, programs and small files (in memory), gone afterwards. After the body, ``unrestored`` holds what could not
    be put back: subject, value ``wanted``, and value found (``after``).
    """

    journal: Journal
    run_id: str
    scratch: Path
    resumed: bool
    root: Path
    unrestored: tuple[Repair, ...] = ()

    @property
    def environment(self) -> Mapping[str, str]:
        """What every process of the run must have in its environment; those that we start here have it already."""
        return {RUN: self.run_id}

    def put_back(self) -> tuple[Repair, ...]:
        """Put the machine back before the end of the body, and return what could not be.

        The directories of the run are left, for a report on what is in them. Raises InputError.
        """
        record = self.journal.read()
        return () if record is None else unrestored(put_back(record, find_boot_loader, self.root))


def say_on_stderr(line: str) -> None:
    """Print ``line`` on standard error."""
    sys.stderr.write(f"{line}\n")


@contextmanager
def protected_machine(
    purpose: str,
    *,
    token: str | None = None,
    root: Path = Path("/"),
    say: Say = say_on_stderr,
) -> Iterator[Protection]:
    """Save the machine, let the body change it, and put it back, whatever ends the body.

    ``purpose`` is one line for whoever finds the journal. A journal that a killed run has left is put back first,
    but with the ``token`` of its ``expect_reboot``, after one reboot, the run goes on instead. When the body has
    called ``expect_reboot`` and raises no error, the machine is left as it is at the end.

    SIGINT, SIGTERM and SIGHUP end the body and wait for the putting back; SIGKILL leaves that to the next start.
    Call it in the main thread. Raises InputError, before anything is changed, when we are not root or in a container
    that must not write to /sys, when another run has the machine, and when the journal cannot be written or read.
    """
    require_root("changing a machine")
    _require_writable_kernel_files(root)
    with StopSignals() as signals, hold_run_lock(root) as holder:
        protection = _begin(purpose, token, holder, root, say)
        try:
            _make_scratch(protection.scratch, root)
            with signals.let_through(), _exported(protection.environment):
                yield protection
        except Exception:
            # also one that the request for a reboot has raised
            protection.journal.forget_reboot()
            raise
        finally:
            protection.unrestored = _end(protection, say)


def new_record(purpose: str, holder: Holder, root: Path) -> Record:
    """Return a record of the machine as it is now. Raises InputError for a kernel file of an unknown form."""
    run_id = secrets.token_hex(8)
    return Record(
        run_id=run_id,
        purpose=" ".join(purpose.split()),
        holder=holder,
        boot_id=read_boot_id(root),
        state=MachineState.read(root),
        scratch=(f"/{RUN_DIRECTORY}/{PREFIX}{run_id}",),
    )


def require_root(what: str) -> None:
    """Raise InputError, which names ``what``, unless we are root."""
    if os.geteuid() != 0:
        raise InputError(f"{what}: expected to be root, found user id {os.geteuid()}: use sudo")


def _require_writable_kernel_files(root: Path) -> None:
    """Raise InputError where every write would be refused: that says nothing of the kernel."""
    for directory in (root / "sys", root / "proc/sys"):
        if directory.exists() and os.statvfs(directory).f_flag & os.ST_RDONLY:
            raise InputError(f"{directory}: is mounted read-only, expected to be outside of containers: remount it rw")


def _begin(purpose: str, token: str | None, holder: Holder, root: Path, say: Say) -> Protection:
    journal = find_journal(root)
    old = journal.read()
    resumed = old is not None and goes_on(old, token, root)
    if old is not None and not resumed:
        say(f"the run {old.run_id} ({old.purpose}; {old.holder}) did not put the machine back: doing that now")
        _tell(restore(journal, old, find_boot_loader, root), say)
        # None when all is back; else the new run tries again at its end
        old = journal.read()
    record = new_record(purpose, holder, root)
    journal.begin(record if old is None else _carry_on(old, record))
    run_id = record.run_id if old is None else old.run_id
    return Protection(journal, run_id, root / RUN_DIRECTORY / f"{PREFIX}{run_id}", resumed, root)


def _carry_on(old: Record, new: Record) -> Record:
    """Return ``old`` for the run that goes on with it: what a reboot has reset is as in ``new``."""
    state = old.state if old.boot_id == new.boot_id else new.state
    return replace(old, holder=new.holder, boot_id=new.boot_id, state=state, expected_reboot=None)


def _end(protection: Protection, say: Say) -> tuple[Repair, ...]:
    record = protection.journal.read()
    if record is None or record.expected_reboot is not None:
        return ()
    restoration = restore(protection.journal, record, find_boot_loader, protection.root)
    _tell(Restoration(restoration.unrestored, ()), say)
    return restoration.unrestored


def _tell(restoration: Restoration, say: Say) -> None:
    for line in (*restoration.repairs, *restoration.notices):
        say(str(line))


def _make_scratch(directory: Path, root: Path) -> None:
    """Make ``directory`` a file system of its own: /run is mounted with noexec on Debian, and we build programs."""
    directory.mkdir(mode=0o700, exist_ok=True)
    # of a run that goes on it is there; in some containers nobody may mount
    if root == Path("/") and not directory.is_mount():
        with suppress(PermissionError):
            libc.mount("tmpfs", str(directory), "mode=700")


@contextmanager
def _exported(environment: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
