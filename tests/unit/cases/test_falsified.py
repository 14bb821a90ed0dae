"""Every recorded case passes when it is replayed, and fails by its own rule when it is lied to."""

import copy
from collections.abc import Iterator
from fnmatch import fnmatchcase
from itertools import chain

import pytest
from tests.unit.cases.areas import read_areas
from tests.unit.cases.lies import (
    COUNTERS,
    as_at_first,
    by_its_own_rule,
    fails_by,
    lied_to,
    one_page_more,
    other_answers,
    other_looks,
    unlike_answers,
)
from tests.unit.cases.record_areas import read_records
from tests.unit.cases.recorded import Recorded, recorded_cases, recorded_cases_of
from tests.unit.cases.text.test_double import NAMES as HUGETEXT
from tests.unit.cases.transcript import Event

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.guest.guests import GuestArea
from hugepage_qa.cases.result import Verdict

#: requests and writes whose answer the case does not judge: a read that is there for its fault, what decides how it
#: goes on, and a number that the kernel gives to be named by, of a descriptor, a segment or registered memory, or
#: where a buffer lies: another one was not recorded. Each is how they begin, with * for what differs from run to run
_NOT_JUDGED: dict[str, tuple[str, ...]] = {
    # who watches is refused or not, what it protects is judged; and a read that is there for its page table
    "protected-in-one-mapping": ("call madvise ", "load "),
    **dict.fromkeys(("a-page-shared-by-fork", "the-zero-page-is-nobodys", "an-allocated-zero-page"), ("load ",)),
    **dict.fromkeys(("direct-io", "direct-io-of-a-segment", "long-direct-io"), ("call statx ",)),
    "long-direct-io-of-a-thp": ("call statx ",),
    # what is written to swap in that moment is not free yet, and it is asked for again: what is gone is judged
    "reclaimed-and-refaulted": ("/sys/fs/cgroup/*/memory.reclaim",),
    # and may be less than is asked for: what is in swap is judged
    "merged-and-brought-from-swap": ("/sys/fs/cgroup/*/memory.reclaim",),
    **dict.fromkeys(("forked-huge-pages", "forked-shared-memory", "forked-hugetlb-pages"), ("load ",)),
    **dict.fromkeys(("forked-protected-memory", "forked-protected-hugetlb-pages"), ("load ",)),
    "with-a-child-told-of": ("load ",),
    **dict.fromkeys(("watched-child", "watched-child-with-hugetlb-pages"), ("load ",)),
    **dict.fromkeys(("poisoned-pages-that-are-handled", "poisoned-and-forked"), ("load ",)),
    **dict.fromkeys(("written-while-they-are-scanned", "written-while-hugetlb-pages-are-scanned"), ("load ",)),
    **dict.fromkeys(("page-on-ext4", "page-on-xfs", "page-on-btrfs"), ("call write ",)),
    "reservations-of-each-kind-are-limited": ("call shmget ",),
    **dict.fromkeys(("brought-around-a-fault-on-ext4", "brought-around-a-fault-on-xfs"), ("load ",)),
    **dict.fromkeys(("brought-at-random-on-ext4", "brought-at-random-on-xfs"), ("load ",)),
    **dict.fromkeys(("not-in-memory-on-ext4", "not-in-memory-on-xfs"), ("load ",)),
    # UFFDIO_API: it asks for no feature, so that it may be offered none
    **dict.fromkeys(("filled-by-others", "waited-for-a-huge-page"), ("call ioctl 3 3222841919 ",)),
    "faults-of-the-kernel-on-transparent-pages": ("call ioctl 3 3222841919 ",),
    "source-that-a-program-fills": ("call ioctl 4 3222841919 ",),
    # UFFDIO_ZEROPAGE: it is tried until nobody has a hold of the memory any more; and whether a message has come yet
    "process-that-is-gone": ("call ioctl 6 3223366148 ", "load "),
    # UDMABUF_CREATE, UDMABUF_CREATE_LIST
    **dict.fromkeys(("page-of-the-pool", "shared-memory"), ("call ioctl 4 107",)),
    **dict.fromkeys(("pages-of-a-file", "holes-of-a-file", "unreserved-hole"), ("call ioctl 3 107",)),
    # whether the file system has RWF_DONTCACHE, which decides what is tried
    **dict.fromkeys(("not-kept-on-btrfs", "not-kept-on-tmpfs"), ("call preadv2 ",)),
    # which ranges it can take out, put in or make zero
    **dict.fromkeys(
        ("beside-a-range-on-btrfs", "beside-a-range-on-tmpfs"),
        tuple(f"call fallocate * {mode} " for mode in (8, 16, 32)),
    ),
    # whether MADV_COLLAPSE makes huge pages of files that may be written, which decides what is tried there
    "counted-on-btrfs": ("call madvise * 25",),
    # which device a file is on
    **dict.fromkeys(("brought-beyond-the-window-on-ext4", "brought-beyond-the-window-on-xfs"), ("call statx ",)),
    # the number of memory that is registered
    "by-a-device": ("load ",),
    # the number of the process that shares its memory
    "of-one-that-shares-all": ("load ",),
    # it tries another block where one is refused
    "added-to-a-busy-machine": ("call write ",),
    # nor whether one is refused, of those that make up a gigantic page
    **dict.fromkeys(("never-unless-asked", "taken-where-asked", "moved-when-taken"), ("call write ",)),
    # whether a page that nobody has any more is given back: one that is still in a file is not
    "broken-part-of-a-held-tmpfs-page": ("tmp/debugfs",),
}
#: the same of all cases of an area: those that register memory ask with its number, or make what may be refused
_NOT_JUDGED_IN = {
    "memory/read-only-pins": ("load ",),
    # whether MADV_COLLAPSE of what is pinned is refused
    "memory/provided-buffers": ("call madvise * 25",),
    # whether memory of a kind takes an advice; whether its pages are locked after it is judged
    "thp/let-go": ("call madvise ",),
    # how far a thread is that writes on and on, and what came of it in one round: whether it goes on is judged
    "memory/flushed": ("load ", "stop "),
    # how often a thread has read on
    "swap/zswap-makes-room": ("stop ",),
    # whether a loop device can be read behind the end of its file, which decides whether it can be tried
    "swap/unreadable-swap": ("call pread64 6 ",),
    # UFFDIO_API: it asks for no feature
    **dict.fromkeys(
        (
            "userfaultfd/woken-threads",
            "userfaultfd/signalled-threads",
            "userfaultfd/told-in-order",
            "userfaultfd/nothing-kept",
            "userfaultfd/registered-parts",
            "pool/interrupted-writes",
        ),
        ("call ioctl * 3222841919 ",),
    ),
    "userfaultfd/interface": ("call ioctl 3 3222841919 xaa0000000000000000000000",),
    # whether huge pages are made is left to the kernel, and what they hold is judged
    "thp/mixed-operations": ("call pidfd_open ", "call process_madvise "),
    # nor which ranges a file system can take out, put in or make zero
    "files/mixed-file-operations": (
        *("call pidfd_open ", "call process_madvise "),
        *(f"call fallocate 3 {mode} " for mode in (8, 16, 32)),
    ),
    # what a transfer past the page cache has to be a multiple of
    "files/written-otherwise": ("call statx ",),
}
#: cases that judge other facts of the machine than a counter that they look at
_JUDGES_OTHER_FACTS = {
    "demoted-page-is-clean": set(COUNTERS),
    "the-direct-map-keeps-its-size": set(COUNTERS),
    "pools-do-not-count-for-the-commit-limit": {"free_hugepages", "resv_hugepages", "surplus_hugepages"},
}
#: nodes have no resv_hugepages, and these judge nothing but nodes
_OF_NODES = {
    "a-page-comes-from-the-home-node",
    "a-page-comes-from-the-home-node-of-many",
    "a-short-node-is-made-up-for-unless-the-policy-forbids",
    "an-interleaving-writer-spreads-pages",
    "bound-memory-takes-pages-of-its-node",
    "demote-on-a-node",
    "demote-on-an-empty-node",
}
#: that nothing happens is their rule, or that something is there: they have no stimulus that could be seen
_NOTHING_HAPPENS = {
    "bytes-that-are-taken",
    "demote-is-write-only",
    "files-of-a-node",
    "files-of-hugetext",
    "pools-do-not-count-for-the-commit-limit",
    "size-that-is-shown",
    "the-direct-map-keeps-its-size",
    # the pages that it takes until the counter is exact depend on what it is told
    "vmstat-counts-pages-in-use",
}
#: they judge where a mapping lies, and tests/unit/cases/test_places.py lies about that
_JUDGES_PLACES = {"random-addresses", "random-addresses-of-files"}
#: it holds two files of the kernel against each other, and tests/unit/cases/test_free_lists.py lies about one of them
_HOLDS_FILES_TOGETHER = "accounting/free-lists"
#: it judges one file where another does not tell that there was nothing to do: tests/unit/cases/test_compacted.py lies
_JUDGES_WHAT_IS_DUE = "by-the-daemon-of-a-node"


def _is_lied_to_elsewhere(recorded: Recorded) -> bool:
    told = recorded.area.name == _HOLDS_FILES_TOGETHER or recorded.case.name == _JUDGES_WHAT_IS_DUE
    return told or recorded.case.name in _JUDGES_PLACES


def _has_no_guests(area: Area) -> bool:
    return not isinstance(area, GuestArea)


every_record = pytest.mark.parametrize("recorded", recorded_cases(), ids=str)
#: the falsified guests are in tests/unit/cases/guest
without_guests = pytest.mark.parametrize("recorded", recorded_cases(_has_no_guests), ids=str)
on_each_size = pytest.mark.parametrize(
    "recorded",
    [one for one in recorded_cases(_has_no_guests) if one.case.sizes is not Sizes.ONCE],
    ids=str,
)


def _last_observations(events: list[Event]) -> dict[str, int]:
    """Return each file of a pool -> its last observation."""
    last: dict[str, int] = {}
    for index, event in enumerate(events):
        path = event["arguments"][0] if event["arguments"] else ""
        if event["operation"] == "observe" and event["result"] and str(path).rpartition("/")[2] in COUNTERS:
            last[path] = index
    return last


def _last_looks() -> Iterator[Recorded]:
    """Yield one of those cases of an area and size that look at the same last: what the harness does behind each."""
    seen = set()
    for one in recorded_cases(_has_no_guests):
        last_act = max((index for index, event in enumerate(one.events) if event["operation"] == "request"), default=-1)
        last = _last_observations(one.events)
        looks = one.area, one.size, *((path, index < last_act) for path, index in last.items())
        if one.case.sizes is not Sizes.ONCE and looks not in seen:
            seen.add(looks)
            yield one


def test_every_area_is_recorded() -> None:
    recorded = {one.area.name for one in recorded_cases()}
    assert [area.name for area in read_areas() if area.name not in recorded | HUGETEXT] == []


def test_every_record_is_of_a_case() -> None:
    """One whose case was renamed or taken out is replayed by nothing."""
    for area in read_areas():
        for verdict in (Verdict.PASS, Verdict.KNOWN):
            replayed = {str(one) for one in recorded_cases_of(area, verdict)}
            assert {f"{area.name}/{name}" for name in read_records(area, verdict)} == replayed


@every_record
def test_a_true_record_passes(recorded: Recorded) -> None:
    judgement = recorded.replay()
    assert judgement.verdict is Verdict.PASS, judgement.reason


@on_each_size
@pytest.mark.parametrize("counter", COUNTERS)
def test_a_counter_that_is_wrong_while_the_case_runs_breaks_its_own_rule(recorded: Recorded, counter: str) -> None:
    """All places agree, and all are wrong by one page: only the expectations of the case can tell."""
    others = {"resv_hugepages"} if recorded.case.name in _OF_NODES else set()
    if counter in _JUDGES_OTHER_FACTS.get(recorded.case.name, others):
        pytest.skip("judges other facts")
    judgement, told = lied_to(recorded, one_page_more(counter, recorded.size or 0))
    # cases that judge errors or contents alone have lies of their own below
    assert not told or by_its_own_rule(recorded, judgement), judgement.reason


@pytest.mark.parametrize("recorded", [*_last_looks()], ids=str)
def test_each_place_that_shows_a_pool_is_looked_at(recorded: Recorded) -> None:
    for index in _last_observations(recorded.events).values():
        events = copy.copy(recorded.events)
        events[index] = events[index] | {"result": f"{int(events[index]['result']) + 1}\n"}
        judgement = recorded.replay(events)
        assert judgement.verdict is Verdict.FAIL, events[index]["arguments"]


@without_guests
def test_a_case_can_fail_by_its_own_rule(recorded: Recorded) -> None:
    assert _is_lied_to_elsewhere(recorded) or can_fail(recorded)


@without_guests
def test_a_case_sees_what_it_does(recorded: Recorded) -> None:
    if recorded.case.name not in _NOTHING_HAPPENS and not _is_lied_to_elsewhere(recorded):
        assert sees_its_stimulus(recorded)


@without_guests
def test_no_answer_to_the_actor_is_taken_on_trust(recorded: Recorded) -> None:
    """A refusal or a signal that does not come, and memory that holds something else, are not passed over."""
    for event, lie in unlike_answers(recorded):
        passed_over = _NOT_JUDGED.get(recorded.case.name, ()) + _NOT_JUDGED_IN.get(recorded.area.name, ())
        asked = event["arguments"][1 if event["operation"] == "request" else 0]
        if not any(fnmatchcase(str(asked), f"{each}*") for each in passed_over):
            judgement, told = lied_to(recorded, lie)
            assert not told or judgement.verdict is Verdict.FAIL, (event, judgement.reason)


def can_fail(recorded: Recorded) -> bool:
    """Tell whether there is a lie that makes a case fail by its own rule."""
    answers = (lie for _event, lie in other_answers(recorded))
    counters = (one_page_more(counter, recorded.size or 0) for counter in COUNTERS)
    lies = chain(answers, [as_at_first(recorded)], other_looks(recorded), counters)
    return any(fails_by(recorded, lie) for lie in lies)


def sees_its_stimulus(recorded: Recorded) -> bool:
    """Tell whether a case fails by its own rule where nothing happens, or where its calls are answered wrongly."""
    answers = (lie for _event, lie in other_answers(recorded))
    lies = chain(answers, [as_at_first(recorded)], other_looks(recorded, at_what_it_made=True))
    return any(fails_by(recorded, lie) for lie in lies)


@pytest.mark.parametrize(
    "line",
    [
        "BUG: Bad page state in process actor",
        "WARNING: CPU: 0 PID: 1279 at mm/hugetlb.c:5421 hugetlb_fault+0x1/0x2",
        "WARNING: mm/hugetlb.c:5421 at hugetlb_fault+0x1/0x2, CPU#0: actor/1279",
    ],
)
def test_a_kernel_in_trouble_fails_a_case_that_is_right_else(line: str) -> None:
    recorded = recorded_cases()[0]
    last = max(index for index, event in enumerate(recorded.events) if event["operation"] == "new_kernel_log")
    events = copy.copy(recorded.events)
    events[last] = events[last] | {"result": [line]}
    judgement = recorded.replay(events)
    assert judgement.verdict is Verdict.FAIL
    assert line in judgement.reason


def test_no_kind_of_answer_is_left_out_where_many_are_alike() -> None:
    (recorded,) = (one for one in recorded_cases() if str(one) == "files/seals/sealed")
    told, all_of_them = ([event for event, _lie in answers(recorded)] for answers in (unlike_answers, other_answers))
    assert len(told) < len(all_of_them) / 10
    assert all_of_them[0] in told
    assert all_of_them[-1] in told

    def kinds(events: list[Event]) -> set[tuple[str, str]]:
        return {(event["arguments"][1].split()[1], event["result"][0].split()[0]) for event in events}

    assert kinds(told) == kinds(all_of_them)
