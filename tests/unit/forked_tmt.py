"""tmt's command line, forked off a Python that has imported it: the import takes most of the time of a short run.

A run has arguments, directory, environment, output and exit code of its own, as ``python -m tmt`` has.
"""

import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
#: after them a run is killed
_SECONDS = 300


def run_tmt(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``tmt`` with ``arguments`` in ``directory``, and wait for its end."""
    server = _server()
    assert server.stdin
    assert server.stdout
    with tempfile.TemporaryDirectory() as scratch:
        files = [str(Path(scratch, name)) for name in ("output", "errors")]
        server.stdin.write(f"{json.dumps([arguments, str(directory), dict(os.environ), files])}\n")
        server.stdin.flush()
        code = int(server.stdout.readline())
        output, errors = (Path(file).read_text(encoding="utf-8") for file in files)
    return subprocess.CompletedProcess(arguments, code, output, errors)


@functools.cache
def _server() -> subprocess.Popen[str]:
    """Return the Python that forks; it ends when the tests do, as nobody can ask it any more."""
    command = [sys.executable, "-m", __name__]
    return subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _serve() -> None:
    """Run what the lines of standard input ask for, each in a fork, and answer with exit codes."""
    import tmt.__main__ as program  # noqa: PLC0415 - those who ask need it not

    program.import_cli_commands()
    for line in sys.stdin:
        child = os.fork()
        if not child:
            _become(*json.loads(line))
            program.run_cli()
            sys.exit()
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)  # noqa: T201


def _become(arguments: Sequence[str], directory: str, environment: dict[str, str], files: Sequence[str]) -> None:
    """Make this process the one that was asked for."""
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    for number, name in enumerate((os.devnull, *files)):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT), number)
    sys.argv[1:] = arguments
    signal.alarm(_SECONDS)


if __name__ == "__main__":
    _serve()
