"""A private server of a workload: started in a directory of its own by a user without rights, and ended in any case."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hugepage_qa.errors import InputError

#: databases refuse to run as root; this user owns nothing else (overflowuid)
NOBODY = 65534

_DEADLINE_SECONDS = 120.0
_PAUSE_SECONDS = 0.05
_SHOWN_CHARACTERS = 300


@contextmanager
def private_directory(directory: Path) -> Iterator[Path]:
    """Make ``directory``, into which only root and nobody come, and remove it after the block."""
    directory.mkdir(mode=0o700)
    try:
        os.chown(directory, NOBODY, NOBODY)
        yield directory
    finally:
        shutil.rmtree(directory)


@contextmanager
def running_server(
    command: Sequence[str | Path], directory: Path, is_ready: Callable[[], bool], stop: signal.Signals
) -> Iterator[int]:
    """Run ``command`` as nobody, and yield its process id when ``is_ready``; what it says is in ``directory``/log.

    The signal ``stop`` ends it in order. Raises InputError when it ends before it is ready, or is not after a while.
    """
    words = [str(word) for word in command]
    log = directory / "log"
    with log.open("wb") as stream:
        server = subprocess.Popen(
            words,
            user=NOBODY,
            group=NOBODY,
            extra_groups=[],
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
        )
    try:
        _wait(server, Path(words[0]).name, is_ready, log)
        yield server.pid
    finally:
        _stop(server, stop)


def _wait(server: "subprocess.Popen[bytes]", name: str, is_ready: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while time.monotonic() < deadline:
        if server.poll() is not None:
            said = log.read_text(encoding="utf-8", errors="replace").strip()[-_SHOWN_CHARACTERS:]
            raise InputError(f"{name}: ended with {server.returncode} at its start: {' '.join(said.split())}")
        if is_ready():
            return
        time.sleep(_PAUSE_SECONDS)
    raise InputError(f"{name}: was not ready after {_DEADLINE_SECONDS:.0f} s")


def _stop(server: "subprocess.Popen[bytes]", stop: signal.Signals) -> None:
    if server.poll() is not None:
        return
    server.send_signal(stop)
    try:
        server.wait(_DEADLINE_SECONDS)
    except subprocess.TimeoutExpired:
        # its processes end when they see that it has gone
        server.kill()
        server.wait()
