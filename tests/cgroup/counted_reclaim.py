"""What a group, and vmstat, count of large folios that are reclaimed and had again: base pages, not folios."""

import errno
import mmap
from collections.abc import Callable

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.control_group import ControlGroup, Version, new_group
from hugepage_qa.cases.fragmentation import compact_if_short
from hugepage_qa.cases.group_memory import USED, actor_in, file_on_a_disk, need_exact_charges
from hugepage_qa.cases.group_statistics import ADDED_UP_SECONDS, read_statistics
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.swapped import need_swap, zswap_knob
from hugepage_qa.cases.thp_memory import (
    map_aligned,
    mapped_huge,
    pmd_size,
    read_counters,
)
from hugepage_qa.cases.thp_policy import fill_in_huge_pages, give_on_advice
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE
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
    file = file_on_a_disk(live, _PAGES * pmd_size(live))
    reader = file.actor.fork()
    group.add(reader)
    address = reader.mmap(_PAGES * pmd_size(live), READ_WRITE, mmap.MAP_SHARED, file.descriptor)
    memory = Memory(live, reader, address, _PAGES, pmd_size(live))
    memory.expect_filled()
    return memory


def _has_generations(live: Live) -> bool:
    """Tell whether the kernel keeps memory in generations, where a refault counts if it comes soon (MGLRU)."""
    return int((live.host.read(_GENERATIONS) or "0").strip(), 16) != 0


class CgroupCountedReclaim(LiveTest):
    def test_counted_reclaim(self) -> None:
        self.run_area(COUNTED_RECLAIM)
