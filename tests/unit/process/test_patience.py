"""How long an actor is waited for, by a clock of the test."""

import pytest

from hugepage_qa.process import actor_link
from hugepage_qa.process.actor_link import ActorGone, ActorStarved, Patience, packet
from hugepage_qa.process.process_table import state_and_cpu_seconds

STACK = "[<0>] folio_wait_bit+0x1\n[<0>] hugetlb_fault+0x2\n"


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        """Return the time."""
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(actor_link, "time", made)
    return made


def look(patience: Patience, state: str, seconds: float) -> None:
    patience.look(state, seconds, lambda: STACK)


def test_one_that_runs_has_two_minutes_of_a_cpu(clock: Clock) -> None:
    patience = Patience(7, "fill 1 2 3")
    for seconds in (50.0, 100.0, 170.0):
        clock.now += 300
        look(patience, "R", seconds)
    with pytest.raises(ActorGone, match=r"process 7\) does not answer 'fill 1 2 3': 121 s of CPU time, and no end"):
        look(patience, "R", 171.0)


def test_what_it_had_before_does_not_count(clock: Clock) -> None:
    assert clock
    patience = Patience(7, "text")
    for seconds in (500.0, 620.0):
        look(patience, "R", seconds)


def test_one_that_is_blocked_in_the_kernel_has_five_minutes_and_is_told_with_where(clock: Clock) -> None:
    patience = Patience(7, "text")
    look(patience, "D", 1.0)
    clock.now += 300
    look(patience, "D", 1.0)
    clock.now += 1
    with pytest.raises(ActorGone, match=r"blocked in the kernel for 301 s in folio_wait_bit\+0x1 < hugetlb_fault\+0x2"):
        look(patience, "D", 1.0)


def test_one_that_was_waited_for_in_vain_has_seconds_when_it_is_killed(clock: Clock) -> None:
    patience = Patience(7, "SIGKILL", actor_link.BLOCKED_BEFORE_SECONDS)
    look(patience, "D", 1.0)
    clock.now += 11
    with pytest.raises(ActorGone, match="blocked in the kernel for 11 s"):
        look(patience, "D", 1.0)


def test_one_that_nobody_wakes_has_ten_minutes_and_says_nothing_of_the_kernel(clock: Clock) -> None:
    patience = Patience(7, "text")
    look(patience, "S", 1.0)
    clock.now += 599
    look(patience, "S", 1.0)
    clock.now += 2
    with pytest.raises(ActorStarved, match=r"asleep for 601 s in folio_wait_bit\+0x1 < hugetlb_fault\+0x2"):
        look(patience, "S", 1.0)


def test_a_stack_that_may_not_be_read_is_left_out(clock: Clock) -> None:
    patience = Patience(7, "text")
    look(patience, "D", 1.0)
    clock.now += 301
    with pytest.raises(ActorGone, match=r"blocked in the kernel for 301 s$"):
        patience.look("D", 1.0, str)


@pytest.mark.parametrize(("state", "seconds"), [("R", 1.0), ("S", 1.0), ("D", 1.5)], ids=["runs", "sleeps", "has run"])
def test_one_that_was_not_blocked_all_the_time_is_not_gone(clock: Clock, state: str, seconds: float) -> None:
    patience = Patience(7, "text")
    look(patience, "D", 1.0)
    clock.now += 200
    look(patience, state, seconds)
    clock.now += 200
    look(patience, "D", seconds)


def test_one_that_gets_no_cpu_has_twenty_minutes_and_says_nothing_of_the_kernel(clock: Clock) -> None:
    patience = Patience(7, "text")
    clock.now += 1200
    look(patience, "R", 3.0)
    clock.now += 1
    with pytest.raises(ActorStarved, match="it had 2 s of a CPU in 1201 s"):
        look(patience, "R", 5.0)


def test_what_is_asked_is_told_to_its_sixtieth_character() -> None:
    patience = Patience(7, "x" * 100)
    look(patience, "R", 0.0)
    with pytest.raises(ActorGone, match=f"answer '{'x' * 60}': "):
        look(patience, "R", 200.0)


def test_a_process_that_is_gone_has_no_state() -> None:
    assert state_and_cpu_seconds([]) == ("", 0.0)
    assert state_and_cpu_seconds(["S", *["0"] * 10, "150", "50", "9"]) == ("S", 2.0)


def test_a_request_is_as_long_as_its_bytes() -> None:
    assert packet("ä" * 32768) == "ä".encode() * 32768
    with pytest.raises(ValueError, match="a request of 65538 bytes: an actor takes at most 65536"):
        packet("ä" * 32769)
