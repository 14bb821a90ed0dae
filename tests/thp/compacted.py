"""Memory that is compacted: beforehand, by the daemon of each node, and for who wants blocks at once."""

from functools import partial

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.fragmentation import fragmentation
from hugepage_qa.cases.fragments import fragment, fragment_the_rest
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.memory_account import MemoryAccount, read_account
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.kernel.counters import read_vmstat, vmstat_delta
from hugepage_qa.kernel.memory_layout import read_free_blocks, read_zones
from hugepage_qa.kernel.tree import read_integer
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.sizes import MIB

COMPACTED = Area("thp/compacted", sizes=Sizes.ONCE)

_PROACTIVENESS = "proc/sys/vm/compaction_proactiveness"
#: one base page of two stays: half of the blocks are made again, at most
_KEPT = 2
#: of what is owed; from 15 % of fragmented free memory on it has to begin, and may end at 5 % of it
#: (fragmentation_score_wmark())
_ENOUGH, _LEAST_SCORE = 0.25, 0.2
#: runs of kswapd, while which it does nothing (__compact_finished())
_RUNS_OF_KSWAPD = "pageoutrun"
#: it looks twice a second (HPAGE_FRAG_CHECK_INTERVAL_MSEC), and after it had no success not for half a minute
_SECONDS = 60.0
#: one base page of so many stays: blocks of several sizes are free between them
_KEPT_APART = 8, 32
#: less than a part of so many of what was moved, or than what others take by the way
_PART, _BY_THE_WAY = 16, 4 * MIB
_SETTLED_SECONDS = 20.0


@COMPACTED.case(
    "with compaction_proactiveness the daemon of each node compacts its memory when that is fragmented, whatever memory"
    " of other nodes is like, and what it moves holds what it held",
    "Documentation/admin-guide/sysctl/vm.rst compaction_proactiveness; mm/compaction.c kcompactd(),"
    " should_proactive_compact_node() (65d759c8f9f5)",
    since="5.15",
    nodes=2,
)
def by_the_daemon_of_a_node(live: Live) -> None:
    for node in live.nodes[:2]:
        with live.about(f"node {node}"):
            fragments = fragment_the_rest(live, node, _KEPT)
            fragments.need_blocks(live)
            score = _score(live, node)
            if score < _LEAST_SCORE:
                raise CannotRun(f"memory of node {node} is fragmented to {score:.0%} alone")
            enough = fragments.after.blocks + int(fragments.owed * _ENOUGH)
            # compact_isolated tells of the daemons of all nodes
            frames, events = fragments.memory.frames(), read_vmstat(ObservedTree(live.host))
            live.set_knob(_PROACTIVENESS, "100")
            made = live.host.last_look(partial(_blocks, live, node), enough.__le__, _SECONDS)
            since = vmstat_delta(events, read_vmstat(ObservedTree(live.host)))
            is_moved = fragments.memory.frames() != frames
            fragments.expect_intact(live)
            if made < enough and (live.host.has_others or is_moved or since.get(_RUNS_OF_KSWAPD)):
                raise CannotRun("the daemon has compacted, or waits for kswapd, and there are not many more blocks")
            told = f"of {fragments.owed} that it can make there are {made}, of which {enough} are enough"
            live.expect(f"blocks made again: {told}", True, made >= enough)
            fragments.memory.actor.end()


@COMPACTED.case(
    "memory that is compacted to make huge pages of a pool is all there when these are given back: what was taken to"
    " move pages to is used for them, or free again, and what was moved holds what it held",
    "Documentation/admin-guide/mm/hugetlbpage.rst nr_hugepages; mm/compaction.c isolate_freepages(),"
    " fast_isolate_freepages(), release_free_list()",
)
def none_is_lost(live: Live) -> None:
    path = live.pool_file("nr_hugepages", size=pmd_size(live))
    pages = read_integer(live.host, path)
    if pages is None or live.host.has_others:
        raise CannotRun("this kernel has no pool of such pages, or others have memory that nobody counts")
    for kept in _KEPT_APART:
        fragments = fragment(live, kept)
        fragments.need_blocks(live)
        before, events = read_account(live), read_vmstat(ObservedTree(live.host))
        live.set_knob(path, str(pages + fragments.after.blocks + fragments.owed))
        moved = vmstat_delta(events, read_vmstat(ObservedTree(live.host)))["pgmigrate_success"] * live.base_page
        fragments.expect_intact(live)
        fragments.memory.actor.end()
        live.host.write(path, str(pages))
        most = max(moved // _PART, _BY_THE_WAY)
        lost = live.host.last_look(partial(_missed, live, before), most.__gt__, _SETTLED_SECONDS)
        told = f"one base page of {kept} stayed, {moved} bytes were moved"
        live.expect(f"whether {lost} bytes that nobody has are less than {most}, {told}", True, lost < most)


def _blocks(live: Live, node: int) -> int:
    return fragmentation(live, pmd_size(live), node).blocks


def _score(live: Live, node: int) -> float:
    """Return how fragmented the daemon finds a node: the mean of its zones (fragmentation_score_node())."""
    order = (pmd_size(live) // live.base_page).bit_length() - 1
    present = {zone.name: zone.present for zone in read_zones(live.host) if zone.node == node}
    total = 0.0
    for zone in read_free_blocks(live.host):
        free = sum(count << at for at, count in enumerate(zone.counts))
        if zone.node == node and free:
            smaller = sum(count << at for at, count in enumerate(zone.counts[:order]))
            total += smaller / free * present[zone.zone]
    return total / sum(present.values())


def _missed(live: Live, before: MemoryAccount) -> int:
    """Return the bytes that are neither free nor counted, and were so ``before``."""
    return read_account(live).unaccounted - before.unaccounted


class ThpCompacted(LiveTest):
    def test_compacted(self) -> None:
        self.run_area(COMPACTED)
