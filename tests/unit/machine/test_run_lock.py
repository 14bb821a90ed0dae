"""One run at a time, in real processes."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hugepage_qa.errors import InputError
from hugepage_qa.machine import run_lock
from hugepage_qa.machine.run_lock import LOCK, hold_run_lock, read_holder, this_process
from hugepage_qa.process import process_table

HOLD = """
import sys, time
from pathlib import Path
from hugepage_qa.machine.run_lock import hold_run_lock
with hold_run_lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(1000)
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path


def start_holder(root: Path) -> subprocess.Popen[str]:
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(root)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    return holder


def test_the_second_one_is_told_who_holds_it_and_a_dead_holder_holds_nothing(root: Path) -> None:
    with start_holder(root) as holder:
        with pytest.raises(InputError) as caught, hold_run_lock(root):
            pytest.fail("two runs at once")
        described = read_holder(root)
        holder.send_signal(signal.SIGKILL)
    message = str(caught.value)
    assert f"in use by process {holder.pid} ({sys.executable} -c " in message
    assert message.endswith("wait until it ends")
    assert described is not None
    assert described in message
    # killed: its file is still there
    assert (root / LOCK).exists()
    assert read_holder(root) is None
    with hold_run_lock(root) as ours:
        assert ours.pid == os.getpid()
    assert not (root / LOCK).exists()


def test_in_the_same_process(root: Path) -> None:
    with hold_run_lock(root), pytest.raises(InputError, match=f"process {os.getpid()} "), hold_run_lock(root):
        pytest.fail("two runs at once")
    with hold_run_lock(root):
        assert read_holder(root) is not None


def test_programs_that_we_start_do_not_inherit_it(root: Path) -> None:
    with hold_run_lock(root):
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    try:
        with hold_run_lock(root):
            assert child.poll() is None
    finally:
        child.kill()
        child.wait()


FORK = """
import os, sys, time
from pathlib import Path
from hugepage_qa.machine.run_lock import hold_run_lock
with hold_run_lock(Path(sys.argv[1])):
    if os.fork() == 0:
        print("forked", flush=True)
        sys.stdin.read()
        os._exit(0)
    time.sleep(1000)
"""


def test_a_holder_that_was_killed_while_it_started_a_program(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", FORK, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    assert holder.stdout.readline() == "forked\n"
    # not waited for: as the child of a program that does not care
    holder.kill()
    while not process_table.has_ended(holder.pid):
        pass
    with monkeypatch.context() as impatient:
        impatient.setattr(run_lock, "_DEADLINE_SECONDS", 0)
        with pytest.raises(InputError, match=f"in use by process {holder.pid} "), hold_run_lock(root):
            pytest.fail("two runs at once")
    pauses: list[float] = []

    def end_the_child(seconds: float) -> None:
        pauses.append(seconds)
        assert holder.stdin is not None
        holder.stdin.close()

    monkeypatch.setattr(time, "sleep", end_the_child)
    with hold_run_lock(root):
        assert pauses
    holder.wait()
    holder.stdout.close()


def test_only_root_can_open_it(root: Path) -> None:
    with hold_run_lock(root):
        assert (root / LOCK).stat().st_mode & 0o777 == 0o600


def test_a_holder_that_has_not_written_its_name_yet(root: Path) -> None:
    (root / LOCK).write_text('{"pid": 1', encoding="ascii")
    with (root / LOCK).open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(InputError, match="in use by another run"), hold_run_lock(root):
            pytest.fail("two runs at once")


def test_a_file_that_is_removed_while_we_lock_it(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = fcntl.flock
    calls: list[int] = []

    def remove_first(descriptor: int, operation: int) -> None:
        calls.append(descriptor)
        if len(calls) == 1:
            (root / LOCK).unlink()
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", remove_first)
    with hold_run_lock(root):
        monkeypatch.undo()
        with pytest.raises(InputError), hold_run_lock(root):
            pytest.fail("two runs at once")


def test_a_link_is_not_followed(root: Path, tmp_path: Path) -> None:
    (root / LOCK).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match=r"lock file .* cannot be opened"), hold_run_lock(root):
        pytest.fail("followed")
    assert not (tmp_path / "elsewhere").exists()


def test_an_argument_that_is_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["python", "\udcff"])
    assert this_process().command == "python '?'"
