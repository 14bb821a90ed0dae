"""What huge pages hold when anything is done to them and to parts of them, in any order: a model says what that is.

The operations are drawn, the same in each run. Who maps, protects, moves or gives back a part of a huge page meets what
earlier ones have left: pages mapped whole and in parts, of zeroes, in swap, shared with a child.
"""

import errno
import mmap
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from random import Random

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.clear_refs import CLEAR_REFS_ALL, CLEAR_REFS_SOFT_DIRTY, clear_refs
from hugepage_qa.cases.fragmentation import with_blocks
from hugepage_qa.cases.khugepaged_clock import let_rest
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.swapped import need_swap
from hugepage_qa.cases.thp_memory import allow_on_advice, map_aligned, mapped_huge, pmd_size, room_for
from hugepage_qa.cases.thp_policy import fill_in_huge_pages, need_sizes, set_policy, smaller_sizes
from hugepage_qa.cases.thp_shared_memory import map_start
from hugepage_qa.cases.told_memory import expect_told_alike, permissions
from hugepage_qa.kernel.uapi import (
    FALLOC_FL_KEEP_SIZE,
    FALLOC_FL_PUNCH_HOLE,
    MADV_COLD,
    MADV_COLLAPSE,
    MADV_HUGEPAGE,
    MADV_NOHUGEPAGE,
    MADV_PAGEOUT,
    MAP_FIXED,
    MREMAP_FIXED,
    MREMAP_MAYMOVE,
    PROT_NONE,
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
_PAGES = 2
_PROGRAMS = 3
_OPERATIONS = 60
_LOOK_AFTER = 10
_MOST_PROCESSES = 3
#: several mappings, as tests/memory/moved_together.py judges it
_MOVE_TOGETHER = KernelVersion(6, 17)
_PERMISSIONS: dict[int | None, str] = {PROT_NONE: "--", mmap.PROT_READ: "r-", READ_WRITE: "rw"}
#: what is stored by two operations differs in each word
_VALUE_STEP = 1 << 32


@dataclass(frozen=True)
class _BasePage:
    """What a process may do with a base page (None: it is not mapped)."""

    prot: int | None = READ_WRITE

    @property
    def is_mapped(self) -> bool:
        return self.prot is not None

    @property
    def permissions(self) -> str:
        """As smaps shows them; empty where it is not mapped."""
        return _PERMISSIONS.get(self.prot, "")

    @property
    def is_readable(self) -> bool:
        return self.prot in (mmap.PROT_READ, READ_WRITE)


@dataclass
class _Process:
    """A process with its ``memory``: its base pages, and the values that they were filled with, 0 for zeroes.

    ``file`` is the descriptor of shared memory: the processes have one list of values then.
    """

    memory: Memory
    pages: list[_BasePage]
    values: list[int]
    file: int | None = None

    def forked(self) -> "_Process":
        """Return a child, which has shared memory as it is, and private memory as it was."""
        values = list(self.values) if self.file is None else self.values
        return replace(self, memory=self.memory.fork(), pages=list(self.pages), values=values)


class _Program:
    """Operations on ``memory``, drawn by ``random``; the first process has mapped it as ``file``, None if private."""

    def __init__(self, live: Live, memory: Memory, random: Random, file: int | None = None) -> None:
        self._live = live
        self._base = live.base_page
        self._random = random
        count = memory.length // self._base
        self._of_a_page = memory.size // self._base
        self._processes = [_Process(memory, [_BasePage()] * count, [0] * count, file)]
        self._done: list[str] = []
        self._one = self._processes[0]
        self._operations: list[Callable[[range], None]] = [
            *(
                self._write,
                self._write,
                self._give_back,
                self._cut_out,
                self._protect,
                self._protect,
                self._unmap,
                self._map,
            ),
            *(self._move, self._move, self._fork, self._end, self._forget, self._lock),
            *(partial(self._advise, advice) for advice in (MADV_COLD, MADV_PAGEOUT, MADV_PAGEOUT)),
            *(partial(self._advise, advice) for advice in (MADV_HUGEPAGE, MADV_NOHUGEPAGE)),
            *(self._collapse, self._collapse, self._write),
        ]

    def run(self) -> None:
        """Do operations, look now and then at all that there is, and end all processes."""
        self._write(range(len(self._one.pages)))
        for number in range(1, _OPERATIONS + 1):
            self._one = self._processes[self._random.randrange(len(self._processes))]
            operation = self._operations[self._random.randrange(len(self._operations))]
            operation(self._range())
            if number % _LOOK_AFTER == 0:
                self._look(number)
        for process in self._processes:
            process.memory.actor.exit()

    def _range(self) -> range:
        """Draw base pages: a huge page, all but an end of one, one at its end, over the border of two, or any."""
        draw, of_a_page, count = self._random.randrange, self._of_a_page, len(self._one.pages)
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

    def _runs(self, pages: range, of: Callable[[_BasePage], object]) -> Iterator[range]:
        """Yield base pages side by side of which ``of`` is the same, and true."""
        for value, group in groupby(pages, lambda page: of(self._one.pages[page])):
            numbers = list(group)
            if value:
                yield range(numbers[0], numbers[-1] + 1)

    def _mapped(self, pages: range) -> Iterator[range]:
        return self._runs(pages, lambda page: page.is_mapped)

    def _place(self, pages: range) -> tuple[int, int]:
        return self._one.memory.address + pages[0] * self._base, len(pages) * self._base

    def _tell(self, what: str, pages: range) -> None:
        self._done.append(f"{self._processes.index(self._one)} {what} {pages[0]}-{pages[-1]}")

    # --- operations ---

    def _write(self, pages: range) -> None:
        self._tell("write", pages)
        value = _VALUE_STEP * len(self._done)
        for run in self._runs(pages, lambda page: page.prot == READ_WRITE):
            address, length = self._place(run)
            self._one.memory.actor.fill(address, length, WORD, value + run[0] * self._base)
            self._one.values[run.start : run.stop] = [value] * len(run)

    def _give_back(self, pages: range) -> None:
        is_shared = self._one.file is not None
        self._tell("give back", pages)
        for run in self._mapped(pages):
            self._one.memory.actor.call("madvise", *self._place(run), mmap.MADV_DONTNEED)
            if not is_shared:
                self._one.values[run.start : run.stop] = [0] * len(run)

    def _cut_out(self, pages: range) -> None:
        """Make a hole in a file; of private memory the part is given back."""
        if self._one.file is None:
            self._give_back(pages)
            return
        self._tell("cut out", pages)
        start, length = pages[0] * self._base, len(pages) * self._base
        self._one.memory.actor.call(
            "fallocate", self._one.file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, start, length
        )
        self._one.values[pages.start : pages.stop] = [0] * len(pages)

    def _protect(self, pages: range) -> None:
        prot = (PROT_NONE, mmap.PROT_READ, READ_WRITE, READ_WRITE)[self._random.randrange(4)]
        self._tell(f"protect {prot}", pages)
        for run in self._mapped(pages):
            self._one.memory.actor.call("mprotect", *self._place(run), prot)
            self._one.pages[run.start : run.stop] = [_BasePage(prot)] * len(run)

    def _unmap(self, pages: range) -> None:
        self._tell("unmap", pages)
        self._one.memory.actor.call("munmap", *self._place(pages))
        self._one.pages[pages.start : pages.stop] = [_BasePage(None)] * len(pages)

    def _map(self, pages: range) -> None:
        self._tell("map", pages)
        process, (address, length) = self._one, self._place(pages)
        if process.file is None:
            process.memory.actor.mmap(
                length, READ_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_FIXED, address=address
            )
            process.values[pages.start : pages.stop] = [0] * len(pages)
        else:
            flags, offset = mmap.MAP_SHARED | MAP_FIXED, pages[0] * self._base
            process.memory.actor.mmap(length, READ_WRITE, flags, process.file, offset, address)
        process.memory.actor.call("madvise", address, length, MADV_HUGEPAGE)
        process.pages[pages.start : pages.stop] = [_BasePage()] * len(pages)

    def _move(self, pages: range) -> None:
        """Move what is one mapping there and back; the other place is where huge pages fit, or not."""
        shift = self._random.randrange(2) * self._base
        self._tell(f"move to {shift}", pages)
        actor = self._one.memory.actor
        room = room_for(actor, _PAGES + 2, self._one.memory.size)
        for run in self._mapped(pages):
            address, length = self._place(run)
            inside = address % self._one.memory.size
            target, flags = room + inside + shift, MREMAP_MAYMOVE | MREMAP_FIXED
            if self._are_several(run):
                # they do not move together, and nothing is where they were to be then
                self._live.expect_errno(errno.EFAULT, actor.call, "mremap", address, length, length, flags, target)
                continue
            self._live.expect_success(actor.call, "mremap", address, length, length, flags, target)
            self._live.expect_signal(signal.SIGSEGV, actor.read, address)
            self._live.expect_success(actor.call, "mremap", target, length, length, flags, address)
            self._live.expect_signal(signal.SIGSEGV, actor.read, target)
        actor.call("munmap", room, (_PAGES + 2) * self._one.memory.size)

    def _are_several(self, run: range) -> bool:
        """Tell whether ``run`` lies in several mappings, on a kernel that moves no such ones together."""
        memory = Memory(self._live, self._one.memory.actor, self._place(run)[0], len(run), self._base)
        return self._live.kernel_version < _MOVE_TOGETHER and len(memory.all_mappings()) > 1

    def _fork(self, pages: range) -> None:
        if len(self._processes) < _MOST_PROCESSES:
            self._tell("fork", pages)
            self._processes.append(self._one.forked())

    def _end(self, pages: range) -> None:
        if len(self._processes) > 1:
            self._tell("end", pages)
            self._one.memory.actor.exit()
            self._processes.remove(self._one)
            self._one = self._processes[0]

    def _forget(self, pages: range) -> None:
        """Have all be unused, or not written, since now: entries of the page table lose their bits."""
        what = (CLEAR_REFS_ALL, CLEAR_REFS_SOFT_DIRTY)[self._random.randrange(2)]
        self._tell(f"clear_refs {what}", pages)
        clear_refs(self._live, self._one.memory, what)

    def _lock(self, pages: range) -> None:
        self._tell("lock", pages)
        for run in self._runs(pages, lambda page: page.is_readable):
            for call in ("mlock", "munlock"):
                self._one.memory.actor.call(call, *self._place(run))

    def _advise(self, advice: int, pages: range) -> None:
        self._tell(f"advise {advice}", pages)
        for run in self._mapped(pages):
            self._one.memory.actor.call("madvise", *self._place(run), advice)

    def _collapse(self, pages: range) -> None:
        """Have whole huge pages made, where that is possible: since Linux 6.1, and not of each kind of memory."""
        self._tell("collapse", pages)
        for run in self._mapped(pages):
            part = Memory(self._live, self._one.memory.actor, self._place(run)[0], len(run), self._base)
            with suppress(Refused):
                part.advised_by(part.actor, MADV_COLLAPSE)

    # --- judging ---

    def _look(self, number: int) -> None:
        for process in self._processes:
            self._one = process
            with self._live.about(f"process {self._processes.index(process)} after {number} operations"):
                before = len(self._live.differences)
                self._expect_all()
                if len(self._live.differences) > before:
                    self._live.fail("what memory holds and who may use it", "as the model says", "; ".join(self._done))

    def _expect_all(self) -> None:
        """Expect each base page to hold what it was filled with, and to be read and written by who may."""
        actor, wrong = self._one.memory.actor, 0
        states = list(zip(self._one.pages, self._one.values, strict=True))
        for (page, value), group in groupby(range(len(states)), states.__getitem__):
            numbers = list(group)
            address, length = self._place(range(numbers[0], numbers[-1] + 1))
            ends = (address, address + length - WORD)
            if page.is_readable:
                offset = numbers[0] * self._base
                wrong += actor.check(address, length, WORD, value + offset) if value else actor.nonzero(address, length)
            else:
                for end in ends:
                    self._live.expect_signal(signal.SIGSEGV, actor.read, end)
            if page.prot == mmap.PROT_READ:
                for end in ends:
                    self._live.expect_signal(signal.SIGSEGV, actor.write, end, 1)
        self._live.expect("words that are not what they were", 0, wrong)
        told = permissions(self._live, self._one.memory)
        others = [number for number, page in enumerate(self._one.pages) if page.permissions != told[number]]
        self._live.expect("base pages of which smaps tells other permissions", [], others)
        expect_told_alike(self._live, self._one.memory)


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
    let_rest(live)
    allow_on_advice(live)
    need_swap(live, _PAGES * pmd_size(live))
    for number in range(2 * _PROGRAMS, 3 * _PROGRAMS):
        actor = live.actor()
        file = actor.call("memfd_create", "hugepage-qa", 0)
        memory = map_start(live, actor, file, _PAGES)
        memory.advise(MADV_HUGEPAGE)
        _run(live, memory, number, file)


def _run_private(live: Live, first: int) -> None:
    let_rest(live)
    need_swap(live, _MOST_PROCESSES * _PAGES * pmd_size(live))
    for number in range(first, first + _PROGRAMS):
        _run(live, map_aligned(live, _PAGES, pmd_size(live), advice=MADV_HUGEPAGE), number)


def _run(live: Live, memory: Memory, number: int, file: int | None = None) -> None:
    with_blocks(live, memory.size, _PAGES * _MOST_PROCESSES)
    fill_in_huge_pages(live, memory)
    live.expect("memory in huge pages before", memory.length, mapped_huge(memory))
    with live.about(f"program {number}"):
        _Program(live, memory, Random(number), file).run()  # noqa: S311 - what is done, no secret


class ThpMixedOperations(LiveTest):
    def test_mixed_operations(self) -> None:
        self.run_area(MIXED)
