"""Huge pages of a process that moves to another group of version 1, and of one whose memory is swapped out."""

import errno
import mmap
from functools import partial
from operator import eq

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.control_group import ControlGroup, Version, keeping_hierarchy, new_group
from hugepage_qa.cases.group_memory import expect_about, need_exact_charges
from hugepage_qa.cases.group_statistics import ADDED_UP_SECONDS, read_statistics
from hugepage_qa.cases.khugepaged_clock import let_nobody_else_act, let_rest
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.memory_policy import keep_to_one_cpu, move_pages
from hugepage_qa.cases.pages_of_a_node import need_memory
from hugepage_qa.cases.swapped import need_swap, swap_out, swapped
from hugepage_qa.cases.thp_memory import anon_huge_pages, map_aligned, need_blocks, pmd_size
from hugepage_qa.cases.thp_policy import fill_in_huge_pages, huge_pages, map_in_parts
from hugepage_qa.cases.thp_shared_memory import expect_shared
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.version import KernelVersion

# what was charged to groups of version 2 is given back to counters of version 1 that were never charged, and the kernel
# warns (mm/memcontrol.c memcg_account_kmem(), seen on 6.1)
MOVED_CHARGES = Area("cgroup/moved-charges", sizes=Sizes.ONCE, around=keeping_hierarchy("memory"), first=True)

MOVED = "Documentation/admin-guide/cgroup-v1/memory.rst 8.2; mm/memcontrol.c mem_cgroup_move_charge_pte_range()"
#: charges stay where they are since (aa6b4fdf5940)
NEVER_SINCE = "6.13"
#: 2d146aa3aa84: before, memory.stat lacks what each CPU has not added up; usage is exact
_EXACT_SINCE = KernelVersion(5, 13)
_MOVES, _USED, _LIMIT = "memory.move_charge_at_immigrate", "memory.usage_in_bytes", "memory.limit_in_bytes"
_WITH_SWAP, _RECLAIM = "memory.memsw.usage_in_bytes", "memory.force_empty"
#: what charges move of: bits of move_charge_at_immigrate
_NOTHING, _ANONYMOUS, _OF_FILES = range(3)
_PAGES = 4


@MOVED_CHARGES.case(
    "a group that asks for it is charged for the huge pages of a process that moves there, and the old one no more, but"
    " for those that are mapped in parts; without that, or if it asks for files alone, all stay charged to the old one",
    MOVED,
    until=NEVER_SINCE,
)
def moved(live: Live) -> None:
    let_rest(live)
    parent = new_group(live, "memory", Version.ONE)
    for moves in (_NOTHING, _ANONYMOUS, _OF_FILES, _ANONYMOUS | _OF_FILES):
        with live.about(f"{_MOVES} is {moves}"):
            old, new = parent.child("old"), parent.child("new")
            _let_charges_move(live, new, moves)
            memory = _memory_in(live, old)
            # the last one is mapped in parts from now on
            map_in_parts(live, memory.part(_PAGES - 1))
            new.add(memory.actor)
            gone = _PAGES - 1 if moves & _ANONYMOUS else 0
            expect_about(live, old, _USED, _PAGES - gone)
            expect_about(live, new, _USED, gone)
            # rss_huge is what is mapped as a whole
            _expect_stat(live, old, rss=_PAGES - gone, rss_huge=_PAGES - 1 - gone)
            _expect_stat(live, new, rss=gone, rss_huge=gone)
            live.expect("AnonHugePages", (_PAGES - 1) * memory.size, anon_huge_pages(memory))
            memory.expect_filled()
            memory.unmap(0, 1)
            expect_about(live, old, _USED, _PAGES - gone if gone else _PAGES - 1)
            expect_about(live, new, _USED, max(gone - 1, 0))
            memory.actor.end()
            for group in (old, new):
                _expect_stat(live, group, rss=0, rss_huge=0)
                group.remove()


@MOVED_CHARGES.case(
    "huge pages of shared memory that move with who maps them are in the statistics of the new group with all that they"
    " have, as cache, shared memory and mapped memory, and in those of the old one no more",
    MOVED,
    until=NEVER_SINCE,
)
def shared_memory_moved(live: Live) -> None:
    let_nobody_else_act(live)
    live.set_knob(f"{DIRECTORY}/shmem_enabled", "always")
    parent = new_group(live, "memory", Version.ONE)
    old, new = parent.child("old"), parent.child("new")
    memory = map_aligned(live, _PAGES, pmd_size(live), shared=True)
    keep_to_one_cpu(live, memory.actor)
    old.add(memory.actor)
    expect_shared(live, memory, True, "shmem_enabled=always")
    # not before that: text of the process would move there, too, and stay charged when it has ended
    for group in (old, new):
        _let_charges_move(live, group, _ANONYMOUS | _OF_FILES)
    for has, has_not in ((old, new), (new, old), (old, new)):
        has.add(memory.actor)
        _expect_stat(live, has, cache=_PAGES, shmem=_PAGES, mapped_file=_PAGES)
        _expect_stat(live, has_not, cache=0, shmem=0, mapped_file=0)
    memory.expect_filled()
    memory.actor.end()
    for group in (old, new):
        _expect_stat(live, group, cache=0, shmem=0, mapped_file=0)
        group.remove()


@MOVED_CHARGES.case(
    "a process whose huge pages the new group has no room for cannot move there, ENOMEM: it and its pages stay",
    f"{MOVED}, mem_cgroup_can_attach(), mem_cgroup_precharge_mc()",
    until=NEVER_SINCE,
)
def refused(live: Live) -> None:
    parent = new_group(live, "memory", Version.ONE)
    old, new = parent.child("old"), parent.child("new")
    _let_charges_move(live, new, _ANONYMOUS)
    memory = _memory_in(live, old)
    new.write(_LIMIT, str((_PAGES - 1) * memory.size))
    live.expect_errno(errno.ENOMEM, new.add, memory.actor)
    live.expect("processes of the new group", "", (new.read("cgroup.procs") or "").strip())
    expect_about(live, old, _USED, _PAGES)
    expect_about(live, new, _USED, 0)
    _expect_stat(live, old, rss=_PAGES, rss_huge=_PAGES)
    _expect_stat(live, new, rss=0, rss_huge=0)
    memory.expect_huge()
    new.write(_LIMIT, str((_PAGES + 1) * memory.size))
    new.add(memory.actor)
    expect_about(live, old, _USED, 0)
    expect_about(live, new, _USED, _PAGES)
    memory.expect_filled()


@MOVED_CHARGES.case(
    "huge pages that are swapped out are no longer memory of their group and still its memory and swap, and they are"
    " both when they come back, and nothing when they are unmapped",
    "Documentation/admin-guide/cgroup-v1/memory.rst 2.4; mm/memcontrol.c mem_cgroup_swapout()",
    since="5.4",  # MADV_PAGEOUT
)
def swapped_out(live: Live) -> None:
    need_swap(live, _PAGES * pmd_size(live))
    group = new_group(live, "memory", Version.ONE)
    if group.read(_WITH_SWAP) is None:
        raise CannotRun(f"this kernel has no {_WITH_SWAP}, or swapaccount=0")
    memory = _memory_in(live, group)
    swap_out(live, memory, memory.length)

    def is_reclaimed() -> bool:
        # what was written to swap stays in memory until somebody needs that, and a base page that is being written
        # is passed over
        group.write(_RECLAIM, "0")
        return read_statistics(group).get("swap", 0) >= memory.length

    live.host.wait_until(is_reclaimed)
    expect_about(live, group, _USED, 0)
    expect_about(live, group, _WITH_SWAP, _PAGES)
    _expect_stat(live, group, rss=0, rss_huge=0, swap=_PAGES)
    memory.expect_filled()
    live.expect("memory in swap after it was read", 0, swapped(memory))
    expect_about(live, group, _USED, _PAGES)
    expect_about(live, group, _WITH_SWAP, _PAGES)
    swap_out(live, memory, memory.length)
    memory.unmap()
    for name in (_USED, _WITH_SWAP):
        expect_about(live, group, name, 0)
    _expect_stat(live, group, rss=0, rss_huge=0, swap=0)


@MOVED_CHARGES.case(
    "huge pages that move to another node stay charged to their group, as memory and as memory with swap",
    "Documentation/admin-guide/cgroup-v1/memory.rst 2.2, 2.4; mm/memcontrol.c mem_cgroup_migrate(); move_pages(2)",
    nodes=2,
)
def on_another_node(live: Live) -> None:
    group = new_group(live, "memory", Version.ONE).child("moving")
    if group.read(_WITH_SWAP) is None:
        raise CannotRun("memory and swap are not counted together (swapaccount=0)")
    memory = _memory_in(live, group)
    for node in (*live.nodes[:2], live.nodes[0]):
        need_memory(live, [node], memory.length)
        pages = [memory.at(page) for page in range(_PAGES)]
        live.expect("status of move_pages", [node] * _PAGES, move_pages(memory.actor, pages, [node] * _PAGES))
        # those for which there is no block there are split
        need_blocks(live, memory, node)
        memory.expect_huge()
        for name in (_USED, _WITH_SWAP):
            expect_about(live, group, name, _PAGES)
    memory.actor.end()
    for name in (_USED, _WITH_SWAP):
        expect_about(live, group, name, 0)
    group.remove()


def _let_charges_move(live: Live, group: ControlGroup, kinds: int) -> None:
    """Have those kinds of memory of who moves to ``group`` charged there. Raises Refused."""
    # 6.12 splits those first that may be split for their zeroes (f8f931bba0f9), which all may without that
    live.set_knob_if_there(f"{DIRECTORY}/shrink_underused", "0")
    group.write(_MOVES, str(kinds))


def _memory_in(live: Live, group: ControlGroup) -> Memory:
    """Return huge pages that were filled by a process in ``group``, which keeps to one CPU.

    Raises CannotRun where a CPU may be charged for too much that nobody has.
    """
    need_exact_charges(live)
    memory = huge_pages(live, _PAGES)
    # those so far are charged to where the process was
    memory.advise(mmap.MADV_DONTNEED)
    keep_to_one_cpu(live, memory.actor)
    group.add(memory.actor)
    fill_in_huge_pages(live, memory)
    memory.expect_huge(about="before")
    expect_about(live, group, _USED, _PAGES)
    _expect_stat(live, group, rss=_PAGES, rss_huge=_PAGES)
    return memory


def _expect_stat(live: Live, group: ControlGroup, **pages: int) -> None:
    """Expect memory.stat of ``group`` to show so many huge pages, and less than one besides that its processes have."""
    size = pmd_size(live)
    if live.kernel_version < _EXACT_SINCE:
        return

    def found() -> dict[str, int]:
        shown = read_statistics(group)
        return {name: shown.get(name, -1) // size for name in pages}

    live.expect("huge pages in memory.stat", pages, live.host.last_look(found, partial(eq, pages), ADDED_UP_SECONDS))


class MovedCharges(LiveTest):
    def test_moved_charges(self) -> None:
        self.run_area(MOVED_CHARGES)
