"""Shared memory in huge pages, of each kind that has them, as two processes map it, and its policies."""

import mmap
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hugepage_qa.cases.hugetlb_segments import IPC_CREAT, SHM_REMAP, segment_number
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.memory_policy import Mode, bind, give_policy
from hugepage_qa.cases.thp_memory import map_aligned, pmd_size, room_for
from hugepage_qa.cases.thp_shared_memory import mount_tmpfs
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE, MAP_FIXED
from hugepage_qa.process.actor import Actor

#: that each has
PAGES = 4


@dataclass(frozen=True)
class View:
    """A mapping of shared memory from its base page ``first`` on."""

    memory: Memory
    first: int
    base_page: int

    def has(self, page: int) -> bool:
        """Tell whether it has a base page of the shared memory."""
        return 0 <= (page - self.first) * self.base_page < self.memory.length

    def at(self, page: int) -> int:
        """Return where it has a base page of the shared memory."""
        return self.memory.address + (page - self.first) * self.base_page

    def part(self, live: Live, first: int, end: int) -> Memory:
        """Return base pages from ``first`` to before ``end`` of the shared memory."""
        return Memory(live, self.memory.actor, self.at(first), end - first, self.base_page)

    def huge_pages(self, live: Live, first: int, pages: int) -> Memory:
        """Return huge pages of the shared memory from ``first`` on."""
        size = pmd_size(live)
        return Memory(live, self.memory.actor, self.at(first * size // self.base_page), pages, size)


@dataclass(frozen=True)
class Shared:
    """Shared memory, two mappings of which tell its policies; ``fresh`` maps at least a range of it anew.

    Kernels do not give a policy to the memory that the mapping has already, and with it one to what lies beside it
    (mbind_range() in mm/mempolicy.c, equal-policy-passed-over and merged-range-takes-policy): each is given through a
    new mapping, if there can be one.
    """

    live: Live
    views: tuple[View, View]
    fresh: Callable[[int, int], View] | None

    def give(self, first: int, end: int, node: int | None) -> None:
        """Bind base pages from ``first`` to before ``end`` to ``node``, or to none."""
        view = self.fresh(first, end) if self.fresh else self.views[0]
        part = view.part(self.live, first, end)
        if node is None:
            # what has no policy cannot lose it
            bind(part, self.live.nodes[:1])
            give_policy(part, Mode.DEFAULT, [])
        else:
            bind(part, [node])
        if self.fresh:
            view.memory.actor.end()

    def end(self) -> None:
        """End the processes that have it."""
        for view in reversed(self.views):
            view.memory.actor.end()


def shared_memory(live: Live) -> Iterator[tuple[str, Shared]]:
    """Yield shared memory of each kind that gets huge pages, mapped by two processes."""
    every = pmd_size(live) // live.base_page

    def of_a_file(actor: Actor, descriptor: int) -> Shared:
        actor.call("ftruncate", descriptor, PAGES * pmd_size(live))

        def opened() -> tuple[Actor, int]:
            other = live.actor()
            return other, live.open(other, f"/proc/{actor.pid}/fd/{descriptor}", os.O_RDWR)

        def fresh(first: int, end: int) -> View:
            return _map(live, *opened(), first, end - first)

        whole = _map(live, actor, descriptor, 0, PAGES * every)
        return Shared(live, (whole, _map(live, *opened(), every, (PAGES - 1) * every)), fresh)

    def anonymous() -> Shared:
        memory = map_aligned(live, PAGES, pmd_size(live), shared=True, advice=MADV_HUGEPAGE)
        child = memory.fork()
        return Shared(live, (View(memory, 0, live.base_page), View(child, 0, live.base_page)), None)

    def segment() -> Shared:
        number = segment_number(live, live.actor(), PAGES * pmd_size(live), 0o600 | IPC_CREAT)

        def fresh(_first: int, _end: int) -> View:
            actor = live.actor()
            place = room_for(actor, PAGES, pmd_size(live))
            actor.call("shmat", number, place, SHM_REMAP)
            memory = Memory(live, actor, place, PAGES, pmd_size(live))
            memory.advise(MADV_HUGEPAGE)
            return View(memory, 0, live.base_page)

        return Shared(live, (fresh(0, 0), fresh(0, 0)), fresh)

    actor = live.actor()
    yield "tmpfs", of_a_file(actor, live.open(actor, f"{mount_tmpfs(live, 'always')}/file"))
    actor = live.actor()
    yield "memfd", of_a_file(actor, actor.call("memfd_create", "policies", 0))
    yield "anonymous", anonymous()
    yield "segment", segment()


def _map(live: Live, actor: Actor, descriptor: int, first: int, count: int) -> View:
    """Map ``count`` base pages of a file from ``first`` on, advised, where huge pages fit."""
    size, page = pmd_size(live), live.base_page
    before = first * page % size
    place = room_for(actor, -(-(before + count * page) // size), size) + before
    actor.mmap(count * page, READ_WRITE, mmap.MAP_SHARED | MAP_FIXED, descriptor, first * page, place)
    each = page if before or count * page % size else size
    memory = Memory(live, actor, place, count * page // each, each)
    memory.advise(MADV_HUGEPAGE)
    return View(memory, first, live.base_page)
