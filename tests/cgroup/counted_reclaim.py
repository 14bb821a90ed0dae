"""What a group, and vmstat, count of large folios that are reclaimed and had again: base pages, not folios."""

import errno
import mmap
import os
from collections.abc import Callable, Mapping
from functools import partial
from itertools import combinations

from hugepage_qa.cases.cache_counts import CACHESTAT, CACHESTAT_SINCE, cached_pages
from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.changed_counters import read_counters
from hugepage_qa.cases.control_group import ControlGroup, Version, new_group
from hugepage_qa.cases.fragmentation import compact_if_short, expect_no_node_short
from hugepage_qa.cases.group_memory import USED, actor_in, file_on_a_disk, need_exact_charges
from hugepage_qa.cases.group_statistics import ADDED_UP_SECONDS, read_statistics
from hugepage_qa.cases.large_folios import block_size
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.lru_batches import drain_lru_batches
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.page_generations import has_generations, need_no_generations
from hugepage_qa.cases.swapped import need_swap, turn_zswap_on, zswap_knob
from hugepage_qa.cases.thp_memory import map_aligned, mapped_huge, pmd_size
from hugepage_qa.cases.thp_policy import fill_in_huge_pages, give_on_advice
from hugepage_qa.cases.thp_shared_memory import mount_tmpfs
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE, MADV_NOHUGEPAGE, MAP_FIXED
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Refused

COUNTED_RECLAIM = Area("cgroup/counted-reclaim", sizes=Sizes.ONCE)

_PAGES = 6
_SWAPPINESS = "proc/sys/vm/swappiness"
_SECONDS = 60.0

#: returns memory of a process in a group, which has all of it
_Make = Callable[[Live, ControlGroup], Memory]


@COUNTED_RECLAIM.case(
    "pgsteal of a group, and that of its kind in vmstat, rises by the base pages that are reclaimed of large folios,"
    " private, shared and of files, whole or split on the way, and pgscan by no less; workingset_refault rises by no"
    " more base pages than are had again, and that of private memory by no less without generations; all that was in"
    " them is there",
    "Documentation/admin-guide/cgroup-v2.rst memory.stat pgscan, pgsteal, workingset_refault_anon,"
    " workingset_refault_file; mm/vmscan.c shrink_inactive_list(), evict_folios(), shrink_folio_list(); mm/workingset.c"
    " workingset_refault()",
    since="5.19",  # memory.reclaim
)
def reclaimed_and_refaulted(live: Live) -> None:
    live.set_knob_if_there(zswap_knob("enabled"), "N")
    _expect_counted(live, _SWAPPED | {"of a file": ("file", _of_a_file)})


@COUNTED_RECLAIM.case(
    "where zswap takes what goes to swap, and keeps it for the group, pgsteal, pgscan and workingset_refault count the"
    " base pages that are reclaimed of large folios, private and shared, whole or split on the way, and those that are"
    " had again, as where a disk takes them",
    "Documentation/admin-guide/cgroup-v2.rst memory.stat pgscan, pgsteal, workingset_refault_anon, zswap; mm/vmscan.c"
    " shrink_folio_list(); mm/zswap.c zswap_store()",
    since="5.19",  # memory.reclaim, and what zswap has of a group
)
def taken_by_zswap(live: Live) -> None:
    turn_zswap_on(live)
    _expect_counted(live, _SWAPPED, by_zswap=True)


def _expect_counted(live: Live, rows: Mapping[str, tuple[str, _Make]], *, by_zswap: bool = False) -> None:
    """Have memory of each kind reclaimed, ``by_zswap``, and had again, and expect pages of its type to be counted."""
    need_exact_charges(live)
    need_swap(live, 2 * _PAGES * pmd_size(live))
    live.set_knob(_SWAPPINESS, "100")
    give_on_advice(live)
    compact_if_short(live, pmd_size(live), _PAGES)
    above = new_group(live, "memory", Version.TWO)
    for name, (kind, make) in rows.items():
        with live.about(name):
            group = above.child(name.replace(",", "").replace(" ", "-"))
            memory = make(live, group)
            _expect_stolen(live, group, memory, kind)
            if by_zswap:
                _expect_taken_by_zswap(live, group, memory)
            _expect_refaults(live, group, memory, kind, all_of_them=name == "private" and not has_generations(live))
            memory.actor.end()


def _expect_stolen(live: Live, group: ControlGroup, memory: Memory, kind: str) -> None:
    """Have the memory of ``group`` reclaimed, all but less than a huge page, and expect that to be counted."""
    before, of_all = read_statistics(group), read_counters(live)
    used = group.read_number(USED)

    def gone() -> int:
        # the group is charged for what zswap keeps of it
        return used - group.read_number(USED) + read_statistics(group).get("zswap", 0)

    def is_reclaimed() -> bool:
        try:
            group.write("memory.reclaim", str(memory.length))
        except Refused as refusal:
            # what is written to swap in that moment is not free yet
            if refusal.errno != errno.EAGAIN:
                raise
        return gone() > memory.length - memory.size

    if not live.host.last_look(is_reclaimed, bool, _SECONDS):
        live.fail("whether it is reclaimed when that is asked for", True, False)

    def counted() -> tuple[int, int]:
        return (read_statistics(group)["pgsteal"] - before["pgsteal"]) * live.base_page, gone()

    def is_right(counts: tuple[int, int]) -> bool:
        # what the process has besides, page tables and the like among it, and what a CPU is charged for ahead, are less
        return abs(counts[0] - counts[1]) < memory.size

    found, taken = counts = live.host.last_look(counted, is_right, ADDED_UP_SECONDS)
    live.expect(f"whether pgsteal, {found} bytes, is what the group has no more, {taken}", True, is_right(counts))
    scanned = (read_statistics(group)["pgscan"] - before["pgscan"]) * live.base_page
    live.expect(f"whether pgscan, {scanned} bytes, is no less than {found}", True, scanned >= found)
    now = read_counters(live)
    for counter in (f"pgsteal_{kind}", f"pgscan_{kind}"):
        rise = (now[counter] - of_all[counter]) * live.base_page
        live.expect(
            f"whether {counter} of vmstat, {rise} bytes, has all of it", True, rise > memory.length - memory.size
        )


def _expect_taken_by_zswap(live: Live, group: ControlGroup, memory: Memory) -> None:
    """Expect zswap to have taken what was reclaimed of ``memory``, all that its new group has had in swap."""
    least = memory.length - memory.size

    def taken() -> int:
        return read_statistics(group)["zswpout"] * live.base_page

    found = live.host.last_look(taken, least.__lt__, ADDED_UP_SECONDS)
    live.expect(f"whether zswpout, {found} bytes, is more than {least}", True, found > least)


def _expect_refaults(live: Live, group: ControlGroup, memory: Memory, kind: str, *, all_of_them: bool) -> None:
    """Have all of memory again, and expect no more of it to be counted, and all of what was reclaimed if so."""
    counter = f"workingset_refault_{kind}"
    before, of_all = read_statistics(group)[counter], read_counters(live)[counter]
    memory.expect_filled()
    least, most = (memory.length - memory.size if all_of_them else 0), memory.length + memory.size // 2

    def refaulted() -> int:
        return (read_statistics(group)[counter] - before) * live.base_page

    found = live.host.last_look(refaulted, lambda now: least <= now < most, ADDED_UP_SECONDS)
    live.expect(f"whether {counter}, {found} bytes, is {least} to {most}", True, least <= found < most)
    rise = (read_counters(live)[counter] - of_all) * live.base_page
    live.expect(f"whether that of vmstat, {rise} bytes, has those", True, rise >= found)


@COUNTED_RECLAIM.case(
    "pgdeactivate of a group, and that of vmstat, rises by no fewer base pages than are reclaimed of its active list:"
    " all that are reclaimed but what was inactive before",
    "Documentation/admin-guide/cgroup-v2.rst memory.stat pgdeactivate; mm/vmscan.c shrink_active_list()",
    since="5.19",  # memory.reclaim
)
def deactivated(live: Live) -> None:
    need_no_generations(live, "it has no active list that pages leave")
    need_exact_charges(live)
    # memory of processes stays
    live.set_knob(_SWAPPINESS, "0")
    group, (size, pages) = new_group(live, "memory", Version.TWO), (block_size(live), _PAGES)
    for step in (size, size // 2, 3 * live.base_page):
        with live.about(f"read by {step} bytes"):
            memory, descriptor = _buffer_and_file(live, group, pages)
            active = _make_active(live, group, memory, descriptor, step)
            before, of_all = read_statistics(group), read_counters(live)["pgdeactivate"]
            _reclaim(live, group, pages * size, pages * size - size)
            _expect_deactivated(live, group, before, of_all, active)
            memory.actor.end()


def _make_active(live: Live, group: ControlGroup, memory: Memory, descriptor: int, step: int) -> int:
    """Read a file until most of it is active, and return how many bytes are. Raises CannotRun if they do not become so.

    A page that is read twice becomes so (folio_mark_accessed()), once its CPU has put it on its lists.
    """

    def read_again() -> int:
        _read(live, memory, descriptor, step)
        drain_lru_batches(live, memory.actor)
        return read_statistics(group)["active_file"]

    active = live.host.last_look(read_again, lambda now: now >= memory.length - memory.size // 2, _SECONDS)
    if active < memory.length - memory.size:
        raise CannotRun(f"of {memory.length} bytes of a file that is read again and again {active} are active")
    return active


def _expect_deactivated(live: Live, group: ControlGroup, before: Mapping[str, int], of_all: int, active: int) -> None:
    """Expect all that was reclaimed but what was inactive to be counted, but for less than half a huge page."""
    inactive = before["file"] - active

    def missing() -> int:
        now = read_statistics(group)
        stolen, found = (now[name] - before[name] for name in ("pgsteal", "pgdeactivate"))
        return (stolen - found) * live.base_page - inactive

    most = block_size(live) // 2
    left = live.host.last_look(missing, lambda now: now < most, ADDED_UP_SECONDS)
    live.expect(
        f"whether less than {most} bytes that are reclaimed were not deactivated before: {left}", True, left < most
    )
    of_group = read_statistics(group)["pgdeactivate"] - before["pgdeactivate"]
    rise = read_counters(live)["pgdeactivate"] - of_all
    live.expect(f"whether pgdeactivate of vmstat, {rise} base pages, has the {of_group}", True, rise >= of_group)


@COUNTED_RECLAIM.case(
    "cachestat(2) counts each page of a file once after a part of them was reclaimed, as cached or as evicted, whatever"
    " range is asked for, none as dirty, and those that were recently evicted among these; no flag is known",
    CACHESTAT,
    since=CACHESTAT_SINCE,
)
def cached_or_evicted(live: Live) -> None:
    need_exact_charges(live)
    # memory of processes stays: so much might have been kept of the file instead, and each page of it counts as recent
    need_swap(live, _PAGES * block_size(live))
    live.set_knob(_SWAPPINESS, "0")
    group = new_group(live, "memory", Version.TWO)
    memory, descriptor = _buffer_and_file(live, group, _PAGES)
    size, whole = memory.size, memory.length
    _read(live, memory, descriptor, size)
    _expect_each_once(live, memory, descriptor)
    _reclaim(live, group, whole // 2, whole // 2 - size // 2)
    look = partial(cached_pages, live, memory.actor, descriptor, 0, whole)
    # what is recent depends on statistics of the group
    recently = live.host.last_look(look, lambda now: now.recently_evicted > 0, ADDED_UP_SECONDS).recently_evicted
    _expect_each_once(live, memory, descriptor)
    live.expect_errno(errno.EINVAL, cached_pages, live, memory.actor, descriptor, 0, whole, flags=1)
    if not recently:
        raise CannotRun("no page that was evicted counts as one that recently was")


def _expect_each_once(live: Live, memory: Memory, descriptor: int) -> None:
    """Expect cachestat(2) to count each page of ranges of a file once."""
    base, size, whole = live.base_page, memory.size, memory.length
    ranges = [(start, end - start) for start, end in combinations(range(0, whole + 1, size), 2)]
    ranges += [(7 * base, base), (size - 1, 2), (5 * base - 1, size), (whole - base, base)]
    for start, length in ranges:
        pages = (start + length - 1) // base - start // base + 1
        found = cached_pages(live, memory.actor, descriptor, start, length)
        with live.about(f"{length} bytes at {start}"):
            live.expect(
                f"pages, {found.cached} cached and {found.evicted} evicted", pages, found.cached + found.evicted
            )
            live.expect("dirty pages, and pages under writeback", (0, 0), (found.dirty, found.written))
            live.expect(
                f"whether of {found.evicted} evicted pages no more were recently: {found.recently_evicted}",
                True,
                found.recently_evicted <= found.evicted,
            )


def _buffer_and_file(live: Live, group: ControlGroup, pages: int) -> tuple[Memory, int]:
    """Return memory of a process in ``group``, and a file open there that is as long and in no memory."""
    file = file_on_a_disk(live, pages * block_size(live))
    reader = file.actor.fork()
    group.add(reader)
    return map_aligned(live, pages, block_size(live), actor=reader, advice=MADV_NOHUGEPAGE), file.descriptor


def _read(live: Live, memory: Memory, descriptor: int, step: int) -> None:
    """Read a file into memory, in parts of ``step`` bytes."""
    for offset in range(0, memory.length, step):
        length = min(step, memory.length - offset)
        found = memory.actor.call("pread64", descriptor, memory.address + offset, length, offset)
        live.expect("bytes read", length, found)


def _reclaim(live: Live, group: ControlGroup, length: int, least: int) -> None:
    """Have ``length`` bytes of a group reclaimed. Raises CannotRun where it gives less than ``least``."""
    used = group.read_number(USED)

    def gone() -> int:
        try:
            group.write("memory.reclaim", str(length - (used - group.read_number(USED))))
        except Refused as refusal:
            if refusal.errno != errno.EAGAIN:
                raise
        return used - group.read_number(USED)

    if live.host.last_look(gone, lambda now: now >= least, _SECONDS) < least:
        raise CannotRun("what the group has of a file stays in memory")


def _private(live: Live, group: ControlGroup) -> Memory:
    return _huge_pages(live, group, shared=False)


def _shared(live: Live, group: ControlGroup) -> Memory:
    return _huge_pages(live, group, shared=True)


def _huge_pages(live: Live, group: ControlGroup, *, shared: bool) -> Memory:
    memory = map_aligned(live, _PAGES, pmd_size(live), shared=shared, actor=actor_in(live, group), advice=MADV_HUGEPAGE)
    fill_in_huge_pages(live, memory)
    live.expect("bytes in huge pages", memory.length, mapped_huge(memory))
    return memory


def _private_in_parts(live: Live, group: ControlGroup) -> Memory:
    """Return huge pages of which the last base page is gone: they are split when they are reclaimed, if not before."""
    memory = _private(live, group)
    _end_in_base_pages(live, memory)
    return memory


def _of_files_that_end_inside(live: Live, group: ControlGroup) -> Memory:
    """Return a huge page each of files of a tmpfs that end one base page before: shmem_writeout() splits it."""
    memory = map_aligned(live, _PAGES, pmd_size(live), actor=actor_in(live, group))
    actor, point, end = memory.actor, mount_tmpfs(live, "always"), memory.size - live.base_page
    for page in range(_PAGES):
        file = live.open(actor, point, os.O_RDWR | live.host.uapi.o_tmpfile)
        actor.call("ftruncate", file, end)
        # where less than a huge page is mapped none is had
        actor.mmap(memory.size, READ_WRITE, mmap.MAP_SHARED | MAP_FIXED, file, address=memory.at(page))
        memory.fill_part(page * memory.size, end)

    def huge() -> int:
        return read_statistics(group)["shmem_thp"]

    found = live.host.last_look(huge, memory.length.__eq__, ADDED_UP_SECONDS)
    if found != memory.length:
        expect_no_node_short(live, memory.size, _PAGES)
    live.expect("shmem_thp", memory.length, found)
    _end_in_base_pages(live, memory)
    return memory


def _end_in_base_pages(live: Live, memory: Memory) -> None:
    """Have a base page of its own at the end of each page of ``memory``."""
    for page in range(memory.pages):
        last = memory.at(page + 1) - live.base_page
        kind = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_FIXED
        memory.actor.mmap(live.base_page, READ_WRITE, kind, address=last)
        memory.fill_part(last - memory.address, live.base_page)


def _of_a_file(live: Live, group: ControlGroup) -> Memory:
    """Return a file that a process of ``group`` has read through its mapping, in folios as large as they may be."""
    file = file_on_a_disk(live, _PAGES * block_size(live))
    reader = file.actor.fork()
    group.add(reader)
    address = reader.mmap(_PAGES * block_size(live), READ_WRITE, mmap.MAP_SHARED, file.descriptor)
    memory = Memory(live, reader, address, _PAGES, block_size(live))
    memory.expect_filled()
    return memory


#: what goes to swap, by what it is
_SWAPPED: dict[str, tuple[str, _Make]] = {
    "private": ("anon", _private),
    "shared": ("anon", _shared),
    "private, of which a part is gone": ("anon", _private_in_parts),
    "of files that end inside": ("anon", _of_files_that_end_inside),
}


class CgroupCountedReclaim(LiveTest):
    def test_counted_reclaim(self) -> None:
        self.run_area(COUNTED_RECLAIM)
