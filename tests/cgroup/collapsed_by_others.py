"""Huge pages that a process of one control group makes of memory of a process in another one: who pays for them."""

import errno
from collections.abc import Mapping
from functools import partial
from operator import eq

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.control_group import ControlGroup, Version, new_group
from hugepage_qa.cases.fragmentation import compact_if_short
from hugepage_qa.cases.group_memory import USED, actor_in, need_exact_charges
from hugepage_qa.cases.group_statistics import ADDED_UP_SECONDS, collapses, expect_collapses, read_statistics
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.madv_collapse import collapse, collapse_memory, expect_no_collapse
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.memory_policy import keep_to_one_cpu
from hugepage_qa.cases.thp_memory import map_aligned, mapped_huge, pmd_size
from hugepage_qa.cases.thp_policy import set_policy
from hugepage_qa.cases.thp_shared_memory import let_only_pmd_inherit
from hugepage_qa.kernel.uapi import MADV_COLLAPSE
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor

COLLAPSED_BY_OTHERS = Area("cgroup/collapsed-by-others", sizes=Sizes.ONCE)

CHARGE = "mm/khugepaged.c alloc_charge_folio(), alloc_charge_hpage(); mm/memcontrol.c get_mem_cgroup_from_mm()"
_PAGES = 4
#: by whether memory is shared
_STATISTICS = {False: "anon_thp", True: "shmem_thp"}


@COLLAPSED_BY_OTHERS.case(
    "huge pages that MADV_COLLAPSE makes of memory, private or shared, are charged to the group of the process whose"
    " memory it is, and counted for it, whoever asks: that process, or by process_madvise(2) one of its group, of a"
    " group beside it, or of none beside them; one huge page of several is charged alone, nothing changes when the"
    " caller goes, and all goes with the memory",
    f"process_madvise(2) MADV_COLLAPSE; Documentation/admin-guide/cgroup-v2.rst Memory Ownership; {CHARGE}",
    since="6.1",
)
def charged_to_the_owner(live: Live) -> None:
    owners, callers = _prepare(live)
    rows: dict[str, tuple[ControlGroup | None, ControlGroup | None]] = {
        "a caller of a group beside it": (owners, callers),
        "a caller of no group of ours": (owners, None),
        "a caller of its group": (owners, owners),
        "an owner of no group of ours": (None, callers),
    }
    for shared, statistic in _STATISTICS.items():
        for who, (owner, caller) in rows.items():
            with live.about(f"shared {shared}, {who}"):
                memory, asking = _base_pages(live, owner, shared=shared), _actor(live, caller)
                pages = _PAGES if owner else 0
                _expect_charged(live, {owners: pages, callers: 0}, statistic, huge=0)
                collapse(live, partial(_ask, memory.part(2), asking))
                live.expect("bytes in huge pages, of one", memory.size, mapped_huge(memory))
                _expect_charged(live, {owners: pages, callers: 0}, statistic, huge=1)
                _expect_collapse(live, memory, asking)
                _expect_charged(live, {owners: pages, callers: 0}, statistic, huge=_PAGES)
                asking.end()
                _expect_charged(live, {owners: pages, callers: 0}, statistic, huge=_PAGES)
                memory.unmap()
                _expect_charged(live, {owners: 0, callers: 0}, statistic, huge=0)
                memory.actor.end()
            if live.differences:
                # of which each takes its time
                return
        with live.about(f"shared {shared}, its owner"):
            memory = _base_pages(live, owners, shared=shared)
            collapse_memory(live, memory)
            _expect_charged(live, {owners: _PAGES, callers: 0}, statistic, huge=_PAGES)
            memory.actor.end()
    made = 2 * _PAGES * len(rows)
    # what has to be tried again has an allocation each time
    expect_collapses(live, owners, made)
    live.expect("thp_collapse_alloc of the callers", 0, collapses(callers))


@COLLAPSED_BY_OTHERS.case(
    "MADV_COLLAPSE of memory of another process is EBUSY where the limit of that one's group has no room for a huge"
    " page beside the base pages, and they stay what they were; the limit of the caller's group refuses nothing",
    f"process_madvise(2); madvise(2) MADV_COLLAPSE EBUSY; {CHARGE}, madvise_collapse_errno()",
    since="6.1",
)
def limit_of_the_owner(live: Live) -> None:
    owners, callers = _prepare(live)
    for group in (owners, callers):
        if group.read("memory.swap.max") is not None:
            group.write("memory.swap.max", "0")
    for shared in _STATISTICS:
        with live.about(f"shared {shared}"):
            memory, asking = _base_pages(live, owners, shared=shared), _actor(live, callers)
            owners.write("memory.max", str(memory.length + memory.size // 2))
            expect_no_collapse(live, memory, errno.EBUSY, partial(_ask, memory, asking))
            live.expect("bytes in huge pages", 0, mapped_huge(memory))
            memory.expect_filled()
            if live.differences:
                # a caller that is charged does not outlive its limit
                return
            owners.write("memory.max", "max")
            callers.write("memory.max", str(memory.size // 2))
            _expect_collapse(live, memory, asking)
            callers.write("memory.max", "max")
            for each in (memory.actor, asking):
                each.end()


def _prepare(live: Live) -> tuple[ControlGroup, ControlGroup]:
    """Return a group for owners of memory and one for callers; nothing but MADV_COLLAPSE makes huge pages."""
    need_exact_charges(live)
    let_only_pmd_inherit(live)
    set_policy(live, "never")
    compact_if_short(live, pmd_size(live), _PAGES)
    outer = new_group(live, "memory", Version.TWO)
    return outer.child("owners"), outer.child("callers")


def _actor(live: Live, group: ControlGroup | None) -> Actor:
    """Return a process that keeps to one CPU, which is charged ahead for little, in ``group`` if there is one."""
    if group:
        return actor_in(live, group)
    actor = live.actor()
    keep_to_one_cpu(live, actor)
    return actor


def _base_pages(live: Live, group: ControlGroup | None, *, shared: bool) -> Memory:
    """Return filled memory of base pages, of a new process in ``group`` if there is one."""
    memory = map_aligned(live, _PAGES, pmd_size(live), shared=shared, actor=_actor(live, group))
    memory.fill()
    live.expect("bytes in huge pages before", 0, mapped_huge(memory))
    return memory


def _expect_collapse(live: Live, memory: Memory, asking: Actor) -> None:
    """Have ``asking`` collapse memory of another process, and expect all of it to be huge, and to hold what it held."""
    collapse(live, partial(_ask, memory, asking))
    live.expect("bytes in huge pages", memory.length, mapped_huge(memory))
    memory.expect_filled()


def _ask(memory: Memory, asking: Actor) -> None:
    memory.advised_by(asking, MADV_COLLAPSE)


def _expect_charged(live: Live, pages: Mapping[ControlGroup, int], statistic: str, huge: int) -> None:
    """Expect groups to be charged for so many ``pages``; those that are charged for any have ``huge`` huge ones."""
    size = pmd_size(live)

    def found() -> list[tuple[int, int | None]]:
        # a process has some other memory
        return [
            ((group.read_number(USED) + size // 2) // size, read_statistics(group).get(statistic)) for group in pages
        ]

    expected = [(count, (huge if count else 0) * size) for count in pages.values()]
    seen = live.host.last_look(found, partial(eq, expected), ADDED_UP_SECONDS)
    live.expect(f"huge pages in {USED}, {statistic}; of the owners and of the callers", expected, seen)


class CgroupCollapsedByOthers(LiveTest):
    def test_collapsed_by_others(self) -> None:
        self.run_area(COLLAPSED_BY_OTHERS)
