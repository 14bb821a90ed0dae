"""Huge pages of groups that have too many: what a limit and a request have the kernel reclaim, and whom it kills."""

import errno
import os
import re
from collections.abc import Callable
from functools import partial

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.control_group import CHARGED_AHEAD, ControlGroup, Watch
from hugepage_qa.cases.fragmentation import with_blocks
from hugepage_qa.cases.group_memory import (
    USED,
    actor_in,
    events,
    expect_all_there,
    huge_pages_in,
    swap_of,
)
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.swapped import swapped
from hugepage_qa.cases.swapping_case import GROUP_PAGES, swapping_case
from hugepage_qa.cases.thp_memory import free_lazily, map_aligned, pmd_size
from hugepage_qa.cases.thp_policy import advised
from hugepage_qa.kernel.counters import read_vmstat
from hugepage_qa.kernel.log import tells_of_trouble
from hugepage_qa.kernel.uapi import MADV_NOHUGEPAGE, MADV_POPULATE_WRITE
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Refused

RECLAIMED = Area("cgroup/reclaimed", sizes=Sizes.ONCE)

DOC = "Documentation/admin-guide/cgroup-v2.rst"
#: of the pages that a group has: what it may keep
_KEPT = 4
#: of many pages: how many base pages are to be had, and how many huge pages that may take. One of each node, and what
#: is scanned of other lists besides, is the kernel's to take; that goes on for each priority, of which there are 13
_MANY, _SOME, _FEW = 16, 32, 6
_EVENTS, _LOCAL = "memory.events", "memory.events.local"
#: of vmstat
_KILLS = "oom_kill"
#: who polls is told at once, or after the 10 ms in which two changes are told as one
_TOLD_SECONDS = 5.0

case = partial(swapping_case, RECLAIMED)


@case(
    "memory.high and memory.max below what a group uses have the rest of it swapped out, of its huge pages, too, until"
    " it uses no more; memory.max is not passed by what is touched afterwards either, each time as an event of the"
    " group and, but for the local ones, of the one above; nothing is lost, locked huge pages stay, and so do those of"
    " a group that memory.min protects",
    f"{DOC} memory.min, memory.high, memory.max, memory.events, memory.events.local; mm/memcontrol.c"
    " memory_high_write(), memory_max_write(), mem_cgroup_calculate_protection(); mm/vmscan.c shrink_node_memcgs()",
    since="5.8",  # events of the groups below count, and emin is computed as today
)
def reclaimed_by_limits(live: Live, group: ControlGroup, above: ControlGroup) -> None:
    size = pmd_size(live)
    protected = above.child("protected")
    other = huge_pages_in(live, protected, 2)
    # what the one above has of it counts for who reclaims memory of all
    for each in (above, protected):
        each.write("memory.min", str(4 * size))
    for name, limited in (("memory.high", group), ("memory.max", group), ("memory.max", above)):
        memory = huge_pages_in(live, group, GROUP_PAGES)
        memory.actor.call("mlock", memory.address, size)
        before = [events(each, _EVENTS) for each in (group, above)]
        below = limited.read_number(USED) - (GROUP_PAGES - _KEPT) * size
        with live.about(f"{name} of the {'group' if limited is group else 'one above'}"):

            def is_below(name: str = name, limited: ControlGroup = limited, below: int = below) -> bool:
                # what cannot be reclaimed in a moment is given up after some tries, of memory.high
                limited.write(name, str(below))
                return limited.read_number(USED) <= below

            live.expect(f"whether {USED} is below", True, live.host.last_look(is_below, bool))
            expect_all_there(live, memory)
            live.expect("whether any is in swap", True, swap_of(live, memory.actor) > 0)
            more = advised(live, 2, actor=memory.actor)
            more.fill()
            if name == "memory.max":
                live.expect(f"whether {USED} is still below", True, limited.read_number(USED) <= below)
            memory.expect_filled()
            more.expect_filled()
            live.expect("locked memory in swap", 0, swapped(memory.part(0)))
            live.expect("protected memory in swap", 0, swapped(other))
            now = [events(each, _EVENTS) for each in (group, above)]
            counted = name.removeprefix("memory.")
            rises = [after[counted] - earlier[counted] for after, earlier in zip(now, before, strict=True)]
            live.expect(f"whether {counted} counts for the one above", True, rises[1] > 0)
            if limited is group:
                live.expect(f"whether {counted} counts for both alike", True, rises[0] == rises[1])
                live.expect("local events of the group", now[0], events(group, _LOCAL))
            live.expect("events that have nobody killed", (0, 0), (now[1]["oom"], now[1]["oom_kill"]))
            limited.write(name, "max")
            memory.actor.end()
            live.expect(
                "local events of the one above", 0 if limited is group else rises[1], events(above, _LOCAL)[counted]
            )
    other.expect_filled()


@case(
    "memory.reclaim has as much of a group swapped out as it is asked for, and is EAGAIN where there is less to be had,"
    " as of locked memory, or of any where the group may have none in swap; what is no number is EINVAL",
    f"{DOC} memory.reclaim; mm/memcontrol.c memory_reclaim()",
    since="5.19",
)
def reclaimed_on_request(live: Live, group: ControlGroup, above: ControlGroup) -> None:
    memory = huge_pages_in(live, group, GROUP_PAGES)
    for text in ("x", "1 x", "1Mx"):
        live.expect_errno(errno.EINVAL, above.write, "memory.reclaim", text)
    live.expect("memory in swap", 0, swapped(memory))
    memory.actor.call("mlock", memory.address, memory.size)
    asked = (GROUP_PAGES - _KEPT) * memory.size
    used = above.read_number(USED)

    def is_reclaimed() -> tuple[bool, bool]:
        try:
            above.write("memory.reclaim", str(asked))
        except Refused as refusal:
            # what is written to swap in that moment is not free yet
            if refusal.errno != errno.EAGAIN:
                raise
        return above.read_number(USED) <= used - asked // 2, swapped(memory.part(1)) >= asked // 2

    found = live.host.last_look(is_reclaimed, all)
    live.expect("whether at least half of it was reclaimed, and is in swap", (True, True), found)
    expect_all_there(live, memory)
    live.expect("locked memory in swap", 0, swapped(memory.part(0)))
    live.expect_errno(errno.EAGAIN, above.write, "memory.reclaim", str(2 * GROUP_PAGES * memory.size))
    expect_all_there(live, memory)
    memory.expect_filled()
    memory.actor.end()
    memory = huge_pages_in(live, group, GROUP_PAGES)
    above.write("memory.swap.max", "0")
    live.expect_errno(errno.EAGAIN, above.write, "memory.reclaim", str(2 * GROUP_PAGES * memory.size))
    live.expect("memory that is there", memory.length, memory.smaps().rss)
    memory.expect_filled()


@case(
    "of many huge pages that nobody needs any more few are taken where the group is asked for some base pages, has a"
    " limit that is lower by as many, or is charged for more at its limit: the others stay as they are",
    f"{DOC} memory.reclaim, memory.high, memory.max; mm/vmscan.c do_try_to_free_pages()",
    since="5.19",
)
def no_more_than_enough(live: Live, group: ControlGroup, _above: ControlGroup) -> None:
    if with_blocks(live, pmd_size(live), _MANY).owed < _MANY:
        raise CannotRun(f"{_MANY} huge pages are not free at once")
    for name, ask in _REQUESTS.items():

        def taken(ask: Callable[[Live, ControlGroup, Memory], None] = ask) -> int:
            memory = huge_pages_in(live, group, _MANY)
            live.host.wait_until(partial(free_lazily, live, memory))
            live.expect("LazyFree before", memory.length, memory.smaps().fields["LazyFree"])
            ask(live, group, memory)
            left = memory.smaps().fields["LazyFree"]
            for limit in ("memory.high", "memory.max"):
                group.write(limit, "max")
            memory.actor.end()
            return memory.length - left

        # others may be short of memory, and have some of it taken
        most = _FEW * pmd_size(live)
        found = live.host.last_attempt(taken, most.__ge__)
        live.expect(f"whether {found} bytes taken, {name}, are no more than {_FEW} huge pages", True, found <= most)


def _asked_for(live: Live, group: ControlGroup, _memory: Memory) -> None:
    group.write("memory.reclaim", str(_SOME * live.base_page))


def _limited(live: Live, group: ControlGroup, _memory: Memory, *, name: str) -> None:
    group.write(name, str(group.read_number(USED) - _SOME * live.base_page))


def _charged(live: Live, group: ControlGroup, memory: Memory) -> None:
    # more than a CPU may have been charged for ahead
    more = map_aligned(live, 2 * CHARGED_AHEAD, live.base_page, actor=memory.actor, advice=MADV_NOHUGEPAGE)
    group.write("memory.max", str(group.read_number(USED)))
    more.fill()


#: ways to have a little memory of a group reclaimed
_REQUESTS: dict[str, Callable[[Live, ControlGroup, Memory], None]] = {
    "when it is asked for some": _asked_for,
    "for memory.high": partial(_limited, name="memory.high"),
    "for memory.max": partial(_limited, name="memory.max"),
    "for what is charged at memory.max": _charged,
}


@case(
    "a group that may use no more, and have nothing in swap, has its largest process killed, by its huge pages, or all"
    " of them if memory.oom.group says so; it is an event of the group, told to who polls, and of the one above; the"
    " log tells of the memory that was had, and vmstat of each process",
    f"{DOC} memory.oom.group, memory.events oom, oom_kill, oom_group_kill; mm/memcontrol.c mem_cgroup_oom(),"
    " mem_cgroup_get_oom_group(); mm/oom_kill.c oom_badness(), __oom_kill_process()",
    since="5.14",  # MADV_POPULATE_WRITE
)
def killed(live: Live, group: ControlGroup, above: ControlGroup) -> None:
    size, watcher = pmd_size(live), live.actor()
    # 2 is for groups, too
    live.set_knob("proc/sys/vm/panic_on_oom", "0")
    above.write("memory.swap.max", "0")
    for as_group in (False, True):
        group.write("memory.oom.group", str(int(as_group)))
        small, actor = huge_pages_in(live, group, 1), actor_in(live, group)
        group.write("memory.max", str(group.read_number(USED) + (GROUP_PAGES - 1) * size))
        before = [events(each, _EVENTS) for each in (group, above)]
        kills_of_all = read_vmstat(ObservedTree(live.host))[_KILLS]
        watch = Watch(watcher, live.open(watcher, f"{group.path}/{_EVENTS}", os.O_RDONLY))
        live.host.new_kernel_log()
        memory = advised(live, 2 * GROUP_PAGES, actor=actor)
        victims = {actor.pid, small.actor.pid} if as_group else {actor.pid}
        with live.about(f"memory.oom.group is {int(as_group)}"):
            actor.threads.attempt("madvise", memory.address, memory.length, MADV_POPULATE_WRITE)
            left = {small.actor.pid} - victims
            live.expect("processes that are left", left, live.host.last_look(partial(_processes, group), left.__eq__))
            watch_is_told = live.host.last_look(watch.is_told, bool, _TOLD_SECONDS)
            live.expect("whether the events are told", True, watch_is_told)
            for each, earlier in zip((group, above), before, strict=True):
                now = events(each, _EVENTS)
                rises = {name: now[name] - earlier[name] for name in now}
                # the first victim may be counted again as one of the group
                kills = len(victims) if rises["oom_kill"] == len(victims) + as_group else rises["oom_kill"]
                found = rises["oom"] > 0, kills, rises.get("oom_group_kill", int(as_group))
                live.expect("oom, oom_kill, oom_group_kill", (True, len(victims), int(as_group)), found)
            kills_of_all = read_vmstat(ObservedTree(live.host))[_KILLS] - kills_of_all
            live.expect("whether vmstat counts each process", True, kills_of_all >= len(victims))
            live.expect("local events of the one above", {0}, set(events(above, _LOCAL).values()))
            lines = live.host.new_kernel_log(judged=True)
            live.expect("lines of the kernel log that tell of trouble", [], [*filter(tells_of_trouble, lines)])
            told = next((int(match[1]) for line in lines if (match := _killed_line(actor.pid).search(line))), 0)
            # less than a huge page of what else it has, and of what had not been had yet
            live.expect("whether the log has its memory", True, abs((told << 10) - (GROUP_PAGES - 1) * size) < size)
        if not as_group:
            small.expect_filled()
            small.actor.end()
        group.write("memory.max", "max")


def _killed_line(process: int) -> re.Pattern[str]:
    return re.compile(rf"Memory cgroup out of memory: Killed process {process} .*anon-rss:(\d+)kB")


def _processes(group: ControlGroup) -> set[int]:
    return {int(word) for word in (group.read("cgroup.procs") or "").split()}


class CgroupReclaimed(LiveTest):
    def test_reclaimed(self) -> None:
        self.run_area(RECLAIMED)
