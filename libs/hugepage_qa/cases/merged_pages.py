"""KSM in a case: memory that ksmd is to merge, the wait until it has, and which base pages have one frame."""

from collections import Counter
from collections.abc import Callable

from hugepage_qa.cases.khugepaged_clock import let_rest
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import FRAME, PRESENT, Memory
from hugepage_qa.cases.thp_policy import huge_pages
from hugepage_qa.kernel.ksm import DIRECTORY, has_ksm
from hugepage_qa.kernel.tree import read_integer
from hugepage_qa.kernel.uapi import MADV_MERGEABLE
from hugepage_qa.machine.host import CannotRun, ObservedTree

KSM_DOC = "Documentation/admin-guide/mm/ksm.rst"
#: ksmd looks at a page twice before it merges it, and once more after it has seen the checksum change
_SCANS = 4
#: who has a hold of a huge page for a moment keeps it from being split in all of these, when there is little to scan
_LEAST_SECONDS = 15.0
_SCAN_SECONDS = 120.0


def start_merging(live: Live) -> None:
    """Have ksmd scan all memory that it may merge, again and again, and khugepaged none. Raises CannotRun."""
    if not has_ksm(live.host):
        raise CannotRun("this kernel has no CONFIG_KSM")
    if live.has_several_nodes and (live.host.read(f"{DIRECTORY}/merge_across_nodes") or "1").strip() == "0":
        raise CannotRun("KSM merges nothing across nodes here, and processes may be on several")
    let_rest(live)
    # it sets pages_to_scan itself, and refuses others (since Linux 6.8)
    live.set_knob_if_there(f"{DIRECTORY}/advisor_mode", "none")
    # it passes over pages that were not merged in earlier scans (since Linux 6.7)
    live.set_knob_if_there(f"{DIRECTORY}/smart_scan", "0")
    for name, value in (("sleep_millisecs", "1"), ("pages_to_scan", "65536"), ("run", "1")):
        live.set_knob(f"{DIRECTORY}/{name}", value)


def await_merged(live: Live, memory: Memory, count: Callable[[], int], pages: int | None = None) -> int:
    """Return ``count()`` of base pages when it is ``pages``, by default all of ``memory``, or when ksmd had its time.

    Raises CannotRun where ksmd did not have it on a machine that others use, and Failed where nobody does.
    """
    first, began, wanted = _full_scans(live), live.host.clock(), pages or base_page_count(live, memory)

    def is_over() -> bool:
        has_scanned = _full_scans(live) - first >= _SCANS and live.host.clock() - began >= _LEAST_SECONDS
        return count() == wanted or has_scanned

    live.host.wait_until(is_over, _SCAN_SECONDS)
    found, scans = count(), _full_scans(live) - first
    if found != wanted:
        _expect_scanned(live, scans)
    return found


def expect_all_merged(live: Live, memory: Memory, other: Memory) -> None:
    """Have ksmd merge two processes' equal memory, and expect all of it to be so. Raises as ``await_merged`` does."""
    for each in (memory, other):
        each.advise(MADV_MERGEABLE)
    found = await_merged(live, memory, lambda: shared_frames(memory, other))
    live.expect("base pages with one frame for both", base_page_count(live, memory), found)


def merged_pair(live: Live, pages: int = 2) -> tuple[Memory, Memory]:
    """Return ``pages`` huge pages of each of two processes, of which all base pages are merged.

    Raises as ``huge_pages`` and ``await_merged`` do.
    """
    start_merging(live)
    memory, equal = huge_pages(live, pages), huge_pages(live, pages)
    expect_all_merged(live, memory, equal)
    return memory, equal


def await_full_scans(live: Live) -> None:
    """Wait until ksmd has had its time, whatever it has to merge. Raises as ``await_merged`` does."""
    first = _full_scans(live)
    live.host.wait_until(lambda: _full_scans(live) - first >= _SCANS, _SCAN_SECONDS)
    _expect_scanned(live, _full_scans(live) - first)


def _expect_scanned(live: Live, scans: int) -> None:
    if scans < _SCANS:
        if not live.host.has_others:
            live.fail(f"{DIRECTORY}/full_scans", f"{_SCANS} scans more", f"{scans} in {_SCAN_SECONDS:.0f} s")
        raise CannotRun(f"ksmd did not scan all memory {_SCANS} times in {_SCAN_SECONDS:.0f} s")


def shared_frames(memory: Memory, other: Memory) -> int:
    """Return how many base pages of the one have the frame of the same base page of the other."""
    return len(pages_with_one_frame(memory, other))


def pages_with_one_frame(memory: Memory, other: Memory) -> set[int]:
    """Return which base pages of the one have the frame of the same base page of the other."""
    pairs = enumerate(zip(_frames(memory), _frames(other), strict=True))
    return {number for number, (frame, another) in pairs if frame and frame == another}


def merged_pages(memory: Memory, other: Memory) -> set[int]:
    """Return which base pages have the frame of the same one of ``other``, or one frame with others of ``memory``."""
    frames, others = _frames(memory), _frames(other)
    times = Counter(frames)
    pairs = zip(frames, others, strict=True)
    return {number for number, (frame, other) in enumerate(pairs) if frame and (frame == other or times[frame] > 1)}


def _frames(memory: Memory) -> list[int]:
    """Return the frame of each base page, 0 where there is none in that moment."""
    return [entry & FRAME if entry & PRESENT else 0 for entry in memory.whole_pagemap()]


def base_page_count(live: Live, memory: Memory) -> int:
    """Return how many base pages ``memory`` is."""
    return memory.length // live.base_page


def counted_of_process(live: Live, memory: Memory) -> dict[str, int]:
    """Return the counters that ksm_stat shows of the process of ``memory``, none before Linux 6.1."""
    text = ObservedTree(live.host).read(f"proc/{memory.actor.pid}/ksm_stat") or ""
    words = (line.split() for line in text.splitlines())
    # ksm_process_profit may be below 0, what others tell is no number
    return {name: int(count) for name, count in words if count.removeprefix("-").isdecimal()}


def _full_scans(live: Live) -> int:
    return read_integer(ObservedTree(live.host), f"{DIRECTORY}/full_scans") or 0
