"""Which folios memory is in: how large each is and where, as /proc/kpageflags shows heads and tails."""

from collections.abc import Callable, Iterable
from functools import partial

from hugepage_qa.cases.fragmentation import expect_no_node_short, expect_no_shortage
from hugepage_qa.cases.frames import tails_among
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import FRAME, PRESENT, Memory, runs

#: base pages that are in folios of each size in kB
Layout = dict[int, list[range]]


def folios_of(live: Live, memory: Memory) -> list[range]:
    """Return the base pages of each folio of ``memory``, as far as they are mapped. Raises CannotRun."""
    there = {place: entry & FRAME for place, entry in enumerate(memory.whole_pagemap()) if entry & PRESENT}
    tails = tails_among(live, memory.actor, there.values())
    found = list[range]()
    for place, frame in there.items():
        if frame in tails and there.get(place - 1) == frame - 1:
            found[-1] = range(found[-1].start, place + 1)
        else:
            found.append(range(place, place + 1))
    return found


def folios_of_all(live: Live, memory: Memory, pages: int | None = None) -> list[range]:
    """Return the folios of ``memory``, of which ``pages`` base pages, by default all, are there. Raises CannotRun.

    One that compaction moves in that moment is mapped by nobody: it is looked at again.
    """
    every = memory.length // live.base_page if pages is None else pages
    return live.host.last_look(partial(folios_of, live, memory), lambda found: sum(map(len, found)) == every)


def expect_folio(live: Live, memory: Memory, size: int, node: int | None = None) -> None:
    """Expect filled ``memory`` to have a folio of ``size`` bytes, and no larger one.

    Raises CannotRun where ``node``, or all, are too fragmented for it.
    """
    largest = live.base_page * max(map(len, folios_of_all(live, memory)), default=0)
    if largest != size:
        expect_no_shortage(live, size, 1, node)
    live.expect("bytes of the largest folio", size, largest)


def expect_folios(live: Live, memory: Memory, size: int) -> None:
    """Expect filled ``memory`` to be in folios of ``size`` bytes alone. Raises CannotRun as ``expect_folio`` does."""
    base = live.base_page
    wanted = [range(start, start + size // base) for start in range(0, memory.length // base, size // base)]
    found = folios_of_all(live, memory)
    if found != wanted:
        expect_no_node_short(live, size, len(wanted))
    live.expect("base pages that are in folios of each size in kB", layout_of(live, wanted), layout_of(live, found))


def layout_of(live: Live, folios: Iterable[range]) -> Layout:
    """Return which base pages are in folios of each size."""
    found = dict[int, set[int]]()
    for folio in folios:
        found.setdefault(len(folio) * live.base_page, set()).update(folio)
    return {size >> 10: runs(places) for size, places in sorted(found.items())}


def split_evenly(folio: range, order: int) -> list[range]:
    """Return what ``folio`` is in when it was split to ``order``."""
    step = 1 << order
    return [range(start, min(start + step, folio.stop)) for start in range(folio.start, folio.stop, step)]


def split_about(folio: range, order: int, place: int) -> list[range]:
    """Return what ``folio`` is in when it was halved again and again about its base page ``place``, to ``order``."""
    if len(folio) <= 1 << order:
        return [folio]
    # one that ends behind its file is not mapped as a whole
    halves = split_evenly(folio, (len(folio) - 1).bit_length() - 1)
    return [part for half in halves for part in (split_about(half, order, place) if place in half else [half])]


def expect_order(live: Live, split: Callable[[], Memory], order: int) -> None:
    """Expect the memory that ``split`` returns, new each time, to be in folios of ``order`` alone. Raises CannotRun.

    Who moves a folio, and finds no room for it as a whole, splits it (mm/migrate.c): it is tried again.
    """

    def layout() -> tuple[Memory, Layout]:
        memory = split()
        return memory, layout_of(live, folios_of_all(live, memory))

    def wanted(memory: Memory) -> Layout:
        return layout_of(live, split_evenly(range(memory.length // live.base_page), order))

    memory, found = live.host.last_attempt(layout, lambda seen: seen[1] == wanted(seen[0]))
    live.expect("base pages that are in folios of each size in kB", wanted(memory), found)
