"""What huge pages hold when anything is done to them and to parts of them, in any order: a model says what that is.

The operations are drawn, the same in each run. Who maps, protects, moves or gives back a part of a huge page meets what
earlier ones have left: pages mapped whole and in parts, of zeroes, in swap, shared with a child.
"""

import mmap
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from random import Random

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.clear_refs import CLEAR_REFS_ALL, CLEAR_REFS_SOFT_DIRTY, clear_refs
from hugepage_qa.cases.debugfs import find_in_debugfs
from hugepage_qa.cases.drawn_program import DrawnProgram, Operation, Part
from hugepage_qa.cases.fragmentation import with_blocks
from hugepage_qa.cases.khugepaged_clock import let_rest
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.memory_policy import MOVE, MOVE_ALL, move_pages
from hugepage_qa.cases.swapped import need_swap
from hugepage_qa.cases.thp_memory import (
    allow_on_advice,
    let_nothing_be_balanced,
    map_aligned,
    mapped_huge,
    pmd_size,
    room_for,
)
from hugepage_qa.cases.thp_policy import fill_in_huge_pages, need_sizes, set_policy, smaller_sizes
from hugepage_qa.cases.thp_shared_memory import map_start
from hugepage_qa.cases.told_memory import expect_told_alike
from hugepage_qa.kernel.uapi import (
    MADV_COLD,
    MADV_COLLAPSE,
    MADV_HUGEPAGE,
    MADV_NOHUGEPAGE,
    MADV_PAGEOUT,
    MAP_FIXED,
)
from hugepage_qa.oracle.rules import THP_DOC
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Refused
from hugepage_qa.version import KernelVersion

MIXED = Area("thp/mixed-operations", sizes=Sizes.ONCE, uncleared=True)

SOURCE = (
    f"{THP_DOC}; madvise(2); mprotect(2); mremap(2); fork(2); mm/huge_memory.c __split_huge_pmd(), move_huge_pmd(),"
    " copy_huge_pmd(), change_huge_pmd(), do_huge_pmd_wp_page()"
)
MOVED_SOURCE = (
    f"{SOURCE}; move_pages(2); mm/migrate.c remove_migration_pte(), set_pmd_migration_entry(); mm/huge_memory.c"
    " split_huge_pages_write()"
)
_PAGES = 2
_PROGRAMS = 3
_OPERATIONS = 60
_LOOK_AFTER = 10
_MOST_PROCESSES = 3
#: several mappings, as tests/memory/moved_together.py judges it
_MOVE_TOGETHER = KernelVersion(6, 17)


class _Program(DrawnProgram):
    """Operations on huge pages and parts of them, which are base pages."""

    def operations(self) -> Sequence[Operation]:
        """Return what may be done."""
        return [
            *(
                self.write,
                self.write,
                self.give_back,
                self.cut_out,
                self.protect,
                self.protect,
                self.unmap,
                self._map,
            ),
            *(self._move, self._move, self.fork, self.end, self._forget, self._lock),
            *(partial(self._advise, advice) for advice in (MADV_COLD, MADV_PAGEOUT, MADV_PAGEOUT)),
            *(partial(self._advise, advice) for advice in (MADV_HUGEPAGE, MADV_NOHUGEPAGE)),
            *(self._collapse, self._collapse, self.write),
        ]

    def draw_range(self) -> range:
        """Return base pages: a huge page, all but an end of one, one at its end, over the border of two, or any."""
        draw, of_a_page, count = self.random.randrange, self.one.memory.size // self.unit, len(self.one.parts)
        first = draw(_PAGES) * of_a_page
        match draw(6):
            case 0:
                return range(first, first + of_a_page)
            case 1:
                return range(first + 1, first + of_a_page)
            case 2:
                return range(first, first + of_a_page - 1)
            case 3:
                page = first + draw(2) * (of_a_page - 1)
                return range(page, page + 1)
            case 4:
                return range(of_a_page - 1 - draw(20), of_a_page + 1 + draw(20))
        start = draw(count)
        return range(start, min(start + 1 + draw(count), count))

    # --- operations ---

    def _map(self, pages: range) -> None:
        self.tell("map", pages)
        process, (address, length) = self.one, self.place(pages)
        if process.file is None:
            process.memory.actor.mmap(
                length, READ_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_FIXED, address=address
            )
            process.values[pages.start : pages.stop] = [0] * len(pages)
        else:
            flags, offset = mmap.MAP_SHARED | MAP_FIXED, pages[0] * self.unit
            process.memory.actor.mmap(length, READ_WRITE, flags, process.file, offset, address)
        process.memory.actor.call("madvise", address, length, MADV_HUGEPAGE)
        process.parts[pages.start : pages.stop] = [Part()] * len(pages)

    def _move(self, pages: range) -> None:
        """Move what is one mapping there and back; the other place is where huge pages fit, or not."""
        shift = self.random.randrange(2) * self.unit
        self.tell(f"move to {shift}", pages)
        actor = self.one.memory.actor
        room = room_for(actor, _PAGES + 2, self.one.memory.size)
        for run in self.mapped(pages):
            inside = self.place(run)[0] % self.one.memory.size
            self.move_there_and_back(run, room + inside + shift)
        actor.call("munmap", room, (_PAGES + 2) * self.one.memory.size)

    def _forget(self, pages: range) -> None:
        """Have all be unused, or not written, since now: entries of the page table lose their bits."""
        what = (CLEAR_REFS_ALL, CLEAR_REFS_SOFT_DIRTY)[self.random.randrange(2)]
        self.tell(f"clear_refs {what}", pages)
        clear_refs(self.live, self.one.memory, what)

    def _lock(self, pages: range) -> None:
        self.tell("lock", pages)
        for run in self.runs(pages, lambda page: page.is_readable):
            for call in ("mlock", "munlock"):
                self.one.memory.actor.call(call, *self.place(run))

    def _advise(self, advice: int, pages: range) -> None:
        self.tell(f"advise {advice}", pages)
        for run in self.mapped(pages):
            self.one.memory.actor.call("madvise", *self.place(run), advice)

    def _collapse(self, pages: range) -> None:
        """Have whole huge pages made, where that is possible: since Linux 6.1, and not of each kind of memory."""
        self.tell("collapse", pages)
        for run in self.mapped(pages):
            part = Memory(self.live, self.one.memory.actor, self.place(run)[0], len(run), self.unit)
            with suppress(Refused):
                part.advised_by(part.actor, MADV_COLLAPSE)

    # --- judging ---

    def expect_all(self) -> None:
        """Expect contents and protection to be what the model says, and what is told of them to be alike."""
        self.expect_contents()
        expect_told_alike(self.live, self.one.memory)


class _MovingProgram(_Program):
    """These, and what leaves all as it is: pages of ``memory`` move to other nodes, and huge ones are split."""

    def __init__(
        self, live: Live, memory: Memory, random: Random, *, unit: int, most_processes: int, file: int | None
    ) -> None:
        super().__init__(live, memory, random, unit=unit, most_processes=most_processes, file=file)
        self._splitting = find_in_debugfs(live, "split_huge_pages")

    def operations(self) -> Sequence[Operation]:
        """Return what may be done: two of five times what other programs have not."""
        others = super().operations()
        return [*others, *[self._change_node, self._split] * (len(others) // 3)]

    def _change_node(self, pages: range) -> None:
        """Have pages be on another node, those that others have, too, or none of these."""
        node = self.live.nodes[self.random.randrange(2)]
        flags = (MOVE, MOVE_ALL)[self.random.randrange(2)]
        self.tell(f"move with {flags} to node {node}", pages)
        address, length = self.place(pages)
        addresses = range(address, address + length, self.unit)
        move_pages(self.one.memory.actor, addresses, [node] * len(addresses), flags)

    def _split(self, pages: range) -> None:
        """Have huge pages become base pages, or pages of a smaller size where the kernel knows of these (6.9)."""
        order = self.random.randrange(2) * self.random.randrange(9)
        self.tell(f"split to order {order}", pages)
        address, length = self.place(pages)
        which = f"{self.one.memory.actor.pid},{address:#x},{address + length:#x},{order}"
        self.live.host.write(self._splitting, which)


@MIXED.case(
    "private memory of huge pages holds what was written there last, for each process its own, zeroes where it was"
    " given back or mapped anew, and is used as its protection says, whatever is done to parts of it in any order",
    SOURCE,
)
def anything_done_to_private_memory(live: Live) -> None:
    set_policy(live, "madvise")
    _run_private(live, 0)


@MIXED.case(
    "private memory that may have huge pages of all sizes holds what was written there last, for each process its own,"
    " and is used as its protection says, whatever is done to parts of it in any order",
    f"{SOURCE}; mm/memory.c alloc_anon_folio()",
    since="6.10",
)
def anything_done_to_all_sizes(live: Live) -> None:
    set_policy(live, "madvise")
    sizes = need_sizes(smaller_sizes(live))
    for _size, path in sizes:
        live.set_knob(f"{path}/enabled", "madvise")
    _run_private(live, _PROGRAMS)


@MIXED.case(
    "shared memory of huge pages holds for all processes what one of them wrote there last, whatever each of them does"
    " to parts of its mapping in any order, and each uses it as the protection of its own says",
    f"{SOURCE}; mm/shmem.c; mm/khugepaged.c collapse_file()",
)
def anything_done_to_shared_memory(live: Live) -> None:
    _run_shared(live, 2 * _PROGRAMS)


@MIXED.case(
    "private memory of huge pages holds what was written there last, for each process its own, and is used as its"
    " protection says, also where pages of it, and parts of pages, are moved to other nodes, and split, meanwhile",
    MOVED_SOURCE,
    nodes=2,
)
def anything_done_to_private_memory_that_moves(live: Live) -> None:
    set_policy(live, "madvise")
    _run_private(live, 3 * _PROGRAMS, _MovingProgram)


@MIXED.case(
    "shared memory of huge pages holds for all processes what one of them wrote there last, also where pages of it, and"
    " parts of pages, are moved to other nodes, and split, meanwhile",
    f"{MOVED_SOURCE}; mm/shmem.c",
    nodes=2,
)
def anything_done_to_shared_memory_that_moves(live: Live) -> None:
    _run_shared(live, 4 * _PROGRAMS, _MovingProgram)


def _run_private(live: Live, first: int, kind: type[_Program] = _Program) -> None:
    let_rest(live)
    need_swap(live, _MOST_PROCESSES * _PAGES * pmd_size(live))
    for number in range(first, first + _PROGRAMS):
        _run(live, map_aligned(live, _PAGES, pmd_size(live), advice=MADV_HUGEPAGE), number, kind)


def _run_shared(live: Live, first: int, kind: type[_Program] = _Program) -> None:
    let_rest(live)
    allow_on_advice(live)
    # Linux 6.1 shows no huge pages that wait for a fault (balanced-pages-missed)
    let_nothing_be_balanced(live)
    need_swap(live, _PAGES * pmd_size(live))
    for number in range(first, first + _PROGRAMS):
        actor = live.actor()
        file = actor.call("memfd_create", "hugepage-qa", 0)
        memory = map_start(live, actor, file, _PAGES)
        memory.advise(MADV_HUGEPAGE)
        _run(live, memory, number, kind, file)


def _run(live: Live, memory: Memory, number: int, kind: type[_Program], file: int | None = None) -> None:
    with_blocks(live, memory.size, _PAGES * _MOST_PROCESSES)
    fill_in_huge_pages(live, memory)
    live.expect("memory in huge pages before", memory.length, mapped_huge(memory))
    with live.about(f"program {number}"):
        random = Random(number)  # noqa: S311 - what is done, no secret
        program = kind(live, memory, random, unit=live.base_page, most_processes=_MOST_PROCESSES, file=file)
        program.run(_OPERATIONS, _LOOK_AFTER)


class ThpMixedOperations(LiveTest):
    def test_mixed_operations(self) -> None:
        self.run_area(MIXED)
