"""Every recorded case passes when it is replayed, and fails when the kernel's answers are falsified."""

import copy
import re
from collections.abc import Callable, Iterator

import pytest
from tests.unit.live.areas import read_areas
from tests.unit.live.record import read_records
from tests.unit.live.recorded import Recorded, recorded_cases
from tests.unit.live.text.test_double import NAMES as HUGETEXT
from tests.unit.live.transcript import Event

from hugepage_qa.verdict import Verdict

_COUNTERS = {
    "nr_hugepages": "HugePages_Total",
    "free_hugepages": "HugePages_Free",
    "resv_hugepages": "HugePages_Rsvd",
    "surplus_hugepages": "HugePages_Surp",
}
#: a read that is there for its fault: what it finds is judged by other cases
_READ_FOR_THE_FAULT = {"a-page-shared-by-fork", "the-zero-page-is-nobodys"}
_NUMBER = re.compile(r"\d+")


every_record = pytest.mark.parametrize("recorded", recorded_cases(), ids=str)


def test_every_area_is_recorded() -> None:
    assert [area.name for area in read_areas() if not read_records(area) and area.name not in HUGETEXT] == []


@every_record
def test_a_true_record_passes(recorded: Recorded) -> None:
    judgement = recorded.replay()
    assert judgement.verdict is Verdict.PASS, judgement.reason


@every_record
@pytest.mark.parametrize("counter", _COUNTERS)
def test_a_counter_that_is_wrong_everywhere_breaks_the_rule_of_the_case(recorded: Recorded, counter: str) -> None:
    """All places agree, and all are wrong by one page while the case runs: only its own expectations can tell."""
    events = _with_observations(recorded.events, lambda path, text: _shift(path, text, counter, recorded.size or 0))
    judgement = recorded.replay(events)
    assert judgement.verdict is Verdict.FAIL
    assert recorded.case.rule.statement in judgement.reason or "nothing-left" in judgement.reason


@every_record
def test_each_place_that_shows_a_pool_is_looked_at(recorded: Recorded) -> None:
    for index in _last_observations(recorded.events):
        events = copy.copy(recorded.events)
        events[index] = events[index] | {"result": _raise_first_number(events[index]["result"])}
        judgement = recorded.replay(events)
        assert judgement.verdict is Verdict.FAIL, events[index]["arguments"]


@every_record
def test_no_answer_to_the_actor_is_taken_on_trust(recorded: Recorded) -> None:
    """A refusal or a signal that does not come, and memory that holds something else, are not passed over."""
    for index, event in enumerate(recorded.events):
        falsified = _falsify_answer(event)
        is_load = event["operation"] == "request" and event["arguments"][1].startswith("load ")
        if falsified is None or (is_load and recorded.case.name in _READ_FOR_THE_FAULT):
            continue
        events = copy.copy(recorded.events)
        events[index] = falsified
        assert recorded.replay(events).verdict is not Verdict.PASS, event


@pytest.mark.parametrize(
    "line", ["BUG: Bad page state in process actor", "watchdog: BUG: soft lockup - CPU#0 stuck for 26s! [actor:1279]"]
)
def test_a_kernel_in_trouble_fails_a_case_that_is_right_else(line: str) -> None:
    recorded = recorded_cases()[0]
    last = max(index for index, event in enumerate(recorded.events) if event["operation"] == "new_kernel_log")
    events = copy.copy(recorded.events)
    events[last] = events[last] | {"result": [line]}
    judgement = recorded.replay(events)
    assert judgement.verdict is Verdict.FAIL
    assert line in judgement.reason


def _with_observations(events: list[Event], change: Callable[[str, str], str]) -> list[Event]:
    return [
        event | {"result": change(event["arguments"][0], event["result"])}
        if event["operation"] == "observe" and event["result"]
        else event
        for event in events
    ]


def _shift(path: str, text: str, counter: str, size: int) -> str:
    """Return ``text`` with one page more in ``counter``."""
    if path.endswith(f"hugepages-{size // 1024}kB/{counter}"):
        return f"{int(text) + 1}\n"
    if path == "proc/meminfo":
        if _is_default(text, size):
            text = _add(text, _COUNTERS[counter], 1)
        if counter == "nr_hugepages":
            text = _add(text, "Hugetlb", size // 1024)
    return text


def _is_default(text: str, size: int) -> bool:
    found = re.search(r"Hugepagesize: +(\d+) kB", text)
    return found is not None and int(found[1]) * 1024 == size


def _add(text: str, line: str, amount: int) -> str:
    return re.sub(rf"^({line}: +)(\d+)", lambda found: f"{found[1]}{int(found[2]) + amount}", text, flags=re.MULTILINE)


def _last_observations(events: list[Event]) -> Iterator[int]:
    """Yield the last observation of each file of a pool."""
    last: dict[str, int] = {}
    for index, event in enumerate(events):
        path = event["arguments"][0] if event["arguments"] else ""
        if event["operation"] == "observe" and event["result"] and str(path).rpartition("/")[2] in _COUNTERS:
            last[path] = index
    return iter(last.values())


def _raise_first_number(text: str) -> str:
    return _NUMBER.sub(lambda found: str(int(found[0]) + 1), text, count=1)


def _falsify_answer(event: Event) -> Event | None:
    if event["operation"] != "request":
        return None
    answer, child = event["result"]
    kind, *values = answer.split()
    verb, *words = event["arguments"][1].split()
    if words[:1] == ["shmctl"]:
        # removed after the case; whether it was gone before is judged by the pages that are left
        return None
    if kind in ("errno", "signal"):
        return event | {"result": ["ok 0", child]}
    if verb in ("load", "check", "run"):
        return event | {"result": [f"ok {int(values[0]) + 1}", child]}
    return None
