"""Huge pages of groups that have too many: what a limit, a request, and a limit of swap have the kernel reclaim."""

import errno
import mmap
import os
from collections.abc import Callable
from functools import wraps

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.control_group import CHARGED_AHEAD, ControlGroup, Version, new_group
from hugepage_qa.cases.fragmentation import compact_if_short
from hugepage_qa.cases.group_statistics import read_statistics
from hugepage_qa.cases.hugetlb_group import Watch
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.memory_policy import run_on
from hugepage_qa.cases.swapped import need_swap, parts_out, swap_out, swapped, zswap_knob
from hugepage_qa.cases.thp_memory import need_blocks, pmd_size
from hugepage_qa.cases.thp_policy import advised, set_policy
from hugepage_qa.kernel.proc_tables import read_mounts
from hugepage_qa.kernel.process_status import read_process_status
from hugepage_qa.kernel.smaps import read_smaps
from hugepage_qa.kernel.tree import parse_integer
from hugepage_qa.kernel.uapi import MADV_PAGEOUT
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor, Refused
from hugepage_qa.version import KernelVersion

RECLAIMED = Area("cgroup/reclaimed", sizes=Sizes.ONCE)

DOC = "Documentation/admin-guide/cgroup-v2.rst"
_PAGES = 6
#: of the pages that a group has: what it may keep, what it may have in swap, and by how many base pages more
_KEPT, _SWAPPED, _MORE = 4, 2, 5
_LOCALLY = "memory_localevents"
_SWAPPINESS = "proc/sys/vm/swappiness"
_USED, _IN_SWAP, _PEAK = "memory.current", "memory.swap.current", "memory.peak"
_EVENTS, _LOCAL, _SWAP_EVENTS = "memory.events", "memory.events.local", "memory.swap.events"
#: who polls is told at once, or after the 10 ms in which two changes are told as one
_TOLD_SECONDS = 5.0

#: what is written to memory.peak begins it anew for the writer (commit c6f53ed8f213)
_RESET_SINCE, _MOST_TEXT = KernelVersion(6, 12), 32

#: gets a group, and the one above it
GroupAct = Callable[[Live, ControlGroup, ControlGroup], None]


def case(statement: str, source: str, *, since: str) -> Callable[[GroupAct], None]:
    """Make the decorated function, which gets a group and the one above it, a case with swap on this machine."""

    def register(act: GroupAct) -> None:
        @wraps(act)
        def in_group(live: Live) -> None:
            if CHARGED_AHEAD * live.base_page >= pmd_size(live) // 2:
                raise CannotRun(
                    f"a CPU may be charged for {CHARGED_AHEAD} base pages that nobody has: half a huge page"
                )
            need_swap(live, 2 * _PAGES * pmd_size(live))
            live.set_knob_if_there(zswap_knob("enabled"), "N")
            # with 0 a group has nothing swapped out for its limits
            live.set_knob(_SWAPPINESS, "100")
            set_policy(live, "madvise")
            compact_if_short(live, pmd_size(live), _PAGES)
            above = new_group(live, "memory", Version.TWO)
            group = above.child("below")
            if any(
                mount.type == "cgroup2" and _LOCALLY in mount.options.split(",") for mount in read_mounts(live.host)
            ):
                raise CannotRun(f"the hierarchy is mounted with {_LOCALLY}: events are those of the group itself alone")
            if group.read(_IN_SWAP) is None:
                raise CannotRun(f"groups have no {_IN_SWAP}: this kernel has no CONFIG_SWAP, or swapaccount=0")
            act(live, group, above)

        RECLAIMED.case(statement, source, since=since)(in_group)

    return register


@case(
    "memory.swap.current is all memory of a group, and of those below it, that is in swap; memory.swap.max has no byte"
    " more go there, whichever of both groups has it: the rest stays as it is, and each refusal is an event of the"
    " group and of the one above it, told to who polls; what is given back is in swap no more",
    f"{DOC} memory.swap.current, memory.swap.max, memory.swap.events; mm/memcontrol.c"
    " __mem_cgroup_try_charge_swap(), __mem_cgroup_uncharge_swap()",
    since="5.4",  # MADV_PAGEOUT
)
def refused_by_a_limit_of_swap(live: Live, group: ControlGroup, above: ControlGroup) -> None:
    limit = _SWAPPED * pmd_size(live) + _MORE * live.base_page
    watcher = live.actor()
    for limited in (group, above):
        memory = _memory_in(live, group)
        limited.write("memory.swap.max", str(limit))
        live.expect("memory.swap.max", str(limit), (limited.read("memory.swap.max") or "").strip())
        before = _events(group, _SWAP_EVENTS)
        watches = [
            Watch(watcher, live.open(watcher, f"{each.path}/{_SWAP_EVENTS}", os.O_RDONLY)) for each in (group, above)
        ]

        def is_full(memory: Memory = memory) -> bool:
            return parts_out(live, memory, [(0, memory.length)], lambda: _swap_of(live, memory.actor) >= limit)

        with live.about(f"limit of the {'group' if limited is group else 'one above'}"):
            live.host.wait_until(is_full)
            live.expect("bytes of the process in swap", limit, _swap_of(live, memory.actor))
            live.expect(
                "bytes of both groups in swap", [limit, limit], [_number(each, _IN_SWAP) for each in (group, above)]
            )
            mapping = memory.smaps()
            live.expect("bytes that are mapped or in swap", memory.length, mapping.rss + mapping.fields["Swap"])
            # one at least was refused: that has gone on until it was
            memory.advise(MADV_PAGEOUT)
            refused = {name: count - before[name] for name, count in _events(group, _SWAP_EVENTS).items()}
            live.expect(
                "whether max and fail count", (True, True), (refused["max"] > 0, refused["fail"] >= refused["max"])
            )
            for watch in watches:
                live.host.wait_until(watch.is_told, _TOLD_SECONDS)
            live.expect("whether the events are told", [True, True], [watch.is_told() for watch in watches])
            live.expect("events of the one above", _events(group, _SWAP_EVENTS), _events(above, _SWAP_EVENTS))
            limited.write("memory.swap.max", "max")
            swap_out(live, memory, memory.length)
            live.expect("bytes in swap without a limit", memory.length, swapped(memory))
            _wait_until_written(live, above)
            memory.part(1).advise(mmap.MADV_DONTNEED)
            _expect_about(live, group, _IN_SWAP, _PAGES - 1)
            memory.part(2, _PAGES - 2).expect_filled(1 + 2 * memory.size)
            memory.part(0).expect_filled()
            memory.actor.end()
            for each in (group, above):
                _expect_about(live, each, _IN_SWAP, 0)


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
    other = _memory_in(live, protected, 2)
    protected.write("memory.min", str(4 * size))
    for name, limited in (("memory.high", group), ("memory.max", group), ("memory.max", above)):
        memory = _memory_in(live, group)
        memory.actor.call("mlock", memory.address, size)
        before = [_events(each, _EVENTS) for each in (group, above)]
        below = _number(limited, _USED) - (_PAGES - _KEPT) * size
        with live.about(f"{name} of the {'group' if limited is group else 'one above'}"):

            def is_below(name: str = name, limited: ControlGroup = limited, below: int = below) -> bool:
                # what cannot be reclaimed in a moment is given up after some tries, of memory.high
                limited.write(name, str(below))
                return _number(limited, _USED) <= below

            live.host.wait_until(is_below)
            live.expect(f"whether {_USED} is below", True, _number(limited, _USED) <= below)
            _expect_all_there(live, memory)
            live.expect("whether any is in swap", True, _swap_of(live, memory.actor) > 0)
            more = advised(live, 2, actor=memory.actor)
            more.fill()
            if name == "memory.max":
                live.expect(f"whether {_USED} is still below", True, _number(limited, _USED) <= below)
            memory.expect_filled()
            more.expect_filled()
            live.expect("locked memory in swap", 0, swapped(memory.part(0)))
            live.expect("protected memory in swap", 0, swapped(other))
            now = [_events(each, _EVENTS) for each in (group, above)]
            counted = name.removeprefix("memory.")
            rises = [after[counted] - earlier[counted] for after, earlier in zip(now, before, strict=True)]
            live.expect(f"whether {counted} counts for the one above", True, rises[1] > 0)
            if limited is group:
                live.expect(f"whether {counted} counts for both alike", True, rises[0] == rises[1])
                live.expect("local events of the group", now[0], _events(group, _LOCAL))
            live.expect("events that have nobody killed", (0, 0), (now[1]["oom"], now[1]["oom_kill"]))
            limited.write(name, "max")
            memory.actor.end()
            live.expect(
                "local events of the one above", 0 if limited is group else rises[1], _events(above, _LOCAL)[counted]
            )
    other.expect_filled()


@case(
    "memory.reclaim has as much of a group swapped out as it is asked for, and is EAGAIN where there is less to be had,"
    " as of locked memory, or of any where the group may have none in swap; what is no number is EINVAL",
    f"{DOC} memory.reclaim; mm/memcontrol.c memory_reclaim()",
    since="5.19",
)
def reclaimed_on_request(live: Live, group: ControlGroup, above: ControlGroup) -> None:
    memory = _memory_in(live, group)
    for text in ("x", "1 x", "1Mx"):
        live.expect_errno(errno.EINVAL, above.write, "memory.reclaim", text)
    live.expect("memory in swap", 0, swapped(memory))
    memory.actor.call("mlock", memory.address, memory.size)
    asked = (_PAGES - _KEPT) * memory.size
    used = _number(above, _USED)

    def is_reclaimed() -> bool:
        try:
            above.write("memory.reclaim", str(asked))
        except Refused as refusal:
            # what is written to swap in that moment is not free yet
            if refusal.errno != errno.EAGAIN:
                raise
        return _number(above, _USED) <= used - asked // 2

    live.host.wait_until(is_reclaimed)
    live.expect("whether at least half of it was reclaimed", True, _number(above, _USED) <= used - asked // 2)
    _expect_all_there(live, memory)
    live.expect("whether that is in swap", True, swapped(memory.part(1)) >= asked // 2)
    live.expect("locked memory in swap", 0, swapped(memory.part(0)))
    live.expect_errno(errno.EAGAIN, above.write, "memory.reclaim", str(2 * _PAGES * memory.size))
    _expect_all_there(live, memory)
    memory.expect_filled()
    memory.actor.end()
    memory = _memory_in(live, group)
    above.write("memory.swap.max", "0")
    # some was in swap, and is still in memory, too
    live.expect_errno(errno.EAGAIN, above.write, "memory.reclaim", str(2 * _PAGES * memory.size))
    live.expect("memory that is there", memory.length, memory.smaps().rss)
    memory.expect_filled()


@case(
    "memory.peak is the most memory that a group, and those below it, have had at once, whatever was given back, and"
    " for who has written to it the most since then; so is memory.swap.peak of swap",
    f"{DOC} memory.peak, memory.swap.peak; mm/memcontrol.c memory_peak_show(), peak_write(); mm/page_counter.c",
    since="5.19",
)
def highest_use(live: Live, group: ControlGroup, above: ControlGroup) -> None:
    memory = _memory_in(live, group)
    beside = _memory_in(live, above.child("beside"), 2)
    both = _number(above, _USED)
    live.expect("whether the peak of both is what they have, at least", True, _number(above, _PEAK) >= both)
    beside.actor.end()
    memory.advise(mmap.MADV_DONTNEED, 0, 2)
    memory.touch(0)
    size = memory.size
    # as it was, and less than a page more
    for each, pages in ((above, _PAGES + 2), (group, _PAGES)):
        peak = _number(each, _PEAK)
        live.expect(f"whether the peak is that of {pages} huge pages", True, 0 <= peak - pages * size < size)
    live.expect("whether a peak is never below what is used", True, _number(group, _PEAK) >= _number(group, _USED))
    if live.kernel_version >= _RESET_SINCE:
        _expect_peaks_apart(live, above, memory)
    if above.read("memory.swap.peak") is not None:  # since Linux 6.5
        swap_out(live, memory.part(2, 3), 3 * size)
        memory.part(2, 3).advise(mmap.MADV_DONTNEED)
        live.expect("swap.peak", [3 * size] * 2, [_number(each, "memory.swap.peak") for each in (group, above)])


def _expect_peaks_apart(live: Live, group: ControlGroup, memory: Memory) -> None:
    """Expect who has written to memory.peak to see the most since then, and nobody else."""
    watcher, size = live.actor(), memory.size
    files = [live.open(watcher, f"{group.path}/{_PEAK}", os.O_RDWR) for _number_of_it in range(2)]
    whole = _number(group, _PEAK)
    watcher.call("write", files[0], b"reset", 5)
    used = _number(group, _USED)
    seen = [_read_number(watcher, file) for file in files]
    live.expect("what who has not written sees", whole, seen[1])
    live.expect("whether who has written sees what is used then", True, abs(seen[0] - used) < size // 2)
    memory.touch(1)
    memory.advise(mmap.MADV_DONTNEED, 1, 1)
    seen = [_read_number(watcher, file) for file in files]
    live.expect("what who has not written sees then", whole, seen[1])
    live.expect("whether who has written sees the page that has gone", True, abs(seen[0] - used - size) < size // 2)


def _read_number(actor: Actor, descriptor: int) -> int:
    length, (text,) = actor.call_with_buffers("pread64", descriptor, bytes(_MOST_TEXT), _MOST_TEXT, 0)
    return int(text[:length])


def _memory_in(live: Live, group: ControlGroup, pages: int = _PAGES) -> Memory:
    """Return huge pages that a process in ``group``, which keeps to one CPU, has filled.

    Raises CannotRun where memory is too fragmented for them.
    """
    actor = live.actor()
    status = read_process_status(live.host, actor.pid)
    run_on(actor, status.cpus[:1] if status else ())
    group.add(actor)
    memory = advised(live, pages, actor=actor)
    memory.fill()
    need_blocks(live, memory)
    live.expect("AnonHugePages", memory.length, memory.smaps().anon_huge_pages)
    return memory


def _number(group: ControlGroup, name: str) -> int:
    return parse_integer((group.read(name) or "").strip(), f"{group.path}/{name}")


def _events(group: ControlGroup, name: str) -> dict[str, int]:
    """Return the counts of a file of events, by name."""
    words = (line.split() for line in (group.read(name) or "").splitlines())
    return {event: int(count) for event, count in words}


def _swap_of(live: Live, actor: Actor) -> int:
    """Return the bytes of a process that are in swap: others may have had more of it go there than was asked for."""
    return sum(mapping.fields.get("Swap", 0) for mapping in read_smaps(ObservedTree(live.host), actor.pid) or ())


def _expect_all_there(live: Live, memory: Memory) -> None:
    """Expect all of ``memory`` to be mapped or in swap."""
    mappings = memory.all_mappings()
    found = sum(mapping.rss + mapping.fields["Swap"] for mapping in mappings)
    live.expect("bytes that are mapped or in swap", memory.length, found)


def _expect_about(live: Live, group: ControlGroup, name: str, pages: int) -> None:
    """Expect so many huge pages; each CPU may keep some entries of swap that are free (mm/swap_slots.c)."""

    def found() -> int:
        return (_number(group, name) + pmd_size(live) // 2) // pmd_size(live)

    live.expect(f"huge pages in {name}", pages, live.host.last_look(found, lambda now: now == pages))


def _wait_until_written(live: Live, group: ControlGroup) -> None:
    """Wait until nothing of a group is being written to swap: that is given back later, when somebody wants memory."""
    live.host.wait_until(lambda: not read_statistics(group).get("file_writeback"))


class CgroupReclaimed(LiveTest):
    """Huge pages that groups have too many of.

    :avocado: enable
    """

    def test_reclaimed(self) -> None:
        """Every case, once for the machine."""
        self.run_area(RECLAIMED)
