"""Memory of groups that zswap takes on its way to swap: what they are charged for it, and what their limits forbid."""

from functools import partial

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.changed_counters import expect_change
from hugepage_qa.cases.control_group import ControlGroup, Version, new_group
from hugepage_qa.cases.fragmentation import compact_if_short
from hugepage_qa.cases.group_memory import expect_all_there, huge_pages_in
from hugepage_qa.cases.group_statistics import ADDED_UP_SECONDS, read_statistics
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.swapped import only_swap, swap_out, turn_zswap_on
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.cases.thp_policy import set_policy
from hugepage_qa.kernel.uapi import MADV_PAGEOUT
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.sizes import format_size
from hugepage_qa.version import KernelVersion

ZSWAP_OF_GROUPS = Area("cgroup/zswap-of-groups", sizes=Sizes.ONCE)

DOC = "Documentation/admin-guide/cgroup-v2.rst"
_PAGES = 4
#: for longer than that no statistics of a group stay as they were (mm/memcontrol.c FLUSH_TIME)
_SETTLED_SECONDS = 3.0
#: SWAP_SLOTS_CACHE_SIZE of mm/swap_slots.c, which is gone since 0ff67f990bd4
_SLOTS_OF_A_CPU, _SLOTS_UNTIL = 64, KernelVersion(6, 15)
_LIMIT, _USED, _WRITEBACK = "memory.zswap.max", "memory.zswap.current", "memory.zswap.writeback"


@ZSWAP_OF_GROUPS.case(
    "memory of a group that zswap has taken is in its memory.stat as large as it was, and in memory.zswap.current as it"
    " is kept, of the group above, too, and each base page is an event; none is taken where memory.zswap.max of either"
    " is 0, and little more than it allows elsewhere; all of it comes back as it was, and is none of theirs when it is"
    " unmapped",
    f"{DOC} memory.zswap.current, memory.zswap.max, memory.stat zswap, zswapped, zswpout; mm/memcontrol.c"
    " obj_cgroup_may_zswap(), obj_cgroup_charge_zswap(), obj_cgroup_uncharge_zswap()",
    since="5.19",
)
def taken_and_refused(live: Live) -> None:
    _need_slots_given_back(live)
    above, group = _groups(live)
    length = _PAGES * pmd_size(live)
    memory = _swapped_out(live, group)
    for each in (group, above):
        _expect_taken(live, each, length)
        _expect_events(live, each, length)
    kept, *others = _kept(live, group, above)
    live.expect("whether it is kept in fewer bytes", True, 0 < kept < length)
    live.expect("what both groups have in zswap", [kept] * 3, others)
    memory.expect_filled()
    expect_all_there(live, memory)
    memory.actor.end()
    for each in (group, above):
        _expect_taken(live, each, 0)
    for limit in (0, kept // 2):
        for limited in (group, above):
            with live.about(f"limit {limit} of the {'group' if limited is group else 'one above'}"):
                limited.write(_LIMIT, str(limit))
                allowed = limited.read_number(_LIMIT)
                live.host.pause(_SETTLED_SECONDS)
                # of swap that is free, but still on the list of a CPU
                left = above.read_number(_USED)
                memory = _swapped_out(live, group)
                # a huge page that goes to swap as a whole is asked for once
                most = left + (allowed + kept // _PAGES + live.base_page if limit else 0)
                found = _taken_of(live, above, left, most, any_of_it=bool(limit))
                live.expect("whether zswap has taken no more than that", True, found <= most)
                live.expect("whether it has taken some", bool(limit), found > left)
                memory.expect_filled()
                memory.actor.end()
                limited.write(_LIMIT, "max")
                _expect_taken(live, above, 0)


@ZSWAP_OF_GROUPS.case(
    "where memory.zswap.writeback of a group, or of the one above it, is 0, nothing of it is written to swap that zswap"
    " does not take: it stays in memory; with 1 it is written",
    f"{DOC} memory.zswap.writeback; mm/memcontrol.c mem_cgroup_zswap_writeback_enabled(); mm/page_io.c swap_writeout()",
    since="6.11",  # that of the group above counts
)
def written_to_swap(live: Live) -> None:
    above, group = _groups(live)
    group.write(_LIMIT, "0")
    for limited in (group, above):
        with live.about(f"set for the {'group' if limited is group else 'one above'}"):
            limited.write(_WRITEBACK, "0")
            out = partial(Memory.advise, advice=MADV_PAGEOUT)
            memory = expect_change(live, {"pswpout": 0}, partial(huge_pages_in, live, group, _PAGES), out)
            expect_all_there(live, memory)
            memory.expect_filled()
            limited.write(_WRITEBACK, "1")
            memory.actor.end()
    base_pages = _PAGES * pmd_size(live) // live.base_page
    out = partial(swap_out, live, length=_PAGES * pmd_size(live))
    memory = expect_change(live, {"pswpout": base_pages}, partial(huge_pages_in, live, group, _PAGES), out)
    memory.expect_filled()


def _groups(live: Live) -> tuple[ControlGroup, ControlGroup]:
    """Return a group and one below it, with zswap and swap of this case alone. Raises CannotRun without zswap."""
    only_swap(live, 8 * _PAGES * pmd_size(live))
    turn_zswap_on(live)
    set_policy(live, "madvise")
    compact_if_short(live, pmd_size(live), _PAGES)
    above = new_group(live, "memory", Version.TWO)
    group = above.child("below")
    if group.read(_LIMIT) is None:
        raise CannotRun(f"groups have no {_LIMIT}")
    return above, group


def _swapped_out(live: Live, group: ControlGroup) -> Memory:
    memory = huge_pages_in(live, group, _PAGES)
    swap_out(live, memory, memory.length)
    return memory


def _need_slots_given_back(live: Live) -> None:
    """Raise CannotRun where a CPU may keep swap that is free, as much as half a huge page, and zswap has it still."""
    kept = _SLOTS_OF_A_CPU * live.base_page
    if live.kernel_version < _SLOTS_UNTIL and kept >= pmd_size(live) // 2:
        raise CannotRun(f"a CPU may keep {format_size(kept)} of swap that is free, before Linux {_SLOTS_UNTIL}")


def _expect_taken(live: Live, group: ControlGroup, length: int) -> None:
    """Expect zswap to have ``length`` bytes of ``group``, and less than half a huge page besides.

    Each CPU may keep some entries of swap that are free (mm/swap_slots.c).
    """
    size = pmd_size(live)

    def taken() -> int:
        return (read_statistics(group).get("zswapped", 0) + size // 2) // size

    expected = length // size
    found = live.host.last_look(taken, lambda now: now == expected, ADDED_UP_SECONDS)
    live.expect(f"huge pages of {group.path} that zswap has", expected, found)


def _expect_events(live: Live, group: ControlGroup, length: int) -> None:
    """Expect each base page of ``length`` bytes to be an event of ``group``, some of them twice."""

    def are_told(events: int) -> bool:
        return length <= events * live.base_page <= 2 * length

    events = live.host.last_look(lambda: read_statistics(group)["zswpout"], are_told, ADDED_UP_SECONDS)
    live.expect("whether each base page is an event", True, are_told(events))


def _kept(live: Live, *groups: ControlGroup) -> list[int]:
    """Return the bytes that zswap has of each group, and the same as memory.stat has it, when they agree."""

    def numbers() -> list[int]:
        return [each.read_number(_USED) for each in groups] + [read_statistics(each)["zswap"] for each in groups]

    live.host.pause(_SETTLED_SECONDS)
    return live.host.last_look(numbers, lambda seen: len(set(seen)) == 1, ADDED_UP_SECONDS)


def _taken_of(live: Live, group: ControlGroup, left: int, most: int, *, any_of_it: bool) -> int:
    """Return the bytes that zswap has of ``group``: more than were ``left`` if it has ``any_of_it``, not ``most``."""
    live.host.pause(_SETTLED_SECONDS)
    used = partial(group.read_number, _USED)
    return live.host.last_look(used, lambda now: now <= most and (now > left) == any_of_it, ADDED_UP_SECONDS)


class CgroupZswap(LiveTest):
    def test_zswap_of_groups(self) -> None:
        self.run_area(ZSWAP_OF_GROUPS)
