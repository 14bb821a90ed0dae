"""Files that are made huge while parts of them are not written back, or not in memory."""

import mmap
from collections.abc import Callable, Sized
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.file_contents import KnownFile
from hugepage_qa.cases.fragmentation import expect_no_node_short
from hugepage_qa.cases.frames import unwritten_places
from hugepage_qa.cases.khugepaged_clock import (
    KHUGEPAGED,
    PATIENT_SCANS,
    allow_absent,
    await_khugepaged,
    await_scans,
    let_rest,
)
from hugepage_qa.cases.khugepaged_work import put_to_work
from hugepage_qa.cases.large_folios import has_huge_folios
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.madv_collapse import collapse_memory
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.pages_in_memory import base_pages_in_memory
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE, MADV_POPULATE_READ
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.sizes import KIB

COLLAPSED = Area("files/collapsed-folios", sizes=Sizes.ONCE, uncleared=True)

SOURCE = "mm/huge_memory.c file_thp_enabled(); mm/khugepaged.c collapse_file()"
SINCE = "7.3"
DIRTY = (
    "khugepaged leaves a file that somebody writes alone as long as any word of it is not written back, and makes it"
    " huge then; MADV_COLLAPSE writes it back and makes it huge, and nothing that was written or stored is lost"
)
ABSENT = (
    "MADV_COLLAPSE of a file keeps to no limit of khugepaged: it reads what is not in memory, wherever the one base"
    " page is that is there, and the file holds what it held"
)
#: what is written at once, and is in a folio of its own then
_PIECE = 64 * KIB
_WRITEBACK = "proc/sys/vm/dirty_writeback_centisecs"
#: what is not written back, and what makes it so when all is; else it is as it was written
_WAYS: tuple[tuple[str, Callable[[KnownFile, Memory], object] | None], ...] = (
    ("all of it", None),
    ("a word written at the end", lambda file, memory: file.write(memory.length - WORD, WORD)),
    ("a word stored at the start", lambda file, memory: file.store(memory, 0, WORD)),
)


@COLLAPSED.case(f"{DIRTY}, on XFS", f"{SOURCE}, collapse_single_pmd()", since=SINCE)
def not_written_back_on_xfs(live: Live) -> None:
    _expect_written_back_first(live, "xfs")


@COLLAPSED.case(f"{DIRTY}, on ext4", f"{SOURCE}, collapse_single_pmd()", since=SINCE)
def not_written_back_on_ext4(live: Live) -> None:
    _expect_written_back_first(live, "ext4")


@COLLAPSED.case(f"{ABSENT}, on XFS", f"madvise(2) MADV_COLLAPSE; {SOURCE}, collapse_scan_file()", since=SINCE)
def not_in_memory_on_xfs(live: Live) -> None:
    _expect_read_first(live, "xfs")


@COLLAPSED.case(f"{ABSENT}, on ext4", f"madvise(2) MADV_COLLAPSE; {SOURCE}, collapse_scan_file()", since=SINCE)
def not_in_memory_on_ext4(live: Live) -> None:
    _expect_read_first(live, "ext4")


def _expect_written_back_first(live: Live, file_system: str) -> None:
    # else it is all written back after half a minute, and a collapse that is tried again finds it so
    live.set_knob(_WRITEBACK, "0")
    # what is not advised is none of its work
    put_to_work(live)
    for (name, change), by_advice in product(_WAYS, (False, True)):
        beside, file = (_written_in_pieces(live, file_system) for _file in range(2))
        if change:
            file.actor.call("fsync", file.descriptor)
        memory = _mapped(file)
        if change:
            change(file, memory)
        if not _dirt(live, memory):
            raise CannotRun("others write back what a case has written")
        with live.about(f"{name}, by advice {by_advice}"):
            live.expect("FilePmdMapped before", 0, _mapped_whole(memory))
            if by_advice:
                collapse_memory(live, memory)
            else:
                _expect_left_alone(live, file, memory, _mapped(beside))
            live.expect("FilePmdMapped", memory.length, _mapped_whole(memory))
            live.expect("where it is not written back", [], _dirt(live, memory))
            _expect_kept(file, memory)
        for each in (file, beside):
            each.actor.end()


def _written_in_pieces(live: Live, file_system: str) -> KnownFile:
    """Return a file of a huge page that is in smaller folios. Raises CannotRun where none are made huge."""
    directory = live.host.disk(file_system)
    if not has_huge_folios(live, directory):
        raise CannotRun(f"this kernel makes no files huge that may be written, or none on this {file_system}")
    file = KnownFile(live, live.actor(), directory, pmd_size(live))
    for first in range(0, pmd_size(live), _PIECE):
        file.write(first, _PIECE)
    return file


def _expect_left_alone(live: Live, file: KnownFile, memory: Memory, beside: Memory) -> None:
    """Expect khugepaged to leave ``file`` alone, which is not written back, and to make it huge when it has been.

    ``beside`` is of a file that was not written back before it was. Raises CannotRun where somebody else writes all
    back, or memory is too fragmented.
    """
    before = _dirt(live, memory)
    memory.advise(MADV_HUGEPAGE)
    await_scans(live)
    found, left = _mapped_whole(memory), _dirt(live, memory)
    if left != before and not _dirt(live, beside):
        raise CannotRun("others write back what a case has written")
    live.expect("FilePmdMapped of what is not written back", 0, found)
    live.expect("where it is not written back when khugepaged has seen it", before, left)
    file.actor.call("fsync", file.descriptor)
    if not await_khugepaged(live, lambda: _mapped_whole(memory) == memory.length, PATIENT_SCANS):
        expect_no_node_short(live, memory.size, memory.pages)


def _expect_read_first(live: Live, file_system: str) -> None:
    let_rest(live)
    allow_absent(live, 0)
    live.set_knob(f"{KHUGEPAGED}/max_ptes_swap", "0")
    file = _written_in_pieces(live, file_system)
    every = range(pmd_size(live) // live.base_page)
    for place in (every[0], every[len(every) // 2 + 1], every[-1]):
        memory = file.map()
        memory.advise(mmap.MADV_RANDOM)
        there = partial(base_pages_in_memory, live, memory.actor, memory.address, every)
        if live.host.last_look(partial(_evict, file, there), lambda left: not left):
            raise CannotRun("others keep pages of the file in memory")
        memory.actor.read(memory.address + place * live.base_page)
        with live.about(f"base page {place} in memory"):
            live.expect("the others are not", True, len(there()) < len(every))
            collapse_memory(live, memory)
            live.expect("base pages in memory", len(every), len(there()))
            live.expect("FilePmdMapped", memory.length, _mapped_whole(memory))
            _expect_kept(file, memory)


def _mapped(file: KnownFile) -> Memory:
    memory = file.map()
    memory.actor.sum(memory.address, memory.length)
    return memory


def _evict(file: KnownFile, there: Callable[[], Sized]) -> Sized:
    file.evict()
    return there()


def _dirt(live: Live, memory: Memory) -> list[int]:
    """Return where in ``memory`` pieces are not written back."""
    return unwritten_places(live, memory, range(0, memory.length, _PIECE))


def _expect_kept(file: KnownFile, memory: Memory) -> None:
    """Expect ``file`` to hold what it must where it is mapped as ``memory``, and on its disk."""
    file.expect_mapped(memory)
    # what is mapped stays in memory
    memory.unmap()
    file.expect("when nobody had it mapped")


def _mapped_whole(memory: Memory) -> int:
    memory.advise(MADV_POPULATE_READ, 0, 1)
    return memory.smaps().file_pmd_mapped


class CollapsedFolios(LiveTest):
    def test_collapsed_folios(self) -> None:
        self.run_area(COLLAPSED)
