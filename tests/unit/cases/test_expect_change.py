"""A counter that disagrees now and then is told, and is a failure unless others are seen to change it."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
from tests.unit.cases.kinds import X86_64

from hugepage_qa.cases.changed_counters import expect_change
from hugepage_qa.cases.live import Live
from hugepage_qa.machine.host import CannotRun, Host
from hugepage_qa.oracle.rules import Rule

_FILES = {
    "proc/sys/kernel/osrelease": "6.12.0",
    "proc/buddyinfo": "Node 0, zone Normal 1 1 1 1 1 1 1 1 1 1 1\n",
    "proc/meminfo": "MemTotal: 4194304 kB\n",
}


class Kernel:
    """A machine whose counter rises by the next of ``changes`` at each act; by one at each pause where others act."""

    kind = X86_64

    def __init__(self, changes: Sequence[int], *, is_shared: bool = False) -> None:
        self._changes: Iterator[int] = iter(changes)
        self._is_shared = is_shared
        self._count = 0
        self._seconds = 0.0

    def perform(self, operation: str, arguments: Sequence[Any]) -> Any:
        if operation == "clock":
            return self._seconds
        if operation == "pause":
            self._seconds += float(arguments[0])
            self._count += self._is_shared
        return _FILES.get(arguments[0]) if operation in ("read", "observe") else []

    def act(self, _nothing: None) -> None:
        self._count += next(self._changes)

    def read(self, _live: Live) -> dict[str, int]:
        return {"counter": self._count}

    def on_others(self, _live: Live) -> None:
        self._count += 1


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def live_on(kernel: Kernel, stack: ExitStack) -> Live:
    return Live(Host(kernel), None, Rule("rule", "statement", "source"), stack)


@pytest.mark.parametrize(
    ("changes", "is_shared", "told", "fails"),
    [
        ((1,), False, "", False),
        ((0, 1), False, "1 of 2 attempts disagree", False),
        ((0, 2, 1), False, "2 of 2 attempts disagree", True),
        ((0, 2, 1), True, "2 of 3 attempts disagree", False),
        ((0,) * 10, True, "10 of 10 attempts disagree", True),
    ],
)
def test_how_often_a_counter_disagreed(
    changes: Sequence[int], is_shared: bool, told: str, fails: bool, stack: ExitStack
) -> None:
    kernel = Kernel(changes, is_shared=is_shared)
    live = live_on(kernel, stack)
    expect_change(live, {"counter": 1}, lambda: None, kernel.act, kernel.read)
    assert bool(live.differences) == fails
    assert told in "; ".join(live.notes)
    assert bool(live.notes) == bool(told)
    assert all(told in str(difference) for difference in live.differences)


def test_others_are_looked_for_as_long_as_the_attempts_took(stack: ExitStack) -> None:
    kernel = Kernel((2, 2, 1))
    live = live_on(kernel, stack)

    def act(_nothing: None) -> None:
        kernel.act(None)
        live.host.pause(8.0)

    def read(_live: Live) -> dict[str, int]:
        # who else works does so every twelve seconds
        return {"counter": kernel.read(live)["counter"] + int(live.host.clock() // 12)}

    expect_change(live, {"counter": 1}, lambda: None, act, read)
    assert not live.differences


def test_what_is_done_to_others_as_well_may_change_counters_too(stack: ExitStack) -> None:
    for on_others, fails in ((Kernel.on_others, False), (lambda _kernel, _live: None, True)):
        kernel = Kernel((3, 3, 1))
        live = live_on(kernel, stack)
        expect_change(live, {"counter": 1}, lambda: None, kernel.act, kernel.read, partial(on_others, kernel))
        assert bool(live.differences) == fails


def test_nothing_is_said_of_counters_that_others_change_all_the_time(stack: ExitStack) -> None:
    kernel = Kernel((0, 2) * 5, is_shared=True)
    with pytest.raises(CannotRun, match="others change the same counters all the time"):
        expect_change(live_on(kernel, stack), {"counter": 1}, lambda: None, kernel.act, kernel.read)
