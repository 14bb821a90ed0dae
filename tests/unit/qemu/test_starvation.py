"""A lockup of a machine is the kernel's where its emulator was busy, and the host's where it was not let run."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hugepage_qa.qemu import emulator
from hugepage_qa.qemu.emulator import Look, Starvation, look_at

LOCKUPS = (
    "[   88.078948] watchdog: BUG: soft lockup - CPU#0 stuck for 54s! [swapper/0:1]",
    "rcu: INFO: rcu_preempt self-detected stall on CPU",
    "rcu: INFO: rcu_sched detected stalls on CPUs/tasks: { 1 }",
)
Start = Callable[..., Starvation]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Watch for a while an emulator that has a share of a CPU, waits for a share of the time, and reads pages back."""
    monkeypatch.setattr(emulator, "_WATCHED_SECONDS", 0.2)
    monkeypatch.setattr(emulator, "_LOOK_SECONDS", 0.01)
    opened = []

    def start(had: float, waited: float = 0.0, faults: int = 0) -> Starvation:
        began = time.monotonic()

        def look() -> Look:
            seconds = time.monotonic() - began
            return Look(had * seconds, waited * seconds, int(100 * faults * seconds))

        watched = Starvation(look)
        opened.append(watched)
        time.sleep(0.05)
        return watched

    yield start
    for watched in opened:
        watched.close()


@pytest.mark.parametrize("lockup", LOCKUPS)
@pytest.mark.parametrize("had", [2.0, 0.9, 0.6])
def test_a_cpu_that_spins_is_the_kernels(had: float, lockup: str, start: Start) -> None:
    watched = start(had, waited=0.5)
    watched.take(f"before\r\n{lockup}\r\nafter\r\n")
    assert (watched.lockup, watched.told) == (lockup, "")


@pytest.mark.parametrize("lockup", LOCKUPS)
def test_a_machine_that_sleeps_is_the_kernels(lockup: str, start: Start) -> None:
    """A task that sleeps in a read-side critical section of RCU stalls it, and no CPU is busy."""
    watched = start(0.05, waited=0.05)
    watched.take(f"{lockup}\r\n")
    assert (watched.lockup, watched.told) == (lockup, "")


@pytest.mark.parametrize("lockup", LOCKUPS)
@pytest.mark.parametrize(("had", "waited", "faults"), [(0.4, 0.6, 0), (0.1, 1.9, 0), (0.0, 0.0, 500)])
def test_an_emulator_that_is_not_let_run_is_told(
    had: float, waited: float, faults: int, lockup: str, start: Start
) -> None:
    watched = start(had, waited, faults)
    watched.take(f"{lockup}\r\n")
    assert watched.lockup == ""
    assert watched.told.startswith("the emulator had 0 s of a CPU in 0 s, and waited for ")
    assert watched.told.endswith(f" pages: {lockup}")


def test_a_line_is_looked_at_once_and_whole(start: Start) -> None:
    watched = start(1.0)
    watched.take(LOCKUPS[0][:50])
    assert watched.lockup == ""
    watched.take(f"{LOCKUPS[0][50:]}\r\n")
    assert watched.lockup == LOCKUPS[0]
    watched.forget()
    watched.take("the next line\r\n")
    assert (watched.lockup, watched.told) == ("", "")


def test_what_a_process_has_had_is_read() -> None:
    ours = look_at(os.getpid())
    assert ours.had > 0
    assert ours.waited >= 0
    assert ours.faults >= 0
    assert look_at(1 << 30) == Look(0, 0, 0)


def test_other_lines_are_none(start: Start) -> None:
    watched = start(0.0)
    watched.take("watchdog: hung tasks are looked for\r\n")
    assert (watched.lockup, watched.told) == ("", "")


def test_the_cpu_time_is_that_of_the_last_look(start: Start) -> None:
    assert 0 < start(1.0).seconds < 60


def test_a_process_that_ends_while_it_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(_directory: Path, _pattern: str) -> Iterator[Path]:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "glob", ended)
    assert look_at(1 << 30) == Look(0, 0, 0)
