"""The processes of a run, for real."""

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from hugepage_qa.machine.kept_file import NOTHING
from hugepage_qa.machine.leftovers import end_processes
from hugepage_qa.process import process_table
from hugepage_qa.process.marks import RUN
from hugepage_qa.process.process_table import belongs_to, find_processes, kill_and_wait

# a child that ignores polite signals, with one of its own in another session, which nobody waits for
FAMILY = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
else:
    print("ready", flush=True)
time.sleep(1000)
"""


@pytest.fixture
def run_id() -> str:
    return secrets.token_hex(8)


def start(run_id: str | None) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if name != RUN}
    if run_id is not None:
        environment[RUN] = run_id
    child = subprocess.Popen([sys.executable, "-c", FAMILY], env=environment, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    return child


@pytest.fixture
def family(run_id: str) -> Iterator[subprocess.Popen[str]]:
    child = start(run_id)
    yield child
    for pid in find_processes(run_id):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    child.wait()


def test_all_of_a_run_and_nothing_else(run_id: str, family: subprocess.Popen[str]) -> None:
    stranger = start(secrets.token_hex(8))
    try:
        found = find_processes(run_id)
        assert family.pid in found
        assert len(found) == 2
        repairs = end_processes(run_id)
        assert [repair.succeeded for repair in repairs] == [True, True]
        assert f"process {family.pid} ({found[family.pid]}): removed, was running" in map(str, repairs)
        assert family.wait() == -signal.SIGKILL
        assert find_processes(run_id) == {}
        assert end_processes(run_id) == []
        assert stranger.poll() is None
    finally:
        for pid in find_processes_of(stranger):
            os.kill(pid, signal.SIGKILL)
        stranger.wait()


def find_processes_of(child: subprocess.Popen[str]) -> list[int]:
    """The family of ``child``, by its run id."""
    with open(f"/proc/{child.pid}/environ", "rb") as stream:  # noqa: PTH123 - short
        (run_id,) = [word[len(RUN) + 1 :] for word in stream.read().decode().split("\0") if word.startswith(f"{RUN}=")]
    return list(find_processes(run_id))


def test_a_longer_run_id_is_another_one(run_id: str, family: subprocess.Popen[str]) -> None:
    assert not belongs_to(run_id[:-1], family.pid)
    assert belongs_to(run_id, family.pid)


def test_not_ourselves_and_not_our_ancestors(run_id: str) -> None:
    # a process with the run id that looks for others with it
    script = f"from hugepage_qa.process.process_table import find_processes; print(find_processes({run_id!r}))"
    shell = f"'{sys.executable}' -c \"{script}\"; true"
    result = subprocess.run(
        ["/bin/sh", "-c", shell], env=os.environ | {RUN: run_id}, capture_output=True, text=True, check=True
    )
    assert result.stdout == "{}\n"


def test_a_process_that_is_about_to_execute_a_program(
    run_id: str, family: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    read = process_table._read

    def read_early(pid: int, name: str) -> bytes:
        return b"" if name in ("environ", "cmdline") and len(pauses) < 3 else read(pid, name)

    monkeypatch.setattr(process_table, "_read", read_early)
    monkeypatch.setattr(time, "sleep", pauses.append)
    assert belongs_to(run_id, family.pid)
    assert len(pauses) == 3


@pytest.mark.usefixtures("family")
def test_an_empty_environment_is_not_waited_for(run_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], env={}, stdin=subprocess.PIPE)
    with child:
        # until it is loaded
        assert not belongs_to(run_id, child.pid)
        monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("it waits"))
        assert not belongs_to(run_id, child.pid)
        child.kill()
    # gone
    assert not belongs_to(run_id, child.pid)
    # a kernel thread
    assert not belongs_to(run_id, 2)


def test_a_number_that_belongs_to_another_process_now(family: subprocess.Popen[str]) -> None:
    assert kill_and_wait([family.pid], lambda _: False) == set()
    assert family.poll() is None


def test_a_process_that_has_ended() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    # ended since it was looked at
    assert kill_and_wait([child.pid], lambda _: True) == set()


THREADS = """
import os, threading, time
print("ready", flush=True)
threading.Thread(target=time.sleep, args=(1000,)).start()
import ctypes
# the first thread ends alone
ctypes.CDLL(None).syscall(60, 0)
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="exit(2) has this number on x86_64")
def test_a_process_whose_first_thread_is_dead_runs_on() -> None:
    child = subprocess.Popen([sys.executable, "-c", THREADS])
    try:
        while "Z" not in Path(f"/proc/{child.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2]:
            assert child.poll() is None
        assert not process_table.has_ended(child.pid)
        assert kill_and_wait([child.pid], lambda _: True) == set()
        assert process_table.has_ended(child.pid)
    finally:
        child.kill()
        child.wait()


def test_a_number_that_was_given_to_another_process(
    family: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter(["1", "2"])
    monkeypatch.setattr(process_table, "_start_time", lambda _: next(times))
    monkeypatch.setattr(os, "kill", lambda *_: None)
    assert kill_and_wait([family.pid], lambda _: True) == set()


@pytest.mark.usefixtures("family")
def test_a_process_that_does_not_end(run_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hugepage_qa.process.process_table._DEADLINE_SECONDS", 0)
    monkeypatch.setattr(os, "kill", lambda *_: None)
    repairs = end_processes(run_id)
    assert {repair.after for repair in repairs} == {"running"}
    assert {repair.wanted for repair in repairs} == {NOTHING}
    assert len(repairs) == 2
    monkeypatch.undo()
    end_processes(run_id)
