"""Run a program of a workload and return what it prints."""

import hashlib
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from hugepage_qa.bench.unavailable import Unavailable
from hugepage_qa.errors import InputError

_SHOWN_LINES = 3


def find_program(name: str, package: str, directories: Sequence[Path] = ()) -> Path:
    """Return where the program is, in ``directories`` first; raises Unavailable, which names the ``package``."""
    path = os.pathsep.join([*map(str, directories), os.environ.get("PATH", os.defpath)])
    found = shutil.which(name, path=path)
    if found is None:
        raise Unavailable(f"{name} is not installed (package {package})")
    return Path(found).resolve()


def sha256(program: Path) -> str:
    """Return the sha256 of the file of a program."""
    return hashlib.sha256(program.read_bytes()).hexdigest()


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
    with subprocess.Popen(
        words,
        env={**os.environ, "LC_ALL": "C", **(environment or {})},
        user=user,
        group=user,
        extra_groups=None if user is None else [],
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        try:
            if while_running is not None:
                while_running(process.pid)
            output, _ = process.communicate(timeout=deadline)
        except subprocess.TimeoutExpired as error:
            raise InputError(f"{shlex.join(words)}: has not ended after {deadline:.0f} s") from error
        finally:
            if process.poll() is None:
                process.kill()
    if process.returncode != 0:
        raise InputError(f"{shlex.join(words)}: ended with {process.returncode}: {_last_lines(output)}")
    return output


def _last_lines(output: str) -> str:
    return " ".join(output.splitlines()[-_SHOWN_LINES:])
