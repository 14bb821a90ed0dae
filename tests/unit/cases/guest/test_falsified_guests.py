"""Every recorded case on guests fails by its own rule in a world that is wrong in one place.

The world is wrong only while the case itself acts: what the harness reads before and after it is true.
"""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.unit.cases.guest.lies_about_guests import (
    after,
    after_start,
    as_after_the_boot,
    as_huge_as,
    at_another_place,
    is_line,
    is_listing,
    is_number,
    is_refusal,
    is_smaps,
    is_state,
    lists,
    never_split,
    nothing_collapsed,
    nothing_taken,
    on_other_transparent_pages,
    on_small_pages,
    one_more_is_free,
    other_words,
    reads,
    then_sent,
    with_a_page_less,
    with_a_page_more_there,
)
from tests.unit.cases.lies import Lie, by_its_own_rule, fails_by, instead, lied_to
from tests.unit.cases.recorded import Recorded, recorded_cases

from hugepage_qa.cases.case import Area
from hugepage_qa.cases.guest.guest_machine import DONE, GUEST, REFUSED
from hugepage_qa.cases.guest.guests import GuestArea
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.result import Verdict


def _has_guests(area: Area) -> bool:
    return isinstance(area, GuestArea)


def _is_about_pools(recorded: Recorded) -> bool:
    """Tell whether a case is about pages of a size: the others have guests on ordinary memory."""
    return recorded.size is not None


def _has_balloon_on_ordinary_memory(recorded: Recorded) -> bool:
    return recorded.area.name.startswith("guest/ordinary-memory/") and "balloon" in recorded.case.name


_RECORDS = recorded_cases(_has_guests)
every_record = pytest.mark.parametrize("recorded", _RECORDS, ids=str)
every_pool = pytest.mark.parametrize("recorded", [*filter(_is_about_pools, _RECORDS)], ids=str)


def test_what_is_falsified_was_recorded() -> None:
    """None of the tests below passes because there was nothing to falsify."""
    events = [event for recorded in _RECORDS for event in recorded.events]
    for is_meant in (is_refusal, is_state, is_smaps, is_number, is_line):
        assert [event for event in events if is_meant(event)], is_meant


@every_pool
def test_a_free_page_more_breaks_the_rule(recorded: Recorded) -> None:
    assert fails_by(recorded, one_more_is_free(recorded))


@every_pool
def test_a_guest_that_takes_nothing_breaks_the_rule(recorded: Recorded) -> None:
    """Where the case is about guests that are refused, that is as it should be."""
    judgement, told = lied_to(recorded, nothing_taken(recorded))
    assert by_its_own_rule(recorded, judgement) if told else judgement.verdict is Verdict.PASS


@every_record
def test_a_qemu_on_other_pages_breaks_the_rule(recorded: Recorded) -> None:
    """Huge pages of no pool, and transparent ones where there must be some, or must be none."""
    for lie in (on_small_pages, on_other_transparent_pages):
        judgement, told = lied_to(recorded, lie)
        if told and (lie is on_small_pages) is _is_about_pools(recorded):
            assert by_its_own_rule(recorded, judgement), judgement.reason


@every_record
def test_a_message_with_another_meaning_breaks_the_rule(recorded: Recorded) -> None:
    message = "internal error: process exited while connecting to monitor: Permission denied"
    for event in filter(is_refusal, recorded.events):
        judgement, _told = lied_to(recorded, instead(event, event | {"result": {REFUSED: message}}))
        assert by_its_own_rule(recorded, judgement), judgement.reason
        assert "Permission denied" in judgement.reason


@every_record
def test_an_exhausted_machine_is_an_error(recorded: Recorded) -> None:
    message = "qemu-system-x86_64: qemu_thread_create: Resource temporarily unavailable"
    for event in filter(is_refusal, recorded.events):
        judgement, _told = lied_to(recorded, instead(event, event | {"result": {REFUSED: message}}))
        assert judgement.verdict is Verdict.ERROR, judgement.reason


@every_record
def test_a_refusal_that_does_not_come_breaks_the_rule(recorded: Recorded) -> None:
    for event in filter(is_refusal, recorded.events):
        # what cannot be defined may be refused at the start instead
        if event["arguments"][1] != "define":
            taken = instead(event, event | {"result": {DONE: None}})
            assert fails_by(then_sent(recorded, event), taken)


@every_record
def test_a_page_that_is_lost_at_a_refusal_breaks_the_rule(recorded: Recorded) -> None:
    for event in filter(is_refusal, recorded.events):
        judgement, told = lied_to(recorded, after(event, with_a_page_less))
        # an empty pool has none to lose
        assert by_its_own_rule(recorded, judgement) or not told, judgement.reason


@every_record
def test_a_guest_in_another_state_breaks_the_rule(recorded: Recorded) -> None:
    """One that stays half started, and one that is off although it should run."""
    asked = [event for event in recorded.events if event["operation"] == GUEST]
    for event, following in zip(asked, [*asked[1:], None], strict=True):
        # of those that a case waits for, the last one counts
        if not is_state(event) or (following and is_state(following)):
            continue
        told = "paused" if event["result"][DONE] == "off" else "off"
        judgement, _told = lied_to(recorded, instead(event, event | {"result": {DONE: told}}))
        assert by_its_own_rule(recorded, judgement), judgement.reason
        assert "state of " in judgement.reason


@every_record
def test_what_a_guest_or_libvirt_tells_is_not_taken_on_trust(recorded: Recorded) -> None:
    for event, lie in other_words(recorded):
        assert fails_by(recorded, lie), event


@every_record
def test_pages_with_another_policy_and_on_another_node_break_the_rule(recorded: Recorded) -> None:
    judgement, told = lied_to(recorded, at_another_place)
    assert not told or by_its_own_rule(recorded, judgement), judgement.reason


@every_record
def test_a_file_that_is_left_in_hugetlbfs_is_noticed(recorded: Recorded) -> None:
    """After the case, where the harness looks for all of them."""
    mounts = {event["arguments"][0] for event in filter(is_listing, recorded.events)}
    for mount in mounts:
        last = max(index for index, event in enumerate(recorded.events) if lists(event, mount))
        left = recorded.events[last] | {"result": [*recorded.events[last]["result"], "zz-left"]}
        # the new name is looked into, too
        inside = {"operation": "names", "arguments": [f"{mount}/zz-left"], "result": []}
        judgement = recorded.replay([*recorded.events[:last], left, inside, *recorded.events[last + 1 :]])
        assert judgement.verdict is Verdict.FAIL, judgement.reason
        assert "zz-left" in judgement.reason


# --- the tests themselves --------------------------------------------------------------------------------------------
def _without(recorded: Recorded) -> Iterator[Recorded]:
    """Yield the record with a case that does nothing, and with one that expects what it has just read."""

    def nothing(_live: Live) -> None:
        return

    def repeats(live: Live) -> None:
        pool = live.pool()
        live.expect_pool(nr=pool.nr, free=pool.free, resv=pool.resv, surplus=pool.surplus)

    for act in (nothing, repeats):
        yield Recorded(recorded.area, replace(recorded.case, act=act), recorded.size, recorded.events)


@pytest.mark.parametrize("recorded", [one for one in _RECORDS if one.case.name == "takes-exactly-its-memory"], ids=str)
def test_a_case_that_looks_at_nothing_breaks_no_rule(recorded: Recorded) -> None:
    for vacuous in _without(recorded):
        assert not fails_by(vacuous, one_more_is_free(vacuous))
        assert not fails_by(vacuous, nothing_taken(vacuous))
        assert not fails_by(vacuous, on_small_pages)


@pytest.mark.parametrize("recorded", [one for one in _RECORDS if one.case.name == "free-pages-are-reported"], ids=str)
def test_a_guest_that_gives_nothing_back_breaks_the_rule(recorded: Recorded) -> None:
    """The same if all that it should do is done, and no page of it comes back."""
    assert fails_by(recorded, as_after_the_boot(recorded))


@pytest.mark.parametrize("recorded", [*filter(_has_balloon_on_ordinary_memory, _RECORDS)], ids=str)
def test_a_balloon_on_ordinary_memory_that_gives_back_less_breaks_the_rule(recorded: Recorded) -> None:
    """Nothing, a page less, or all but that huge pages are still whole, were never split, or stay split."""
    first = next(event for event in after_start(recorded) if reads(event, "/smaps"))
    lies: list[Lie] = [as_after_the_boot(recorded), with_a_page_more_there]
    if recorded.case.name == "balloon":
        lies += [as_huge_as(first), never_split]
    else:
        lies.append(nothing_collapsed(recorded))
    for lie in lies:
        assert fails_by(recorded, lie), lie
