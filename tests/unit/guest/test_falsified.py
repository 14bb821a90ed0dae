"""Every recorded case on guests passes when it is replayed, and fails in a world that is wrong in one place."""

import copy
import re
from collections.abc import Iterator

import pytest
from tests.unit.live.recorded import Recorded, recorded_cases
from tests.unit.live.transcript import Event

from hugepage_qa.guest.case import GuestArea
from hugepage_qa.guest.machine import DONE, GUEST, REFUSED
from hugepage_qa.live.case import Area
from hugepage_qa.verdict import Verdict

_FREE = re.compile(r"hugepages-\d+kB/free_hugepages$")
_HUGETLB_PAGES = re.compile(r"^(Shared_Hugetlb|Private_Hugetlb):.*$", re.MULTILINE)
_FLAGS = re.compile(r"^(VmFlags:.*) ht\b", re.MULTILINE)


def _has_guests(area: Area) -> bool:
    return isinstance(area, GuestArea)


every_record = pytest.mark.parametrize("recorded", recorded_cases(_has_guests), ids=str)


def test_what_is_falsified_was_recorded() -> None:
    """None of the tests below passes because there was nothing to falsify."""
    events = [event for recorded in recorded_cases(_has_guests) for event in recorded.events]
    assert [event for event in events if _is_refusal(event)]
    assert [event for event in events if _is_state(event)]
    assert [event for event in events if _is_smaps(event)]
    assert [event for event in events if _is_listing(event)]


@every_record
def test_a_message_with_another_meaning_is_shown(recorded: Recorded) -> None:
    for index in _indices(recorded, _is_refusal):
        message = "internal error: process exited while connecting to monitor: Permission denied"
        judgement = recorded.replay(_with(recorded, index, {REFUSED: message}))
        assert judgement.verdict is Verdict.FAIL
        assert "Permission denied" in judgement.reason


@every_record
def test_a_refusal_that_does_not_come_is_missed(recorded: Recorded) -> None:
    for index in _indices(recorded, _is_refusal):
        assert recorded.replay(_with(recorded, index, {DONE: None})).verdict is not Verdict.PASS


@every_record
def test_a_guest_that_stays_half_started_is_noticed(recorded: Recorded) -> None:
    """And one that is off although it should run."""
    for index in _indices(recorded, _is_state):
        told = recorded.events[index]["result"][DONE]
        judgement = recorded.replay(_with(recorded, index, {DONE: "paused" if told == "off" else "off"}))
        assert judgement.verdict is Verdict.FAIL
        assert "state of " in judgement.reason


@every_record
def test_a_qemu_that_falls_back_to_small_pages_is_noticed(recorded: Recorded) -> None:
    events = [_on_small_pages(event) for event in recorded.events]
    if events != recorded.events:
        judgement = recorded.replay(events)
        if judgement.reason.startswith("Diverged"):
            # a case that waits for the pages waits longer than its record goes on: falsify what it expects after that
            last = max(_indices(recorded, _is_smaps))
            judgement = recorded.replay(_with(recorded, last, _on_small_pages(recorded.events[last])["result"]))
        assert judgement.verdict is Verdict.FAIL
        # where guests give pages back, what QEMU maps is held against what the pool has
        assert "in the QEMU of" in judgement.reason or " free at " in judgement.reason


@every_record
def test_a_page_that_is_lost_at_a_refusal_is_missed(recorded: Recorded) -> None:
    """From the refusal on, one page less is free, in every place that shows it."""
    for index in _indices(recorded, _is_refusal):
        events = recorded.events[:index] + [_with_a_page_less(event) for event in recorded.events[index:]]
        if events != recorded.events:
            assert recorded.replay(events).verdict is Verdict.FAIL


@every_record
def test_a_file_that_is_left_in_hugetlbfs_is_noticed(recorded: Recorded) -> None:
    """After the case, and at every moment at which it looks."""
    listings = list(_indices(recorded, _is_listing))
    mounts = {recorded.events[index]["arguments"][0] for index in listings}
    for mount in mounts:
        last = max(index for index in listings if recorded.events[index]["arguments"][0] == mount)
        left = [*recorded.events[last]["result"], "zz-left"]
        events = copy.copy(recorded.events)
        events[last] = events[last] | {"result": left}
        # the new name is looked into, too
        events.insert(_end_of_listing(recorded.events, last, mount), _listing(f"{mount}/zz-left"))
        judgement = recorded.replay(events)
        assert judgement.verdict is Verdict.FAIL, judgement.reason
        assert "zz-left" in judgement.reason


def _indices(recorded: Recorded, is_meant: object) -> Iterator[int]:
    assert callable(is_meant)
    return (index for index, event in enumerate(recorded.events) if is_meant(event))


def _with(recorded: Recorded, index: int, result: object) -> list[Event]:
    events = copy.copy(recorded.events)
    events[index] = events[index] | {"result": result}
    return events


def _is_refusal(event: Event) -> bool:
    return event["operation"] == GUEST and REFUSED in event["result"]


def _is_state(event: Event) -> bool:
    return bool(event["operation"] == GUEST and event["arguments"][1] == "state")


def _is_smaps(event: Event) -> bool:
    path = str(event["arguments"][0]) if event["operation"] == "observe" else ""
    return path.endswith("/smaps") and " ht" in event["result"]


def _is_listing(event: Event) -> bool:
    """Tell whether the event lists the root of a hugetlbfs of ours."""
    path = str(event["arguments"][0]) if event["operation"] == "names" else ""
    return path.rpartition("/")[2].startswith("hugetlbfs-")


def _listing(path: str) -> Event:
    return {"operation": "names", "arguments": [path], "result": []}


def _end_of_listing(events: list[Event], start: int, mount: str) -> int:
    """Return where the walk through ``mount`` ends that begins at ``start``."""
    index = start + 1
    while (
        index < len(events)
        and events[index]["arguments"][:1]
        and str(events[index]["arguments"][0]).startswith(f"{mount}/")
    ):
        index += 1
    return index


def _on_small_pages(event: Event) -> Event:
    if not _is_smaps(event):
        return event
    return event | {"result": _FLAGS.sub(r"\1", _HUGETLB_PAGES.sub(r"\1: 0 kB", event["result"]))}


def _with_a_page_less(event: Event) -> Event:
    if event["operation"] != "observe" or not event["result"]:
        return event
    path, text = event["arguments"][0], event["result"]
    if _FREE.search(path) and int(text) > 0:
        return event | {"result": f"{int(text) - 1}\n"}
    return event
