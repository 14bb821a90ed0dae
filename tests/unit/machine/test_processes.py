"""The processes of a run, for real."""

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress

import pytest

from hugepage_qa.machine.leftovers import end_processes
from hugepage_qa.machine.marks import RUN
from hugepage_qa.machine.processes import belongs_to, find_processes, kill_and_wait
from hugepage_qa.machine.repair import NOTHING

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
    with suppress(ProcessLookupError):
        child.kill()
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
    script = f"from hugepage_qa.machine.processes import find_processes; print(find_processes({run_id!r}))"
    shell = f"'{sys.executable}' -c \"{script}\"; true"
    result = subprocess.run(
        ["/bin/sh", "-c", shell], env=os.environ | {RUN: run_id}, capture_output=True, text=True, check=True
    )
    assert result.stdout == "{}\n"


def test_a_number_that_belongs_to_another_process_now(family: subprocess.Popen[str]) -> None:
    assert kill_and_wait([family.pid], lambda _: False) == set()
    assert family.poll() is None


def test_a_process_that_has_ended() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    calls: list[int] = []

    def ours_once(pid: int) -> bool:
        calls.append(pid)
        return len(calls) == 1

    # ended since it was looked at
    assert kill_and_wait([child.pid], ours_once) == set()


@pytest.mark.usefixtures("family")
def test_a_process_that_does_not_end(run_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hugepage_qa.machine.processes._DEADLINE_SECONDS", 0)
    monkeypatch.setattr(os, "kill", lambda *_: None)
    repairs = end_processes(run_id)
    assert {repair.after for repair in repairs} == {"running"}
    assert {repair.wanted for repair in repairs} == {NOTHING}
    assert len(repairs) == 2
    monkeypatch.undo()
    end_processes(run_id)
