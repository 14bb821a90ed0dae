"""Memory that is fragmented on purpose: what compaction makes of it, and huge pages afterwards."""

from dataclasses import dataclass
from functools import partial
from statistics import median

from hugepage_qa.kernel.meminfo import read_meminfo
from hugepage_qa.live.case import Area, Sizes
from hugepage_qa.live.fragmentation import SAMPLES, Fragmentation, expect_no_shortage, fragmentation
from hugepage_qa.live.live import Live
from hugepage_qa.live.memory import Memory
from hugepage_qa.live.outcomes import CannotRun
from hugepage_qa.live.thp_policy import advised, set_policy
from hugepage_qa.live.transparent import (
    MADV_COLLAPSE,
    collapse,
    expect_change,
    map_aligned,
    pmd_size,
    read_counters,
)
from hugepage_qa.model.rules import THP_DOC
from hugepage_qa.plugins.live_test import LiveTest
from hugepage_qa.sizes import GIB

FRAGMENTED = Area("thp/fragmented", sizes=Sizes.ONCE)

COMPACTION = "Documentation/admin-guide/sysctl/vm.rst compact_memory; mm/compaction.c compact_zone(), mm/migrate.c"
#: how much is fragmented: one part of so many of what is available, but not more than the second
_PARTS, _MOST = 8, GIB
#: one base page of so many stays
_KEPT = 8
#: of the blocks that compaction can make: pages of the kernel and of others among them cannot be moved
_ENOUGH = 0.25
#: blocks that come and go by themselves
_NOISE = 16
_HUGE_PAGES = 16
#: the share of the memory that the lists of all CPUs may hold: one part of so many
_OF_EACH_CPU = "proc/sys/vm/percpu_pagelist_high_fraction"


@dataclass(frozen=True)
class Fragments:
    """Memory of which one base page of ``_KEPT`` is left, and how fragmented the machine is without it and with it."""

    memory: Memory
    before: Fragmentation
    after: Fragmentation

    @property
    def owed(self) -> int:
        """The free blocks that compaction can make: those that were lost, but for what the pages left would fill."""
        return self.before.blocks - self.after.blocks - self.memory.pages // _KEPT


@FRAGMENTED.case(
    "compaction makes free blocks of fragmented memory again, and the pages that it moves hold what they held",
    COMPACTION,
)
def blocks_made_again(live: Live) -> None:
    shares = []
    for _sample in range(SAMPLES):
        fragments = _fragment(live)
        migrated = read_counters(live)["pgmigrate_success"]
        made = _compact(live, fragments)
        _expect_what_is_left(live, fragments.memory)
        if fragments.owed > _NOISE:
            shares.append(made / fragments.owed)
            live.expect("pgmigrate_success rose", True, read_counters(live)["pgmigrate_success"] > migrated)
        fragments.memory.actor.end()
    if not shares:
        raise CannotRun(f"memory cannot be fragmented further: {live.notes[-1]}")
    told = ", ".join(f"{share:.0%}" for share in shares)
    live.expect(f"made of the blocks that can be: most of {told} are enough", True, median(shares) >= _ENOUGH)


@FRAGMENTED.case(
    "after fragmentation and compaction faults get huge pages, counted, and neither they nor the rest are damaged",
    f"{COMPACTION}; {THP_DOC} thp_fault_alloc",
)
def huge_pages_afterwards(live: Live) -> None:
    for _sample in range(SAMPLES):
        fragments = _fragment(live)
        _compact(live, fragments)
        expect_no_shortage(live, fragments.memory.size, _HUGE_PAGES)
        counted = {"thp_fault_alloc": _HUGE_PAGES, "AnonHugePages": _HUGE_PAGES * fragments.memory.size}
        memory = expect_change(live, counted, partial(advised, live, _HUGE_PAGES), Memory.fill)
        live.expect("AnonHugePages", memory.length, memory.smaps().anon_huge_pages)
        memory.expect_filled()
        _expect_what_is_left(live, fragments.memory)
        memory.actor.end()
        fragments.memory.actor.end()


@FRAGMENTED.case(
    "MADV_COLLAPSE makes huge pages of what is left of fragmented memory, and zeroes of what is absent",
    "madvise(2) MADV_COLLAPSE; mm/khugepaged.c __collapse_huge_page_copy()",
    since="6.1",
)
def collapsed(live: Live) -> None:
    memory = _fragment(live).memory
    expect_no_shortage(live, memory.size, _HUGE_PAGES)
    for page in range(_HUGE_PAGES):
        collapse(live, partial(memory.advise, MADV_COLLAPSE, page, 1))
    huge = _HUGE_PAGES * memory.size
    live.expect("AnonHugePages", huge, memory.smaps().anon_huge_pages)
    live.expect("Rss", huge + (memory.length - huge) // _KEPT, memory.smaps().rss)
    _expect_what_is_left(live, memory)
    absent = [memory.actor.read(memory.at(page) + live.base_page) for page in range(_HUGE_PAGES)]
    live.expect("words of absent pages", [0] * _HUGE_PAGES, absent)


def _fragment(live: Live) -> Fragments:
    """Fill memory with base pages, and give all but one of ``_KEPT`` back."""
    set_policy(live, "madvise")
    size = pmd_size(live)
    pages = min(read_meminfo(live.host).get("MemAvailable", 0) // _PARTS, _MOST) // size
    if pages <= _HUGE_PAGES:
        raise CannotRun(f"the part of the memory that is fragmented has {pages} blocks of {size >> 20} MiB")
    _keep_few_pages_aside(live)
    # what was fragmented already would be filled first
    live.make_room()
    before = fragmentation(live, size)
    memory = map_aligned(live, pages, size)
    memory.fill()
    kept, step = live.base_page, _KEPT * live.base_page
    memory.actor.discard(memory.address + kept, memory.length, step, step - kept)
    fragments = Fragments(memory, before, fragmentation(live, size))
    live.notes = [f"before {fragments.before}", f"fragmented {fragments.after}"]
    return fragments


def _keep_few_pages_aside(live: Live) -> None:
    """Have base pages that are given back join blocks at once.

    Since Linux 6.7 the lists of a CPU grow to an eighth of its memory, and what is in them is in no block.
    """
    if live.host.read(_OF_EACH_CPU) is not None:  # since Linux 5.14
        live.set_knob(_OF_EACH_CPU, str(GIB))


def _compact(live: Live, fragments: Fragments) -> int:
    """Compact memory and return how many free blocks that has made."""
    live.host.write("proc/sys/vm/compact_memory", "1")
    now = fragmentation(live, fragments.memory.size)
    live.notes.append(f"compacted {now}")
    return now.blocks - fragments.after.blocks


def _expect_what_is_left(live: Live, memory: Memory) -> None:
    wrong = memory.actor.check(memory.address, memory.length, _KEPT * live.base_page, 1)
    live.expect("words of the pages that are left that changed", 0, wrong)


class ThpFragmented(LiveTest):
    """Memory that is fragmented on purpose.

    :avocado: enable
    :avocado: tags=thp
    """

    timeout = 900

    def test_fragmented(self) -> None:
        """Every case, once for the machine."""
        self.run_area(FRAGMENTED)
