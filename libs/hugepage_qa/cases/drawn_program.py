"""Operations on memory that are drawn, by processes that fork, and a model of what each of them has there then.

A subclass says which operations there are, what a range of them is, and what is to be looked at.
"""

import errno
import mmap
import signal
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from itertools import groupby
from random import Random

from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.told_memory import permissions
from hugepage_qa.kernel.uapi import (
    FALLOC_FL_KEEP_SIZE,
    FALLOC_FL_PUNCH_HOLE,
    MREMAP_FIXED,
    MREMAP_MAYMOVE,
    PROT_NONE,
)
from hugepage_qa.version import KernelVersion

#: what may be done with a range of parts
Operation = Callable[[range], None]

_PERMISSIONS: dict[int | None, str] = {PROT_NONE: "--", mmap.PROT_READ: "r-", READ_WRITE: "rw"}
_PROTECTIONS = PROT_NONE, mmap.PROT_READ, READ_WRITE, READ_WRITE
#: several mappings, as tests/memory/moved_together.py judges it
_MOVE_TOGETHER = KernelVersion(6, 17)
#: what is stored by two operations differs in each word
_VALUE_STEP = 1 << 32


@dataclass(frozen=True)
class Part:
    """What a process may do with a part of its memory (None: it is not mapped)."""

    prot: int | None = READ_WRITE

    @property
    def is_mapped(self) -> bool:
        """Whether anything is there for the process, accessible or not."""
        return self.prot is not None

    @property
    def permissions(self) -> str:
        """As smaps shows them; empty where it is not mapped."""
        return _PERMISSIONS.get(self.prot, "")

    @property
    def is_readable(self) -> bool:
        """Whether the process may read it."""
        return self.prot in (mmap.PROT_READ, READ_WRITE)


@dataclass
class Process:
    """A process with its ``memory``: its parts, and the values that they were filled with, 0 for zeroes.

    ``file`` is the descriptor of shared memory: the processes have one list of values then.
    """

    memory: Memory
    parts: list[Part]
    values: list[int]
    file: int | None = None

    def forked(self) -> "Process":
        """Return a child, which has shared memory as it is, and private memory as it was. Raises Refused."""
        values = list(self.values) if self.file is None else self.values
        return replace(self, memory=self.memory.fork(), parts=list(self.parts), values=values)


class DrawnProgram:
    """Operations on ``memory``, drawn by ``random``; the first process has mapped it as ``file``, None if private.

    Parts are ``unit`` bytes; there are ``most_processes`` at once.
    """

    def __init__(
        self, live: Live, memory: Memory, random: Random, *, unit: int, most_processes: int, file: int | None
    ) -> None:
        self.live = live
        self.random = random
        self.unit = unit
        self._most_processes = most_processes
        count = memory.length // unit
        self.processes = [Process(memory, [Part()] * count, [0] * count, file)]
        self.done: list[str] = []
        self.one = self.processes[0]
        """The process whose turn it is."""

    def operations(self) -> Sequence[Operation]:
        """Return what may be done; what is there twice is done twice as often."""
        raise NotImplementedError

    def draw_range(self) -> range:
        """Return the parts that the next operation is about."""
        raise NotImplementedError

    def expect_all(self) -> None:
        """Expect what the process whose turn it is has to be what the model says."""
        raise NotImplementedError

    def run(self, count: int, look_after: int) -> None:
        """Do ``count`` operations, look after each ``look_after`` at all that there is, and end all processes."""
        self.write(range(len(self.one.parts)))
        operations = self.operations()
        for number in range(1, count + 1):
            self.one = self.processes[self.random.randrange(len(self.processes))]
            operation = operations[self.random.randrange(len(operations))]
            operation(self.draw_range())
            if number % look_after == 0:
                self._look(number)
        for process in self.processes:
            process.memory.actor.exit()

    def runs(self, parts: range, of: Callable[[Part], object]) -> Iterator[range]:
        """Yield those of ``parts`` side by side of which ``of`` is the same, and true."""
        for value, group in groupby(parts, lambda number: of(self.one.parts[number])):
            numbers = list(group)
            if value:
                yield range(numbers[0], numbers[-1] + 1)

    def mapped(self, parts: range) -> Iterator[range]:
        """Yield those of ``parts`` side by side that the process has mapped."""
        return self.runs(parts, lambda part: part.is_mapped)

    def place(self, parts: range) -> tuple[int, int]:
        """Return where ``parts`` begin, and how many bytes they are."""
        return self.one.memory.address + parts[0] * self.unit, len(parts) * self.unit

    def tell(self, what: str, parts: range) -> None:
        """Keep what is done, for who reads of a difference."""
        self.done.append(f"{self.processes.index(self.one)} {what} {parts[0]}-{parts[-1]}")

    def write(self, parts: range) -> None:
        """Fill what may be written with words that nothing was filled with before."""
        self.tell("write", parts)
        value = _VALUE_STEP * len(self.done)
        for run in self.runs(parts, lambda part: part.prot == READ_WRITE):
            self.one.memory.actor.fill(*self.place(run), WORD, value + run[0] * self.unit)
            self.one.values[run.start : run.stop] = [value] * len(run)

    def protect(self, parts: range) -> None:
        """Let them be used in another way (mprotect(2))."""
        prot = _PROTECTIONS[self.random.randrange(len(_PROTECTIONS))]
        self.tell(f"protect {prot}", parts)
        for run in self.mapped(parts):
            self.one.memory.actor.call("mprotect", *self.place(run), prot)
            self.one.parts[run.start : run.stop] = [Part(prot)] * len(run)

    def unmap(self, parts: range) -> None:
        """Unmap them (munmap(2))."""
        self.tell("unmap", parts)
        self.one.memory.actor.call("munmap", *self.place(parts))
        self.one.parts[parts.start : parts.stop] = [Part(None)] * len(parts)

    def give_back(self, parts: range) -> None:
        """Give them back (MADV_DONTNEED): private memory holds zeroes then."""
        self.tell("give back", parts)
        for run in self.mapped(parts):
            self.one.memory.actor.call("madvise", *self.place(run), mmap.MADV_DONTNEED)
            if self.one.file is None:
                self.one.values[run.start : run.stop] = [0] * len(run)

    def cut_out(self, parts: range) -> None:
        """Make a hole in a file; private memory is given back."""
        if self.one.file is None:
            self.give_back(parts)
            return
        self.tell("cut out", parts)
        start, length = parts[0] * self.unit, len(parts) * self.unit
        flags = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
        self.one.memory.actor.call("fallocate", self.one.file, flags, start, length)
        self.one.values[parts.start : parts.stop] = [0] * len(parts)

    def move_there_and_back(self, run: range, target: int) -> None:
        """Move mapped parts to the address ``target``, where nothing is, and back (mremap(2)).

        Several mappings do not move together before Linux 6.17.
        """
        actor, flags = self.one.memory.actor, MREMAP_MAYMOVE | MREMAP_FIXED
        address, length = self.place(run)
        memory = Memory(self.live, actor, address, len(run), self.unit)
        if self.live.kernel_version < _MOVE_TOGETHER and len(memory.all_mappings()) > 1:
            self.live.expect_errno(errno.EFAULT, actor.call, "mremap", address, length, length, flags, target)
            return
        self.live.expect_success(actor.call, "mremap", address, length, length, flags, target)
        self.live.expect_signal(signal.SIGSEGV, actor.read, address)
        self.live.expect_success(actor.call, "mremap", target, length, length, flags, address)
        self.live.expect_signal(signal.SIGSEGV, actor.read, target)

    def fork(self, parts: range) -> None:
        """Have a child, unless there are enough."""
        if len(self.processes) < self._most_processes:
            self.tell("fork", parts)
            self.processes.append(self.one.forked())

    def end(self, parts: range) -> None:
        """End the process, unless it is the only one."""
        if len(self.processes) > 1:
            self.tell("end", parts)
            self.one.memory.actor.exit()
            self.processes.remove(self.one)
            self.one = self.processes[0]

    def expect_contents(self, unread: Set[int] = frozenset()) -> None:
        """Expect each part to hold what it was filled with, and to be read and written by who may, as smaps tells.

        Parts that are left ``unread`` are not touched.
        """
        actor, wrong = self.one.memory.actor, 0
        states = [
            (*state, number in unread) for number, state in enumerate(zip(self.one.parts, self.one.values, strict=True))
        ]
        for (part, value, is_unread), group in groupby(range(len(states)), states.__getitem__):
            numbers = list(group)
            if is_unread:
                continue
            address, length = self.place(range(numbers[0], numbers[-1] + 1))
            ends = (address, address + length - WORD)
            if part.is_readable:
                offset = numbers[0] * self.unit
                wrong += actor.check(address, length, WORD, value + offset) if value else actor.nonzero(address, length)
            else:
                for end in ends:
                    self.live.expect_signal(signal.SIGSEGV, actor.read, end)
            if part.prot == mmap.PROT_READ:
                for end in ends:
                    self.live.expect_signal(signal.SIGSEGV, actor.write, end, 1)
        self.live.expect("words that are not what they were", 0, wrong)
        told = permissions(self.live, self.one.memory)[:: self.unit // self.live.base_page]
        others = [number for number, part in enumerate(self.one.parts) if part.permissions != told[number]]
        self.live.expect("parts of which smaps tells other permissions", [], others)

    def _look(self, number: int) -> None:
        for process in self.processes:
            self.one = process
            with self.live.about(f"process {self.processes.index(process)} after {number} operations"):
                before = len(self.live.differences)
                self.expect_all()
                if len(self.live.differences) > before:
                    self.live.fail("what memory holds and who may use it", "as the model says", "; ".join(self.done))
