"""Processes, and threads, that want something at the same moment, or go on and on with the same memory meanwhile.

What a kernel counts and what memory holds must not depend on who comes first.
"""

import mmap
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import reduce
from operator import or_

from hugepage_qa.cases.hugetlb_files import HugeFile
from hugepage_qa.cases.hugetlb_segments import Segment
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.memory_policy import moving
from hugepage_qa.kernel.uapi import MAP_HUGETLB, MREMAP_FIXED, MREMAP_MAYMOVE
from hugepage_qa.process.actor import Actor
from hugepage_qa.process.actor_link import Argument
from hugepage_qa.process.actor_threads import Action, Came, Repeated

#: processes, or threads: twice as many as a throwaway machine has processors
RACERS = 4
#: of a processor's cache, in bytes: what is filled has a word in each
LINE = 64
#: some hundred rounds on a machine that has nothing else to do
_SECONDS = 1.5
#: thousands of rounds on a machine that has nothing else to do
_THREADS_SECONDS = 1.0


def race(live: Live, file: HugeFile | None = None, *, noreserve: bool = False, one_page: bool = False) -> set[int]:
    """Have RACERS processes map a page each at the same moment, write to it at the same moment, and give it back.

    They do so many times; returned is how many of them got a page in a round, of all rounds. Pages are anonymous, or
    those of an empty ``file``: one for each process, or ``one_page`` for all.
    """
    actor = file.actor if file else live.actor()
    flags = _flags(live, file, shared=file is not None) | (live.host.uapi.map_noreserve if noreserve else 0)
    step = 0 if one_page else live.size
    return actor.race(RACERS, _SECONDS, live.size, flags, file.descriptor if file else -1, step)


def race_to_attach(live: Live, segment: Segment) -> set[int]:
    """Have RACERS processes attach ``segment``, fill all of it with the same, look for that, and detach it.

    They do each of these at the same moment, many times, and in every other round the pages have been given back.
    Returned is how many of them found all of it in a round, of all rounds. At last they end with it attached.
    """
    length = segment.pages * live.size
    return segment.actor.race_to_attach(RACERS, _SECONDS, length, segment.identifier, LINE)


def clash(
    live: Live,
    *rivals: Action,
    may_come: Came = Came.DONE,
    by: Action = Action.TOUCH,
    file: HugeFile | None = None,
    shared: bool = False,
) -> None:
    """Have threads write to one page at the same moment, and one more for each of ``rivals`` do that, again and again.

    Expected is that nothing comes of writing, ``by`` touching the page or a copy, but ``may_come``, and that the rivals
    succeed; who maps more finds no page left. The page is anonymous, or that of an empty ``file``.
    """
    actions = [*rivals, *(by for _thread in range(RACERS - len(rivals)))]
    actor = file.actor if file else live.actor()
    flags = _flags(live, file, shared=shared or file is not None)
    came = actor.threads.clash(actions, _SECONDS, live.size, flags, file.descriptor if file else -1)
    for rival, found in zip(rivals, came, strict=False):
        live.expect(f"what came of {rival.name}", Came.REFUSED if rival is Action.MAP_MORE else Came.DONE, found)
    beyond = reduce(or_, came[len(rivals) :]) & ~may_come
    live.expect("what came of writing that may not", Came(0), beyond)


def clash_in_one_page(live: Live, size: int, *actions: Action, shared: bool = False) -> None:
    """Have a thread for each of ``actions`` touch another part of a page of ``size`` bytes that is to come.

    It is of anonymous memory, private unless it is ``shared``. They do so at the same moment, again and again, and each
    finds what it has stored.
    """
    actor = live.actor()
    flags = mmap.MAP_ANONYMOUS | (mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE)
    came = actor.threads.clash(actions, _THREADS_SECONDS, size, flags, aligned=True)
    live.expect("what came of each thread", [Came.DONE] * len(actions), came)
    actor.end()


def _flags(live: Live, file: HugeFile | None, *, shared: bool) -> int:
    flags = mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE
    return flags if file else flags | mmap.MAP_ANONYMOUS | MAP_HUGETLB | live.size_flag


#: of errno(3)
_ANY_ERROR = range(1, 134)


class Threads:
    """The threads of one actor: what has been started, and what may come of it."""

    def __init__(self, live: Live, actor: Actor) -> None:
        self._live = live
        self._actor = actor
        self._allowed: list[tuple[str, Came, frozenset[int]]] = []
        self._found: list[Repeated] = []

    def call(self, name: str, *arguments: Argument, may_fail: Collection[int] = ()) -> None:
        """Make the system call ``name`` again and again; it may fail with the errors ``may_fail``, and not always."""
        self._allow(name, Came.DONE | Came.REFUSED, may_fail)
        self._actor.threads.repeat(name, *arguments)

    def attempt(self, name: str, *arguments: Argument) -> None:
        """Make the system call ``name`` again and again; whether it is ever done, and why not, says nothing."""
        self._allow(name, Came.DONE | Came.REFUSED, _ANY_ERROR)
        self._actor.threads.attempt(name, *arguments)

    def be_refused(self, error: int, name: str, *arguments: Argument) -> None:
        """Make the system call ``name`` again and again, which is refused with ``error`` each time."""
        self._allow(f"a refused {name}", Came.REFUSED, {error})
        self._actor.threads.attempt(name, *arguments)

    def move(self, memory: Memory, other: int) -> None:
        """Move ``memory`` to the address ``other`` and back, as often as that is possible."""
        self._allow(f"a move of {memory.address:#x}", Came.DONE | Came.REFUSED, _ANY_ERROR)
        self._actor.threads.shuttle(memory.address, memory.length, MREMAP_MAYMOVE | MREMAP_FIXED, other)

    def use(self, memory: Memory, may_come: Came = Came.DONE) -> None:
        """Store in each base page of ``memory`` words of the thread's own, and find them there the next time."""
        self._allow(f"use of {memory.address:#x}", may_come)
        self._actor.threads.use(memory.address, memory.length, self._live.base_page)

    def watch(self, memory: Memory, value: int = 1, may_come: Came = Came.DONE, *, step: int | None = None) -> None:
        """Find in each base page of ``memory`` what ``fill`` has stored there, with a ``value`` of 0 nothing.

        With a ``step`` it is at each multiple of so many bytes.
        """
        self._allow(f"a look at {memory.address:#x}", may_come)
        self._actor.threads.watch(memory.address, memory.length, step or self._live.base_page, value)

    def reread(self, descriptor: int, length: int, step: int, value: int = 1) -> None:
        """Find the same in ``length`` bytes of a file, at each multiple of ``step``."""
        self._allow(f"a read of descriptor {descriptor}", Came.DONE)
        self._actor.threads.reread(descriptor, length, step, value)

    def end(self, seconds: float) -> None:
        """End them after ``seconds``, and expect of each what may come of it."""
        self._found = self._actor.threads.stop(seconds)
        for (what, may_come, may_fail), found in zip(self._allowed, self._found, strict=True):
            self._live.expect(f"what came of {what} that may not", Came(0), found.came & ~may_come)
            self._live.expect(f"errors of {what} that may not be", set(), set(found.errors - may_fail))
            self._live.expect(f"{what} was done", True, found.times > 0)

    def was_done(self, number: int) -> bool:
        """Tell whether the thread that came after ``number`` others did what it attempts, now that all have ended."""
        return Came.DONE in self._found[number].came

    def errors(self, number: int) -> frozenset[int]:
        """Return with what errors the thread that came after ``number`` others failed, now that all have ended."""
        return self._found[number].errors

    def _allow(self, what: str, may_come: Came, may_fail: Collection[int] = ()) -> None:
        self._allowed.append((what, may_come, frozenset(may_fail)))


@contextmanager
def at_once(live: Live, actor: Actor, seconds: float = _THREADS_SECONDS) -> Iterator[Threads]:
    """Have threads that are started in this block go on for ``seconds`` after it, and while it acts.

    Expected is of each that nothing comes of it but what may, that it is done once at least, and that it ends.
    """
    threads = Threads(live, actor)
    yield threads
    threads.end(seconds)


def use_while_it_moves(live: Live, memory: Memory) -> None:
    """Have threads use ``memory`` while others move it to one node and to another, and expect no word to be lost."""
    with at_once(live, memory.actor) as threads:
        for node in live.nodes[:2]:
            threads.use(memory)
            threads.call("move_pages", *moving(memory, node))
