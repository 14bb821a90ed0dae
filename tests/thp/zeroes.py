"""Pages of zeroes, huge or not, are on no node and no memory of a process, until they are made huge pages."""

import errno

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.khugepaged_clock import let_rest
from hugepage_qa.cases.khugepaged_work import COLLAPSE_SINCE, expect_collapse, put_to_work
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.madv_collapse import collapse_memory
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.memory_policy import move_pages, nodes_of
from hugepage_qa.cases.process_counters import anonymous_memory, may_lack
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.cases.thp_policy import advised, huge_zeroes, set_policy
from hugepage_qa.kernel.counters import read_meminfo
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE, MADV_NOHUGEPAGE
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.plugins.avocado_test import LiveTest

ZEROES = Area("thp/zeroes", sizes=Sizes.ONCE)

#: as many huge pages at least, and so many times as many as would be lost in what a counter may be off by
_PAGES, _TIMES = 4, 4


def _zeroes_in_parts(live: Live) -> Memory:
    memory = huge_zeroes(live)
    memory.actor.call("munmap", memory.at(1) - live.base_page, live.base_page)
    return memory


def _base_zeroes(live: Live) -> Memory:
    memory = advised(live, advice=MADV_NOHUGEPAGE)
    memory.expect_zero()
    return memory


@ZEROES.case(
    "move_pages(2) tells of any part of a page of zeroes, huge or not, that it is nobody's, to its process and to"
    " others, whether it is to move or not, and numa_maps counts it on no node; a page that is written there is on one",
    "move_pages(2) EFAULT; numa(7); mm/migrate.c do_pages_stat_array(), add_page_for_migration()",
)
def on_no_node(live: Live) -> None:
    live.need_nodes()
    let_rest(live)
    base, half = live.base_page, pmd_size(live) // 2
    for make in (huge_zeroes, _zeroes_in_parts, _base_zeroes):
        memory = make(live)
        addresses = [memory.address + offset for offset in (0, base, half - base, half, 2 * half - 2 * base)]
        with live.about(make.__name__.strip("_")):
            nobodys = [-errno.EFAULT] * len(addresses)
            live.expect("status of each part", nobodys, nodes_of(memory.actor, addresses))
            live.expect("status by another process", nobodys, nodes_of(live.actor(), addresses, memory.actor.pid))
            for node in live.nodes:
                moved = move_pages(memory.actor, addresses, [node] * len(addresses))
                live.expect("status of each part that is to move", nobodys, moved)
            mapping = memory.smaps()
            live.expect("Rss, AnonHugePages", (0, 0), (mapping.rss, mapping.anon_huge_pages))
            live.expect("base pages on nodes", {}, memory.numa_maps().nodes)
            memory.touch()
            told = nodes_of(memory.actor, addresses[:1])
            live.expect("whether what was written is on a node", True, told[0] in memory.numa_maps().nodes)
        memory.actor.end()


@ZEROES.case(
    "pages that were only read, and absent ones, are memory of the process when a huge page is made of them, each: by"
    " advice and by khugepaged RssAnon grows by them, and falls by all of it when it is unmapped",
    "Documentation/filesystems/proc.rst RssAnon; mm/khugepaged.c __collapse_huge_page_copy()",
)
def counted_when_collapsed(live: Live) -> None:
    size, base = pmd_size(live), live.base_page
    half = size // 2
    # what is written, and what is read: the rest is absent
    layouts = (
        ((0, base), (base, size)),
        ((size - base, size), (0, size - base)),
        ((half, size), (0, half)),
        ((0, base), (base, half)),
        ((size - base, size), (0, 0)),
    )
    for by_advice in (True, False) if live.kernel_version >= COLLAPSE_SINCE else (False,):
        if by_advice:
            set_policy(live, "madvise")
            let_rest(live)
        else:
            put_to_work(live)
        for written, read in layouts:
            with live.about(f"{'MADV_COLLAPSE' if by_advice else 'khugepaged'}, written {written}, read {read}"):
                _expect_counted(live, written, read, by_advice)


def _expect_counted(live: Live, written: tuple[int, int], read: tuple[int, int], by_advice: bool) -> None:
    pages = max(_PAGES, _TIMES * may_lack(live) // pmd_size(live))
    if 2 * pages * pmd_size(live) > read_meminfo(live.host)["MemFree"]:
        raise CannotRun(f"{pages} huge pages tell what so many processors count, and are too much of this memory")
    memory = advised(live, pages, MADV_NOHUGEPAGE)
    present = 0
    for page in range(pages):
        start, end = written
        memory.actor.fill(memory.at(page) + start, end - start, live.base_page, 1)
        present += end - start
        start, end = read
        if end > start:
            found = memory.nonzero(page * memory.size + start, end - start)
            live.expect("words that are not zero", 0, found)
    live.expect("Rss before", present, memory.smaps().rss)
    before = anonymous_memory(live, memory)
    memory.advise(MADV_HUGEPAGE)
    if by_advice:
        collapse_memory(live, memory)
        memory.expect_huge()
    else:
        expect_collapse(live, memory, memory.length)
    live.expect("Rss", memory.length, memory.smaps().rss)
    now = anonymous_memory(live, memory)
    _expect_about(live, "RssAnon grew by", memory.length - present, now - before)
    memory.unmap()
    _expect_about(live, "RssAnon fell by", memory.length, now - anonymous_memory(live, memory))
    memory.actor.end()


def _expect_about(live: Live, what: str, expected: int, found: int) -> None:
    off = may_lack(live)
    live.expect(f"{what} {expected} bytes, found {found}, within {off}", True, abs(found - expected) <= off)


class ThpZeroes(LiveTest):
    def test_zeroes(self) -> None:
        self.run_area(ZEROES)
