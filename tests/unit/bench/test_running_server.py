"""A private server of a workload comes up or says why, is asked to end, and does not outlive us."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hugepage_qa.bench import benchmark_program
from hugepage_qa.bench.benchmark_program import private_directory, run_program, running_server
from hugepage_qa.errors import InputError
from hugepage_qa.process.process_table import has_ended

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a server runs as nobody, which root alone can arrange")

SERVER = "trap 'echo bye >>said; exit' INT; id -u; touch ready; while :; do sleep 0.05; done"


@pytest.fixture
def directory() -> Iterator[Path]:
    # pytest's own is for us alone
    with tempfile.TemporaryDirectory() as parent:
        Path(parent).chmod(0o755)
        with private_directory(Path(parent, "server")) as made:
            yield made


def test_it_is_nobody_and_ends_in_order(directory: Path) -> None:
    command = ["/bin/sh", "-c", SERVER]
    with running_server(command, directory, (directory / "ready").exists, signal.SIGINT) as pid:
        assert Path(f"/proc/{pid}/cwd").readlink() == directory
        # scheduled as one of our own processes: not in a session of its own
        assert os.getsid(pid) == os.getsid(0)
    assert has_ended(pid)
    assert (directory / "log").read_text(encoding="utf-8") == "65534\n"
    assert (directory / "said").read_text(encoding="utf-8") == "bye\n"


def test_one_that_does_not_come_up_says_why(directory: Path) -> None:
    command = ["/bin/sh", "-c", "echo no memory >&2; exit 3"]
    with (
        pytest.raises(InputError, match=r"^sh: ended with 3 at its start: no memory$"),
        running_server(command, directory, (directory / "ready").exists, signal.SIGINT),
    ):
        pass


def test_one_that_is_never_ready_is_killed(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark_program, "_DEADLINE_SECONDS", 1.0)
    command = ["/bin/sh", "-c", "trap '' INT; echo $$; while :; do sleep 0.05; done"]
    with (
        pytest.raises(InputError, match=r"^sh: was not ready after 1 s$"),
        running_server(command, directory, lambda: False, signal.SIGINT),
    ):
        pass
    assert has_ended(int((directory / "log").read_text(encoding="utf-8")))


PARENT = """\
import signal, sys, time
from pathlib import Path
from hugepage_qa.bench.benchmark_program import running_server
directory = Path(sys.argv[1])
with running_server(["/bin/sh", "-c", sys.argv[2]], directory, (directory / "ready").exists, signal.SIGINT) as pid:
    print(pid, flush=True)
    time.sleep(600)
"""


def test_it_does_not_outlive_us(directory: Path) -> None:
    command = [sys.executable, "-c", PARENT, str(directory), SERVER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
    end = time.monotonic() + 20
    while not has_ended(pid):
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_program_that_takes_too_long_ends_with_all_that_it_started(directory: Path) -> None:
    with pytest.raises(InputError, match="has not ended after 1 s"):
        run_program(["/bin/sh", "-c", f"sleep 600 & echo $! >{directory}/pid; wait"], deadline=1)
    grandchild = int((directory / "pid").read_text(encoding="utf-8"))
    end = time.monotonic() + 20
    while not has_ended(grandchild):
        assert time.monotonic() < end
        time.sleep(0.02)
