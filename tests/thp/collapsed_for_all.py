"""A huge page that a file gets in place of base pages, for all who have these mapped.

Who has the whole huge page in a mapping, wherever that begins and ends, loses the page table with the base pages
(retract_page_tables() in mm/khugepaged.c), and has the huge page mapped by one entry when it is touched again.
"""

import mmap

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.fragmentation import SAMPLES, expect_no_node_short, with_blocks
from hugepage_qa.cases.khugepaged_clock import PATIENT_SCANS, await_khugepaged, let_nobody_else_act
from hugepage_qa.cases.khugepaged_work import put_to_work
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.madv_collapse import collapse_memory
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.thp_memory import pmd_size, room_for
from hugepage_qa.cases.thp_shared_memory import let_only_pmd_inherit
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE, MAP_FIXED
from hugepage_qa.oracle.rules import THP_DOC
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.version import KernelVersion

FOR_ALL = Area("thp/collapsed-for-all", sizes=Sizes.ONCE)

_SOURCE = "mm/khugepaged.c collapse_file(), retract_page_tables()"
#: huge ranges of the file, and the one that is made huge
_RANGES, _HUGE = 3, 1
_JUST_IT = "just the huge page"
#: what a private mapping has written
_COPY = 1 << 40
#: before, MADV_COLLAPSE left the page tables of others to khugepaged
_FOR_OTHERS_SINCE = KernelVersion(6, 6)


@FOR_ALL.case(
    "when khugepaged makes a part of a file huge, each mapping that has all of it, be it no byte more before it or"
    " behind it, of each process, private ones that were not written, too, has it mapped as a whole once it is touched,"
    " and those that lack a base page of it hold what they held, as do private ones that have copies of some",
    f"{THP_DOC} Khugepaged controls; {_SOURCE}",
)
def by_khugepaged(live: Live) -> None:
    put_to_work(live)
    let_only_pmd_inherit(live)
    whole, found = pmd_size(live), dict[str, int]()
    # of a process whose mappings are looked at in that moment no tables are taken (before Linux 6.6)
    for _sample in range(SAMPLES):
        file = _MappedFile(live)
        found = _made_huge(live, file)
        file.expect_held()
        file.end()
        if set(found.values()) == {whole}:
            break
    live.expect("ShmemPmdMapped of each mapping", dict.fromkeys(found, whole), found)


def _made_huge(live: Live, file: "_MappedFile") -> dict[str, int]:
    """Have khugepaged make a part of ``file`` huge, and return what huge pages map in each mapping that has all of it.

    Raises CannotRun where memory is too fragmented.
    """
    advised = file.whole[_JUST_IT]
    for _time in range(2):
        # the first advice puts no process on the list of khugepaged: it looks at the flags as they were
        # (mm/shmem.c shmem_allowable_huge_orders(), 6.1 to 7.3)
        advised.advise(MADV_HUGEPAGE)
    if not await_khugepaged(live, lambda: file.mapped(advised) == advised.size, PATIENT_SCANS):
        expect_no_node_short(live, advised.size, 1)
    return {name: file.mapped(memory) for name, memory in file.whole.items()}


@FOR_ALL.case(
    "MADV_COLLAPSE makes a part of a file huge by whichever mapping that has all of it, be it no byte more before it or"
    " behind it, and has it mapped as a whole there; the others have it so, too, once they are touched (since Linux"
    " 6.6), and all hold what they held, private ones that have copies of some base pages of it, too",
    f"madvise(2) MADV_COLLAPSE; {_SOURCE} (1d65b771bc08)",
    since="6.1",
)
def by_advice(live: Live) -> None:
    let_nobody_else_act(live)
    for asked in _MappedFile(live).whole:
        file = _MappedFile(live)
        memory = file.whole[asked]
        with live.about(f"by {asked}"):
            collapse_memory(live, memory)
            live.expect("ShmemPmdMapped", memory.size, memory.smaps().shmem_pmd_mapped)
            if live.kernel_version >= _FOR_OTHERS_SINCE:
                found = {name: file.mapped(memory) for name, memory in file.whole.items()}
                live.expect("ShmemPmdMapped of each mapping", dict.fromkeys(found, memory.size), found)
            file.expect_held()
        file.end()


class _MappedFile:
    """A memfd of base pages with mappings of a process and of its child, which have touched all of it.

    ``whole`` is the range that is made huge in each mapping that has all of it.
    """

    def __init__(self, live: Live) -> None:
        live.set_knob(f"{DIRECTORY}/shmem_enabled", "never")
        self._live = live
        size, base = pmd_size(live), live.base_page
        self._actor = live.actor()
        self._file = self._actor.call("memfd_create", "collapsed", 0)
        self._actor.call("ftruncate", self._file, _RANGES * size)
        self._first, last, end = _HUGE * size, (_HUGE + 1) * size, _RANGES * size
        places = {
            _JUST_IT: (self._first, last),
            "its end": (0, last),
            "its start": (self._first, end),
            "more on both sides": (0, end),
        }
        self._map(0, end).fill()
        whole = {name: self._map_whole(*place) for name, place in places.items()}
        whole["a private mapping"] = self._map_whole(0, end, mmap.MAP_PRIVATE)
        starts = (self._first + base, end), (0, last - base)
        self._parts = {start: self._map(start, behind) for start, behind in starts}
        # page tables that are not to be taken: they have what the file has not
        copied = *((0, end, at) for at in (0, size // 2, size - base)), (self._first, last, base)
        self._copies = [(at, self._map_copied(start, behind, at)) for start, behind, at in copied]
        child = self._actor.fork()
        theirs = {f"{name}, of the child": memory.seen_by(child) for name, memory in whole.items()}
        self.whole = whole | theirs
        self._copies += [(at, memory.seen_by(child)) for at, memory in self._copies]
        self.expect_held()
        with_blocks(live, size, 1)
        live.set_knob(f"{DIRECTORY}/shmem_enabled", "advise")

    def mapped(self, memory: Memory) -> int:
        """Return the bytes that huge pages map in the mapping of one of ``whole`` when that is touched."""
        self._live.expect("the first word", 1 + self._first, memory.read())
        return memory.smaps().shmem_pmd_mapped

    def expect_held(self) -> None:
        """Expect all mappings to show what the file holds."""
        wrong = sum(memory.wrong(0, memory.length, 1 + self._first) for memory in self.whole.values())
        wrong += sum(memory.wrong(0, memory.length, 1 + start) for start, memory in self._parts.items())
        self._live.expect("words of all mappings that are others", 0, wrong)
        base = self._live.base_page
        lost = sum(memory.wrong(at, base, _COPY) for at, memory in self._copies)
        self._live.expect("words of private copies that are others", 0, lost)
        beside = sum(memory.wrong_beside(at, at + base, 1 + self._first) for at, memory in self._copies)
        self._live.expect("words beside private copies that are others", 0, beside)

    def end(self) -> None:
        """End the process and its child."""
        self._actor.end()

    def _map(self, start: int, end: int, kind: int = mmap.MAP_SHARED) -> Memory:
        """Map the file from ``start`` to ``end`` where huge pages of it fit."""
        size, base, length = pmd_size(self._live), self._live.base_page, end - start
        address = room_for(self._actor, _RANGES + 1, size) + start % size
        self._actor.mmap(length, READ_WRITE, kind | MAP_FIXED, self._file, start, address)
        return Memory(self._live, self._actor, address, length // base, base)

    def _map_whole(self, start: int, end: int, kind: int = mmap.MAP_SHARED) -> Memory:
        """Map the file as ``_map`` does, and return what is made huge in it."""
        address = self._map(start, end, kind).address + self._first - start
        return Memory(self._live, self._actor, address, 1, pmd_size(self._live))

    def _map_copied(self, start: int, end: int, at: int) -> Memory:
        """Map the file privately as ``_map_whole`` does, with a copy of the base page ``at`` bytes in what it returns.

        All of it was read.
        """
        memory = self._map_whole(start, end, mmap.MAP_PRIVATE)
        memory.nonzero(0, memory.length)
        memory.fill_part(at, self._live.base_page, _COPY)
        return memory


class ThpCollapsedForAll(LiveTest):
    def test_collapsed_for_all(self) -> None:
        self.run_area(FOR_ALL)
