"""Control groups that were removed: the kernel forgets each when all that it was charged for has gone."""

import mmap
from collections.abc import Callable

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.control_group import ControlGroup, Version, new_group
from hugepage_qa.cases.fragmentation import with_blocks
from hugepage_qa.cases.group_memory import actor_in, events, give_what_is_in_swap, huge_pages_in
from hugepage_qa.cases.hugetlb_files import new_memfd
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.madv_collapse import collapse_memory
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.memory_policy import move_all
from hugepage_qa.cases.places import free_place
from hugepage_qa.cases.swapped import need_swap, page_all_out
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.cases.thp_policy import advised, set_policy
from hugepage_qa.cases.thp_shared_memory import expect_shared, let_only_pmd_inherit, map_start, nameless_file
from hugepage_qa.kernel.uapi import (
    FALLOC_FL_KEEP_SIZE,
    FALLOC_FL_PUNCH_HOLE,
    MADV_COLD,
    MADV_DONTNEED,
    MADV_HUGEPAGE,
    MADV_NOHUGEPAGE,
)
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.plugins.avocado_test import LiveTest

FORGOTTEN = Area("cgroup/forgotten-groups", sizes=Sizes.ONCE)

DOC = "Documentation/admin-guide/cgroup-v2.rst cgroup.stat nr_dying_descendants"
_PAGES = 2
_DYING = "nr_dying_descendants"
#: workers of the kernel take a group offline, one after the other, and wait for RCU
_FORGOTTEN_SECONDS = 15.0
_ATTEMPTS = 4

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
    # before 0ff67f990bd4 a CPU could keep 64 slots that were given back, with their charge (mm/swap_slots.c)
    since="6.15",
)
def pages_in_swap(live: Live) -> None:
    need_swap(live, _PAGES * pmd_size(live))
    _expect_forgotten(live, _in_swap, _back_from_swap)


@FORGOTTEN.case(
    "a group is forgotten that had hugetlb pages reserved for it, by a private mapping or for a file, whether they were"
    " used, and moved by mremap(2), or not",
    f"{DOC}; mm/hugetlb.c hugetlb_reserve_pages(), clear_vma_resv_huge_pages(),"
    " resv_map_put_hugetlb_cgroup_uncharge_info() (afe041c2d0fe)",
    sizes=Sizes.BUDDY,
    since="5.16",  # 550a7d60bd5e: mremap(2) of hugetlb pages
    pages=_PAGES,
)
def reserved_pages(live: Live) -> None:
    parent = new_group(live, "hugetlb", Version.TWO)
    uses = _reserved, _used_of_the_pool, _moved_by_mremap, _reserved_for_a_file, _used_of_a_file, _reserved_twice
    _expect_forgotten_below(live, parent, *uses)


def _expect_forgotten(live: Live, *uses: Use) -> None:
    """Expect a group to be forgotten when it has been removed, and what is in ``uses`` of it has ended."""
    let_only_pmd_inherit(live)
    set_policy(live, "madvise")
    _expect_forgotten_below(live, new_group(live, "memory", Version.TWO), *uses)


def _expect_forgotten_below(live: Live, parent: ControlGroup, *uses: Use) -> None:
    """Expect so of groups below ``parent``."""

    def dying() -> int:
        counts = events(parent, "cgroup.stat")
        if _DYING not in counts:
            raise CannotRun(f"cgroup.stat has no {_DYING}")
        return counts[_DYING]

    for use in uses:
        with live.about(f"pages {use.__name__.strip('_').replace('_', ' ')}"):
            for more in range(_ATTEMPTS):
                before = dying()
                _use(live, parent.child(f"{use.__name__.strip('_')}-{more}"), use, more)
                if live.host.last_look(dying, before.__ge__, _FORGOTTEN_SECONDS) <= before:
                    break
            else:
                # each of the other uses would be waited for as long
                live.fail("whether any group is forgotten that was removed", True, False)


def _use(live: Live, group: ControlGroup, use: Use, more: int) -> None:
    """Have ``group`` charged for what is in use of it, and ``more`` base pages, and remove it when all has ended.

    A processor keeps its hold of a group for which it has charged 64 pages ahead and used exactly these, until it
    charges for others: drain_all_stock() passes such a group by. With other pages it has some left.
    """
    memory = use(live, group)
    actor, length = memory.actor, more * live.base_page
    if more:
        place = actor.mmap(length, READ_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        actor.fill(place, length, live.base_page, 1)
    actor.end()
    group.remove()
    # pages that a processor has not put on its lists yet it keeps as long as it is idle (lru_add_drain_all())
    live.compact()


def _reserved(live: Live, group: ControlGroup) -> Memory:
    return live.map(_PAGES, actor_in(live, group))


def _used_of_the_pool(live: Live, group: ControlGroup) -> Memory:
    memory = _reserved(live, group)
    memory.fill()
    return memory


def _moved_by_mremap(live: Live, group: ControlGroup) -> Memory:
    memory = _reserved(live, group)
    memory.touch()
    moved = memory.moved_to(free_place(live, memory.actor, memory.pages))
    live.expect("what was moved", 1, moved.read())
    return moved


def _reserved_for_a_file(live: Live, group: ControlGroup) -> Memory:
    return new_memfd(live, actor_in(live, group)).map(_PAGES)


def _used_of_a_file(live: Live, group: ControlGroup) -> Memory:
    memory = _reserved_for_a_file(live, group)
    memory.fill()
    return memory


def _reserved_twice(live: Live, group: ControlGroup) -> Memory:
    """Return all of a file of which a page was reserved before: for that one the group is not charged again."""
    file = new_memfd(live, actor_in(live, group))
    file.map(1, first=1)
    return file.map(_PAGES)


def _whole(live: Live, group: ControlGroup) -> Memory:
    return huge_pages_in(live, group, _PAGES)


def _split(live: Live, group: ControlGroup) -> Memory:
    """Return huge pages that are mapped in parts: the first was split for advice on one, of the second half is left."""
    memory = huge_pages_in(live, group, _PAGES)
    base, half = live.base_page, memory.size // 2
    memory.actor.call("madvise", memory.address + half, base, MADV_COLD)
    memory.actor.call("madvise", memory.at(1) + half, half, MADV_DONTNEED)
    memory.expect_huge(0, about="of what is mapped in parts")
    return memory


def _of_a_tmpfs(live: Live, group: ControlGroup) -> Memory:
    return _file_in(live, group)[0]


def _of_a_tmpfs_with_a_hole(live: Live, group: ControlGroup) -> Memory:
    memory, file = _file_in(live, group)
    hole = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
    memory.actor.call("fallocate", file, hole, memory.size // 2, live.base_page)
    return memory


def _file_in(live: Live, group: ControlGroup) -> tuple[Memory, int]:
    """Return huge pages of a file without a name on a tmpfs that a process in ``group`` has filled, and the file."""
    actor = actor_in(live, group)
    file = nameless_file(live, actor, "always")
    memory = map_start(live, actor, file, _PAGES)
    expect_shared(live, memory, True, "huge=always")
    return memory, file


def _copied(live: Live, group: ControlGroup) -> Memory:
    """Return huge pages of which a child has written one, and a part of the other."""
    memory = huge_pages_in(live, group, _PAGES)
    child = memory.fork()
    child.part(0).fill(7)
    child.touch(1, 7)
    child.actor.end()
    return memory


def _collapsed(live: Live, group: ControlGroup) -> Memory:
    memory = advised(live, _PAGES, MADV_NOHUGEPAGE, actor=actor_in(live, group))
    memory.fill()
    memory.advise(MADV_HUGEPAGE)
    with_blocks(live, memory.size, _PAGES)
    collapse_memory(live, memory)
    memory.expect_huge()
    return memory


def _moved(live: Live, group: ControlGroup) -> Memory:
    memory = huge_pages_in(live, group, _PAGES)
    here, there = live.nodes[:2]
    for source, target in ((here, there), (there, here)):
        move_all(live, memory, "move_pages", source, target)
    return memory


def _in_swap(live: Live, group: ControlGroup) -> Memory:
    memory = huge_pages_in(live, group, _PAGES)
    page_all_out(live, memory)
    # what was written lies in memory still, and keeps its slot while somebody has a hold of it
    give_what_is_in_swap(group)
    return memory


def _back_from_swap(live: Live, group: ControlGroup) -> Memory:
    memory = _in_swap(live, group)
    memory.expect_filled()
    return memory


class ForgottenGroups(LiveTest):
    def test_forgotten_groups(self) -> None:
        self.run_area(FORGOTTEN)
