"""Every bug that was recorded is known by its exact value, and else a failure."""

import re
from collections.abc import Callable

import pytest
from tests.unit.cases.recorded import Recorded, WithoutEvidence, recorded_cases
from tests.unit.cases.transcript import Event

from hugepage_qa.cases import expectations
from hugepage_qa.cases.expectations import KnownBug
from hugepage_qa.cases.result import Verdict
from hugepage_qa.oracle.known_issues import KnownIssue

#: a case looks at some ten files before it compares; what deviates is among them
_LAST_LOOKS = 40
_NUMBER = re.compile(r"\d+")
#: in a file of the kernel; addresses and devices of smaps would be malformed
_DECIMAL = re.compile(r"(?<![0-9a-f:])\d+(?![0-9a-f:-])")
#: what a call says that has read something
_DATA = re.compile(r"(ok \d+ [0-9a-f]*)([0-9a-f]{16})")

every_bug = pytest.mark.parametrize("recorded", recorded_cases(verdict=Verdict.KNOWN), ids=str)


@every_bug
def test_a_recorded_bug_is_known(recorded: Recorded) -> None:
    judgement = recorded.replay()
    assert judgement.verdict is Verdict.KNOWN, judgement.reason


@every_bug
def test_it_is_a_failure_where_nothing_is_excused(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expectations.Expectations, "_end_if_known", lambda _self, _quirk, _deviates: None)
    judgement = recorded.replay()
    assert judgement.verdict is Verdict.FAIL
    assert recorded.case.rule.statement in judgement.reason


@every_bug
def test_another_value_is_a_failure(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = 0
    until_known: list[int] = []

    def count(event: Event) -> Event:
        nonlocal answers
        answers += 1
        return event

    class Noted(KnownBug):
        def __init__(self, issue: KnownIssue) -> None:
            until_known.append(answers)
            super().__init__(issue)

    with monkeypatch.context() as patched:
        patched.setattr(expectations, "KnownBug", Noted)
        recorded.judge(WithoutEvidence(recorded.events, count))
    (end,) = until_known
    falsified = (
        _falsified(recorded, number, other)
        for number in range(end, max(0, end - _LAST_LOOKS), -1)
        for other in (_raised, _with_another_end)
    )
    assert any(reason and recorded.case.rule.statement in reason for reason in falsified)


def _falsified(recorded: Recorded, number: int, other: Callable[[object], object]) -> str | None:
    """Return why the case fails when answer ``number`` is another one; None where it does not."""
    answers = 0

    def falsify(event: Event) -> Event:
        nonlocal answers
        answers += 1
        if answers != number or not event.get("result"):
            return event
        return event | {"result": other(event["result"])}

    judgement = recorded.judge(WithoutEvidence(recorded.events, falsify))
    return judgement.reason if judgement.verdict is Verdict.FAIL else None


def _raised(result: object) -> object:
    """Return an answer with all numbers one too high."""
    if isinstance(result, list) and all(isinstance(number, int) for number in result):
        return [number + 1 for number in result]
    if isinstance(result, list):
        return [_add_one(_NUMBER, result[0]), *result[1:]]
    return _add_one(_DECIMAL, result) if isinstance(result, str) else result


def _with_another_end(result: object) -> object:
    """Return what a call has read with its last eight bytes 0, of pagemap an entry, or with a 1 where they are that."""
    if not isinstance(result, list) or not (data := _DATA.fullmatch(str(result[0]))):
        return result
    return [f"{data[1]}{'00' if int(data[2], 16) else '01'}{'00' * 7}", *result[1:]]


def _add_one(number: re.Pattern[str], text: str) -> str:
    return number.sub(lambda found: str(int(found[0]) + 1), text)
