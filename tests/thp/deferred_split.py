"""Huge pages that the kernel splits under pressure: those that are mapped in part, and those that hold little."""

import mmap
from collections.abc import Mapping
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.changed_counters import expect_change
from hugepage_qa.cases.fragmentation import with_blocks
from hugepage_qa.cases.khugepaged_clock import allow_absent, let_rest
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.memory_policy import MOVES, Mode, move_all
from hugepage_qa.cases.memory_policy import set_policy as set_memory_policy
from hugepage_qa.cases.pinned_pages import pipe_with, word_from
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.cases.thp_nodes import two_nodes_with_room
from hugepage_qa.cases.thp_policy import advised, expect_all_huge, huge_pages, set_policy
from hugepage_qa.kernel.counters import read_vmstat
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.oracle.rules import THP_DOC
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor
from hugepage_qa.version import KernelVersion

DEFERRED = Area("thp/deferred-split", sizes=Sizes.ONCE)

SCAN = "mm/huge_memory.c deferred_split_scan()"
UNDERUSED = f"{THP_DOC} shrink_underused, thp_underused_split_page; {SCAN}, thp_underused()"
SINCE = "6.12"
_SHRINKERS = "2"
_PAGES = 3
_STRIPES = 8
#: kernels that are known to have "Requeue the destination folio" in migrate_folio_move(); it is not in Linux 6.12
_MOVED_IS_QUEUED, _MOVED_IS_QUEUED_BY_BACKPORT = KernelVersion(7, 3), KernelVersion(6, 12, 117)

#: where each part of a huge page begins, and its bytes
_Parts = tuple[tuple[int, int], ...]


@DEFERRED.case(
    "a huge page of which half is unmapped is split by the shrinkers, once, and the other half holds what it held",
    f"{THP_DOC} thp_deferred_split_page, thp_split_page; {SCAN}",
)
def unmapped_in_part(live: Live) -> None:
    half = pmd_size(live) // 2
    split = {"thp_split_page": 1, **_none_failed(live)}
    memory = expect_change(live, split, partial(_half_unmapped, live), lambda _memory: _shrink(live), _events, _shrink)
    live.expect("Rss", half, memory.smaps().rss)
    _expect_written(live, memory, half)


@DEFERRED.case(
    "a huge page of which one process has unmapped a half, and another one has all, is split by the shrinkers when that"
    " one is gone, and not before; the other half holds what it held",
    f"{THP_DOC} thp_deferred_split_page, thp_split_page; mm/rmap.c folio_remove_rmap_pmd(); {SCAN}",
)
def unmapped_whole_at_last(live: Live) -> None:
    # it fills what was given back, where the mapping stays whole
    let_rest(live)
    half = pmd_size(live) // 2

    def shared() -> tuple[Memory, Actor]:
        _shrink(live)
        memory = huge_pages(live)
        child = memory.actor.fork()
        memory.actor.call("madvise", memory.address + half, half, mmap.MADV_DONTNEED)
        return memory, child

    def end(both: tuple[Memory, Actor]) -> None:
        both[1].end()
        _shrink(live)

    for act, splits in ((lambda _both: _shrink(live), 0), (end, 1)):
        memory, child = expect_change(live, {"thp_split_page": splits}, shared, act, _events, _shrink)
        live.expect("Rss", half, memory.smaps().rss)
        _expect_written(live, memory, half)
        child.end()


@DEFERRED.case(
    "huge pages of which a part is unmapped, and a part held by somebody, are not split by the shrinkers, one between"
    " them is; they are when they were let go, and hold what they held",
    f"{THP_DOC} thp_deferred_split_page, thp_split_page; {SCAN}; vmsplice(2)",
)
def unmapped_in_part_and_held(live: Live) -> None:
    half = pmd_size(live) // 2

    def unmapped_and_held() -> dict[Memory, int]:
        _shrink(live)
        memories = [_unmapped(live) for _page in range(_PAGES)]
        # all but the second one, by the last base page that is mapped
        held = [Memory(live, one.actor, one.address + half - live.base_page, 1, live.base_page) for one in memories]
        return {memory: pipe_with(live, memory) for memory in (held[0], *held[2:])}

    def shrunk() -> dict[Memory, int]:
        held = unmapped_and_held()
        _shrink(live)
        return held

    def let_go(held: Mapping[Memory, int]) -> None:
        for memory, reader in held.items():
            live.expect("the word that is in the pipe", memory.read(), word_from(live, memory.actor, reader))
        _shrink(live)

    free = {"thp_split_page": 1}
    expect_change(live, free, unmapped_and_held, lambda _held: _shrink(live), _events, _shrink)
    for memory in expect_change(live, {"thp_split_page": _PAGES - 1}, shrunk, let_go, _events, _shrink):
        start = memory.address + live.base_page - half
        live.expect("words that changed", 0, memory.actor.check(start, half, WORD, 1))
        live.expect("Rss", half, memory.smaps().rss)


@DEFERRED.case(
    "a huge page with more zeroed pages than max_ptes_none is split by the shrinkers, and gives them back",
    UNDERUSED,
    since=SINCE,
)
def underused(live: Live) -> None:
    live.set_knob(f"{DIRECTORY}/shrink_underused", "1")
    split = {"thp_split_page": 1, "thp_underused_split_page": 1, **_none_failed(live)}
    for where, parts in _written_parts(live).items():
        with live.about(f"written: {where}"):
            used = _used_pages(live, parts)
            allow_absent(live, _base_pages(live, pmd_size(live)) - used - 1)
            memory = expect_change(
                live, split, partial(_used, live, parts), lambda _memory: _shrink(live), _events, _shrink
            )
            memory.expect_huge(0)
            live.expect("Rss", used * live.base_page, memory.smaps().rss)
            _expect_parts(live, memory, parts)
            memory.fill()
            memory.expect_filled()
        memory.actor.end()


@DEFERRED.case(
    "no huge page is split for its zeroed pages with as many of them as max_ptes_none, nor with shrink_underused=0",
    UNDERUSED,
    since=SINCE,
)
def used_enough(live: Live) -> None:
    count = _base_pages(live, pmd_size(live))
    # with the largest value none is underused
    for where, parts in _written_parts(live).items():
        zeroed = count - _used_pages(live, parts)
        for allowed, limit in (("1", zeroed), ("1", count - 1), ("0", 0)):
            live.set_knob(f"{DIRECTORY}/shrink_underused", allowed)
            allow_absent(live, limit)
            memory = _used(live, parts)
            _shrink(live)
            about = f"shrink_underused={allowed}, {zeroed} zeroed, max_ptes_none {limit}, written: {where}"
            live.expect(f"AnonHugePages, {about}", memory.length, memory.smaps().anon_huge_pages)
            live.expect(f"Rss, {about}", memory.length, memory.smaps().rss)
            _expect_parts(live, memory, parts)
            memory.actor.end()


@DEFERRED.case(
    "a huge page with more zeroed pages than max_ptes_none that is moved to another node, by any call, and back, is"
    " whole there, and still split by the shrinkers",
    f"{UNDERUSED}; mm/migrate.c migrate_folio_move()",
    since=SINCE,
    nodes=2,
)
def underused_and_moved(live: Live) -> None:
    version = live.kernel_version
    if version < _MOVED_IS_QUEUED and not version.follows_any([_MOVED_IS_QUEUED_BY_BACKPORT]):
        raise CannotRun("this kernel may take a huge page off the list of those to split when it moves")
    here, there = two_nodes_with_room(live, 1)
    live.set_knob(f"{DIRECTORY}/shrink_underused", "1")
    base = live.base_page
    allow_absent(live, _base_pages(live, pmd_size(live)) // 2)
    for (by, moves), place in product(product(MOVES, (1, 2)), (0, pmd_size(live) - base)):
        with live.about(f"{by}, {moves} times, written: the base page at {place}"):
            memory = _used(live, ((place, base),), here)
            for source, target in ((here, there), (there, here))[:moves]:
                move_all(live, memory, by, source, target)
                expect_all_huge(live, memory, f"on node {target}", target)
            _shrink(live)
            memory.expect_huge(0)
            live.expect("Rss", base, memory.smaps().rss)
            _expect_parts(live, memory, ((place, base),))
        memory.actor.end()


def _written_parts(live: Live) -> dict[str, _Parts]:
    """Return parts of a huge page to write, and what they are called.

    The kernel looks at the base pages in their order, and ends when it has seen enough of either kind: so those of
    zeroes come first, last and between, and are all but a few or a few.
    """
    size, base = pmd_size(live), live.base_page
    quarter, step = size // 4, size // _STRIPES
    return {
        "the first quarter": ((0, quarter),),
        "the last quarter": ((size - quarter, quarter),),
        "in the middle": ((quarter, 2 * quarter),),
        "each second stripe": tuple((start, step) for start in range(step, size, 2 * step)),
        "all but the first base page": ((base, size - base),),
        "all but the last base page": ((0, size - base),),
        "a word of the first and of the last base page": ((0, WORD), (size - WORD, WORD)),
    }


def _used_pages(live: Live, parts: _Parts) -> int:
    """Return how many base pages ``parts`` are in, each of other ones."""
    return sum(-(-length // live.base_page) for _offset, length in parts)


def _expect_parts(live: Live, memory: Memory, parts: _Parts) -> None:
    """Expect ``parts`` to hold what was written there, and all else to be zero."""
    wrong = sum(memory.wrong(offset, length) for offset, length in parts)
    live.expect("words that changed", 0, wrong)
    written = sum(length for _offset, length in parts) // WORD
    live.expect("words that are not zero", written, memory.nonzero(0, memory.length))


def _half_unmapped(live: Live) -> Memory:
    """Return a huge page of which the second half is unmapped; those of others that wait to be split are split."""
    _shrink(live)
    return _unmapped(live)


def _unmapped(live: Live) -> Memory:
    memory = huge_pages(live)
    memory.actor.call("munmap", memory.address + memory.size // 2, memory.size // 2)
    return memory


def _used(live: Live, parts: _Parts, node: int | None = None) -> Memory:
    """Return a huge page, of ``node`` if given, of which only ``parts`` were written; others are split before that."""
    _shrink(live)
    set_policy(live, "madvise")
    with_blocks(live, pmd_size(live), 1, node)
    actor = live.actor()
    if node is not None:
        set_memory_policy(actor, Mode.BIND, [node])
    memory = advised(live, actor=actor)
    for offset, length in parts:
        memory.fill_part(offset, length)
    expect_all_huge(live, memory, "of a page that is used in part", node)
    return memory


def _shrink(live: Live) -> None:
    """Have all shrinkers run, the one of huge pages that wait to be split among them."""
    live.host.write("proc/sys/vm/drop_caches", _SHRINKERS)


def _expect_written(live: Live, memory: Memory, length: int) -> None:
    live.expect("words that changed", 0, memory.wrong(0, length))


def _none_failed(live: Live) -> dict[str, int]:
    """Return the counter that does not change; one of others that is pinned fails each time that shrinkers run."""
    return {} if live.host.has_others else {"thp_split_page_failed": 0}


def _base_pages(live: Live, length: int) -> int:
    return length // live.base_page


def _events(live: Live) -> dict[str, int]:
    return {name: count for name, count in read_vmstat(ObservedTree(live.host)).items() if name.startswith("thp_")}


class ThpDeferredSplit(LiveTest):
    def test_deferred_split(self) -> None:
        self.run_area(DEFERRED)
