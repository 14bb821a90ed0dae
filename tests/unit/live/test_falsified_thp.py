"""Cases on transparent huge pages fail where smaps shows other huge pages, and where a refusal does not come."""

import copy
import re
from collections.abc import Iterator

import pytest
from tests.unit.live.test_falsified import Recorded, recorded_cases

from hugepage_qa.live.transcript import Event
from hugepage_qa.verdict import Verdict

_HUGE = re.compile(r"^((?:AnonHugePages|ShmemPmdMapped|FilePmdMapped): +)(\d+)( kB)$", re.MULTILINE)
#: what they judge is Rss, counters, refusals or contents, and no huge page of a mapping
_WITHOUT_HUGE_PAGES = {
    "files-of-hugetext",
    "dropped-caches",
    "open-for-write",
    "policies-of-smaller-sizes",
    "values-that-are-refused",
    "numbers-that-are-refused",
    "no-zero-page",
    "no-direct-compaction",
}

RECORDED = [one for one in recorded_cases() if one.area.name.startswith(("thp/", "text/"))]
of_huge_pages = pytest.mark.parametrize(
    "recorded", [one for one in RECORDED if one.case.name not in _WITHOUT_HUGE_PAGES], ids=str
)


@pytest.mark.parametrize(
    "recorded",
    # text that is huge before as after is that of a file system with large folios
    [one for one in RECORDED if one.case.name not in _WITHOUT_HUGE_PAGES | {"collapsed-text"}],
    ids=str,
)
def test_huge_pages_everywhere_are_not_what_was_judged(recorded: Recorded) -> None:
    assert recorded.replay(list(_with_sizes(recorded.events, 2048, 2))).verdict is not Verdict.PASS


@of_huge_pages
def test_the_huge_pages_of_every_process_are_looked_at(recorded: Recorded) -> None:
    """One look at a process shows one huge page more in each mapping: for some look, the case tells."""
    looks: dict[str, list[int]] = {}
    for index, event in enumerate(recorded.events):
        if _is_smaps(event):
            looks.setdefault(event["arguments"][0], []).append(index)
    assert looks
    for path, indices in looks.items():
        assert any(_fails(recorded, index) for index in reversed(indices)), path


@pytest.mark.parametrize("recorded", RECORDED, ids=str)
def test_a_write_that_should_be_refused_is_not_taken(recorded: Recorded) -> None:
    for index, event in enumerate(recorded.events):
        if event["operation"] == "write" and "errno" in event:
            events = copy.copy(recorded.events)
            events[index] = {key: value for key, value in event.items() if key != "errno"} | {"result": None}
            assert recorded.replay(events).verdict is Verdict.FAIL, event


def _fails(recorded: Recorded, index: int) -> bool:
    events = copy.copy(recorded.events)
    events[index] = next(_with_sizes([events[index]], 2048, 1))
    return recorded.replay(events).verdict is not Verdict.PASS


def _is_smaps(event: Event) -> bool:
    return event["operation"] == "observe" and event["arguments"][0].endswith("/smaps") and bool(event["result"])


def _with_sizes(events: list[Event], more: int, factor: int) -> Iterator[Event]:
    """Yield the events with ``more`` kB, and ``factor`` times what there is, in each line on huge pages."""
    for event in events:
        if not _is_smaps(event):
            yield event
            continue
        changed = _HUGE.sub(lambda found: f"{found[1]}{int(found[2]) * factor + more}{found[3]}", event["result"])
        yield event | {"result": changed}
