"""Programs of a workload, run to their end or as a private server, and what they have of page tables and huge pages."""

import hashlib
import os
import shlex
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from hugepage_qa.bench.workload import Unavailable
from hugepage_qa.errors import InputError
from hugepage_qa.kernel.process_status import ProcessStatus, read_process_status
from hugepage_qa.kernel.smaps import read_smaps_rollup
from hugepage_qa.kernel.tree import DirectoryTree
from hugepage_qa.kernel.uapi import NOBODY
from hugepage_qa.process.child import PIPE, WITH_OUTPUT, Child
from hugepage_qa.sizes import format_size

_SHOWN_LINES = 3


def find_program(name: str, package: str, directories: Sequence[Path] = ()) -> Path:
    """Return where the program is, in ``directories`` first; raises Unavailable, which names the ``package``."""
    path = os.pathsep.join([*map(str, directories), os.environ.get("PATH", os.defpath)])
    found = shutil.which(name, path=path)
    if found is None:
        raise Unavailable(f"{name} is not installed (package {package})")
    return Path(found).resolve()


def files_digest(*files: Path) -> str:
    """Return one digest (SHA-256) of what ``files`` hold: measurements with another program are not comparable."""
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def run_program(
    arguments: Sequence[str | Path],
    *,
    deadline: float,
    environment: Mapping[str, str] | None = None,
    user: int | None = None,
    directory: Path | None = None,
    while_running: Callable[[int], None] | None = None,
) -> str:
    """Return what the program prints; ``environment`` is added to ours, ``user`` is whom it runs as.

    ``while_running`` is called once with the process id while it runs. Whatever ends the call, the program is ended.
    Raises InputError when it fails or takes longer than ``deadline`` seconds.
    """
    words = [str(word) for word in arguments]
    # its time is measured: it is started at once, and in our session, as a scheduler that groups by sessions would give
    # client and server other shares of the CPUs. What SIGKILL leaves of it has the run's id
    with Child(
        words,
        death_signal=None,
        own_session=False,
        environment={**os.environ, "LC_ALL": "C", **(environment or {})},
        user=user,
        directory=directory,
        output=PIPE,
        errors=WITH_OUTPUT,
    ) as child:
        if while_running is not None:
            while_running(child.pid)
        try:
            output, _ = child.read(deadline)
        except TimeoutError as error:
            raise InputError(f"{shlex.join(words)}: has not ended after {deadline:.0f} s") from error
    if child.exit_code != 0:
        last = " ".join(output.splitlines()[-_SHOWN_LINES:])
        raise InputError(f"{shlex.join(words)}: ended with {child.exit_code}: {last}")
    return output


_DEADLINE_SECONDS = 120.0
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
        server = Child(words, own_session=False, user=NOBODY, directory=directory, output=stream, errors=WITH_OUTPUT)
    try:
        if not server.wait_until(is_ready, _DEADLINE_SECONDS):
            name = Path(words[0]).name
            if server.exit_code is None:
                raise InputError(f"{name}: was not ready after {_DEADLINE_SECONDS:.0f} s")
            said = log.read_text(encoding="utf-8", errors="replace").strip()[-_SHOWN_CHARACTERS:]
            raise InputError(f"{name}: ended with {server.exit_code} at its start: {' '.join(said.split())}")
        yield server.pid
    finally:
        # should it have to be killed, those of its processes that left its group end when they see that it has gone
        server.end(stop, _DEADLINE_SECONDS)


_TREE = DirectoryTree(Path("/"))

_LOOK_SECONDS = 60.0
_PAUSE_SECONDS = 0.02


def page_tables_of(server: int) -> int:
    """Return the bytes of page tables of the process ``server`` and of those that it has started."""
    return sum(one.page_tables for one in _statuses(server))


def huge_code_of(server: int) -> int:
    """Return the bytes of files, such as the program itself, that ``server`` has mapped with huge pages."""
    return (read_smaps_rollup(_TREE, server) or {}).get("FilePmdMapped", 0)


def expect_static(pid: int, size: int, name: str) -> None:
    """Look until the process ``pid``, of the program ``name``, has ``size`` bytes of static huge pages.

    Raises Unavailable if it does not.
    """
    deadline = time.monotonic() + _LOOK_SECONDS
    found = 0
    while found < size and time.monotonic() < deadline:
        sums = read_smaps_rollup(_TREE, pid) or {}
        found = max(found, sums.get("Shared_Hugetlb", 0) + sums.get("Private_Hugetlb", 0))
        time.sleep(_PAUSE_SECONDS)
    if found < size:
        raise Unavailable(f"{name} has {format_size(found)} of static huge pages, not {format_size(size)}")


def _statuses(server: int) -> Iterator[ProcessStatus]:
    for name in _TREE.names("proc"):
        if name.isascii() and name.isdigit():
            status = read_process_status(_TREE, name)
            if status is not None and server in (status.pid, status.parent):
                yield status
