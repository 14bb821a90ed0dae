"""What a fault does to get a huge page, in each mode of defrag."""

from dataclasses import dataclass, field
from functools import partial

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.changed_counters import expect_change
from hugepage_qa.cases.fragmentation import expect_at_fault, with_blocks
from hugepage_qa.cases.fragments import Fragments, take_free_blocks, without_free_blocks
from hugepage_qa.cases.khugepaged_clock import KHUGEPAGED, PATIENT_SCANS, await_khugepaged, let_rest, quicken
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.memory_policy import Mode
from hugepage_qa.cases.memory_policy import set_policy as set_memory_policy
from hugepage_qa.cases.thp_memory import map_aligned, pmd_size
from hugepage_qa.cases.thp_policy import advised, fill_in_huge_pages, set_policy
from hugepage_qa.kernel.counters import read_vmstat
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE, MADV_NOHUGEPAGE
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.oracle.rules import THP_DOC
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor

DEFRAG = Area("thp/defrag", sizes=Sizes.ONCE)

DOC = f"{THP_DOC} defrag; mm/huge_memory.c vma_thp_gfp_mask()"
_MODES = ("always", "defer", "defer+madvise", "madvise", "never")
#: modes in which a fault may reclaim and compact itself, without advice and with it
_DIRECT = {None: ("always",), MADV_HUGEPAGE: ("always", "defer+madvise", "madvise")}
#: modes in which it wakes kswapd, which wakes kcompactd
_WAKING = {None: ("defer", "defer+madvise"), MADV_HUGEPAGE: ("defer",)}
#: kswapd counts when it balances a node, and kcompactd when it is woken, by kswapd or where kswapd can do nothing
_DAEMONS = ("pageoutrun", "compact_daemon_wake")
_PAGES = 4
#: after compaction has failed it is not tried for up to so many faults: COMPACT_MAX_DEFER_SHIFT in mm/compaction.c.
#: These are counted as stalls, too (mm/page_alloc.c __alloc_pages_direct_compact())
_DEFERRED = 64
_ATTEMPTS = 1 + _DEFERRED // _PAGES
#: blocks in which nothing was found to move are passed over until it was deferred as long as it may be, at first for
#: one fault, then for twice as many (compaction_restarting()); with so many stalls all of them were looked at twice
_PASSED_OVER = 4 * _DEFERRED
#: others give free blocks back, so that a fault has no need to compact
_MOST_ATTEMPTS = 4 * (1 + _PASSED_OVER // _PAGES)
#: the daemons run at once on a machine that is not busy, and kswapd rests a tenth of a second before it sleeps
_AT_REST_SECONDS = 0.5
#: so often it is looked whether nobody does anything before a fault is tried; after what was before, once or twice
_LOOKS = 6
#: all attempts may disagree because of others, if that is not less likely than this
_UNLIKELY = 1e-4


@dataclass
class Others:
    """How often the kernel compacted, or woke daemons, while no fault was tried: then it did so for others."""

    _looks: int = 0
    _busy: int = 0
    events: dict[str, int] = field(default_factory=dict)

    def rest(self, live: Live) -> bool:
        """Wait a little for a moment without such events; return whether it came. ``events`` are counted until then."""
        self.events = _events(live)
        for look in range(_LOOKS):
            before = self.events
            live.host.pause(_AT_REST_SECONDS)
            self.events = _events(live)
            is_rest = before == self.events
            # at first it may be what was before
            self._looks += is_rest or look > 0
            self._busy += not is_rest and look > 0
            if is_rest:
                return True
        return False

    def may_explain(self, attempts: int) -> bool:
        """Tell whether ``attempts`` may all have met others, as often as these were met without a fault."""
        return bool(((self._busy + 1) / (self._looks + 1)) ** attempts > _UNLIKELY)

    def __str__(self) -> str:
        return f"{self._busy} of {self._looks} moments without a fault"


@dataclass(frozen=True)
class Effort:
    """What a fault does for a huge page: it compacts memory itself, or wakes the daemons that do."""

    compacts: bool
    wakes: bool

    def __str__(self) -> str:
        compacts = "compacts" if self.compacts else "does not compact"
        return f"{compacts}, {'wakes' if self.wakes else 'does not wake'} kswapd or kcompactd"


@DEFRAG.case(
    "in each mode a fault gets a huge page, advised or not, as long as there are free blocks",
    DOC,
)
def huge_pages_in_each_mode(live: Live) -> None:
    node = _roomiest_node(live)
    for mode in _MODES:
        set_policy(live, "always", defrag=mode)
        for advice in _DIRECT:
            prepare = partial(_advised_on, live, node, advice)
            expect_at_fault(live, f"defrag={mode}, advice {advice}", True, prepare, node)


@DEFRAG.case(
    "without free blocks a fault compacts itself, or wakes the daemons, or does neither, as its mode and advice say",
    f"{DOC}; {THP_DOC} compact_stall; mm/page_alloc.c __alloc_pages_slowpath(), mm/vmscan.c wakeup_kswapd()",
)
def without_free_blocks_in_each_mode(live: Live) -> None:
    fragments, actor = without_free_blocks(live)
    for mode in _MODES:
        for advice, compacting in _DIRECT.items():
            direct = mode in compacting
            effort = Effort(compacts=direct, wakes=mode in _WAKING[advice])
            _expect_effort(live, actor, fragments, mode, advice, effort)
    fragments.expect_intact(live)


@DEFRAG.case(
    "without free blocks faults that compact get huge pages, which compaction has made, and nobody's memory is changed",
    f"{THP_DOC} defrag, compact_success; mm/page_alloc.c __alloc_pages_direct_compact(), mm/compaction.c",
)
def huge_pages_by_compaction(live: Live) -> None:
    fragments, actor = without_free_blocks(live)
    stalls = huge = 0
    for _attempt in range(_MOST_ATTEMPTS):
        take_free_blocks(live, actor, fragments.memory.length, fragments.node)
        set_policy(live, "always", defrag="always")
        memory = advised(live, _PAGES, actor=actor)
        before = _events(live)["compact_stall"]
        memory.fill()
        memory.expect_filled()
        stalled = _events(live)["compact_stall"] - before
        stalls += stalled
        huge = memory.smaps().anon_huge_pages if stalled else 0
        if huge or stalls > _PASSED_OVER:
            break
    fragments.expect_intact(live)
    if not huge and stalls <= _PASSED_OVER:
        raise CannotRun(f"free blocks come back: {stalls} stalls may all be deferred, or have passed blocks over")
    if not huge and live.host.has_others:
        raise CannotRun("what compaction makes may be taken by others, or they may have what it cannot move")
    live.expect(f"a huge page after {stalls} stalls for compaction", True, huge > 0)


@DEFRAG.case(
    "a fault that gets its huge page is counted as thp_fault_alloc in each mode, and falls back to nothing",
    f"{THP_DOC} thp_fault_alloc, thp_fault_fallback",
)
def counted_in_each_mode(live: Live) -> None:
    node = _roomiest_node(live)
    for mode in _MODES:
        set_policy(live, "madvise", defrag=mode)
        with_blocks(live, pmd_size(live), _PAGES, node)
        counted = {"thp_fault_alloc": _PAGES, "thp_fault_fallback": 0}
        prepare = partial(_advised_on, live, node, MADV_HUGEPAGE)
        memory = expect_change(live, counted, prepare, partial(_fill_on, live, node), _events)
        live.expect(f"AnonHugePages with defrag={mode}", _PAGES * pmd_size(live), memory.smaps().anon_huge_pages)


def _roomiest_node(live: Live) -> int | None:
    """Return the node with the most free blocks, None where there are no several nodes.

    A fault that may not reclaim gets no huge page of another node than its own (alloc_pages_mpol() in mm/mempolicy.c).
    """
    if not live.has_several_nodes:
        return None
    return max(live.nodes, key=lambda node: live.free_blocks(node, pmd_size(live)))


def _advised_on(live: Live, node: int | None, advice: int | None) -> Memory:
    actor = live.actor()
    if node is not None:
        set_memory_policy(actor, Mode.BIND, [node])
    return advised(live, _PAGES, advice, actor=actor)


def _fill_on(live: Live, node: int | None, memory: Memory) -> None:
    fill_in_huge_pages(live, memory, node)


@DEFRAG.case(
    "without free blocks khugepaged compacts memory for its allocations with defrag=1, and with defrag=0 it does not",
    f"{THP_DOC} khugepaged defrag; mm/khugepaged.c alloc_hugepage_khugepaged_gfpmask()",
)
def khugepaged_without_free_blocks(live: Live) -> None:
    fragments, actor = without_free_blocks(live)
    memory = map_aligned(live, _PAGES, pmd_size(live), actor=actor, advice=MADV_NOHUGEPAGE)
    memory.fill()
    for defrag, compacts in (("0", False), ("1", True)):
        live.set_knob(f"{KHUGEPAGED}/defrag", defrag)
        _expect_khugepaged(live, memory, fragments, compacts=compacts)
    memory.expect_filled()
    fragments.expect_intact(live)


def _expect_khugepaged(live: Live, memory: Memory, fragments: Fragments, *, compacts: bool) -> None:
    """Expect khugepaged to compact memory, or not, where it finds no free block for ``memory``.

    That it looked for one is told by thp_collapse_alloc_failed, or by what it made. Raises CannotRun where others
    compact memory all the time, or leave it blocks.
    """
    found, others = [], Others()
    for _attempt in range(_ATTEMPTS):
        take_free_blocks(live, memory.actor, fragments.memory.length, fragments.node)
        set_policy(live, "madvise")
        memory.advise(MADV_NOHUGEPAGE)
        if not others.rest(live):
            continue
        before = read_vmstat(ObservedTree(live.host))
        memory.advise(MADV_HUGEPAGE)
        quicken(live)
        failed = partial(_rose, live, before, "thp_collapse_alloc_failed")
        compacted = partial(_rose, live, before, "compact_stall")
        await_khugepaged(live, compacted if compacts else failed, PATIENT_SCANS)
        let_rest(live)
        if failed() or compacted():
            found.append(compacted())
            if found[-1] == compacts:
                return
    if not found:
        raise CannotRun(f"free blocks come back before khugepaged looks for one, others: {others}")
    if others.may_explain(len(found)):
        raise CannotRun(f"others compact memory, too, in {others}")
    live.fail("whether khugepaged compacts", compacts, found[-1])


def _rose(live: Live, before: dict[str, int], name: str) -> bool:
    return read_vmstat(ObservedTree(live.host))[name] > before[name]


def _expect_effort(
    live: Live, actor: Actor, fragments: Fragments, mode: str, advice: int | None, expected: Effort
) -> None:
    """Expect a fault to make this effort; what others on the machine do meanwhile is counted, too: tried again.

    Compaction may fail, so no huge page is owed to a fault that compacts. After it has failed it is deferred: there are
    as many faults as that may last. A huge page without compaction is a block that others gave back: it says nothing.
    Raises CannotRun where there is always one, and where others do so much that no fault is told from them.
    """
    efforts, others = [], Others()
    for _attempt in range(_ATTEMPTS):
        take_free_blocks(live, actor, fragments.memory.length, fragments.node)
        set_policy(live, "always", defrag=mode)
        memory = advised(live, _PAGES if expected.compacts else 1, advice, actor=actor)
        if not others.rest(live):
            continue
        found, is_huge = _effort(live, memory, others.events)
        if found.compacts or not is_huge:
            efforts.append(found)
            if found == expected:
                return
    if not efforts:
        raise CannotRun(f"free blocks come back while faults with defrag={mode} are looked at, others: {others}")
    if others.may_explain(len(efforts)):
        raise CannotRun(f"others compact memory or wake kswapd, too, in {others}")
    live.fail(f"a fault with defrag={mode}, advice {advice}", str(expected), str(efforts[-1]))


def _effort(live: Live, memory: Memory, before: dict[str, int]) -> tuple[Effort, bool]:
    """Return what the faults of ``memory`` do, and whether one of them gets a huge page."""
    memory.actor.fill(memory.address, memory.length, memory.size, 1)
    live.host.pause(_AT_REST_SECONDS)
    after = _events(live)
    rose = {name for name in after if after[name] > before[name]}
    return Effort("compact_stall" in rose, not rose.isdisjoint(_DAEMONS)), memory.smaps().anon_huge_pages > 0


def _events(live: Live) -> dict[str, int]:
    counters = read_vmstat(ObservedTree(live.host))
    return {name: counters[name] for name in ("compact_stall", "thp_fault_alloc", "thp_fault_fallback", *_DAEMONS)}


class ThpDefrag(LiveTest):
    def test_defrag(self) -> None:
        self.run_area(DEFRAG)
