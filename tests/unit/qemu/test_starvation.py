"""A lockup of a machine is the kernel's where its emulator was busy, and the host's where it was not let run."""

import time
from collections.abc import Callable, Iterator

import pytest

from hugepage_qa.qemu import starvation
from hugepage_qa.qemu.starvation import Starvation

LOCKUPS = (
    "[   88.078948] watchdog: BUG: soft lockup - CPU#0 stuck for 54s! [swapper/0:1]",
    "rcu: INFO: rcu_preempt self-detected stall on CPU",
    "rcu: INFO: rcu_sched detected stalls on CPUs/tasks: { 1 }",
)
Start = Callable[[float], Starvation]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Watch an emulator that has a share of a CPU, for a while."""
    monkeypatch.setattr(starvation, "_WATCHED_SECONDS", 0.2)
    monkeypatch.setattr(starvation, "_LOOK_SECONDS", 0.01)
    opened = []

    def start(share: float) -> Starvation:
        watched = Starvation(lambda: share * time.monotonic())
        opened.append(watched)
        time.sleep(0.05)
        return watched

    yield start
    for watched in opened:
        watched.close()


@pytest.mark.parametrize("lockup", LOCKUPS)
@pytest.mark.parametrize("share", [2.0, 0.9, 0.6])
def test_a_cpu_that_spins_is_the_kernels(share: float, lockup: str, start: Start) -> None:
    watched = start(share)
    watched.take(f"before\r\n{lockup}\r\nafter\r\n")
    assert (watched.lockup, watched.told) == (lockup, "")


@pytest.mark.parametrize("lockup", LOCKUPS)
@pytest.mark.parametrize("share", [0.4, 0.1, 0.0])
def test_an_emulator_that_is_not_let_run_is_told(share: float, lockup: str, start: Start) -> None:
    watched = start(share)
    watched.take(lockup)
    assert watched.lockup == ""
    assert watched.told.endswith(f" s: {lockup}")


def test_other_lines_are_none(start: Start) -> None:
    watched = start(0.0)
    watched.take("watchdog: hung tasks are looked for\r\n")
    assert (watched.lockup, watched.told) == ("", "")


def test_the_cpu_time_is_that_of_the_last_look(start: Start) -> None:
    assert start(1.0).seconds == pytest.approx(time.monotonic(), abs=60)
