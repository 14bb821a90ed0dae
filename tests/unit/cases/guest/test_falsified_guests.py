"""Every recorded case on guests fails by its own rule in a world that is wrong in one place.

The world is wrong only while the case itself acts: what the harness reads before and after it is true.
"""

import hashlib
import itertools
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.cases.lies import Lie, by_its_own_rule, fails_by, instead, lied_to, one_page_more
from tests.unit.cases.recorded import Recorded, recorded_cases
from tests.unit.cases.transcript import Event

from hugepage_qa.cases.case import Area
from hugepage_qa.cases.guest.guest_machine import DONE, GUEST, REFUSED
from hugepage_qa.cases.guest.guests import GuestArea
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.result import Verdict

_POOL_FILE = re.compile(r"(?P<pool>.*/hugepages-\d+kB)/(?P<counter>\w+)_hugepages$")
_HUGETLB_PAGES = re.compile(r"^(Shared_Hugetlb|Private_Hugetlb):.*$", re.MULTILINE)
_TRANSPARENT_PAGES = re.compile(r"^(AnonHugePages): +(\d+) kB$", re.MULTILINE)
#: what virsh freepages tells
_FREE_BY_VIRSH = re.compile(r"(KiB: )(\d+)")
_RESIDENT = re.compile(r"^(Rss: +)(\d+)", re.MULTILINE)
_SPLITS = re.compile(r"^(thp_split_pmd) \d+$", re.MULTILINE)
_FLAGS = re.compile(r"^(VmFlags:.*) ht\b", re.MULTILINE)
_FREE_LINE = re.compile(r"^(HugePages_Free: +)(\d+)", re.MULTILINE)
_TOTAL_LINE = re.compile(r"^HugePages_Total: +(\d+)", re.MULTILINE)
#: what the shell of a guest prints besides what was typed, where that is one line
_LINE_OF_GUEST = re.compile(r"\A(?P<typed>[^\n]*\n)(?P<said>[^\n]+)(?P<end>\n@ended 0\n)\Z")
#: of a mapping in numa_maps: its policy, if it is in huge pages, and a node that has some of it
_PLACE = re.compile(r"^(\w+) \S+(.* huge\b)", re.MULTILINE)
_NODE = re.compile(r"\bN(?=\d+=)")
#: what a case decides by: the page of the guest's kernel, and whether it has a driver; and a counter of which a case
#: expects no more than that it is above 0
_DECIDED_BY = ("KernelPageSize", "insmod", "pvpanic", "balloon_migrate", "MemFree")
#: what the monitor is asked for what follows: what the emulator has to do, and where a device is
_NOT_JUDGED = ("query-version", "query-memory-devices")
_MEMORY_LINE = re.compile(r"^(MemTotal: +)(\d+)( kB)$", re.MULTILINE)


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
    for is_meant in (_is_refusal, _is_state, _is_smaps, _is_number, _is_line):
        assert [event for event in events if is_meant(event)], is_meant


@every_pool
def test_a_free_page_more_breaks_the_rule(recorded: Recorded) -> None:
    assert fails_by(recorded, _one_page_more(recorded))


@every_pool
def test_a_guest_that_takes_nothing_breaks_the_rule(recorded: Recorded) -> None:
    """Where the case is about guests that are refused, that is as it should be."""
    judgement, told = lied_to(recorded, _nothing_taken(recorded))
    assert by_its_own_rule(recorded, judgement) if told else judgement.verdict is Verdict.PASS


@every_record
def test_a_qemu_on_other_pages_breaks_the_rule(recorded: Recorded) -> None:
    """Huge pages of no pool, and transparent ones where there must be some, or must be none."""
    for lie in (_on_small_pages, _on_other_transparent_pages):
        judgement, told = lied_to(recorded, lie)
        if told and (lie is _on_small_pages) is _is_about_pools(recorded):
            assert by_its_own_rule(recorded, judgement), judgement.reason


@every_record
def test_a_message_with_another_meaning_breaks_the_rule(recorded: Recorded) -> None:
    message = "internal error: process exited while connecting to monitor: Permission denied"
    for event in filter(_is_refusal, recorded.events):
        judgement, _told = lied_to(recorded, instead(event, event | {"result": {REFUSED: message}}))
        assert by_its_own_rule(recorded, judgement), judgement.reason
        assert "Permission denied" in judgement.reason


@every_record
def test_an_exhausted_machine_is_an_error(recorded: Recorded) -> None:
    message = "qemu-system-x86_64: qemu_thread_create: Resource temporarily unavailable"
    for event in filter(_is_refusal, recorded.events):
        judgement, _told = lied_to(recorded, instead(event, event | {"result": {REFUSED: message}}))
        assert judgement.verdict is Verdict.ERROR, judgement.reason


@every_record
def test_a_refusal_that_does_not_come_breaks_the_rule(recorded: Recorded) -> None:
    for event in filter(_is_refusal, recorded.events):
        # what cannot be defined may be refused at the start instead
        if event["arguments"][1] != "define":
            taken = instead(event, event | {"result": {DONE: None}})
            assert fails_by(_then_sent(recorded, event), taken)


@every_record
def test_a_page_that_is_lost_at_a_refusal_breaks_the_rule(recorded: Recorded) -> None:
    for event in filter(_is_refusal, recorded.events):
        judgement, told = lied_to(recorded, _after(event, _with_a_page_less))
        # an empty pool has none to lose
        assert by_its_own_rule(recorded, judgement) or not told, judgement.reason


@every_record
def test_a_guest_in_another_state_breaks_the_rule(recorded: Recorded) -> None:
    """One that stays half started, and one that is off although it should run."""
    asked = [event for event in recorded.events if event["operation"] == GUEST]
    for event, following in zip(asked, [*asked[1:], None], strict=True):
        # of those that a case waits for, the last one counts
        if not _is_state(event) or (following and _is_state(following)):
            continue
        told = "paused" if event["result"][DONE] == "off" else "off"
        judgement, _told = lied_to(recorded, instead(event, event | {"result": {DONE: told}}))
        assert by_its_own_rule(recorded, judgement), judgement.reason
        assert "state of " in judgement.reason


@every_record
def test_what_a_guest_or_libvirt_tells_is_not_taken_on_trust(recorded: Recorded) -> None:
    for event, lie in _other_words(recorded):
        assert fails_by(recorded, lie), event


@every_record
def test_pages_with_another_policy_and_on_another_node_break_the_rule(recorded: Recorded) -> None:
    judgement, told = lied_to(recorded, _at_another_place)
    assert not told or by_its_own_rule(recorded, judgement), judgement.reason


@every_record
def test_a_file_that_is_left_in_hugetlbfs_is_noticed(recorded: Recorded) -> None:
    """After the case, where the harness looks for all of them."""
    mounts = {event["arguments"][0] for event in filter(_is_listing, recorded.events)}
    for mount in mounts:
        last = max(index for index, event in enumerate(recorded.events) if _lists(event, mount))
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
        assert not fails_by(vacuous, _one_page_more(vacuous))
        assert not fails_by(vacuous, _nothing_taken(vacuous))
        assert not fails_by(vacuous, _on_small_pages)


@pytest.mark.parametrize("recorded", [one for one in _RECORDS if one.case.name == "free-pages-are-reported"], ids=str)
def test_a_guest_that_gives_nothing_back_breaks_the_rule(recorded: Recorded) -> None:
    """The same if all that it should do is done, and no page of it comes back."""
    assert fails_by(recorded, _as_after_the_boot(recorded))


@pytest.mark.parametrize("recorded", [*filter(_has_balloon_on_ordinary_memory, _RECORDS)], ids=str)
def test_a_balloon_on_ordinary_memory_that_gives_back_less_breaks_the_rule(recorded: Recorded) -> None:
    """Nothing, a page less, or all but that huge pages are still whole, or were never split."""
    first = next(event for event in _after_start(recorded) if _reads(event, "/smaps"))
    lies: list[Lie] = [_as_after_the_boot(recorded), _with_a_page_more_there]
    if recorded.case.name == "balloon":
        lies += [_as_huge_as(first), _never_split]
    for lie in lies:
        assert fails_by(recorded, lie), lie


# --- lies ------------------------------------------------------------------------------------------------------------
def _after(event: Event, lie: Lie) -> Lie:
    """Return the lie that begins when ``event`` was answered."""
    began = False

    def later(asked: Event) -> Event:
        nonlocal began
        began = began or asked is event
        return lie(asked)

    return lambda asked: later(asked) if began or asked is event else asked


def _one_page_more(recorded: Recorded) -> Lie:
    """Return the lie of one free page more, also to a case that compares only what it reads twice."""
    assert recorded.size is not None
    return one_page_more("free_hugepages", recorded.size, ("read", "observe"))


def _with_a_page_less(event: Event) -> Event:
    """Return the event with a free page less in every pool that has one, in every place that shows it."""
    text, path = event.get("result"), event["arguments"][0] if event["arguments"] else ""
    if event["operation"] != "observe" or not text:
        return event
    if path == "proc/meminfo":
        return event | {"result": _FREE_LINE.sub(lambda found: f"{found[1]}{max(0, int(found[2]) - 1)}", text)}
    found = _POOL_FILE.match(path)
    return event | {"result": f"{max(0, int(text) - 1)}\n"} if found and found["counter"] == "free" else event


def _nothing_taken(recorded: Recorded) -> Lie:
    """Return the lie that all pages of every pool are free."""
    total: dict[str, str] = {}
    true_free: dict[int, str] = {}
    for event in [*recorded.events, *reversed(recorded.events)]:
        found = _counter_in(event)
        if found and found["counter"] == "nr":
            total[found["pool"]] = event["result"]
        elif found and found["counter"] == "free":
            true_free[id(event)] = total.get(found["pool"], event["result"])
    # what is read one after the other is of one moment
    for before, event in itertools.pairwise(recorded.events):
        nr, free = _counter_in(before), _counter_in(event)
        if nr and free and (nr["counter"], free["counter"], nr["pool"]) == ("nr", "free", free["pool"]):
            true_free[id(event)] = before["result"]

    def lie(event: Event) -> Event:
        if event["operation"] in ("read", "observe") and event["arguments"][0] == "proc/meminfo":
            count = _TOTAL_LINE.search(event["result"])
            assert count is not None
            return event | {"result": _FREE_LINE.sub(lambda found: f"{found[1]}{count[1]}", event["result"])}
        return event | {"result": true_free[id(event)]} if id(event) in true_free else event

    return lie


def _counter_in(event: Event) -> re.Match[str] | None:
    return _POOL_FILE.match(str(event["arguments"][0])) if event["operation"] in ("read", "observe") else None


def _then_sent(recorded: Recorded, refused: Event) -> Recorded:
    """Return the record with what follows when a host takes the guest that it has ``refused``: it is sent there."""
    host, method, _target, *others = refused["arguments"]
    if method != "receive":
        return recorded
    source = next(
        event["arguments"][2] for event in recorded.events if _starts(event) and event["arguments"][0] in host
    )
    sent: Event = {
        "operation": GUEST,
        "arguments": [host.partition("-")[0], "send", source, None, others[-1]],
        "result": {DONE: None},
    }
    after = 1 + next(index for index, event in enumerate(recorded.events) if event is refused)
    events = [*recorded.events[:after], sent, *recorded.events[after:]]
    return Recorded(recorded.area, recorded.case, recorded.size, events)


def _as_after_the_boot(recorded: Recorded) -> Lie:
    """Return the lie that pools, and what QEMU maps, are for ever as they were seen first after the guest's start."""
    start, *_later = following = _after_start(recorded)
    first: dict[str, Event] = {}
    for event in following:
        if event["operation"] in ("read", "observe"):
            path = event["arguments"][0]
            if _POOL_FILE.match(path) or path.endswith("/smaps") or path == "proc/meminfo":
                first.setdefault(path, event)
    started = False

    def lie(event: Event) -> Event:
        nonlocal started
        started = started or event is start
        if not started or event["operation"] not in ("read", "observe"):
            return event
        return event | {"result": first.get(event["arguments"][0], event)["result"]}

    return lie


def _with_a_page_more_there(event: Event) -> Event:
    if not _reads(event, "/smaps"):
        return event
    return event | {"result": _RESIDENT.sub(lambda found: f"{found[1]}{int(found[2]) + 4}", event["result"])}


def _as_huge_as(first: Event) -> Lie:
    """Return the lie that as much is in transparent huge pages as in the largest mapping of the event ``first``."""
    most = max(int(found[2]) for found in _TRANSPARENT_PAGES.finditer(first["result"]))

    def lie(event: Event) -> Event:
        if not _reads(event, "/smaps"):
            return event
        return event | {"result": _TRANSPARENT_PAGES.sub(rf"\1: {most} kB", event["result"])}

    return lie


def _never_split(event: Event) -> Event:
    return event | {"result": _SPLITS.sub(r"\1 7", event["result"])} if _reads(event, "proc/vmstat") else event


def _on_small_pages(event: Event) -> Event:
    if not _is_smaps(event):
        return event
    return event | {"result": _FLAGS.sub(r"\1", _HUGETLB_PAGES.sub(r"\1: 0 kB", event["result"]))}


def _at_another_place(event: Event) -> Event:
    """Bound to another node, and there, as numa_maps has it."""
    path = str(event["arguments"][0]) if event["operation"] == "observe" else ""
    if not path.endswith("/numa_maps") or not _PLACE.search(event["result"] or ""):
        return event
    return event | {"result": _NODE.sub("N9", _PLACE.sub(r"\1 bind:9\2", event["result"]))}


def _on_other_transparent_pages(event: Event) -> Event:
    """None where there are some, and some where there are none."""
    path = str(event["arguments"][0]) if event["operation"] == "observe" else ""
    if not path.endswith("/smaps"):
        return event
    kilobytes = sum(int(found[2]) for found in _TRANSPARENT_PAGES.finditer(event["result"]))
    return event | {"result": _TRANSPARENT_PAGES.sub(rf"\1: {0 if kilobytes else 2048} kB", event["result"])}


def _other_words(recorded: Recorded) -> Iterator[tuple[Event, Lie]]:
    """Yield what a guest, or libvirt, answers to what a case judges, and the lie of another answer."""
    asked = [event for event in recorded.events if event["operation"] == GUEST]
    for event, following in zip(asked, [*asked[1:], None], strict=True):
        if _is_number(event):
            # of those that a case waits for, the last one counts
            if following is None or following["arguments"] != event["arguments"]:
                yield event, instead(event, event | {"result": {DONE: event["result"][DONE] + 1}})
        elif _tells_memory(event):
            if following is None or not _tells_memory(following):
                said = _MEMORY_LINE.sub(lambda found: f"{found[1]}{int(found[2]) + 4}{found[3]}", event["result"][DONE])
                yield event, instead(event, event | {"result": {DONE: said}})
        elif found := _is_line(event):
            said = f"{found['typed']}other words{found['end']}"
            yield event, instead(event, event | {"result": {DONE: said}})
        else:
            for other in _other_answers(event):
                yield event, instead(event, event | {"result": {DONE: other}})


def _other_answers(event: Event) -> Iterator[Any]:
    """Yield what libvirt, virsh or a monitor could say instead of what it does."""
    answer = event["result"].get(DONE)
    if _asks(event, "page_sizes"):
        yield {cell: dict.fromkeys(sizes, 9999) for cell, sizes in answer.items()}
    elif _asks(event, "host_cells"):
        for kind in ("pages", "distances", "cpus"):
            yield {cell: told | {kind: _others(told[kind])} for cell, told in answer.items()}
    elif _asks(event, "virsh") and _FREE_BY_VIRSH.search(answer or ""):
        yield _FREE_BY_VIRSH.sub(lambda found: f"{found[1]}{int(found[2]) + 1}", answer)
    elif _asks(event, "monitor") and isinstance(answer, bool):
        yield not answer
    elif _asks(event, "said"):
        yield "qemu-system-x86_64: something else is wrong"
    elif _asks(event, "shared_md5"):
        yield hashlib.md5(b"", usedforsecurity=False).hexdigest()
    elif _asks(event, "monitor") and event["arguments"][3] not in _NOT_JUDGED:
        # what it tells of memory backends
        for other in ({"policy": "other"}, {"host-nodes": [9]}):
            yield [backend | other for backend in answer]


def _others(numbers: dict[str, int]) -> dict[str, int]:
    """Return other names, which are numbers, and other numbers."""
    return {str(int(name) + 1): number + 1 for name, number in numbers.items()}


# --- events ----------------------------------------------------------------------------------------------------------
def _starts(event: Event) -> bool:
    return _asks(event, "start") or _asks(event, "boot")


def _after_start(recorded: Recorded) -> list[Event]:
    """Return the events from the start of the first guest on."""
    return recorded.events[next(index for index, event in enumerate(recorded.events) if _starts(event)) :]


def _reads(event: Event, end: str) -> bool:
    return event["operation"] in ("read", "observe") and str(event["arguments"][0]).endswith(end) and event["result"]


def _asks(event: Event, action: str) -> bool:
    return bool(event["operation"] == GUEST and event["arguments"][1] == action)


def _is_refusal(event: Event) -> bool:
    return event["operation"] == GUEST and REFUSED in event["result"]


def _is_state(event: Event) -> bool:
    return _asks(event, "state")


def _is_number(event: Event) -> bool:
    return (_asks(event, "balloon") or _asks(event, "free_pages")) and DONE in event["result"]


def _tells_memory(event: Event) -> bool:
    return _asks(event, "type") and "grep MemTotal" in event["arguments"][3]


def _is_line(event: Event) -> re.Match[str] | None:
    if not _asks(event, "type") or any(words in event["arguments"][3] for words in _DECIDED_BY):
        return None
    return _LINE_OF_GUEST.match(event["result"].get(DONE, ""))


def _is_smaps(event: Event) -> bool:
    path = str(event["arguments"][0]) if event["operation"] == "observe" else ""
    return path.endswith("/smaps") and " ht" in event["result"]


def _is_listing(event: Event) -> bool:
    """Tell whether the event lists the root of a hugetlbfs of ours."""
    path = str(event["arguments"][0]) if event["operation"] == "names" else ""
    return path.rpartition("/")[2].startswith("hugetlbfs-")


def _lists(event: Event, mount: str) -> bool:
    return bool(event["operation"] == "names" and event["arguments"] == [mount])
