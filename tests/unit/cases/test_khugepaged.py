"""How long khugepaged is waited for is told by a clock, and what its scans say of it."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.cases.kinds import X86_64
from tests.unit.cases.text.double.files import FULL_SCANS, PMD
from tests.unit.cases.text.double.machine import TextDouble
from tests.unit.cases.text.linked import link

from hugepage_qa.cases.expectations import Failed
from hugepage_qa.cases.khugepaged_clock import await_khugepaged, await_rest, full_scans, quicken
from hugepage_qa.cases.live import Live
from hugepage_qa.machine.host import CannotRun, Host
from hugepage_qa.oracle.rules import Rule

#: for three scans by the knobs of ``quicken`` on a machine of 4 GiB: 3 * 17 rounds of 0.52 s
SECONDS = 26.5


class Slow:
    """A machine on which a look at full_scans takes a second, and khugepaged ends ``scans`` scans and no more."""

    def __init__(self, scans: int, *, has_others: bool = False) -> None:
        self.kind = replace(X86_64, has_others=has_others)
        self._double = TextDouble(link)
        self._left = scans
        #: what khugepaged does, and the share of the time in which it has a processor
        self.state, self.share = "S", 0.0
        self.now = 0.0

    def perform(self, operation: str, arguments: Sequence[Any]) -> Any:
        if operation == "clock":
            return self.now
        if operation == "pause":
            self.now += arguments[0]
            if self._left:
                self._left -= 1
                self._double.files.count(FULL_SCANS)
            return None
        if arguments and arguments[0] == FULL_SCANS:
            self.now += 1
        match operation, *arguments:
            case "names", "proc":
                return ["30"]
            case "read", "proc/30/comm":
                return "khugepaged\n"
            case "read", "proc/30/status":
                return f"State:\t{self.state}\nvoluntary_ctxt_switches:\t7\n"
            case "read", "proc/30/stat":
                ticks = round(100 * self.share * self.now)
                return f"30 (khugepaged) {self.state} 2 0 0 0 -1 0 0 0 0 0 0 {ticks} 0 0 39 19 1\n"
        return self._double.perform(operation, arguments)


def wait(machine: Slow) -> bool:
    with ExitStack() as stack:
        live = Live(Host(machine), PMD, Rule("rule", "statement", "source"), stack)
        quicken(live)
        return await_khugepaged(live, lambda: False)


def test_scans_that_are_over_end_the_wait() -> None:
    machine = Slow(3)
    assert not wait(machine)
    assert machine.now < SECONDS / 2


def test_a_khugepaged_that_does_not_run_is_at_fault_after_the_time_that_its_knobs_give_it() -> None:
    machine = Slow(0)
    with pytest.raises(Failed, match=r"expected 3 scans more, found 0 in 27 s"):
        wait(machine)
    assert machine.now < SECONDS + 3


def test_one_that_is_slow_says_nothing_of_the_kernel_where_others_are_busy() -> None:
    with pytest.raises(CannotRun, match=r"ended 2 of 3 scans in 27 s: this machine is too busy"):
        wait(Slow(2, has_others=True))


@pytest.mark.parametrize(
    ("state", "share", "error"), [("R", 0.1, CannotRun), ("R", 0.9, Failed), ("S", 0.0, Failed), ("D", 0.0, Failed)]
)
def test_one_that_ends_no_scan_is_at_fault_unless_it_waits_for_a_processor(
    state: str, share: float, error: type[Exception]
) -> None:
    machine = Slow(0, has_others=True)
    machine.state, machine.share = state, share
    with pytest.raises(error):
        wait(machine)


def test_one_that_stops_half_way_is_at_fault_where_nobody_else_is() -> None:
    with pytest.raises(Failed, match=r"expected 3 scans more, found 2 in 27 s"):
        wait(Slow(2))


@pytest.mark.parametrize("scans", [0, 3, 1000])
def test_a_scan_that_is_under_way_is_waited_for_and_one_that_never_rests_is_seen(scans: int) -> None:
    machine = Slow(scans)
    with ExitStack() as stack:
        live = Live(Host(machine), PMD, Rule("rule", "statement", "source"), stack)
        before = await_rest(live)
        live.host.pause(1)
        assert (full_scans(live) == before) == (scans < 1000)
    assert machine.now < 240
