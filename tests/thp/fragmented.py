"""Memory that is fragmented on purpose: what compaction makes of it, and huge pages afterwards."""

import mmap
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from statistics import median

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.changed_counters import expect_change, read_counters
from hugepage_qa.cases.fragmentation import SAMPLES, expect_no_shortage
from hugepage_qa.cases.fragments import Compaction, Fragments, fragment, fragment_nodes, without_free_blocks
from hugepage_qa.cases.khugepaged_clock import let_rest
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.madv_collapse import collapse_memory
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.pinned_pages import pipe_with
from hugepage_qa.cases.thp_memory import map_aligned, pmd_size
from hugepage_qa.cases.thp_policy import advised, need_sizes, set_policy, smaller_sizes
from hugepage_qa.kernel.counters import read_meminfo, vmstat_delta
from hugepage_qa.kernel.nodes import read_nodes
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.tree import size_name
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.oracle.rules import THP_DOC
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor

FRAGMENTED = Area("thp/fragmented", sizes=Sizes.ONCE)

COMPACTION = "Documentation/admin-guide/sysctl/vm.rst compact_memory; mm/compaction.c compact_zone(), mm/migrate.c"
#: one base page of so many stays
_KEPT = 8
#: of the blocks that held our pages, or of those that are owed; as much by others hides what compaction does
_ENOUGH = 0.25
_HUGE_PAGES = 16
#: base pages of a folio that is large, of which none could be moved: others that could not be are some five
_LARGE_FOLIO = 16
#: held folios, one for so many huge pages, which are at most one part of so many of the memory
_HELD, _APART, _PARTS = 32, 8, 3
#: blocks of half a huge page that lie about; and places that are written lie a prime number of base pages apart
_MOST_BLOCKS, _FURTHER = 256, 37
#: processes for each CPU: more than the case itself and daemons that go mad by it
_BUSY = 2.0


@FRAGMENTED.case(
    "compaction makes free blocks of fragmented memory again, and the pages that it moves hold what they held",
    COMPACTION,
)
def blocks_made_again(live: Live) -> None:
    found = _Found()
    for _sample in range(SAMPLES):
        fragments = fragment(live, _KEPT)
        found.look(live, fragments)
        fragments.memory.actor.end()
    found.expect_enough(live)


@FRAGMENTED.case(
    "compaction that is asked for makes free blocks again of memory that is fragmented by shared memory, too, and the"
    " pages that it moves hold what they held",
    f"{COMPACTION}; mm/compaction.c isolate_migratepages_block(), compact_node()",
)
def blocks_of_shared_memory(live: Live) -> None:
    found = _Found()
    for _sample in range(SAMPLES):
        fragments = fragment(live, _KEPT, shared=True)
        found.look(live, fragments)
        fragments.memory.actor.end()
    found.expect_enough(live)


@FRAGMENTED.case(
    "what is written to compact of a node makes free blocks of its fragmented memory again, and moves none of another"
    " node",
    "Documentation/ABI/stable/sysfs-devices-node compact; mm/compaction.c compact_store(), compact_node()",
    nodes=2,
)
def blocks_of_a_node_alone(live: Live) -> None:
    found: dict[int | None, _Found] = defaultdict(_Found)
    stayed = []
    for sample in range(SAMPLES):
        first, second = fragment_nodes(live, live.nodes[:2], _KEPT)[:: -1 if sample % 2 else 1]
        held = second.blocks(live)
        found[first.node].look(live, first)
        stayed.append(len(held & second.blocks(live)) / len(held))
        found[second.node].look(live, second)
        for fragments in (first, second):
            fragments.memory.actor.end()
    told = ", ".join(f"{share:.0%}" for share in stayed)
    live.expect(f"blocks of the other node that keep our pages: {told} are most", True, median(stayed) > 1 - _ENOUGH)
    for node, of_node in found.items():
        with live.about(f"node {node}"):
            of_node.expect_enough(live)


class _Found:
    """What compaction made of fragmented memory, each time that was looked at."""

    def __init__(self) -> None:
        self._compactions: list[Compaction] = []
        self._ended = 0
        self._load = 0.0

    def look(self, live: Live, fragments: Fragments) -> None:
        """Have ``fragments`` compacted, and expect them to hold what they held."""
        self._load = max(self._load, _load_of_a_cpu(live))
        if fragments.owes_blocks:
            before = read_counters(live)
            self._compactions.append(fragments.compact_and_look(live))
            change, enough = vmstat_delta(before, read_counters(live)), self._compactions[-1].share >= _ENOUGH
            # of what ends at a large folio on its way through one node none is counted
            live.expect("pgmigrate_success rose", True, change["pgmigrate_success"] > 0 or not enough)
            self._ended += not enough and change["pgmigrate_fail"] >= _LARGE_FOLIO
        else:
            fragments.compact(live)
        fragments.expect_intact(live)

    def expect_enough(self, live: Live) -> None:
        """Expect it to have made enough most times. Raises CannotRun where others have hidden what it does."""
        found = self._compactions
        if not found:
            raise CannotRun(f"memory is fragmented already: {live.notes[-1]}")
        shares = [one.share for one in found if one.emptied >= _ENOUGH or one.others < _ENOUGH]
        told = "; ".join(map(str, found))
        if not shares:
            raise CannotRun("others take and free as much as compaction can make")
        if median(shares) < _ENOUGH and self._load > _BUSY:
            raise CannotRun("others are busy: what is given back is theirs before compaction gets it")
        # what others hold
        known = {Quirk.COMPACTION_ENDS_AT_LARGE_FOLIO: False} if self._ended > len(found) // 2 else None
        live.expect(f"blocks made again: most of {told} are enough", True, median(shares) >= _ENOUGH, known)


@FRAGMENTED.case(
    "compaction goes on behind large folios of a file that somebody holds, and which it cannot move",
    COMPACTION,
    since="6.11",
)
def behind_held_folios(live: Live) -> None:
    release = _hold_large_folios(live)
    fragments = fragment(live, _KEPT)
    fragments.need_blocks(live)
    held = fragments.compact_and_look(live).share
    release()
    free = fragments.compact_and_look(live).share
    fragments.expect_intact(live)
    if max(held, free) < _ENOUGH:
        raise CannotRun("these folios do not lie below the fragmented memory, or others take what compaction makes")
    known = {Quirk.COMPACTION_ENDS_AT_LARGE_FOLIO: False}
    live.expect(
        f"blocks made again: {held:.0%} are enough, {free:.0%} without the folios", True, held >= _ENOUGH, known
    )


def _hold_large_folios(live: Live) -> Callable[[], None]:
    """Have a process hold large folios of shared memory all over a part of what is free; return what ends it.

    Raises CannotRun where huge pages are so large that this would be most of the memory.
    """
    size = pmd_size(live)
    half = size // 2
    if _HELD * _APART * size > read_meminfo(live.host).get("MemAvailable", 0) // _PARTS:
        raise CannotRun(f"memory is short: {_HELD * _APART} huge pages are more than a part of it")
    live.set_knob(f"{DIRECTORY}/{size_name(half)}/shmem_enabled", "always")
    memory = map_aligned(live, _HELD * _APART, size, shared=True)
    memory.actor.fill(memory.address, memory.length, live.base_page, 1)
    for page in range(0, memory.pages, _APART):
        first = memory.at(page)
        pipe_with(live, Memory(live, memory.actor, first, 1, size))
        memory.actor.call("madvise", first + half, _APART * size - half, mmap.MADV_REMOVE)
    return memory.actor.end


def _load_of_a_cpu(live: Live) -> float:
    """Return how many processes have run or waited for each CPU in the last minute (proc_loadavg(5))."""
    load = float((live.host.observe("proc/loadavg") or "0").split()[0])
    cpus = sum(len(node.cpus) for node in read_nodes(live.host).each.values())
    return load / max(1, cpus)


@FRAGMENTED.case(
    "after fragmentation and compaction faults get huge pages, counted, and neither they nor the rest are damaged",
    f"{COMPACTION}; {THP_DOC} thp_fault_alloc",
)
def huge_pages_afterwards(live: Live) -> None:
    for _sample in range(SAMPLES):
        fragments = fragment(live, _KEPT)
        fragments.compact(live)
        expect_no_shortage(live, fragments.memory.size, _HUGE_PAGES)
        counted = {"thp_fault_alloc": _HUGE_PAGES, "AnonHugePages": _HUGE_PAGES * fragments.memory.size}
        memory = expect_change(live, counted, partial(advised, live, _HUGE_PAGES), Memory.fill)
        memory.expect_huge()
        memory.expect_filled()
        fragments.expect_intact(live)
        memory.actor.end()
        fragments.memory.actor.end()


@FRAGMENTED.case(
    "MADV_COLLAPSE makes huge pages of what is left of fragmented memory, and zeroes of what is absent",
    "madvise(2) MADV_COLLAPSE; mm/khugepaged.c __collapse_huge_page_copy()",
    since="6.1",
)
def collapsed(live: Live) -> None:
    fragments = fragment(live, _KEPT)
    memory = fragments.memory
    expect_no_shortage(live, memory.size, _HUGE_PAGES)
    for page in range(_HUGE_PAGES):
        collapse_memory(live, memory.part(page))
    huge = _HUGE_PAGES * memory.size
    live.expect("AnonHugePages", huge, memory.smaps().anon_huge_pages)
    live.expect("Rss", huge + (memory.length - huge) // _KEPT, memory.smaps().rss)
    fragments.expect_intact(live)
    # each page that is left holds one word
    left = huge // (_KEPT * live.base_page)
    live.expect("words that are not zero", left, memory.nonzero(0, huge))


@FRAGMENTED.case(
    "where memory has no free block of the largest size that is enabled, whoever writes gets the next smaller one that"
    " is enabled and that it has blocks of, wherever that is written, and no base page",
    f"{THP_DOC} anon_fault_fallback; mm/memory.c alloc_anon_folio()",
    since="6.8",
)
def next_smaller_size(live: Live) -> None:
    let_rest(live)
    *smaller, (largest, _path) = need_sizes(smaller_sizes(live))
    fragments, actor = without_free_blocks(live)
    set_policy(live, "madvise", pmd="never", defrag="never")
    faults = _Faults(live, actor)
    if not any(faults.given(_MOST_BLOCKS, largest) < largest for _sample in range(SAMPLES)):
        raise CannotRun(f"memory has blocks of {largest >> 10} kB all the same")
    had = [size for size, _path in smaller if faults.given(1, size) == size]
    rows = [(size, {size, largest}) for size in had]
    rows += [(size, {each for each in had if each <= size} | {largest}) for size in had[1:]]
    judged = 0
    for size, allowed in rows:
        found = faults.given(1, *allowed)
        # a larger one that was free after all tells nothing, nor does one that others have taken
        if found == size or (found < size and faults.given(1, size) == size):
            judged += 1
            live.expect(
                f"bytes of a fault where {[each >> 10 for each in sorted(allowed)]} kB are enabled", size, found
            )
    fragments.expect_intact(live)
    if not judged:
        raise CannotRun("others take and free blocks of these sizes")


class _Faults:
    """Faults of ``actor`` in new memory, of which each tells how much it got."""

    def __init__(self, live: Live, actor: Actor) -> None:
        self._live = live
        self._actor = actor
        self._times = 0

    def given(self, most: int, *sizes: int) -> int:
        """Write where nothing is until that gets less than the largest of ``sizes``, which alone are enabled.

        Returned is what the last of ``most`` faults got, in bytes; all of it stays.
        """
        live = self._live
        for size, path in smaller_sizes(live):
            live.set_knob(f"{path}/enabled", "madvise" if size in sizes else "never")
        found = 0
        memory = map_aligned(live, most, pmd_size(live), actor=self._actor, advice=MADV_HUGEPAGE)
        for page in range(most):
            self._times += 1
            place = self._times * _FURTHER * live.base_page % memory.size
            self._actor.write(memory.at(page) + place, 1)
            found = len(memory.part(page).present_frames(1)) * live.base_page
            if found < max(sizes):
                break
        return found


class ThpFragmented(LiveTest):
    def test_fragmented(self) -> None:
        self.run_area(FRAGMENTED)
