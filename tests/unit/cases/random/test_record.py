"""A recorded program passes when it is replayed, and fails when what the kernel shows is falsified."""

import gzip
import json
import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest
from tests.unit.cases.random.record_random import PROGRAM, RECORD, run_on
from tests.unit.cases.transcript import Diverged, Event, Replay

from hugepage_qa.cases.random.random_run import RandomResult
from hugepage_qa.cases.result import Verdict
from hugepage_qa.machine.host import Host


@cache
def recorded() -> list[Event]:
    events: list[Event] = json.loads(gzip.decompress(RECORD.read_bytes()))
    return events


class Following(Replay):
    """Answers what was not recorded, because the program has failed by then, as the machine did at last."""

    def __init__(self, events: list[Event]) -> None:
        super().__init__(events)
        self._last = {_question(one["operation"], one["arguments"]): one.get("result") for one in recorded()}

    def perform(self, operation: str, arguments: Sequence[Any]) -> Any:
        try:
            return super().perform(operation, arguments)
        except Diverged:
            unknown = ["ok 0", None] if operation == "request" else None
            return self._last.get(_question(operation, arguments), unknown)


def _question(operation: str, arguments: Sequence[Any]) -> str:
    return json.dumps([operation, list(arguments)])


def replay(events: list[Event]) -> RandomResult:
    return run_on(Host(Following(events)))


def test_a_true_record_passes() -> None:
    judgement = run_on(Host(Replay(recorded())))
    assert judgement.verdict is Verdict.PASS, judgement.reason
    assert judgement.outcome.operations == len(PROGRAM)
    assert judgement.evidence == ""


@pytest.mark.parametrize(
    "shown",
    [
        "hugepages-2048kB/nr_hugepages",
        "hugepages-2048kB/free_hugepages",
        "hugepages-2048kB/resv_hugepages",
        "hugepages-2048kB/surplus_hugepages",
        "hugepages-1048576kB/free_hugepages",
        "hugetlb.2MB.current",
        "hugetlb.2MB.rsvd.current",
    ],
)
def test_each_number_that_is_shown_is_compared(shown: str) -> None:
    places = [index for index, event in enumerate(recorded()) if _is_observation(event, shown)]
    assert places
    for index in (places[len(places) // 3], places[len(places) // 2]):
        assert _falsified(index, _raise_number) is Verdict.FAIL, recorded()[index]


def test_each_quota_is_compared() -> None:
    places = [index for index, event in enumerate(recorded()) if event["operation"] == "file_system"]
    for number in range(1, 5):
        event = recorded()[places[2]]
        result = [value + (position == number) for position, value in enumerate(event["result"])]
        assert _judged(places[2], event | {"result": result}) is Verdict.FAIL


def test_a_refusal_or_a_signal_that_does_not_come_is_a_failure() -> None:
    places = [index for index, event in enumerate(recorded()) if _answer(event).startswith(("errno", "signal"))]
    assert len(places) > 2
    for index in places:
        assert _falsified(index, lambda _text: "ok 0") is Verdict.FAIL, recorded()[index]


def _answer(event: Event) -> str:
    return str(event["result"][0]) if event["operation"] == "request" else ""


def _is_observation(event: Event, path: str) -> bool:
    return event["operation"] == "observe" and str(event["arguments"][0]).endswith(path)


def _raise_number(text: str) -> str:
    return re.sub(r"\d+", lambda found: str(int(found[0]) + 1), text, count=1)


def _falsified(index: int, change: Callable[[str], str]) -> Verdict:
    event = recorded()[index]
    result = event["result"]
    changed = [change(result[0]), *result[1:]] if isinstance(result, list) else change(result)
    return _judged(index, event | {"result": changed})


def _judged(index: int, event: Event) -> Verdict:
    return replay([*recorded()[:index], event, *recorded()[index + 1 :]]).verdict
