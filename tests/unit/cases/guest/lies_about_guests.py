"""What a host, an emulator or a guest could say instead of what was recorded of it: lies about guests."""

import hashlib
import itertools
import re
from collections.abc import Iterator
from typing import Any

from tests.unit.cases.lies import Lie, instead, one_page_more
from tests.unit.cases.recorded import Recorded
from tests.unit.cases.transcript import Event

from hugepage_qa.cases.guest.guest_machine import DONE, GUEST, REFUSED

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


def after(event: Event, lie: Lie) -> Lie:
    """Return the lie that begins when ``event`` was answered."""
    began = False

    def later(asked: Event) -> Event:
        nonlocal began
        began = began or asked is event
        return lie(asked)

    return lambda asked: later(asked) if began or asked is event else asked


def one_more_is_free(recorded: Recorded) -> Lie:
    """Return the lie of one free page more, also to a case that compares only what it reads twice."""
    assert recorded.size is not None
    return one_page_more("free_hugepages", recorded.size, ("read", "observe"))


def with_a_page_less(event: Event) -> Event:
    """Return the event with a free page less in every pool that has one, in every place that shows it."""
    if event["operation"] != "observe" or not event["result"]:
        return event
    text = event["result"]
    if reads(event, "proc/meminfo"):
        return event | {"result": _FREE_LINE.sub(lambda found: f"{found[1]}{max(0, int(found[2]) - 1)}", text)}
    found = _counter_in(event)
    return event | {"result": f"{max(0, int(text) - 1)}\n"} if found and found["counter"] == "free" else event


def nothing_taken(recorded: Recorded) -> Lie:
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


def then_sent(recorded: Recorded, refused: Event) -> Recorded:
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


def as_after_the_boot(recorded: Recorded) -> Lie:
    """Return the lie that pools, and what QEMU maps, are for ever as they were seen first after the guest's start."""
    start, *_later = following = after_start(recorded)
    first: dict[str, Event] = {}
    for event in following:
        if _counter_in(event) or reads(event, "/smaps") or reads(event, "proc/meminfo"):
            first.setdefault(event["arguments"][0], event)
    started = False

    def lie(event: Event) -> Event:
        nonlocal started
        started = started or event is start
        if not started or event["operation"] not in ("read", "observe"):
            return event
        return event | {"result": first.get(event["arguments"][0], event)["result"]}

    return lie


def with_a_page_more_there(event: Event) -> Event:
    if not reads(event, "/smaps"):
        return event
    return event | {"result": _RESIDENT.sub(lambda found: f"{found[1]}{int(found[2]) + 4}", event["result"])}


def as_huge_as(first: Event) -> Lie:
    """Return the lie that as much is in transparent huge pages as in the largest mapping of the event ``first``."""
    most = _most_transparent(first)

    def lie(event: Event) -> Event:
        if not reads(event, "/smaps"):
            return event
        return event | {"result": _TRANSPARENT_PAGES.sub(rf"\1: {most} kB", event["result"])}

    return lie


def _most_transparent(smaps: Event) -> int:
    return max(int(found[2]) for found in _TRANSPARENT_PAGES.finditer(smaps["result"]))


def nothing_collapsed(recorded: Recorded) -> Lie:
    """Return the lie that nothing that was split is huge again, however often khugepaged has looked at it."""
    split = as_huge_as(min((event for event in recorded.events if reads(event, "/smaps")), key=_most_transparent))
    scans = itertools.count(1)

    def lie(event: Event) -> Event:
        return event | {"result": f"{next(scans)}\n"} if reads(event, "/full_scans") else split(event)

    return lie


def never_split(event: Event) -> Event:
    return event | {"result": _SPLITS.sub(r"\1 7", event["result"])} if reads(event, "proc/vmstat") else event


def on_small_pages(event: Event) -> Event:
    if not is_smaps(event):
        return event
    return event | {"result": _FLAGS.sub(r"\1", _HUGETLB_PAGES.sub(r"\1: 0 kB", event["result"]))}


def at_another_place(event: Event) -> Event:
    """Bound to another node, and there, as numa_maps has it."""
    if not reads(event, "/numa_maps") or not _PLACE.search(event["result"]):
        return event
    return event | {"result": _NODE.sub("N9", _PLACE.sub(r"\1 bind:9\2", event["result"]))}


def on_other_transparent_pages(event: Event) -> Event:
    """None where there are some, and some where there are none."""
    if not reads(event, "/smaps"):
        return event
    kilobytes = sum(int(found[2]) for found in _TRANSPARENT_PAGES.finditer(event["result"]))
    return event | {"result": _TRANSPARENT_PAGES.sub(rf"\1: {0 if kilobytes else 2048} kB", event["result"])}


def other_words(recorded: Recorded) -> Iterator[tuple[Event, Lie]]:
    """Yield what a guest, or libvirt, answers to what a case judges, and the lie of another answer."""
    asked = [event for event in recorded.events if event["operation"] == GUEST]
    for event, following in zip(asked, [*asked[1:], None], strict=True):
        if is_number(event):
            # of those that a case waits for, the last one counts
            if following is None or following["arguments"] != event["arguments"]:
                yield event, instead(event, event | {"result": {DONE: event["result"][DONE] + 1}})
        elif _tells_memory(event):
            if following is None or not _tells_memory(following):
                said = _MEMORY_LINE.sub(lambda found: f"{found[1]}{int(found[2]) + 4}{found[3]}", event["result"][DONE])
                yield event, instead(event, event | {"result": {DONE: said}})
        elif found := is_line(event):
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


def after_start(recorded: Recorded) -> list[Event]:
    """Return the events from the start of the first guest on."""
    return recorded.events[next(index for index, event in enumerate(recorded.events) if _starts(event)) :]


def reads(event: Event, end: str) -> bool:
    return event["operation"] in ("read", "observe") and str(event["arguments"][0]).endswith(end) and event["result"]


def _asks(event: Event, action: str) -> bool:
    return bool(event["operation"] == GUEST and event["arguments"][1] == action)


def is_refusal(event: Event) -> bool:
    return event["operation"] == GUEST and REFUSED in event["result"]


def is_state(event: Event) -> bool:
    return _asks(event, "state")


def is_number(event: Event) -> bool:
    return (_asks(event, "balloon") or _asks(event, "free_pages")) and DONE in event["result"]


def _tells_memory(event: Event) -> bool:
    return _asks(event, "type") and "grep MemTotal" in event["arguments"][3]


def is_line(event: Event) -> re.Match[str] | None:
    if not _asks(event, "type") or any(words in event["arguments"][3] for words in _DECIDED_BY):
        return None
    return _LINE_OF_GUEST.match(event["result"].get(DONE, ""))


def is_smaps(event: Event) -> bool:
    return reads(event, "/smaps") and " ht" in event["result"]


def is_listing(event: Event) -> bool:
    """Tell whether the event lists the root of a hugetlbfs of ours."""
    path = str(event["arguments"][0]) if event["operation"] == "names" else ""
    return path.rpartition("/")[2].startswith("hugetlbfs-")


def lists(event: Event, mount: str) -> bool:
    return bool(event["operation"] == "names" and event["arguments"] == [mount])
