"""Programs that are started, waited for and ended; and processes that others started."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.process.waiting import wait_for

from hugepage_qa.process.child import PIPE, WITH_OUTPUT, Child, PrivateMounts, RunningProcess, complaint, run_to_end
from hugepage_qa.process.process_table import children_of, has_ended

#: a grandchild in the group of its parent, which waits for ever
FAMILY = "sleep 600 & echo $!; wait"

ANY_TIE = pytest.mark.parametrize("tie", [signal.SIGKILL, None])


def shell(script: str) -> list[str]:
    return ["/bin/sh", "-c", script]


@ANY_TIE
def test_output_errors_and_exit_code(tie: signal.Signals | None, tmp_path: Path) -> None:
    script = "pwd; echo $CODE >&2; exit $CODE"
    with Child(
        shell(script), death_signal=tie, environment={"CODE": "7"}, directory=tmp_path, output=PIPE, errors=PIPE
    ) as child:
        assert child.read(20) == (f"{tmp_path}\n", "7\n")
    assert (child.exit_code, child.has_ended) == (7, True)


def test_errors_with_the_output() -> None:
    with Child(shell("echo one; echo two >&2"), output=PIPE, errors=WITH_OUTPUT) as child:
        assert child.read(20) == ("one\ntwo\n", "")


def test_it_is_found_in_the_path_of_its_own_environment(tmp_path: Path) -> None:
    (tmp_path / "program").write_text("#!/bin/sh\necho here\n", encoding="utf-8")
    (tmp_path / "program").chmod(0o755)
    with Child(["program"], environment={"PATH": str(tmp_path)}, output=PIPE) as child:
        assert child.read(20) == ("here\n", "")


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    with Child([str(tmp_path / "none")], errors=PIPE) as child:
        assert child.read(20) == ("", f"{tmp_path}/none: No such file or directory\n")
    assert child.exit_code == 127
    with pytest.raises(FileNotFoundError):
        Child([str(tmp_path / "none")], death_signal=None)


@ANY_TIE
@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes somebody else")
def test_a_user(tie: signal.Signals | None) -> None:
    with Child(shell("id -u; id -G"), death_signal=tie, user=65534, output=PIPE) as child:
        assert child.read(20) == ("65534\n65534\n", "")


def test_a_control_group_is_entered_by_the_program_itself(tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").touch()
    with Child(shell(f"cat {tmp_path}/cgroup.procs; echo $$"), control_group=str(tmp_path), output=PIPE) as child:
        assert child.read(20) == (f"{child.pid}\n{child.pid}\n", "")


@pytest.mark.parametrize("settings", [{"control_group": "/"}, {"mounts": PrivateMounts()}])
def test_what_needs_the_tether_is_not_left_out(settings: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="ties a program to us"):
        Child(shell("true"), death_signal=None, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("own_session", [True, False])
@ANY_TIE
def test_its_group_is_killed_with_it(tie: signal.Signals | None, own_session: bool) -> None:
    with Child(shell(FAMILY), death_signal=tie, own_session=own_session, output=PIPE) as child:
        assert child.output is not None
        grandchild = int(child.output.readline())
        assert os.getpgid(grandchild) == child.pid
        assert (os.getsid(child.pid) == child.pid) is own_session
    assert child.exit_code == -signal.SIGKILL
    wait_for(lambda: has_ended(grandchild))


def test_a_signal_is_for_it_alone(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as out:
        child = Child(shell(FAMILY), output=out)
    wait_for(lambda: (tmp_path / "out").read_text().endswith("\n"))
    grandchild = int((tmp_path / "out").read_text())
    try:
        child.send(signal.SIGKILL)
        assert child.wait(20) == -signal.SIGKILL
        assert not has_ended(grandchild)
        # its number may be another group's by now
        child.kill()
        assert not has_ended(grandchild)
    finally:
        os.kill(grandchild, signal.SIGKILL)


@pytest.mark.parametrize(("script", "code"), [("trap 'exit 3' TERM", 3), ("trap '' TERM", -signal.SIGKILL)])
def test_it_is_asked_before_it_is_killed(script: str, code: int) -> None:
    with Child(shell(f"{script}; echo ready; while :; do sleep 0.05; done"), output=PIPE) as child:
        assert child.output is not None
        assert child.output.readline() == b"ready\n"
        child.end(signal.SIGTERM, 20 if code > 0 else 0.2)
        assert child.exit_code == code
        child.end(signal.SIGTERM, 0)


def test_what_takes_too_long() -> None:
    with Child(["sleep", "600"], output=PIPE) as child:
        assert child.wait(0.1) is None
        with pytest.raises(TimeoutError, match=f"process {child.pid} has not ended after 0.1 s"):
            child.read(0.1)
        assert not child.wait_until(lambda: False, 0.1)
        assert child.wait_until(lambda: True, 0)
        assert not child.has_ended


def test_nothing_is_waited_for_from_one_that_has_ended() -> None:
    with Child(shell("exit 3")) as child:
        assert child.wait(20) == 3
        assert not child.wait_until(lambda: pytest.fail("it is gone"), 20)


PARENT = """\
import sys, time
from hugepage_qa.process.child import Child
print(Child(["sleep", "600"], own_session=len(sys.argv) < 2).pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("words", [[], ["shared"]])
def test_it_ends_when_we_are_killed(words: list[str]) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT, *words], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        # until it has become the program, it ends by itself
        wait_for(lambda: Path(f"/proc/{pid}/comm").read_text() == "sleep\n")
        parent.kill()
    wait_for(lambda: has_ended(pid))


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:  # noqa: S607
        yield process
        process.kill()


def test_a_running_process_is_ended_and_reaped(stranger: subprocess.Popen[bytes]) -> None:
    with RunningProcess(stranger.pid) as process:
        process.reap()
        assert not process.wait(0.1)
        process.kill()
        assert process.wait(20)
        assert stranger.pid in children_of(os.getpid())
        process.reap()
        assert stranger.pid not in children_of(os.getpid())
        process.reap()
        with pytest.raises(ProcessLookupError):
            process.kill()
    with pytest.raises(ProcessLookupError):
        RunningProcess(stranger.pid)


def test_a_program_that_ends_by_itself_reads_what_it_is_given() -> None:
    done = run_to_end(["cat"], given="one\ntwo")
    assert (done.returncode, done.stdout) == (0, "one\ntwo")
    assert run_to_end(["cat"]).stdout == ""


def test_what_a_program_complained_of_last_is_told_else_its_exit_code() -> None:
    assert complaint(run_to_end(["sh", "-c", "echo one >&2; echo ' two ' >&2; echo >&2; exit 3"])) == "two"
    assert complaint(run_to_end(["false"])) == "exit code 1"


def test_a_program_that_does_not_end_is_killed() -> None:
    with pytest.raises(TimeoutError, match=r"sleep has not ended after 0\.1 s"):
        run_to_end(["sleep", "60"], seconds=0.1)
