"""Programs that we start, and processes that others started: waited for by the clock, and ended.

Every long-running program of the suite is a ``Child``: it has a session of its own, cannot outlive us (tether.py), and
nothing of its process group is left after ``kill``. A process that is not our child is a ``RunningProcess``.
"""

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Self

from hugepage_qa.process import tether

DISCARDED, PIPE, WITH_OUTPUT = subprocess.DEVNULL, subprocess.PIPE, subprocess.STDOUT
"""Where a stream of a child may go besides a file: nowhere, to us, and for errors, where its output goes."""

Stream = int | IO[Any] | None
"""A file or its descriptor, one of the above, or None: where ours goes."""

_TETHER = Path(tether.__file__)
_PAUSE_SECONDS = 0.02


@dataclass(frozen=True)
class PrivateMounts:
    """A mount namespace of its own, in which control groups cannot be seen; the program starts in ``/``. It needs root.

    What it writes into the directories ``hidden`` is in memory and gone with the last process in the namespace, even
    after SIGKILL. The directories ``kept`` stay visible where they are, with what is mounted in them; ``bound`` maps
    files to those that replace them. Of hugetlbfs only the mounts ``pages`` are there, with None all that are not
    hidden. With ``namespace``, an open descriptor of one, that one is entered instead.
    """

    hidden: Sequence[str] = ()
    kept: Sequence[str] = ()
    bound: Mapping[str, str] | None = None
    pages: Sequence[str] | None = None
    namespace: int | None = None

    def to_json(self) -> Mapping[str, Any]:
        """Return what tether.py takes."""
        return {**asdict(self), "bound": dict(self.bound or {})}


class Child:
    """A program that we have started. As a context manager it is killed at the end of the block if it still runs."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        death_signal: signal.Signals | None = signal.SIGKILL,
        environment: Mapping[str, str] | None = None,
        directory: Path | None = None,
        user: int | None = None,
        control_group: str | None = None,
        mounts: PrivateMounts | None = None,
        standard_input: Stream = DISCARDED,
        output: Stream = None,
        errors: Stream = None,
        descriptors: Sequence[int] = (),
        own_session: bool = True,
    ) -> None:
        """Start ``command`` in ``directory``, with ``environment`` (else ours) and the open files ``descriptors``.

        The kernel sends it ``death_signal`` when the thread that we are in ends. It is then started through Python,
        which takes some 50 ms, and what prevents its start it says itself, with exit code 126 or 127. With None it
        has to see to its end itself, or what starts it finds what is left; it is started at once, and OSError is raised
        when it cannot be. ``user`` is whom it runs as, with the group of the same number and no other.
        ``control_group`` (the directory) and ``mounts`` it enters before it starts; they need a ``death_signal``.

        Ctrl-C of the terminal never reaches it, only us. Without ``own_session`` it shares the CPUs with us as one of
        our own processes does (sched_autogroup_enabled).
        """
        if death_signal is None and (control_group is not None or mounts is not None):
            raise ValueError("a control group and mounts are entered by what ties a program to us")
        words = list(command)
        if death_signal is not None:
            settings = {
                "parent": os.getpid(),
                "death_signal": death_signal,
                "user": user,
                "control_group": control_group,
                "mounts": None if mounts is None else mounts.to_json(),
            }
            words = [sys.executable, "-I", "-S", str(_TETHER), json.dumps(settings), *words]
        # Python may lie where only root can read: the tether becomes the user itself
        at_once = user if death_signal is None else None
        self._process = subprocess.Popen(
            words,
            env=None if environment is None else dict(environment),
            cwd=directory,
            user=at_once,
            group=at_once,
            extra_groups=None if at_once is None else [],
            stdin=standard_input,
            stdout=output,
            stderr=errors,
            pass_fds=descriptors,
            start_new_session=own_session,
            process_group=None if own_session else 0,
        )

    @property
    def pid(self) -> int:
        """Its process id, and that of its process group."""
        return self._process.pid

    @property
    def output(self) -> IO[bytes] | None:
        """What it prints, where that goes to a PIPE."""
        return self._process.stdout

    @property
    def errors(self) -> IO[bytes] | None:
        """What it prints on standard error, where that goes to a PIPE of its own."""
        return self._process.stderr

    @property
    def exit_code(self) -> int | None:
        """How it ended, a signal as a negative number; None while it runs."""
        return self._process.poll()

    @property
    def has_ended(self) -> bool:
        """Whether it is gone."""
        return self.exit_code is not None

    def wait(self, seconds: float | None = None) -> int | None:
        """Wait for its end, at most ``seconds``, and return its exit code, None when it runs on."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds)
        return None

    def wait_until(self, is_so: Callable[[], bool], seconds: float) -> bool:
        """Wait until ``is_so``; False when it has ended before that, or ``seconds`` are over."""
        deadline = time.monotonic() + seconds
        while not self.has_ended:
            if is_so():
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(_PAUSE_SECONDS)
        return False

    def read(self, seconds: float) -> tuple[str, str]:
        """Return what it prints to the PIPEs, output and errors, until it has ended.

        Raises TimeoutError when that takes more than ``seconds``; it runs on then.
        """
        try:
            output, errors = self._process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired as error:
            raise TimeoutError(f"process {self.pid} has not ended after {seconds:g} s") from error
        return (output or b"").decode(errors="replace"), (errors or b"").decode(errors="replace")

    def send(self, number: signal.Signals) -> None:
        """Send it, and nothing else of its group, a signal; one that has ended gets none."""
        self._process.send_signal(number)

    def end(self, number: signal.Signals, seconds: float) -> None:
        """Ask it to end with the signal ``number``, and kill it when it has not ended after ``seconds``."""
        self.send(number)
        if self.wait(seconds) is None:
            self.kill()

    def kill(self) -> None:
        """Kill it with its process group, and wait until it has given back its memory; nothing if it has ended."""
        # a number that was waited for may be another group's by now
        if not self.has_ended:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for stream in (self.output, self.errors):
            if stream is not None:
                stream.close()


#: a program that has ended, and what it printed
Completed = subprocess.CompletedProcess[str]


def run_to_end(
    command: Sequence[str],
    *,
    given: str | None = None,
    directory: str | Path | None = None,
    environment: Mapping[str, str] | None = None,
    descriptors: Sequence[int] = (),
    seconds: float | None = None,
) -> Completed:
    """Run a program that ends by itself, and return what it printed; it reads what is ``given`` and nothing else.

    The other arguments are those of a ``Child``. Raises OSError when it cannot be started, and TimeoutError, which is
    one, when it was killed after ``seconds``.
    """
    try:
        return subprocess.run(
            command,
            stdin=None if given is not None else DISCARDED,
            input=given,
            cwd=directory,
            env=environment,
            pass_fds=descriptors,
            timeout=seconds,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(f"{command[0]} has not ended after {seconds:g} s") from error


def complaint(done: Completed) -> str:
    """Return the last line that ``done`` said on standard error, else its exit code."""
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return lines[-1] if lines else f"exit code {done.returncode}"


# where programs for root are, which not every login has in its PATH
_SYSTEM_DIRECTORIES = "/usr/local/sbin:/usr/sbin:/sbin"


def search_path() -> str:
    """Return PATH, and behind it the directories of programs for root."""
    return f"{os.environ.get('PATH', os.defpath)}:{_SYSTEM_DIRECTORIES}"


def find_installed(*names: str) -> str | None:
    """Return the first of the programs ``names`` that is installed, for everybody or for root, as an absolute path."""
    return next((path for name in names if (path := shutil.which(name, path=search_path()))), None)


class RunningProcess:
    """A process that need not be our child, held by a pidfd: its number may pass to another, this does not."""

    def __init__(self, pid: int) -> None:
        """Raises ProcessLookupError when there is no such process."""
        self.pid = pid
        self._descriptor = os.pidfd_open(pid)

    def fileno(self) -> int:
        """Return the pidfd, which can be read when the process has ended."""
        return self._descriptor

    def kill(self) -> None:
        """Send it SIGKILL and do not wait. Raises ProcessLookupError when it has ended and was waited for."""
        signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)

    def wait(self, seconds: float) -> bool:
        """Wait until all of its threads have ended, at most ``seconds``; return whether they have."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def reap(self) -> None:
        """Wait for it as its parent if it has ended: until then it is in its control group. Nothing if not ours."""
        with suppress(ChildProcessError):
            os.waitid(os.P_PIDFD, self._descriptor, os.WEXITED | os.WNOHANG)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)
