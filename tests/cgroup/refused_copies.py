"""Copies of base pages that the limit of a control group refuses: what becomes of the page that was to be copied."""

import mmap
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.control_group import ControlGroup, Version, new_group
from hugepage_qa.cases.group_memory import expect_killed
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.memory_policy import Mode, set_policy
from hugepage_qa.cases.thp_memory import map_aligned, pmd_size, room_for
from hugepage_qa.cases.thp_nodes import expect_moved_between, filled_on, two_nodes_with_room
from hugepage_qa.cases.thp_policy import map_in_parts
from hugepage_qa.cases.thp_shared_memory import expect_mapped_whole, map_start, nameless_file
from hugepage_qa.kernel.uapi import MADV_NOHUGEPAGE, MAP_FIXED
from hugepage_qa.plugins.avocado_test import LiveTest

REFUSED_COPIES = Area("cgroup/refused-copies", sizes=Sizes.ONCE)

REFUSED = (
    "Documentation/admin-guide/cgroup-v2.rst memory.max; move_pages(2) EBUSY; mm/memory.c wp_page_copy(),"
    " do_cow_fault(); mm/migrate.c folio_expected_refs()"
)
_VALUE = 77


@REFUSED_COPIES.case(
    "who writes to what its parent has, too, a huge page, one that is mapped in parts, or base pages, and may not have"
    " a copy for the limit of its group is killed; the parent has what it had, and nobody keeps it from moving to"
    " another node and back",
    f"fork(2); {REFUSED}",
    since="5.11",
    nodes=2,
)
def inherited(live: Live) -> None:
    here, there = two_nodes_with_room(live, 2)
    group = _group_without_memory(live)
    for parts in ("", "mapped", "base pages"):
        actor = live.actor()
        if parts == "base pages":
            set_policy(actor, Mode.BIND, [here])
            memory = map_aligned(live, 1, pmd_size(live), actor=actor, advice=MADV_NOHUGEPAGE)
            memory.fill()
        else:
            memory = filled_on(live, actor, here, 1)
        if parts == "mapped":
            map_in_parts(live, memory)
        with live.about(parts or "a huge page"):
            _expect_free_to_move(live, group, memory, memory.fork(), (here, there))
        if live.differences:
            # each of the others would be waited for as long
            return


@REFUSED_COPIES.case(
    "who writes to a private mapping of a huge page of a file, be it mapped whole or by base pages, and may not have a"
    " copy for the limit of its group is killed, the first time and a later one; who shares the file has what it had,"
    " and nobody keeps it from moving to another node and back",
    f"mmap(2) MAP_PRIVATE; {REFUSED}",
    since="5.11",
    nodes=2,
)
def of_a_file(live: Live) -> None:
    here, there = two_nodes_with_room(live, 2)
    group = _group_without_memory(live)
    size, base = pmd_size(live), live.base_page
    for offset, has_copies in product((0, base), (False, True)):
        actor = live.actor()
        set_policy(actor, Mode.BIND, [here])
        file = nameless_file(live, actor, "always")
        memory = map_start(live, actor, file)
        memory.fill()
        expect_mapped_whole(live, memory, 1)
        other = actor.fork()
        # where it is not aligned as the file is, no huge page is mapped whole
        place = room_for(other, 2, size) + offset
        other.mmap(size, READ_WRITE, mmap.MAP_PRIVATE | MAP_FIXED, file, address=place)
        private = Memory(live, other, place, 1, size)
        if has_copies:
            # whatever else a copy takes is there
            other.write(place + size - base, _VALUE)
        with live.about(f"{offset} bytes behind a huge page, a copy before {has_copies}"):
            _expect_free_to_move(live, group, memory, private, (here, there))
        if live.differences:
            return


def _group_without_memory(live: Live) -> ControlGroup:
    """Return a group that may use no memory more. Raises CannotRun."""
    # 2 would end the machine
    live.set_knob("proc/sys/vm/panic_on_oom", "0")
    group = new_group(live, "memory", Version.TWO)
    group.write("memory.max", "0")
    return group


def _expect_free_to_move(
    live: Live, group: ControlGroup, memory: Memory, other: Memory, nodes: tuple[int, int]
) -> None:
    """Expect who has ``other`` to be killed in ``group`` for a write, and the same ``memory`` to move between nodes."""
    live.expect("what is read", 1, other.read())
    expect_killed(live, group, partial(other.touch, value=_VALUE), other.actor)
    memory.expect_filled()
    for source, target in (nodes, nodes[::-1]):
        expect_moved_between(live, memory, source, target)
    memory.expect_filled()
    memory.actor.end()


class CgroupRefusedCopies(LiveTest):
    def test_refused_copies(self) -> None:
        self.run_area(REFUSED_COPIES)
