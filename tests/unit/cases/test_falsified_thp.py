"""Cases on transparent huge pages fail where smaps shows other huge pages, and where a refusal does not come."""

import errno
import itertools
import re
from collections.abc import Callable, Iterator, Sequence

import pytest
from tests.unit.cases.lies import Lie, fails_by, instead, lied_to
from tests.unit.cases.recorded import Recorded, recorded_cases
from tests.unit.cases.transcript import Event

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.khugepaged_clock import KHUGEPAGED
from hugepage_qa.cases.result import Verdict

_HUGE = re.compile(r"^((?:AnonHugePages|ShmemPmdMapped|FilePmdMapped): +)(\d+)( kB)$", re.MULTILINE)
#: what they judge is Rss, counters, refusals or contents, and no huge page of a mapping
_WITHOUT_HUGE_PAGES = {
    "zeroes-written-where-they-are",
    # guards and what was written in smaller pages, and base pages that are poisoned or in swap
    "written-beside",
    "onto-what-is-not-in-memory",
    "looked-at-in-vain",
    "on-a-device",
    "zeroes-and-others",
    # base pages in swap
    "beside-bad-blocks",
    # what a block device holds
    "ranges-of-a-device",
    "written-beside-zeroes-of-a-device",
    # where memory lies, whatever maps it
    "other-lengths-side-by-side",
    "addresses-that-are-asked-for",
    # where what was moved is swapped out from
    "remapped-is-swapped-out",
    "moved-by-user-is-swapped-out",
    "as-it-was-booted",
    # what memory holds after anything, and which base pages a fault takes, whatever maps them
    "forked-in-swap",
    "forked-when-back",
    "brought-back-by-swapoff",
    "anything-done-to-all-sizes",
    "anything-done-to-private-memory",
    "anything-done-to-shared-memory",
    "kept-when-written-again",
    "written-after-it-was-free",
    "written-after-it-was-in-swap",
    "written-and-reclaimed",
    "largest-that-fits",
    "ends-of-shared-mappings",
    "holes-of-smaller-sizes",
    "smaller-ones-whole",
    "freed-with-a-place-in-swap",
    "allocated-behind-the-end",
    "blocks-made-again",
    "blocks-of-a-node-alone",
    "blocks-of-shared-memory",
    "counted-text",
    "denied-and-forced-without-a-mapping",
    # flags of base pages, and counters of what is locked
    "merged-and-brought-from-swap",
    "unlocked-in-parts",
    "with-a-hole",
    "eligible",
    "eligible-files",
    "eligible-memory",
    "eligible-shared-memory",
    "eligible-text",
    "eligible-within-size",
    "ineligible-pool",
    "filled-and-read-only",
    "full-file-system",
    "filled-by-others",
    "touched-from-outside",
    "touched-in-parts",
    "in-private",
    "kept-behind-the-end",
    "pages-behind-holes",
    "given-back-and-filled",
    "given-back-behind-the-end",
    "missing-to-all",
    "numbers-that-are-shown",
    "of-base-pages",
    "preferred-block-size",
    "read-meanwhile",
    "refused-arguments",
    "reserve-of-free-memory",
    "reserve-beside-movable-memory",
    "room-behind-the-end",
    "room-behind-the-length",
    "room-behind-a-held-end",
    "held-file-among-others",
    "failed-behind-the-end",
    "shared-memory-filled-by-others",
    "size-that-is-shown",
    # how long files are, and what of them is mapped, in huge pages or not
    "sealed",
    "size-that-is-kept",
    "memfd-within-size-from-any-byte",
    "memfd-within-one-size",
    "within-size-from-any-byte",
    "whatever-brought-it",
    "where-nothing-is",
    # no more than so many, most of them, or how many rounds they took
    "one-at-a-time",
    "taken-again-and-again",
    "more-at-a-time",
    # which base pages are protected, and can be written, whatever maps them
    "closed-and-moved",
    "closed-before-a-child",
    "closed-in-swap",
    "closed-zeroes",
    "advised-while-closed",
    "freed-lazily",
    "moved-into-closed-memory",
    "private-mapping",
    "with-a-child-told-of",
    "other-memory-moved",
    "in-place-of-pages",
    "written-after-all",
    "written-when-no-longer-protected",
    "protected-zeroes",
    "freed-while-protected",
    "paged-out-while-protected",
    "unpopulated-memory",
    # how many huge pages were taken, and what is left of them
    "by-calls",
    "by-threads",
    "zeroes-for-all",
    # what comes back from swap may be huge or not
    "each-page-of-a-range",
    "swapoff",
    "swap-switched-off",
    "moved-in-swap",
    "thread-comes-and-goes",
    "values-that-are-shown",
    "one-size-alone",
    "files-of-hugetext",
    "dropped-caches",
    "open-for-write",
    "policies-of-smaller-sizes",
    "pages-of-smaller-sizes",
    "absent-pages-of-a-smaller-size",
    "values-that-are-refused",
    "numbers-that-are-refused",
    "options-of-a-remount",
    "no-zero-page",
    "no-direct-compaction",
    # arguments, addresses, and text on hugetlb pages
    "largest-arguments",
    "random-addresses-of-files",
    "fitting-addresses-of-files",
    "beside-neighbours",
    "fitting-addresses-of-private-memory",
    "fitting-addresses-of-shared-memory",
    "shared-text",
    "written-segment",
    "moved-text",
    "written-where-it-is",
}
#: text that is huge before as after is that of a file system with large folios
_BEFORE_AS_AFTER = {"collapsed-text", "text-on-btrfs", "text-on-xfs"}

_FOLDERS = "files/", "ksm/", "mlock/", "text/", "thp/"
#: of these some areas are about the pages of a pool
_FOLDERS_OF_BOTH = "swap/", "userfaultfd/"


def _is_transparent(area: Area) -> bool:
    if area.name.startswith(_FOLDERS_OF_BOTH):
        return all(case.sizes is Sizes.ONCE for case in area.cases)
    return area.name.startswith(_FOLDERS)


RECORDED = recorded_cases(_is_transparent)
_BUDDYINFO = str(["proc/buddyinfo"])
_LAST_COLUMN = re.compile(r"\d+(?= *$)", re.MULTILINE)
_SWAP = re.compile(r"^(Swap: +)(\d+)( kB)$", re.MULTILINE)
_FILE = re.compile(r"^(FilePmdMapped: +)(\d+)( kB)$", re.MULTILINE)
_FULL_SCANS = f"{KHUGEPAGED}/full_scans"
_MADE = "/stats/collapse_alloc']"
_RSS = re.compile(r"^(Rss: +)(\d+)( kB)$", re.MULTILINE)

#: where the entries of /proc/PID/pagemap for the addresses of programs begin, in bytes
_FIRST_OF_PROGRAMS = 1 << 32


def _named(*names: str) -> list[Recorded]:
    return [one for one in RECORDED if one.case.name in names]


def _one_page_more(found: re.Match[str]) -> str:
    return f"{found[1]}{int(found[2]) + 4}{found[3]}"


#: smaller ones are in no line of smaps: counters of their size show them, and what they hold; so do files, the
#: frames of zeroes; what is soft-dirty is in pagemap, what is committed in a counter of the machine, and faults are in
#: one of the process
_AREAS_WITHOUT = {
    "thp/kept-soft-dirty",
    "thp/smaller-sizes",
    "thp/collapsed-smaller",
    "files/file-folios",
    "files/split-folios",
    "files/mixed-file-operations",
    "files/moved-files",
    "files/stored-folios",
    "thp/zero-page",
    "files/written-otherwise",
    "files/sparse-files",
    "files/brought-ranges",
    "files/cached-ranges",
    "files/synced-ranges",
    "files/without-reuse",
    "files/dirty-ranges",
    "files/guarded-on-disks",
    "files/committed-memory",
    "files/files-of-others",
    "swap/faults-from-swap",
    "files/flagged-io",
    "files/counted-folios",
    # what files take of a mount
    "files/shrunk-ends",
    # blocks that huge pages cannot come from, and those that they could
    "thp/taken-blocks",
    "thp/compacted",
    # what memory holds, and what is protected of it, whatever maps it
    "thp/written-and-protected",
    "userfaultfd/protected-in-swap",
    "swap/forbidden-parts",
}
_OF_HUGE_PAGES = [
    one for one in RECORDED if one.case.name not in _WITHOUT_HUGE_PAGES and one.area.name not in _AREAS_WITHOUT
]
of_huge_pages = pytest.mark.parametrize("recorded", _OF_HUGE_PAGES, ids=str)


@pytest.mark.parametrize("recorded", [one for one in _OF_HUGE_PAGES if one.case.name not in _BEFORE_AS_AFTER], ids=str)
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
        # of most it is the last look that the case judges, of many others the first
        assert any(_fails(recorded, index) for index in (indices[0], *reversed(indices))), path


@pytest.mark.parametrize("recorded", RECORDED, ids=str)
def test_a_write_that_should_be_refused_is_not_taken(recorded: Recorded) -> None:
    for event in recorded.events:
        # memory.reclaim says EAGAIN where not all is out yet, and the case looks at what is
        if event["operation"] == "write" and event.get("errno", errno.EAGAIN) != errno.EAGAIN:
            taken = {key: value for key, value in event.items() if key != "errno"} | {"result": None}
            judgement, _told = lied_to(recorded, instead(event, taken))
            assert judgement.verdict is Verdict.FAIL, event


@pytest.mark.parametrize("recorded", _named("swapped-out", "pages-in-swap", "beside-pages-in-swap"), ids=str)
def test_memory_in_swap_is_looked_at(recorded: Recorded) -> None:
    """A page more or none at all: a kernel that swaps nothing out, or leaves it there, does not pass."""
    for replacement in (
        lambda found: f"{found[1]}{int(found[2]) + 4}{found[3]}",
        lambda found: f"{found[1]}0{found[3]}",
    ):
        events = list(_with_smaps(recorded.events, _SWAP, replacement))
        assert recorded.replay(events).verdict is not Verdict.PASS


@pytest.mark.parametrize(
    "recorded",
    _named(
        "absent-text", "collapsed-text", "text-and-khugepaged", "text-on-btrfs", "text-on-xfs", "text-that-is-written"
    ),
    ids=str,
)
def test_text_that_never_becomes_huge_is_missed(recorded: Recorded) -> None:
    """Recorded on a kernel with READ_ONLY_THP_FOR_FS."""
    events = list(_with_smaps(recorded.events, _FILE, lambda found: f"{found[1]}0{found[3]}"))
    assert events != recorded.events
    assert recorded.replay(events).verdict is not Verdict.PASS


@pytest.mark.parametrize("recorded", _named("unmapped-in-part", "underused"), ids=str)
@pytest.mark.parametrize("counter", ["thp_split_page", "thp_underused_split_page"])
def test_a_split_that_is_not_counted_is_missed(recorded: Recorded, counter: str) -> None:
    line = re.compile(rf"^{counter} \d+$", re.MULTILINE)
    events = [
        event | {"result": line.sub(f"{counter} 0", event["result"])}
        if event["operation"] == "observe" and event["arguments"] == ["proc/vmstat"]
        else event
        for event in recorded.events
    ]
    judges = counter == "thp_split_page" or recorded.case.name == "underused"
    assert (recorded.replay(events).verdict is not Verdict.PASS) == judges


@pytest.mark.parametrize("recorded", _named("unmapped-in-part", "underused", "used-enough"), ids=str)
def test_memory_that_is_given_back_or_not_is_looked_at(recorded: Recorded) -> None:
    events = list(_with_smaps(recorded.events, _RSS, _one_page_more))
    assert recorded.replay(events).verdict is Verdict.FAIL


def _scanning_on(lie: Lie) -> Lie:
    """Return ``lie`` of a khugepaged that goes on scanning: that nothing comes of it is told by its own clock."""
    scans = itertools.count()

    def answer(event: Event) -> Event:
        is_clock = event["operation"] == "observe" and event["arguments"] == [_FULL_SCANS]
        return event | {"result": f"{next(scans)}\n"} if is_clock else lie(event)

    return answer


def _never_counted(counter: str) -> Lie:
    return lambda event: event | {"result": "0\n"} if event["arguments"] == [counter] else event


@pytest.mark.parametrize("recorded", _named("pages-of-smaller-sizes"), ids=str)
def test_pages_of_smaller_sizes_that_are_never_made_are_missed(recorded: Recorded) -> None:
    """Of one size after the other: those that are made do not hide those that are not."""
    counters = {event["arguments"][0] for event in recorded.events if str(event["arguments"]).endswith(_MADE)}
    assert len(counters) > 1
    for counter in counters:
        assert fails_by(recorded, _scanning_on(_never_counted(counter))), counter


def _whole(found: re.Match[str]) -> str:
    return f"{found[1]}2048{found[3]}"


def _never_whole(found: re.Match[str]) -> str:
    return f"{found[1]}{min(int(found[2]), 2040)}{found[3]}"


@pytest.mark.parametrize("recorded", _named("absent-pages-of-a-smaller-size"), ids=str)
@pytest.mark.parametrize("replacement", [_one_page_more, _whole, _never_whole])
def test_absent_pages_that_are_filled_or_not_are_looked_at(
    recorded: Recorded, replacement: Callable[[re.Match[str]], str]
) -> None:
    """Also a kernel that takes each value of max_ptes_none for the highest, and one that makes no page at all."""
    assert fails_by(recorded, _scanning_on(lambda event: next(_with_smaps([event], _RSS, replacement))))


@pytest.mark.parametrize("recorded", _named("migrated"), ids=str)
def test_huge_pages_that_stay_on_their_node_are_missed(recorded: Recorded) -> None:
    events = [
        event | {"result": re.sub(r"\bN(\d)=", lambda found: f"N{1 - int(found[1])}=", event["result"])}
        if event["operation"] == "observe" and event["arguments"][0].endswith("/numa_maps")
        else event
        for event in recorded.events
    ]
    assert recorded.replay(events).verdict is Verdict.FAIL


def _compacted(events: Sequence[Event]) -> Iterator[tuple[Event, bool]]:
    """Yield each event, and whether memory was compacted since it was fragmented."""
    is_compacted = False
    for before, event in zip([events[0], *events], events, strict=False):
        if _writes(event, "compact_memory"):
            # not that before memory is fragmented, which drops caches, too
            is_compacted = not _writes(before, "drop_caches")
        yield event, is_compacted


def _without_compaction(events: Sequence[Event], *, blocks_are_made: bool) -> Iterator[Event]:
    """Yield events in which compaction moves no page of ours; free blocks are made nevertheless, or not."""
    last: dict[str, Event] = {}
    for event, is_compacted in _compacted(events):
        asked = str(event["arguments"])
        is_frames = event["operation"] == "request" and "pread64" in asked
        if is_frames or (asked == _BUDDYINFO and not blocks_are_made):
            last[asked] = last[asked] if is_compacted else event
        yield last.get(asked, event)


@pytest.mark.parametrize("recorded", _named("blocks-made-again", "blocks-of-shared-memory"), ids=str)
def test_a_compaction_that_makes_no_blocks_is_missed(recorded: Recorded) -> None:
    events = list(_without_compaction(recorded.events, blocks_are_made=False))
    assert recorded.replay(events).verdict is Verdict.FAIL


@pytest.mark.parametrize("recorded", _named("blocks-made-again"), ids=str)
def test_compaction_may_move_the_pages_of_others_to_the_blocks_that_ours_are_in(recorded: Recorded) -> None:
    events = list(_without_compaction(recorded.events, blocks_are_made=True))
    assert events != recorded.events
    assert recorded.replay(events).verdict is Verdict.PASS


@pytest.mark.parametrize("recorded", _named("blocks-made-again"), ids=str)
def test_compaction_may_fill_blocks_that_ours_are_in(recorded: Recorded) -> None:
    """Nothing of ours moves, no block is made, and what was free beside our pages is no longer."""
    events = [
        event | {"result": _without_free_frames(event["result"])} if is_compacted and _asks_for_flags(event) else event
        for event, is_compacted in _compacted(list(_without_compaction(recorded.events, blocks_are_made=False)))
    ]
    assert recorded.replay(events).verdict is Verdict.PASS


@pytest.mark.parametrize("recorded", _named("blocks-made-again"), ids=str)
def test_compaction_owes_a_busy_machine_nothing(recorded: Recorded) -> None:
    events = [
        event | {"result": "9.81 3.50 1.20 4/120 77\n"} if event["arguments"] == ["proc/loadavg"] else event
        for event in _without_compaction(recorded.events, blocks_are_made=False)
    ]
    result = recorded.replay(events)
    assert result.verdict is Verdict.SKIP
    assert result.reason.startswith("others are busy: ")


@pytest.mark.parametrize("recorded", _named("blocks-made-again"), ids=str)
def test_what_others_take_meanwhile_hides_what_compaction_makes(recorded: Recorded) -> None:
    events = [
        event | {"result": _LAST_COLUMN.sub("0", event["result"])}
        if is_compacted and str(event["arguments"]) == _BUDDYINFO
        else event
        for event, is_compacted in _compacted(list(_without_compaction(recorded.events, blocks_are_made=False)))
    ]
    result = recorded.replay(events)
    assert (result.verdict, result.reason) == (Verdict.SKIP, "others take and free as much as compaction can make")


def _asks_for_flags(event: Event) -> bool:
    """Tell whether flags of frames are read: entries of the addresses of programs lie behind those of all frames."""
    asked = event["arguments"][1] if event["operation"] == "request" else ""
    return "pread64" in asked and int(asked.rpartition(" ")[2]) < _FIRST_OF_PROGRAMS


def _without_free_frames(answer: list[object]) -> list[object]:
    """Return the ``answer`` to a read of /proc/kpageflags with used pages alone."""
    text, *rest = answer
    return [re.sub(r"[0-9a-f]{512,}", lambda found: "0" * len(found[0]), str(text)), *rest]


def _writes(event: Event, name: str) -> bool:
    return event["operation"] == "write" and str(event["arguments"][0]) == f"proc/sys/vm/{name}"


def _fails(recorded: Recorded, index: int) -> bool:
    event = recorded.events[index]
    judgement, _told = lied_to(recorded, instead(event, next(_with_sizes([event], 2048, 1))))
    return judgement.verdict is not Verdict.PASS


def _is_smaps(event: Event) -> bool:
    return event["operation"] == "observe" and event["arguments"][0].endswith("/smaps") and bool(event["result"])


def _with_sizes(events: list[Event], more: int, factor: int) -> Iterator[Event]:
    """Yield the events with ``more`` kB, and ``factor`` times what there is, in each line on huge pages."""
    return _with_smaps(events, _HUGE, lambda found: f"{found[1]}{int(found[2]) * factor + more}{found[3]}")


def _with_smaps(
    events: list[Event], line: re.Pattern[str], replacement: Callable[[re.Match[str]], str]
) -> Iterator[Event]:
    """Yield the events with each ``line`` of smaps replaced."""
    for event in events:
        yield event | {"result": line.sub(replacement, event["result"])} if _is_smaps(event) else event
