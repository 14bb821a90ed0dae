"""A child process and all that it started end with us."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.process.waiting import wait_for

from hugepage_qa.process.child import Child
from hugepage_qa.process.supervised import run_supervised

# starts a grandchild in a session of its own, writes its number to the file, and waits
_CHILD = """\
import subprocess, sys, time
sleeper = subprocess.Popen(["sleep", "600"], start_new_session=True)
open(sys.argv[1] + ".new", "w").write(str(sleeper.pid))
import os; os.rename(sys.argv[1] + ".new", sys.argv[1])
time.sleep(float(sys.argv[2]))
"""

_PARENT = """\
import os, sys
from hugepage_qa.process.child import Child
from hugepage_qa.process.supervised import run_supervised
sys.exit(run_supervised(sys.argv[1:], environment=os.environ, grace=2))
"""


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"


def test_exit_code_and_environment() -> None:
    command = [sys.executable, "-c", "import os, sys; sys.exit(int(os.environ['CODE']))"]
    assert run_supervised(command, environment={"CODE": "7"}) == 7


def test_what_it_prints_goes_where_it_is_told(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import sys; print('one', flush=True); print('two', file=sys.stderr)"]
    with (tmp_path / "log").open("wb") as log:
        assert run_supervised(command, environment={}, output=log) == 0
    assert (tmp_path / "log").read_text(encoding="utf-8") == "one\ntwo\n"


def test_what_is_temporary_is_removed_when_a_job_is_cancelled(tmp_path: Path) -> None:
    code = """
import sys, tempfile, time
from hugepage_qa.process.supervised import exit_on_sigterm
exit_on_sigterm()
with tempfile.TemporaryDirectory(dir=sys.argv[1]) as entered:
    open(f"{entered}/entered", "w").close()
    while True:  # a signal that comes just before a sleep does not end it
        time.sleep(0.05)
"""
    with Child([sys.executable, "-c", code, str(tmp_path)]) as child:
        # not before: a signal that comes between the making of the directory and the with leaves it
        wait_for(lambda: list(tmp_path.glob("*/entered")))
        child.send(signal.SIGTERM)
        assert child.wait(20) == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []


def test_what_a_child_leaves_is_killed(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    mine = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        assert run_supervised([sys.executable, "-c", _CHILD, str(note), "0"], environment=os.environ) == 0
        assert not is_running(int(note.read_text(encoding="utf-8")))
        assert is_running(mine.pid), "a child of somebody else was killed"
    finally:
        mine.kill()
        mine.wait()


_ORPHAN = """\
import os, sys, time
read, write = os.pipe()
if os.fork() == 0:
    orphan = os.fork()
    if orphan:
        os.write(write, str(orphan).encode())
        os._exit(0)
    time.sleep(600)
orphan = int(os.read(read, 20))
os.wait()
os.kill(orphan, 9)
for _ in range(200):
    time.sleep(0.05)
    try:
        os.kill(orphan, 0)
    except ProcessLookupError:
        sys.exit(0)
sys.exit("a process that was killed is still there")
"""


def test_orphans_that_have_ended_are_gone() -> None:
    mine = subprocess.Popen([sys.executable, "-c", ""])
    try:
        assert run_supervised([sys.executable, "-c", _ORPHAN], environment=os.environ) == 0
    finally:
        assert mine.wait() == 0, "a child of somebody else was reaped"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_everything(tmp_path: Path, number: signal.Signals) -> None:
    note = tmp_path / "pid"
    child = [sys.executable, "-c", _CHILD, str(note), "600"]
    with subprocess.Popen([sys.executable, "-c", _PARENT, *child], stderr=subprocess.DEVNULL) as parent:
        wait_for(note.exists)
        parent.send_signal(number)
        assert parent.wait(timeout=20) == 128 + number
    assert not is_running(int(note.read_text(encoding="utf-8")))


def test_a_child_that_ignores_the_signal_is_killed(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    deaf = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n" + _CHILD
    with subprocess.Popen([sys.executable, "-c", _PARENT, sys.executable, "-c", deaf, str(note), "600"]) as parent:
        wait_for(note.exists)
        parent.terminate()
        assert parent.wait(timeout=20) == 128 + signal.SIGTERM
    assert not is_running(int(note.read_text(encoding="utf-8")))


def test_the_child_is_told_when_we_are_killed(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    code = "import os, sys; open(sys.argv[1], 'w').write(str(os.getpid())); __import__('time').sleep(600)"
    with subprocess.Popen([sys.executable, "-c", _PARENT, sys.executable, "-c", code, str(note)]) as parent:
        wait_for(lambda: note.exists() and note.read_text(encoding="utf-8"))
        parent.kill()
    pid = int(note.read_text(encoding="utf-8"))
    wait_for(lambda: not is_running(pid))
