"""What a group, and vmstat, count of large folios that are reclaimed and had again: base pages, not folios."""

import errno
import mmap
from collections.abc import Callable, Mapping
from functools import partial
from itertools import combinations

from hugepage_qa.cases.cache_counts import CACHESTAT, CACHESTAT_SINCE, cached_pages
from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.changed_counters import read_counters
from hugepage_qa.cases.control_group import ControlGroup, Version, new_group
from hugepage_qa.cases.fragmentation import compact_if_short
from hugepage_qa.cases.group_memory import USED, actor_in, file_on_a_disk, need_exact_charges
from hugepage_qa.cases.group_statistics import ADDED_UP_SECONDS, read_statistics
from hugepage_qa.cases.large_folios import block_size
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.lru_batches import drain_lru_batches
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.swapped import need_swap, zswap_knob
from hugepage_qa.cases.thp_memory import map_aligned, mapped_huge, pmd_size
from hugepage_qa.cases.thp_policy import fill_in_huge_pages, give_on_advice
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE, MADV_NOHUGEPAGE
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Refused

COUNTED_RECLAIM = Area("cgroup/counted-reclaim", sizes=Sizes.ONCE)

_PAGES = 6
_SWAPPINESS, _GENERATIONS = "proc/sys/vm/swappiness", "sys/kernel/mm/lru_gen/enabled"
_SECONDS = 60.0

#: returns memory of a process in a group, which has all of it
_Make = Callable[[Live, ControlGroup], Memory]


@COUNTED_RECLAIM.case(
    "pgsteal of a group, and that of its kind in vmstat, rises by the base pages that are reclaimed of large folios,"
    " private, shared and of files, and pgscan by no less; workingset_refault rises by no more base pages than are had"
    " again, and that of private memory by no less without generations; all that was in them is there",
    "Documentation/admin-guide/cgroup-v2.rst memory.stat pgscan, pgsteal, workingset_refault_anon,"
    " workingset_refault_file; mm/vmscan.c shrink_inactive_list(), evict_folios(); mm/workingset.c"
    " workingset_refault()",
    since="5.19",  # memory.reclaim
)
def reclaimed_and_refaulted(live: Live) -> None:
    need_exact_charges(live)
    need_swap(live, 2 * _PAGES * pmd_size(live))
    live.set_knob_if_there(zswap_knob("enabled"), "N")
    live.set_knob(_SWAPPINESS, "100")
    give_on_advice(live)
    compact_if_short(live, pmd_size(live), _PAGES)
    above = new_group(live, "memory", Version.TWO)
    rows: tuple[tuple[str, str, _Make], ...] = (
        ("private", "anon", _private),
        ("shared", "anon", _shared),
        ("of a file", "file", _of_a_file),
    )
    for name, kind, make in rows:
        with live.about(name):
            group = above.child(name.replace(" ", "-"))
            memory = make(live, group)
            _expect_stolen(live, group, memory, kind)
            _expect_refaults(live, group, memory, kind, all_of_them=name == "private" and not _has_generations(live))
            memory.actor.end()


def _expect_stolen(live: Live, group: ControlGroup, memory: Memory, kind: str) -> None:
    """Have the memory of ``group`` reclaimed, all but less than a huge page, and expect that to be counted."""
    before, of_all = read_statistics(group), read_counters(live)
    used = group.read_number(USED)

    def is_reclaimed() -> bool:
        try:
            group.write("memory.reclaim", str(memory.length))
        except Refused as refusal:
            # what is written to swap in that moment is not free yet
            if refusal.errno != errno.EAGAIN:
                raise
        return used - group.read_number(USED) > memory.length - memory.size

    if not live.host.last_look(is_reclaimed, bool, _SECONDS):
        live.fail("whether it is reclaimed when that is asked for", True, False)
    gone = used - group.read_number(USED)

    def stolen() -> int:
        return (read_statistics(group)["pgsteal"] - before["pgsteal"]) * live.base_page

    # what the process has besides, page tables and the like among it, and what a CPU is charged for ahead, are less
    found = live.host.last_look(stolen, lambda now: abs(now - gone) < memory.size, ADDED_UP_SECONDS)
    live.expect(
        f"whether pgsteal, {found} bytes, is what the group has no more, {gone}", True, abs(found - gone) < memory.size
    )
    scanned = (read_statistics(group)["pgscan"] - before["pgscan"]) * live.base_page
    live.expect(f"whether pgscan, {scanned} bytes, is no less than {found}", True, scanned >= found)
    now = read_counters(live)
    for counter in (f"pgsteal_{kind}", f"pgscan_{kind}"):
        rise = (now[counter] - of_all[counter]) * live.base_page
        live.expect(
            f"whether {counter} of vmstat, {rise} bytes, has all of it", True, rise > memory.length - memory.size
        )


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
    if _has_generations(live):
        if not live.host.is_thrown_away():
            raise CannotRun("this kernel keeps memory in generations: it has no active list that pages leave")
        live.set_knob(_GENERATIONS, "0")
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


def _of_a_file(live: Live, group: ControlGroup) -> Memory:
    """Return a file that a process of ``group`` has read through its mapping, in folios as large as they may be."""
    file = file_on_a_disk(live, _PAGES * block_size(live))
    reader = file.actor.fork()
    group.add(reader)
    address = reader.mmap(_PAGES * block_size(live), READ_WRITE, mmap.MAP_SHARED, file.descriptor)
    memory = Memory(live, reader, address, _PAGES, block_size(live))
    memory.expect_filled()
    return memory


def _has_generations(live: Live) -> bool:
    """Tell whether the kernel keeps memory in generations, where a refault counts if it comes soon (MGLRU)."""
    return int((live.host.read(_GENERATIONS) or "0").strip(), 16) != 0


class CgroupCountedReclaim(LiveTest):
    def test_counted_reclaim(self) -> None:
        self.run_area(COUNTED_RECLAIM)
