"""Transparent huge pages in control groups: what is charged for them, what memory.stat shows, what a limit refuses."""

import mmap
from collections.abc import Callable, Mapping
from functools import partial, wraps

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.control_group import ControlGroup, Version, new_group
from hugepage_qa.cases.fragmentation import compact_if_short
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.thp_memory import collapse, expect_change, pmd_size
from hugepage_qa.cases.thp_policy import advised, set_policy
from hugepage_qa.kernel.tree import parse_integer
from hugepage_qa.kernel.uapi import MADV_COLLAPSE
from hugepage_qa.oracle.rules import THP_DOC
from hugepage_qa.plugins.avocado_test import LiveTest

TRANSPARENT = Area("cgroup/transparent", sizes=Sizes.ONCE)

DOC = "Documentation/admin-guide/cgroup-v2.rst"
_PAGES = 4
_SHRINKERS = "2"
#: statistics of a group are added up every two seconds (mm/memcontrol.c FLUSH_TIME)
_SECONDS = 6.0

GroupAct = Callable[[Live, ControlGroup], None]


def case(statement: str, source: str, *, since: str) -> Callable[[GroupAct], None]:
    """Make the decorated function, which gets a group of its own, a case."""

    def register(act: GroupAct) -> None:
        @wraps(act)
        def in_group(live: Live) -> None:
            set_policy(live, "madvise")
            compact_if_short(live, pmd_size(live), _PAGES)
            act(live, new_group(live, "memory", Version.TWO))

        TRANSPARENT.case(statement, source, since=since)(in_group)

    return register


@case(
    "a huge page is charged to the group of the process that touches it, is in its anon_thp, and goes with its memory",
    f"{DOC} memory.current, memory.stat anon, anon_thp, thp_fault_alloc; mm/memcontrol.c charge_memcg()",
    since="5.11",
)
def charged_and_given_back(live: Live, group: ControlGroup) -> None:
    memory = _memory_in(live, group)
    before = _current(group)
    memory.fill()
    live.expect("AnonHugePages", memory.length, memory.smaps().anon_huge_pages)
    _expect_charged(live, group, before, _PAGES)
    _expect_stat(live, group, {"anon_thp": memory.length, "thp_fault_alloc": _PAGES})
    memory.expect_filled()
    memory.advise(mmap.MADV_DONTNEED, 0, 1)
    _expect_charged(live, group, before, _PAGES - 1)
    _expect_stat(live, group, {"anon_thp": memory.length - memory.size, "thp_fault_alloc": _PAGES})
    memory.unmap()
    _expect_charged(live, group, before, 0)
    _expect_stat(live, group, {"anon_thp": 0, "thp_fault_alloc": _PAGES})


@case(
    "a collapse charges the group for the huge page and no longer for the base pages, and is counted for it",
    f"{DOC} memory.stat thp_collapse_alloc; mm/khugepaged.c alloc_charge_hpage()",
    since="6.1",
)
def charged_for_a_collapse(live: Live, group: ControlGroup) -> None:
    memory = _memory_in(live, group)
    set_policy(live, "never")
    before = _current(group)
    memory.fill()
    live.expect("AnonHugePages before", 0, memory.smaps().anon_huge_pages)
    _expect_charged(live, group, before, _PAGES)
    collapse(live, partial(memory.advise, MADV_COLLAPSE))
    live.expect("AnonHugePages", memory.length, memory.smaps().anon_huge_pages)
    _expect_charged(live, group, before, _PAGES)
    _expect_stat(live, group, {"anon_thp": memory.length, "thp_fault_alloc": 0, "thp_collapse_alloc": _PAGES})
    memory.expect_filled()
    memory.unmap()
    _expect_charged(live, group, before, 0)


@case(
    "huge pages of a group that are unmapped in part are split by the shrinkers, and the group pays for the rest alone",
    f"{THP_DOC} thp_deferred_split_page; mm/huge_memory.c deferred_split_scan(), deferred_split_count()",
    since="5.4",
)
def charged_for_the_rest(live: Live, group: ControlGroup) -> None:
    memory = _memory_in(live, group)
    before = _current(group)
    memory.fill()
    live.expect("AnonHugePages", memory.length, memory.smaps().anon_huge_pages)
    half = memory.size // 2
    for page in range(_PAGES):
        memory.actor.call("munmap", memory.at(page) + half, half)
    live.host.write("proc/sys/vm/drop_caches", _SHRINKERS)
    _expect_charged(live, group, before, _PAGES // 2)
    for page in range(_PAGES):
        wrong = memory.actor.check(memory.at(page), half, WORD, 1 + page * memory.size)
        live.expect("words of the rest that changed", 0, wrong)


@case(
    "where the limit of a group has no room for a huge page the process gets base pages, and the refusal is counted",
    f"{THP_DOC} thp_fault_fallback_charge; mm/huge_memory.c vma_alloc_anon_folio_pmd()",
    since="5.8",
)
def refused_by_a_limit(live: Live, group: ControlGroup) -> None:
    group.write("memory.max", str(pmd_size(live) // 2))
    counted = {"thp_fault_fallback": 1, "thp_fault_fallback_charge": 1, "thp_fault_alloc": 0}
    refused = expect_change(live, counted, partial(_memory_in, live, group), Memory.touch)
    live.expect("AnonHugePages", 0, refused.smaps().anon_huge_pages)
    eighth = refused.size // 8
    refused.actor.fill(refused.address, eighth, WORD, 1)
    live.expect("Rss", eighth, refused.smaps().rss)
    live.expect("words that changed", 0, refused.actor.check(refused.address, eighth, WORD, 1))
    group.write("memory.max", "max")
    refused.touch(1)
    live.expect("AnonHugePages without a limit", refused.size, refused.smaps().anon_huge_pages)


def _memory_in(live: Live, group: ControlGroup) -> Memory:
    """Return advised memory that was not touched, of a process in ``group``."""
    actor = live.actor()
    group.add(actor)
    return advised(live, _PAGES, actor=actor)


def _current(group: ControlGroup) -> int:
    return parse_integer((group.read("memory.current") or "").strip(), f"{group.path}/memory.current")


def _expect_charged(live: Live, group: ControlGroup, before: int, pages: int) -> None:
    """Expect what the group is charged to have risen by ``pages`` huge pages.

    Each CPU may be charged for 64 base pages that nobody has yet, so that up to one huge page may differ.
    """
    size = pmd_size(live)
    live.host.wait_until(lambda: abs(_current(group) - before - pages * size) < size, _SECONDS)
    charged = (_current(group) - before) / size
    live.expect(f"memory.current rose by {pages} huge pages, one is within the error", True, abs(charged - pages) < 1)


def _expect_stat(live: Live, group: ControlGroup, expected: Mapping[str, int]) -> None:
    live.host.wait_until(lambda: _stat(group, expected) == expected, _SECONDS)
    live.expect("memory.stat", expected, _stat(group, expected))


def _stat(group: ControlGroup, names: Mapping[str, int]) -> dict[str, int]:
    lines = dict(line.split() for line in (group.read("memory.stat") or "").splitlines())
    return {name: int(lines.get(name, "-1")) for name in names}


class CgroupTransparent(LiveTest):
    """Transparent huge pages in control groups.

    :avocado: enable
    """

    def test_transparent(self) -> None:
        """Every case, once for the machine."""
        self.run_area(TRANSPARENT)
