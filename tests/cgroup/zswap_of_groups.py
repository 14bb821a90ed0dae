"""Memory of groups that zswap takes on its way to swap: what they are charged for it, and what their limits forbid."""

import os
from collections.abc import Callable, Sequence
from functools import partial
from operator import eq

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.changed_counters import expect_change, read_counters
from hugepage_qa.cases.control_group import ControlGroup, Version, new_group
from hugepage_qa.cases.fragmentation import compact_if_short
from hugepage_qa.cases.group_memory import expect_all_there, huge_pages_in
from hugepage_qa.cases.group_statistics import ADDED_UP_SECONDS, read_statistics
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.swapped import only_swap, swap_out, swap_to_a_device, turn_zswap_on, zswap_knob
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
    " does not take: it stays in memory; with 1 it is written, and while zswap is off, whatever it is",
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
    for is_on, writeback in ((True, "1"), (False, "1"), (False, "0")):
        with live.about(f"zswap is on {is_on}, {_WRITEBACK} is {writeback}"):
            live.set_knob(zswap_knob("enabled"), "NY"[is_on])
            group.write(_WRITEBACK, writeback)
            memory = expect_change(live, {"pswpout": base_pages}, partial(huge_pages_in, live, group, _PAGES), out)
            memory.expect_filled()
            memory.actor.end()


@ZSWAP_OF_GROUPS.case(
    "of a huge page whose first, last, or a base page in the middle cannot be compressed, or none of it, zswap keeps"
    " nothing where memory.zswap.writeback is 0: Zswapped, and what it has of the group and of the one above, stay as"
    " they were, and all of the huge page stays in memory, whole and right; all of it goes once it can be compressed;"
    " with 1 zswap has all of it or nothing",
    f"{DOC} memory.zswap.writeback, memory.zswap.current, memory.stat zswapped; mm/zswap.c zswap_store();"
    " mm/page_io.c swap_writeout()",
    # zswap has taken huge pages since 6.13; until 0ff67f990bd4 a CPU kept swap that was free, and zswap its contents
    since="6.15",
)
def whole_or_nothing(live: Live) -> None:
    # a file gets huge pages in pieces, of which zswap takes each that it can
    above, group = _groups(live, swap_to_a_device)
    size, base = pmd_size(live), live.base_page
    for start, length in ((0, base), (size // 2, base), (size - base, base), (0, size)):
        with live.about(f"{length} bytes from {start} on cannot be compressed"):
            make = partial(_random_in_part, live, group, start, length)
            group.write(_WRITEBACK, "0")
            _expect_kept_out(live, (group, above), make)
            group.write(_WRITEBACK, "1")
            # what cannot be compressed is taken as it is since Linux 6.18
            taken = live.host.last_attempt(partial(_taken_at_all, live, make), (0, size).__contains__)
            live.expect("whether zswap has all of the huge page or nothing", True, taken in (0, size))


def _expect_kept_out(live: Live, groups: Sequence[ControlGroup], make: Callable[[], Memory]) -> None:
    """Expect nothing of the huge page that ``make`` returns to go to zswap, and all of it when it was filled anew."""
    size = pmd_size(live)
    out = partial(swap_out, live, length=size)
    checksums = list[int]()

    def made() -> Memory:
        memory = make()
        checksums.append(memory.actor.sum(memory.address, size))
        return memory

    memory = expect_change(live, {"Zswapped": 0, "zswpout": 0, "pswpout": 0}, made, out)
    live.host.pause(_SETTLED_SECONDS)
    _expect_in_zswap(live, groups, 0)
    live.expect(
        "bytes of the groups as zswap keeps them", [0] * len(groups), [each.read_number(_USED) for each in groups]
    )
    live.expect("checksum of the huge page", checksums[-1], memory.actor.sum(memory.address, size))
    frames = memory.present_frames(1)
    row = set(range(frames[0], frames[0] + size // live.base_page))
    live.expect("base pages of the huge page that are not in a row", 0, len(row - set(frames)))
    expect_change(live, {"Zswapped": size, "pswpout": 0}, partial(_filled_anew, memory), out)
    _expect_in_zswap(live, groups, size)
    memory.expect_filled()
    memory.actor.end()


def _taken_at_all(live: Live, make: Callable[[], Memory]) -> int:
    """Swap the huge page that ``make`` returns out, expect it to come back right, and return what zswap had of it."""
    memory = make()
    checksum, before = memory.actor.sum(memory.address, memory.length), read_counters(live)["Zswapped"]
    swap_out(live, memory, memory.length)
    taken = read_counters(live)["Zswapped"] - before
    live.expect("checksum of the huge page that came back", checksum, memory.actor.sum(memory.address, memory.length))
    memory.actor.end()
    return taken


def _expect_in_zswap(live: Live, groups: Sequence[ControlGroup], length: int) -> None:
    """Expect zswap to have ``length`` bytes of each group, exactly."""

    def taken() -> list[int]:
        return [read_statistics(group)["zswapped"] for group in groups]

    expected = [length] * len(groups)
    found = live.host.last_look(taken, partial(eq, expected), ADDED_UP_SECONDS)
    live.expect("bytes of the group, and of the one above it, that zswap has", expected, found)


def _filled_anew(memory: Memory) -> Memory:
    memory.fill()
    return memory


def _random_in_part(live: Live, group: ControlGroup, start: int, length: int) -> Memory:
    """Return a filled huge page of a process in ``group``, with ``length`` random bytes from ``start`` on."""
    memory = huge_pages_in(live, group, 1)
    source = live.open(memory.actor, "/dev/urandom", os.O_RDONLY)
    live.expect("random bytes", length, memory.actor.call("read", source, memory.address + start, length))
    return memory


def _groups(live: Live, swap: Callable[[Live, int], object] = only_swap) -> tuple[ControlGroup, ControlGroup]:
    """Return a group and one below it, with zswap and ``swap`` of this case alone. Raises CannotRun without zswap."""
    swap(live, 8 * _PAGES * pmd_size(live))
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
