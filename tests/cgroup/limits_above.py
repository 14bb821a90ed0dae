"""memory.high of a group, and of those above it: of who uses more than any of them allows, memory is reclaimed."""

import mmap
from collections.abc import Callable

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.control_group import ControlGroup
from hugepage_qa.cases.group_memory import (
    USED,
    actor_in,
    events,
    need_exact_charges,
    swapping_groups,
)
from hugepage_qa.cases.khugepaged_clock import let_nobody_else_act
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.swapped import need_swap, zswap_knob
from hugepage_qa.cases.thp_memory import map_aligned, pmd_size
from hugepage_qa.cases.thp_policy import advised, fill_in_huge_pages, give_on_advice
from hugepage_qa.kernel.proc_tables import read_mounts
from hugepage_qa.kernel.uapi import MADV_NOHUGEPAGE
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor

ABOVE = Area("cgroup/limits-above", sizes=Sizes.ONCE)

_EVENTS, _LOCAL, _HIGH, _SWAPPINESS = "memory.events", "memory.events.local", "memory.high", "proc/sys/vm/swappiness"
_LOCALLY = "memory_localevents"
#: huge pages that a process fills, or as much memory, and how many of them more than now the limit lets be used
_PAGES, _ALLOWED = 6, 2
#: how many huge pages more may be left: what is written to swap in that moment is not free yet
_BESIDES = 2
_SECONDS = 20.0
_NAMES = "the group", "the one above", "the one above that"

_Map = Callable[[Live, Actor], Memory]


@ABOVE.case(
    "who uses more than memory.high of the own group, or of any group above it, has memory reclaimed until no more is"
    " used, huge pages and base pages, private and shared, and it is an event of that group and of those above it, and"
    " of none below; nothing is lost",
    "Documentation/admin-guide/cgroup-v2.rst memory.high, memory.events high; mm/memcontrol.c try_charge_memcg(),"
    " reclaim_high(), mem_cgroup_handle_over_high()",
    since="5.8",  # events of the groups below count
)
def each_level(live: Live) -> None:
    let_nobody_else_act(live)
    need_exact_charges(live)
    need_swap(live, 2 * _PAGES * pmd_size(live))
    live.set_knob_if_there(zswap_knob("enabled"), "N")
    # with 0 a group has nothing swapped out for its limits
    live.set_knob(_SWAPPINESS, "100")
    give_on_advice(live)
    if any(each.type == "cgroup2" and _LOCALLY in each.options.split(",") for each in read_mounts(live.host)):
        raise CannotRun(f"the hierarchy is mounted with {_LOCALLY}: events are those of the group itself alone")
    above, top = swapping_groups(live)
    levels = above.child("lowest"), above, top
    # who is slowed down takes seconds
    for make, limited in ((_huge, 0), (_huge, 1), (_huge, 2), (_small, 1), (_shared, 2)):
        with live.about(f"{make.__name__.strip('_')} pages, the limit is that of {_NAMES[limited]}"):
            _expect_enforced(live, make, levels, limited)


def _expect_enforced(live: Live, make: _Map, levels: tuple[ControlGroup, ...], limited: int) -> None:
    group, size = levels[limited], pmd_size(live)
    memory = make(live, actor_in(live, levels[0]))
    before, local = ([events(each, file)["high"] for each in levels] for file in (_EVENTS, _LOCAL))
    limit = group.read_number(USED) + _ALLOWED * size
    group.write(_HIGH, str(limit))
    memory.fill()

    def more() -> int:
        # who is over the limit is asked for memory as it uses some more
        memory.fill()
        return group.read_number(USED) - limit

    most = _BESIDES * size
    left = live.host.last_look(more, lambda now: now < most, _SECONDS)
    live.expect(f"whether {left} bytes more than the limit are less than {most}", True, left < most)
    rises = [events(each, _EVENTS)["high"] - earlier for each, earlier in zip(levels, before, strict=True)]
    live.expect("groups that have events", _NAMES[limited:], _with(rises))
    rises = [events(each, _LOCAL)["high"] - earlier for each, earlier in zip(levels, local, strict=True)]
    live.expect("groups that have events of their own", _NAMES[limited : limited + 1], _with(rises))
    group.write(_HIGH, "max")
    memory.expect_filled()
    memory.actor.end()


def _with(rises: list[int]) -> tuple[str, ...]:
    return tuple(name for name, rise in zip(_NAMES, rises, strict=True) if rise)


def _huge(live: Live, actor: Actor) -> Memory:
    """Map memory that gets huge pages, as it has shown. Raises CannotRun where memory is too fragmented for them."""
    memory = advised(live, _PAGES, actor=actor)
    fill_in_huge_pages(live, memory)
    memory.expect_huge()
    memory.advise(mmap.MADV_DONTNEED)
    return memory


def _small(live: Live, actor: Actor) -> Memory:
    return map_aligned(live, _PAGES, pmd_size(live), actor=actor, advice=MADV_NOHUGEPAGE)


def _shared(live: Live, actor: Actor) -> Memory:
    return map_aligned(live, _PAGES, pmd_size(live), actor=actor, shared=True, advice=MADV_NOHUGEPAGE)


class CgroupLimitsAbove(LiveTest):
    def test_limits_above(self) -> None:
        self.run_area(ABOVE)
