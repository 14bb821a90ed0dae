"""A page that was broken is mended however the block ends, and a refusal of that hides nothing that was found."""

import errno
from collections.abc import Callable

import pytest
from tests.unit.cases.still_machine import StillMachine, judge_on

from hugepage_qa.cases.broken_memory import mended_at_the_end
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.result import Result, Verdict
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.process.actor import Refused

FRAME = 0x1234


def end_well(_live: Live) -> None:
    """Find nothing."""


def find_a_difference(live: Live) -> None:
    """End the case with a difference."""
    live.fail("what was found", "right", "wrong")


def lack_something(_live: Live) -> None:
    """End the case without a verdict."""
    raise CannotRun("the machine lacks something")


def be_stopped(_live: Live) -> None:
    """End the run, as SIGTERM does."""
    raise SystemExit


@pytest.mark.parametrize(
    ("act", "verdict"),
    [(end_well, Verdict.PASS), (find_a_difference, Verdict.FAIL), (lack_something, Verdict.SKIP)],
)
def test_it_is_given_back_and_mended(act: Callable[[Live], None], verdict: Verdict) -> None:
    result, done = judged(act)
    assert (result.verdict, done) == (verdict, ["given back", f"{FRAME:#x}"])


def test_it_is_mended_where_the_run_is_stopped() -> None:
    done: list[str] = []
    with pytest.raises(SystemExit):
        judge_on(machine(done), case_of(be_stopped, done))
    assert done == ["given back", f"{FRAME:#x}"]


@pytest.mark.parametrize(
    ("act", "may_be_refused", "verdict", "told"),
    [
        (end_well, False, Verdict.FAIL, "Device or resource busy"),
        (end_well, True, Verdict.PASS, ""),
        (find_a_difference, False, Verdict.FAIL, "what was found"),
        (lack_something, False, Verdict.SKIP, "the machine lacks something"),
    ],
)
def test_a_refusal_is_told_where_nothing_else_was_found(
    act: Callable[[Live], None], may_be_refused: bool, verdict: Verdict, told: str
) -> None:
    result, _done = judged(act, is_refused=True, may_be_refused=may_be_refused)
    assert result.verdict is verdict
    assert told in result.reason


def judged(
    act: Callable[[Live], None], *, is_refused: bool = False, may_be_refused: bool = False
) -> tuple[Result, list[str]]:
    """Return the verdict on a case that does ``act`` when a page broke, and what was done for the page after it."""
    done: list[str] = []
    return judge_on(machine(done, is_refused=is_refused), case_of(act, done, may_be_refused=may_be_refused)), done


def case_of(act: Callable[[Live], None], done: list[str], *, may_be_refused: bool = False) -> Callable[[Live], None]:
    """Return the case that does ``act`` when a page broke, and notes in ``done`` that it was given back."""

    def case(live: Live) -> None:
        with mended_at_the_end(live, FRAME, lambda: done.append("given back"), may_be_refused=may_be_refused):
            act(live)

    return case


def machine(done: list[str], *, is_refused: bool = False) -> StillMachine:
    """Return a machine that mends pages, and notes them in ``done``, or refuses to."""

    def read(path: str) -> str | None:
        if path == "proc/filesystems":
            return "nodev\tdebugfs\n"
        text: str | None = StillMachine().perform("read", [path])
        return text

    def names(path: str) -> list[str]:
        found: list[str] = StillMachine().perform("names", [path])
        return ["unpoison-pfn"] if path.endswith("/hwpoison") else found

    def write(path: str, value: str) -> None:
        if path.endswith("/unpoison-pfn"):
            if is_refused:
                raise Refused(errno.EBUSY, "Device or resource busy")
            done.append(value)

    return StillMachine({"read": read, "names": names, "write": write, "mount": lambda *_options: "/scratch/debugfs-1"})
