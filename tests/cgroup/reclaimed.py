"""Huge pages of groups that have too many: what a limit, a request, and a limit of swap have the kernel reclaim."""

import errno
import mmap
import os
import re
from collections.abc import Callable
from functools import partial, wraps

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.control_group import CHARGED_AHEAD, ControlGroup, Watch
from hugepage_qa.cases.fragmentation import compact_if_short, with_blocks
from hugepage_qa.cases.group_memory import (
    IN_SWAP,
    USED,
    actor_in,
    events,
    expect_about,
    expect_all_there,
    huge_pages_in,
    need_exact_charges,
    swap_of,
    swapping_groups,
    wait_until_written,
)
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.swapped import need_swap, parts_out, swap_out, swap_to_a_device, swapped, zswap_knob
from hugepage_qa.cases.thp_memory import free_lazily, map_aligned, pmd_size
from hugepage_qa.cases.thp_policy import advised, set_policy
from hugepage_qa.kernel.counters import read_vmstat
from hugepage_qa.kernel.log import tells_of_trouble
from hugepage_qa.kernel.proc_tables import read_mounts
from hugepage_qa.kernel.uapi import MADV_NOHUGEPAGE, MADV_PAGEOUT, MADV_POPULATE_WRITE
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor, Refused
from hugepage_qa.version import KernelVersion

RECLAIMED = Area("cgroup/reclaimed", sizes=Sizes.ONCE)

DOC = "Documentation/admin-guide/cgroup-v2.rst"
_PAGES = 6
#: of the pages that a group has: what it may keep, what it may have in swap, and by how many base pages more
_KEPT, _SWAPPED, _MORE = 4, 2, 5
#: of many pages: how many base pages are to be had, and how many huge pages that may take. One of each node, and what
#: is scanned of other lists besides, is the kernel's to take; that goes on for each priority, of which there are 13
_MANY, _SOME, _FEW = 16, 32, 6
_LOCALLY = "memory_localevents"
_SWAPPINESS = "proc/sys/vm/swappiness"
_PEAK = "memory.peak"
_EVENTS, _LOCAL, _SWAP_EVENTS = "memory.events", "memory.events.local", "memory.swap.events"
#: of vmstat
_AS_A_WHOLE, _KILLS = "thp_swpout", "oom_kill"
#: who polls is told at once, or after the 10 ms in which two changes are told as one
_TOLD_SECONDS = 5.0

#: what is written to memory.peak begins it anew for the writer: Linux 6.12
_RESET_SINCE, _MOST_TEXT = KernelVersion(6, 12), 32

#: gets a group, and the one above it
GroupAct = Callable[[Live, ControlGroup, ControlGroup], None]


def case(statement: str, source: str, *, since: str, to_a_device: bool = False) -> Callable[[GroupAct], None]:
    """Make the decorated function, which gets a group and the one above it, a case with swap on this machine.

    Swap ``to_a_device`` is that of the case alone, and has huge pages as a whole.
    """

    def register(act: GroupAct) -> None:
        @wraps(act)
        def in_group(live: Live) -> None:
            need_exact_charges(live)
            room = 2 * _PAGES * pmd_size(live)
            if to_a_device:
                swap_to_a_device(live, room)
            else:
                need_swap(live, room)
            live.set_knob_if_there(zswap_knob("enabled"), "N")
            # with 0 a group has nothing swapped out for its limits
            live.set_knob(_SWAPPINESS, "100")
            set_policy(live, "madvise")
            compact_if_short(live, pmd_size(live), _PAGES)
            group, above = swapping_groups(live)
            if any(
                mount.type == "cgroup2" and _LOCALLY in mount.options.split(",") for mount in read_mounts(live.host)
            ):
                raise CannotRun(f"the hierarchy is mounted with {_LOCALLY}: events are those of the group itself alone")
            act(live, group, above)

        RECLAIMED.case(statement, source, since=since)(in_group)

    return register


@case(
    "memory.swap.current is all memory of a group, and of those below it, that is in swap; memory.swap.max has no byte"
    " more go there, whichever of both groups has it: the rest stays as it is, and each refusal is an event of the"
    " group and of the one above it, told to who polls; what is given back is in swap no more",
    f"{DOC} memory.swap.current, memory.swap.max, memory.swap.events; mm/memcontrol.c"
    " __mem_cgroup_try_charge_swap(), __mem_cgroup_uncharge_swap()",
    since="5.10",  # who polls memory.swap.events is told
)
def refused_by_a_limit_of_swap(live: Live, group: ControlGroup, above: ControlGroup) -> None:
    _expect_swap_limited(live, group, above)


@case(
    "memory.swap.current has all base pages of a huge page that goes to swap as a whole, and memory.swap.max is kept,"
    " of a group and of the one above it, as where they go in pieces",
    f"{DOC} memory.swap.current, memory.swap.max, memory.swap.events; mm/memcontrol.c"
    " __mem_cgroup_try_charge_swap(), __mem_cgroup_uncharge_swap(); mm/swapfile.c SWP_BLKDEV",
    since="5.10",  # who polls memory.swap.events is told
    to_a_device=True,
)
def refused_as_a_whole(live: Live, group: ControlGroup, above: ControlGroup) -> None:
    if live.host.kernel_option("THP_SWAP") is False:  # powerpc's never have it
        raise CannotRun("this kernel swaps huge pages out in pieces: it has no CONFIG_THP_SWAP")
    before = read_vmstat(ObservedTree(live.host))[_AS_A_WHOLE]
    _expect_swap_limited(live, group, above)
    now = read_vmstat(ObservedTree(live.host))[_AS_A_WHOLE]
    # so many of each limit: of the second one fewer may find a piece of swap that nobody has had
    live.expect("whether huge pages went to swap as a whole", True, now - before >= _SWAPPED)


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
        memory = huge_pages_in(live, group, _PAGES)
        memory.actor.call("mlock", memory.address, size)
        before = [events(each, _EVENTS) for each in (group, above)]
        below = limited.read_number(USED) - (_PAGES - _KEPT) * size
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
    memory = huge_pages_in(live, group, _PAGES)
    for text in ("x", "1 x", "1Mx"):
        live.expect_errno(errno.EINVAL, above.write, "memory.reclaim", text)
    live.expect("memory in swap", 0, swapped(memory))
    memory.actor.call("mlock", memory.address, memory.size)
    asked = (_PAGES - _KEPT) * memory.size
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
    live.expect_errno(errno.EAGAIN, above.write, "memory.reclaim", str(2 * _PAGES * memory.size))
    expect_all_there(live, memory)
    memory.expect_filled()
    memory.actor.end()
    memory = huge_pages_in(live, group, _PAGES)
    above.write("memory.swap.max", "0")
    live.expect_errno(errno.EAGAIN, above.write, "memory.reclaim", str(2 * _PAGES * memory.size))
    live.expect("memory that is there", memory.length, memory.smaps().rss)
    memory.expect_filled()


@case(
    "of many huge pages that nobody needs any more few are taken where the group is asked for some base pages, has a"
    " limit that is lower by as many, or is charged for more at its limit: the others stay as they are",
    f"{DOC} memory.reclaim, memory.high, memory.max; mm/vmscan.c do_try_to_free_pages()",
    since="5.19",
)
def no_more_than_enough(live: Live, group: ControlGroup, _above: ControlGroup) -> None:
    if with_blocks(live, pmd_size(live), _MANY).blocks < _MANY:
        raise CannotRun(f"{_MANY} huge pages are not free at once")
    for name, ask in _REQUESTS.items():

        def taken(ask: Callable[[Live, ControlGroup, Memory], None] = ask) -> int:
            memory = huge_pages_in(live, group, _MANY)
            live.host.wait_until(partial(free_lazily, memory))
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
    "memory.peak is the most memory that a group, and those below it, have had at once, whatever was given back, and"
    " for who has written to it the most since then; so is memory.swap.peak of swap",
    f"{DOC} memory.peak, memory.swap.peak; mm/memcontrol.c memory_peak_show(), peak_write(); mm/page_counter.c",
    since="5.19",
)
def highest_use(live: Live, group: ControlGroup, above: ControlGroup) -> None:
    memory = huge_pages_in(live, group, _PAGES)
    beside = huge_pages_in(live, above.child("beside"), 2)
    both = above.read_number(USED)
    live.expect("whether the peak of both is what they have, at least", True, above.read_number(_PEAK) >= both)
    beside.actor.end()
    memory.advise(mmap.MADV_DONTNEED, 0, 2)
    memory.touch(0)
    size = memory.size
    # as it was, and less than a page more
    for each, pages in ((above, _PAGES + 2), (group, _PAGES)):
        peak = each.read_number(_PEAK)
        live.expect(f"whether the peak is that of {pages} huge pages", True, 0 <= peak - pages * size < size)
    live.expect("whether a peak is never below what is used", True, group.read_number(_PEAK) >= group.read_number(USED))
    if live.kernel_version >= _RESET_SINCE:
        _expect_peaks_apart(live, above, memory)
    if above.read("memory.swap.peak") is not None:  # since Linux 6.5
        swap_out(live, memory.part(2, 3), 3 * size)
        memory.part(2, 3).advise(mmap.MADV_DONTNEED)
        # with what others may have had swapped out of the process
        beyond = [each.read_number("memory.swap.peak") - 3 * size for each in (group, above)]
        live.expect("whether swap.peak is that of 3 huge pages", [True] * 2, [0 <= more < size // 2 for more in beyond])


def _expect_peaks_apart(live: Live, group: ControlGroup, memory: Memory) -> None:
    """Expect who has written to memory.peak to see the most since then, and nobody else."""
    watcher, size = live.actor(), memory.size
    files = [live.open(watcher, f"{group.path}/{_PEAK}", os.O_RDWR) for _number_of_it in range(2)]
    whole = group.read_number(_PEAK)
    watcher.call("write", files[0], b"reset", 5)
    used = group.read_number(USED)
    seen = [_read_number(watcher, file) for file in files]
    live.expect("what who has not written sees", whole, seen[1])
    live.expect("whether who has written sees what is used then", True, abs(seen[0] - used) < size // 2)
    # all of it: memory may be too fragmented for a huge page
    memory.part(1).fill()
    memory.advise(mmap.MADV_DONTNEED, 1, 1)
    seen = [_read_number(watcher, file) for file in files]
    live.expect("what who has not written sees then", whole, seen[1])
    live.expect("whether who has written sees the page that has gone", True, abs(seen[0] - used - size) < size // 2)


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
        group.write("memory.max", str(group.read_number(USED) + (_PAGES - 1) * size))
        before = [events(each, _EVENTS) for each in (group, above)]
        kills_of_all = read_vmstat(ObservedTree(live.host))[_KILLS]
        watch = Watch(watcher, live.open(watcher, f"{group.path}/{_EVENTS}", os.O_RDONLY))
        live.host.new_kernel_log()
        memory = advised(live, 2 * _PAGES, actor=actor)
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
            live.expect("whether the log has its memory", True, abs((told << 10) - (_PAGES - 1) * size) < size)
        if not as_group:
            small.expect_filled()
            small.actor.end()
        group.write("memory.max", "max")


def _expect_swap_limited(live: Live, group: ControlGroup, above: ControlGroup) -> None:
    limit = _SWAPPED * pmd_size(live) + _MORE * live.base_page
    watcher = live.actor()
    for limited in (group, above):
        memory = huge_pages_in(live, group, _PAGES)
        limited.write("memory.swap.max", str(limit))
        live.expect("memory.swap.max", str(limit), (limited.read("memory.swap.max") or "").strip())
        before = events(group, _SWAP_EVENTS)
        watches = [
            Watch(watcher, live.open(watcher, f"{each.path}/{_SWAP_EVENTS}", os.O_RDONLY)) for each in (group, above)
        ]

        def is_full(memory: Memory = memory) -> bool:
            return parts_out(live, memory, [(0, memory.length)], lambda: swap_of(live, memory.actor) >= limit)

        with live.about(f"limit of the {'group' if limited is group else 'one above'}"):
            live.host.wait_until(is_full)
            live.expect("bytes of the process in swap", limit, swap_of(live, memory.actor))
            live.expect(
                "bytes of both groups in swap", [limit, limit], [each.read_number(IN_SWAP) for each in (group, above)]
            )
            mapping = memory.smaps()
            live.expect("bytes that are mapped or in swap", memory.length, mapping.rss + mapping.fields["Swap"])
            # one at least was refused: that has gone on until it was
            memory.advise(MADV_PAGEOUT)
            refused = {name: count - before[name] for name, count in events(group, _SWAP_EVENTS).items()}
            live.expect(
                "whether max and fail count", (True, True), (refused["max"] > 0, refused["fail"] >= refused["max"])
            )
            are_told = [live.host.last_look(watch.is_told, bool, _TOLD_SECONDS) for watch in watches]
            live.expect("whether the events are told", [True, True], are_told)
            live.expect("events of the one above", events(group, _SWAP_EVENTS), events(above, _SWAP_EVENTS))
            limited.write("memory.swap.max", "max")
            swap_out(live, memory, memory.length)
            live.expect("bytes in swap without a limit", memory.length, swapped(memory))
            wait_until_written(live, above)
            memory.part(1).advise(mmap.MADV_DONTNEED)
            expect_about(live, group, IN_SWAP, _PAGES - 1)
            memory.part(2, _PAGES - 2).expect_filled(1 + 2 * memory.size)
            memory.part(0).expect_filled()
            memory.actor.end()
            for each in (group, above):
                expect_about(live, each, IN_SWAP, 0)


def _killed_line(process: int) -> re.Pattern[str]:
    return re.compile(rf"Memory cgroup out of memory: Killed process {process} .*anon-rss:(\d+)kB")


def _processes(group: ControlGroup) -> set[int]:
    return {int(word) for word in (group.read("cgroup.procs") or "").split()}


def _read_number(actor: Actor, descriptor: int) -> int:
    length, (text,) = actor.call_with_buffers("pread64", descriptor, bytes(_MOST_TEXT), _MOST_TEXT, 0)
    return int(text[:length])


class CgroupReclaimed(LiveTest):
    def test_reclaimed(self) -> None:
        self.run_area(RECLAIMED)
