"""Control groups that were removed: the kernel forgets each when all that it was charged for has gone."""

import os
from collections.abc import Callable

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.control_group import ControlGroup, Version, new_group
from hugepage_qa.cases.group_memory import actor_in, huge_pages_in
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.memory_policy import move_pages
from hugepage_qa.cases.swapped import need_swap, page_all_out
from hugepage_qa.cases.thp_memory import collapse, let_only_pmd_inherit, map_start, mount_tmpfs, need_blocks, pmd_size
from hugepage_qa.cases.thp_policy import advised, set_policy
from hugepage_qa.kernel.uapi import (
    FALLOC_FL_KEEP_SIZE,
    FALLOC_FL_PUNCH_HOLE,
    MADV_COLD,
    MADV_COLLAPSE,
    MADV_DONTNEED,
    MADV_HUGEPAGE,
    MADV_NOHUGEPAGE,
)
from hugepage_qa.plugins.avocado_test import LiveTest

FORGOTTEN = Area("cgroup/forgotten-groups", sizes=Sizes.ONCE)

DOC = "Documentation/admin-guide/cgroup-v2.rst cgroup.stat nr_dying_descendants"
_PAGES = 2
_DYING = "nr_dying_descendants"
#: workers of the kernel take a group offline, one after the other, and wait for RCU
_FORGOTTEN_SECONDS = 30.0

Use = Callable[[Live, ControlGroup], Memory]


@FORGOTTEN.case(
    "a group is forgotten that was charged for huge pages: whole ones, split ones, some of a tmpfs with a hole, and the"
    " copies of a child",
    f"{DOC}; mm/memcontrol.c split_page_memcg(), uncharge_batch(); mm/huge_memory.c __split_huge_page()",
)
def huge_pages_of_each_kind(live: Live) -> None:
    _expect_forgotten(live, _whole, _split, _of_a_tmpfs, _of_a_tmpfs_with_a_hole, _copied)


@FORGOTTEN.case(
    "a group is forgotten that was charged for huge pages which came of base pages",
    f"{DOC}; mm/khugepaged.c collapse_huge_page()",
    since="6.1",  # MADV_COLLAPSE
)
def collapsed_pages(live: Live) -> None:
    _expect_forgotten(live, _collapsed)


@FORGOTTEN.case(
    "a group is forgotten that was charged for huge pages which moved to another node",
    f"{DOC}; mm/memcontrol.c mem_cgroup_migrate()",
    nodes=2,
)
def moved_pages(live: Live) -> None:
    _expect_forgotten(live, _moved)


@FORGOTTEN.case(
    "a group is forgotten that was charged for huge pages in swap, when these have gone, read back or not",
    f"{DOC}; mm/memcontrol.c __mem_cgroup_uncharge_swap()",
    # before 0ff67f990bd4 a CPU kept up to 64 slots that were given back, with their charge (mm/swap_slots.c)
    since="6.14",
)
def pages_in_swap(live: Live) -> None:
    need_swap(live, _PAGES * pmd_size(live))
    _expect_forgotten(live, _in_swap, _back_from_swap)


def _expect_forgotten(live: Live, *uses: Use) -> None:
    """Expect a group to be forgotten when it has been removed, and what is in ``uses`` of it has ended."""
    let_only_pmd_inherit(live)
    set_policy(live, "madvise")
    parent = new_group(live, "memory", Version.TWO)
    for use in uses:
        with live.about(f"pages {use.__name__.strip('_').replace('_', ' ')}"):
            group = parent.child(use.__name__.strip("_"))
            use(live, group).actor.end()
            group.remove()

            def dying() -> int:
                lines = (line.split() for line in (parent.read("cgroup.stat") or "").splitlines())
                return {name: int(count) for name, count in lines}[_DYING]

            found = live.host.last_look(dying, lambda count: not count, _FORGOTTEN_SECONDS)
            if found:
                # each of the others would be waited for as long
                live.fail("groups that were removed and are not forgotten", 0, found)


def _whole(live: Live, group: ControlGroup) -> Memory:
    return huge_pages_in(live, group, _PAGES)


def _split(live: Live, group: ControlGroup) -> Memory:
    """Return huge pages that were split: the first by advice on a part of it, the second when a part has gone."""
    memory = huge_pages_in(live, group, _PAGES)
    base, half = live.base_page, memory.size // 2
    memory.actor.call("madvise", memory.address + half, base, MADV_COLD)
    memory.actor.call("madvise", memory.at(1) + half, half, MADV_DONTNEED)
    return memory


def _of_a_tmpfs(live: Live, group: ControlGroup) -> Memory:
    return _file_in(live, group)[0]


def _of_a_tmpfs_with_a_hole(live: Live, group: ControlGroup) -> Memory:
    memory, file = _file_in(live, group)
    hole = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
    memory.actor.call("fallocate", file, hole, memory.size // 2, live.base_page)
    return memory


def _file_in(live: Live, group: ControlGroup) -> tuple[Memory, int]:
    """Return huge pages of a file of a tmpfs without a name that a process in ``group`` has filled, and the file."""
    actor = actor_in(live, group)
    file = live.open(actor, mount_tmpfs(live, "always"), os.O_RDWR | live.host.uapi.o_tmpfile)
    memory = map_start(live, actor, file, _PAGES)
    memory.fill()
    live.expect("ShmemPmdMapped", memory.length, memory.smaps().shmem_pmd_mapped)
    return memory, file


def _copied(live: Live, group: ControlGroup) -> Memory:
    """Return huge pages of which a child has written one, and a part of the other."""
    memory = huge_pages_in(live, group, _PAGES)
    child = memory.seen_by(memory.actor.fork())
    child.part(0).fill(7)
    child.touch(1, 7)
    child.actor.end()
    return memory


def _collapsed(live: Live, group: ControlGroup) -> Memory:
    memory = advised(live, _PAGES, MADV_NOHUGEPAGE, actor=actor_in(live, group))
    memory.fill()
    memory.advise(MADV_HUGEPAGE)
    need_blocks(live, memory)
    collapse(live, lambda: memory.advise(MADV_COLLAPSE))
    live.expect("AnonHugePages", memory.length, memory.smaps().anon_huge_pages)
    return memory


def _moved(live: Live, group: ControlGroup) -> Memory:
    memory = huge_pages_in(live, group, _PAGES)
    for node in live.nodes[:2]:
        move_pages(memory.actor, [memory.at(page) for page in range(_PAGES)], [node] * _PAGES)
    return memory


def _in_swap(live: Live, group: ControlGroup) -> Memory:
    memory = huge_pages_in(live, group, _PAGES)
    page_all_out(live, memory)
    return memory


def _back_from_swap(live: Live, group: ControlGroup) -> Memory:
    memory = _in_swap(live, group)
    memory.expect_filled()
    return memory


class ForgottenGroups(LiveTest):
    """Control groups that were removed after huge pages.

    :avocado: enable
    """

    def test_forgotten_groups(self) -> None:
        """Every case, once."""
        self.run_area(FORGOTTEN)
