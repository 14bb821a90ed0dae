"""Pages that the kernel locks while it acts on them: it lets go of each, or who wants it next waits for ever."""

import mmap
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.forced_writes import forced_write, need_forced_writes
from hugepage_qa.cases.frames import LOCKED, kpageflags
from hugepage_qa.cases.khugepaged_clock import let_nobody_else_act
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import FRAME, PRESENT, Memory
from hugepage_qa.cases.memory_policy import moving
from hugepage_qa.cases.pinned_pages import Pin
from hugepage_qa.cases.thp_policy import base_pages, huge_pages, map_in_parts, mapped_in_parts
from hugepage_qa.cases.thp_shared_memory import shared_huge_pages
from hugepage_qa.kernel.uapi import (
    MADV_COLD,
    MADV_COLLAPSE,
    MADV_DONTNEED,
    MADV_PAGEOUT,
    MADV_POPULATE_WRITE,
)
from hugepage_qa.plugins.avocado_test import LiveTest

LET_GO = Area("thp/let-go", sizes=Sizes.ONCE)

FLAGS = (
    "Documentation/admin-guide/mm/pagemap.rst LOCKED; mm/huge_memory.c do_huge_pmd_wp_page(); mm/memory.c do_wp_page()"
)
_PRIVATE = huge_pages, mapped_in_parts, base_pages
_KINDS = *_PRIVATE, shared_huge_pages
_NEW_VALUE = 77

#: what is done with the memory of a parent and of its child
Act = Callable[[Live, Memory, Memory], object]


def _child_writes(_live: Live, _parent: Memory, child: Memory) -> None:
    child.fill(_NEW_VALUE)


def _parent_writes(_live: Live, parent: Memory, _child: Memory) -> None:
    parent.fill(_NEW_VALUE)


def _both_write(live: Live, parent: Memory, child: Memory) -> None:
    child.actor.write(child.at(1) - live.base_page, _NEW_VALUE)
    parent.actor.write(parent.at(1) - live.base_page, _NEW_VALUE)


def _last_one_writes(_live: Live, parent: Memory, child: Memory) -> None:
    child.unmap()
    parent.fill(_NEW_VALUE)


def _debugger_writes(live: Live, _parent: Memory, child: Memory) -> None:
    child.protect(mmap.PROT_READ)
    forced_write(live, child)


def _child_pins(live: Live, _parent: Memory, child: Memory) -> None:
    pin = Pin(live, child)
    pin.hold((0, child.size))
    pin.let_go()


def _child_splits(live: Live, _parent: Memory, child: Memory) -> None:
    map_in_parts(live, child)
    child.fill(_NEW_VALUE)


def _moved(live: Live, parent: Memory, _child: Memory) -> None:
    # a kernel without CONFIG_NUMA has none
    for node in (*live.nodes[:2], *live.nodes[:1]):
        parent.actor.result("move_pages", *moving(parent, node, by_another=True))


def _advised(advice: int, part: int, _live: Live, _parent: Memory, child: Memory) -> None:
    # some refuse it, or the kernel does not know it
    child.actor.result("madvise", child.address, child.length // part, advice)


_ACTS: Mapping[str, Act] = {
    "the child writes": _child_writes,
    "the parent writes": _parent_writes,
    "both write": _both_write,
    "the last one writes": _last_one_writes,
    "the child splits it and writes": _child_splits,
    "it moves": _moved,
    "MADV_POPULATE_WRITE": partial(_advised, MADV_POPULATE_WRITE, 1),
    "MADV_FREE": partial(_advised, mmap.MADV_FREE, 1),
    "MADV_FREE of a half": partial(_advised, mmap.MADV_FREE, 2),
    "MADV_COLD": partial(_advised, MADV_COLD, 1),
    "MADV_COLD of a half": partial(_advised, MADV_COLD, 2),
    "MADV_PAGEOUT": partial(_advised, MADV_PAGEOUT, 1),
    "MADV_PAGEOUT of a half": partial(_advised, MADV_PAGEOUT, 2),
    "MADV_DONTNEED of a half": partial(_advised, MADV_DONTNEED, 2),
    "MADV_COLLAPSE": partial(_advised, MADV_COLLAPSE, 1),
}


@LET_GO.case(
    "pages that parent and child have are locked no more when one of them has written, moved, split or advised them, or"
    " is the last one to have them: huge pages, such as are mapped in parts, base pages, private and shared",
    FLAGS,
)
def acted_on(live: Live) -> None:
    _expect_let_go(live, _ACTS)


@LET_GO.case(
    "so are they when a debugger has written what the child may only read",
    f"{FLAGS}; ptrace(2); mm/gup.c FOLL_FORCE",
)
def written_by_a_debugger(live: Live) -> None:
    need_forced_writes(live)
    _expect_let_go(live, {"a debugger writes": _debugger_writes}, _PRIVATE)


@LET_GO.case(
    "so are they when they were pinned for the child, which has its own then",
    f"{FLAGS}; io_uring_register(2); mm/gup.c FAULT_FLAG_UNSHARE",
)
def pinned(live: Live) -> None:
    _expect_let_go(live, {"the child pins": _child_pins})


def _expect_let_go(live: Live, acts: Mapping[str, Act], kinds: Sequence[Callable[[Live], Memory]] = _KINDS) -> None:
    """Expect none of the pages to be locked that parent and child have had before each act, and have after it."""
    let_nobody_else_act(live)
    for make, (name, act) in product(kinds, acts.items()):
        parent = make(live)
        child = parent.fork()
        frames = _frames(live, parent)
        act(live, parent, child)
        frames |= _frames(live, parent) | _frames(live, child)
        # one that is not used any more, and has another owner, may be locked for a moment
        look = partial(_locked, live, parent, sorted(frames))
        found = live.host.last_look(look, (0).__eq__)
        if found:
            # who waits for one never ends
            live.fail(f"base pages that stay locked, {make.__name__}, {name}", 0, found)
        parent.actor.end()


def _frames(live: Live, memory: Memory) -> set[int]:
    """Return the frames of some base pages that are there: a huge page is locked as a whole, by its first one."""
    last = memory.size - live.base_page
    entries = memory.pagemap(memory.address + place for place in (0, live.base_page, memory.size // 2, last))
    return {entry & FRAME for entry in entries if entry & PRESENT}


def _locked(live: Live, memory: Memory, frames: list[int]) -> int:
    return sum(bool(flags & LOCKED) for flags in kpageflags(live, memory.actor, frames))


class ThpLetGo(LiveTest):
    def test_let_go(self) -> None:
        self.run_area(LET_GO)
