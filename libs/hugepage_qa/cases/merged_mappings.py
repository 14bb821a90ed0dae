"""Mappings that differ and lie side by side, and become one when they are alike (vma_merge_existing_range())."""

import mmap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from hugepage_qa.cases.live import READ_WRITE
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.thp_memory import room_for
from hugepage_qa.kernel.uapi import MADV_NORMAL

#: does something to memory, which makes a mapping of its own of it, and returns what takes that back
SetApart = Callable[[Memory], Callable[[], object]]


def _protected(memory: Memory) -> Callable[[], object]:
    memory.protect(mmap.PROT_READ)
    return partial(memory.protect, READ_WRITE)


def _advised(memory: Memory) -> Callable[[], object]:
    memory.advise(mmap.MADV_RANDOM)
    return partial(memory.advise, MADV_NORMAL)


def _locked(memory: Memory) -> Callable[[], object]:
    memory.lock_on_fault()
    return memory.unlock


def _moved(memory: Memory) -> Callable[[], object]:
    # nothing is mapped beside it there
    there = memory.moved_to(room_for(memory.actor, memory.pages + 2, memory.size) + memory.size)
    return partial(there.moved_to, memory.address)


@dataclass(frozen=True)
class Merge:
    """One page, and those beside it, which are set apart: they become as the page is, or the page becomes as they."""

    name: str
    _set_apart: SetApart
    _page_follows: bool

    def begin(self, memory: Memory, page: int) -> Callable[[], None]:
        """Set all but one ``page`` of ``memory`` apart, and return what has all become one mapping."""
        back = [self._set_apart(memory.part(other)) for other in range(memory.pages) if other != page]

        def merge() -> None:
            if self._page_follows:
                self._set_apart(memory.part(page))
            else:
                for each in back:
                    each()

        return merge


def merges() -> Iterator[Merge]:
    """Yield each way in which mappings become one."""
    for set_apart in (_protected, _advised, _locked):
        name = set_apart.__name__.strip("_")
        yield Merge(f"the others {name} no more", set_apart, False)
        yield Merge(f"{name} as the others are", set_apart, True)
    yield Merge("the others moved back", _moved, False)
