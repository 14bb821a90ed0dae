"""When khugepaged sleeps is told by its state, and by how often it has gone to sleep."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import pytest
from tests.unit.cases.still_machine import StillMachine

from hugepage_qa.cases.khugepaged_sleep import await_sleep
from hugepage_qa.cases.live import Live
from hugepage_qa.machine.host import Host
from hugepage_qa.oracle.rules import Rule
from hugepage_qa.sizes import MIB

SECONDS = 10.0


class Machine(StillMachine):
    """A machine whose khugepaged shows the next of ``states`` each time, and the last one again and again.

    A state is its letter, and how often it has gone to sleep; without any there is no khugepaged, or it cannot be seen
    in what is not the whole machine.
    """

    def __init__(self, *states: tuple[str, int], is_whole: bool = True) -> None:
        super().__init__({"clock": lambda: self.now, "pause": self._pause})
        self._states = list(states)
        self._is_whole = is_whole
        self.now = 0.0

    def _pause(self, seconds: float) -> None:
        self.now += seconds

    def perform(self, operation: str, arguments: Sequence[Any]) -> Any:
        """Answer."""
        match operation, *arguments:
            case "names", "proc":
                return ["1", "2", "30", "31", "meminfo"]
            case "read", "proc/2/comm":
                return "kthreadd\n" if self._is_whole else "a program\n"
            case "read", "proc/30/comm":
                return "kcompactd0\n"
            case "read", "proc/31/comm":
                return "khugepaged\n" if self._states else None
            case "read", "proc/31/status":
                state, slept = self._states[0] if len(self._states) == 1 else self._states.pop(0)
                return f"Name:\tkhugepaged\nState:\t{state} (a word)\nPid:\t31\nvoluntary_ctxt_switches:\t{slept}\n"
        return super().perform(operation, arguments)


def seconds_until_it_sleeps(machine: Machine) -> float:
    with ExitStack() as stack:
        await_sleep(Live(Host(machine), 2 * MIB, Rule("rule", "statement", "source"), stack), SECONDS)
    return machine.now


@pytest.mark.parametrize(
    ("states", "looks"),
    [
        ((), 1),
        ((("S", 7),), 1),
        ((("R", 7), ("D", 7), ("S", 8)), 3),
        # for a moment, after an allocation that failed
        ((("S", 8), ("S", 9), ("R", 9), ("S", 10)), 4),
    ],
)
def test_one_that_sleeps_is_seen_to_do_so_twice(states: tuple[tuple[str, int], ...], looks: int) -> None:
    assert seconds_until_it_sleeps(Machine(*states)) == pytest.approx(0.05 * looks)


def test_one_that_never_sleeps_is_waited_for_as_long_as_was_said() -> None:
    assert seconds_until_it_sleeps(Machine(("R", 7))) == pytest.approx(SECONDS, abs=0.1)


def test_one_that_cannot_be_seen_is_waited_for_as_long_as_was_said() -> None:
    assert seconds_until_it_sleeps(Machine(is_whole=False)) == pytest.approx(SECONDS)


def test_what_is_done_is_not_waited_for() -> None:
    machine = Machine(("R", 7))
    with ExitStack() as stack:
        live = Live(Host(machine), 2 * MIB, Rule("rule", "statement", "source"), stack)
        await_sleep(live, SECONDS, lambda: machine.now > 1)
    assert 1 < machine.now < 1.1
