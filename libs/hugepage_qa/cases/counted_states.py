"""Huge pages, private and shared, through all that may become of them, and in which counters they are meanwhile."""

import mmap
from collections.abc import Iterator, Mapping
from functools import partial

from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.swapped import swap_out
from hugepage_qa.cases.thp_memory import free_lazily, map_aligned, mapped_huge, pmd_size
from hugepage_qa.cases.thp_policy import fill_in_huge_pages
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE
from hugepage_qa.process.actor import Actor

#: of each kind
PAGES = 4
#: what huge pages are counted as: anonymous and shared, and such as are huge; mapped of a file, and as a whole; on
#: which list of those that may be reclaimed, or on none of them since they are locked; in swap
ANONYMOUS, WHOLE, SHARED, SHARED_WHOLE = "anonymous", "anonymous and huge", "shared", "shared and huge"
MAPPED, MAPPED_WHOLE = "mapped of files", "mapped of files as a whole"
ON_LISTS, ON_FILE_LISTS, UNEVICTABLE = "on the lists of anonymous memory", "on the lists of files", "unevictable"
IN_SWAP = "in swap"
QUANTITIES = (
    ANONYMOUS,
    WHOLE,
    SHARED,
    SHARED_WHOLE,
    MAPPED,
    MAPPED_WHOLE,
    ON_LISTS,
    ON_FILE_LISTS,
    UNEVICTABLE,
    IN_SWAP,
)

#: what was done, and huge pages by quantity since the beginning; what is left out is not judged
State = tuple[str, Mapping[str, int]]


def private_states(live: Live, actor: Actor, node: int | None) -> Iterator[State]:
    """Have private memory of ``actor`` go through its states.

    Raises CannotRun where a ``node``, that it comes from, or all have no free blocks.
    """
    counted = dict.fromkeys(QUANTITIES, 0)
    memory = map_aligned(live, PAGES, pmd_size(live), actor=actor, advice=MADV_HUGEPAGE)
    _fill(live, memory, node)
    yield "filled", _changed(counted, {ANONYMOUS: PAGES, WHOLE: PAGES, ON_LISTS: PAGES})
    for prot in (mmap.PROT_READ, READ_WRITE):
        actor.call("mprotect", memory.at(3), live.base_page, prot)
    memory.expect_filled()
    yield "one is mapped in parts", _changed(counted, {WHOLE: -1})
    actor.call("mlock", memory.address, memory.size)
    yield "one is locked", _changed(counted, {UNEVICTABLE: 1, ON_LISTS: -1})
    child = memory.seen_by(actor.fork())
    child.expect_filled()
    yield "a child has them, too", counted
    child.unmap(0, 2)
    yield "the child has given two of them back", counted
    child.actor.end()
    yield "the child has gone", counted
    actor.call("munlock", memory.address, memory.size)
    yield "none is locked", _changed(counted, {UNEVICTABLE: -1, ON_LISTS: 1})
    lazy = memory.part(1)
    live.host.wait_until(partial(free_lazily, live, lazy))
    live.expect("LazyFree", lazy.length, lazy.smaps().fields["LazyFree"])
    yield "one may be freed", _changed(counted, {ON_LISTS: -1, ON_FILE_LISTS: 1})
    lazy.advise(mmap.MADV_DONTNEED)
    yield "that one is given back", _changed(counted, {ANONYMOUS: -1, WHOLE: -1, ON_FILE_LISTS: -1})
    out = memory.part(0)
    swap_out(live, out, out.length)
    _changed(counted, {ANONYMOUS: -1, WHOLE: -1, ON_LISTS: -1, IN_SWAP: 1})
    # it is on a list until it is written, and then until somebody wants memory
    yield "one is in swap", {name: pages for name, pages in counted.items() if name != ON_LISTS}
    memory.unmap()
    yield "unmapped", dict.fromkeys(QUANTITIES, 0)


def shared_states(live: Live, actor: Actor, node: int | None) -> Iterator[State]:
    """Have shared memory of ``actor`` go through its states. Raises CannotRun as ``private_states`` does."""
    counted = dict.fromkeys(QUANTITIES, 0)
    memory = map_aligned(live, PAGES, pmd_size(live), actor=actor, shared=True, advice=MADV_HUGEPAGE)
    _fill(live, memory, node)
    all_of_them = dict.fromkeys((SHARED, SHARED_WHOLE, MAPPED, MAPPED_WHOLE, ON_LISTS), PAGES)
    yield "filled", _changed(counted, all_of_them)
    # as one mapping it would be mapped as a whole again by the next access
    actor.call("mprotect", memory.at(3), live.base_page, mmap.PROT_READ)
    memory.expect_filled()
    yield "one is mapped in parts", _changed(counted, {MAPPED_WHOLE: -1})
    child = memory.seen_by(actor.fork())
    child.expect_filled(pages=PAGES - 1)
    yield "a child maps them, too", counted
    child.unmap(0, 2)
    yield "the child has unmapped two of them", counted
    child.actor.end()
    yield "the child has gone", counted
    memory.advise(mmap.MADV_DONTNEED, 0, 1)
    yield "one is mapped no more", _changed(counted, {MAPPED: -1, MAPPED_WHOLE: -1})
    memory.advise(mmap.MADV_REMOVE, 1, 1)
    gone = dict.fromkeys((SHARED, SHARED_WHOLE, MAPPED, MAPPED_WHOLE, ON_LISTS), -1)
    yield "one is removed", _changed(counted, gone)
    actor.call("mlock", memory.at(2), memory.size)
    yield "one is locked", _changed(counted, {UNEVICTABLE: 1, ON_LISTS: -1})
    actor.call("munlock", memory.at(2), memory.size)
    yield "none is locked", _changed(counted, {UNEVICTABLE: -1, ON_LISTS: 1})
    memory.unmap()
    yield "unmapped", dict.fromkeys(QUANTITIES, 0)


def _changed(counted: dict[str, int], changes: Mapping[str, int]) -> Mapping[str, int]:
    for name, change in changes.items():
        counted[name] += change
    return counted


def _fill(live: Live, memory: Memory, node: int | None) -> None:
    fill_in_huge_pages(live, memory, node)
    live.expect("bytes in huge pages", memory.length, mapped_huge(memory))
