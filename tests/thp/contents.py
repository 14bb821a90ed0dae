"""What huge pages hold through all that splits, copies, moves and swaps them."""

import mmap
import signal
from functools import partial

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.changed_counters import expect_change
from hugepage_qa.cases.debugfs import expect_split
from hugepage_qa.cases.folio_layout import expect_order
from hugepage_qa.cases.fragmentation import SAMPLES, with_blocks
from hugepage_qa.cases.fragments import fragment
from hugepage_qa.cases.khugepaged_clock import let_rest
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.memory_policy import move_all
from hugepage_qa.cases.pages_of_a_node import need_memory
from hugepage_qa.cases.swapped import need_swap, only_swap, swap_out, swapped
from hugepage_qa.cases.thp_memory import allow_on_advice, map_aligned, need_blocks, pmd_size, room_for
from hugepage_qa.cases.thp_nodes import two_nodes_with_room
from hugepage_qa.cases.thp_policy import advised, base_pages, expect_all_huge, huge_pages
from hugepage_qa.cases.thp_shared_memory import expect_shared, filled_file, mount_tmpfs
from hugepage_qa.kernel.counters import read_vmstat, vmstat_delta
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.tree import read_integer, size_name
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE, MADV_PAGEOUT
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.oracle.rules import THP_DOC
from hugepage_qa.plugins.avocado_test import LiveTest

CONTENTS = Area("thp/contents", sizes=Sizes.ONCE, uncleared=True)

_NEW_VALUE = 77
_SWAPPED_OUT = "thp_swpout, thp_swpout_fallback and zswpout together"
_PAGES = 8


@CONTENTS.case(
    "mprotect() of a part of a huge page maps it as base pages, which hold what it held and are written if they may be",
    f"{THP_DOC} thp_split_pmd; mm/huge_memory.c change_huge_pmd()",
)
def protected_in_part(live: Live) -> None:
    memory = huge_pages(live, 2)
    memory.actor.call("mprotect", memory.address, live.base_page, mmap.PROT_READ)
    memory.expect_huge(0, about="of the part")
    live.expect("AnonHugePages of the page behind it", memory.size, memory.smaps(1).anon_huge_pages)
    live.expect_signal(signal.SIGSEGV, memory.touch, 0, _NEW_VALUE)
    memory.expect_filled()
    memory.protect(READ_WRITE)
    memory.expect_filled()
    # dirty it stays when it is mapped as base pages, and read-only
    memory.protect(mmap.PROT_READ, 1, 1)
    memory.actor.call("mprotect", memory.at(2) - live.base_page, live.base_page, READ_WRITE)
    live.expect("AnonHugePages", 0, memory.smaps(1).anon_huge_pages)
    for place in (memory.at(1), memory.at(2) - live.base_page - WORD):
        live.expect_signal(signal.SIGSEGV, memory.actor.write, place, _NEW_VALUE)
    memory.expect_filled()
    memory.actor.fill(memory.at(2) - live.base_page, live.base_page, WORD, _NEW_VALUE)


@CONTENTS.case(
    "a huge page is zeroes at first, wherever it is touched first, whatever was in its memory",
    f"{THP_DOC}; mm/huge_memory.c __do_huge_pmd_anonymous_page(); mm/memory.c process_huge_page()",
)
def cleared_at_first(live: Live) -> None:
    memory = huge_pages(live, _PAGES)
    for place in memory.touch_places():
        memory.fill()
        memory.actor.end()
        with_blocks(live, memory.size, _PAGES)
        memory = advised(live, _PAGES)
        for page in range(_PAGES):
            memory.actor.write(memory.at(page) + place, 0)
        need_blocks(live, memory)
        with live.about(f"touched first at {place}"):
            memory.expect_huge()
            memory.expect_zero(0, _PAGES)


@CONTENTS.case(
    "MADV_DONTNEED of a part gives zeroes there and leaves the rest; of a whole huge page it gives the page back",
    "madvise(2) MADV_DONTNEED; mm/huge_memory.c zap_huge_pmd(), __split_huge_pmd()",
)
def given_back_in_part(live: Live) -> None:
    let_rest(live)
    memory = huge_pages(live, 3)
    half = memory.size // 2
    memory.actor.call("madvise", memory.address + half, half, mmap.MADV_DONTNEED)
    memory.advise(mmap.MADV_DONTNEED, 1, 1)
    memory.expect_huge(1)
    live.expect("Rss", memory.size + half, memory.smaps().rss)
    live.expect("words of the first half that changed", 0, memory.actor.check(memory.address, half, memory.step, 1))
    given_back = memory.nonzero(half, half)
    live.expect("words that were given back and are not zero", 0, given_back)
    memory.expect_zero(1)
    memory.expect_filled(first=2)


@CONTENTS.case(
    "mremap() to an address that huge pages fit moves them as they are, to any other it splits them",
    "mremap(2); mm/mremap.c move_page_tables(), mm/huge_memory.c move_huge_pmd()",
)
def moved(live: Live) -> None:
    let_rest(live)
    for shift, huge in ((0, True), (live.base_page, False)):
        memory = huge_pages(live, 3)
        there = memory.moved_to(room_for(memory.actor, memory.pages + 1, memory.size) + shift)
        expected = memory.length if huge else 0
        live.expect(f"AnonHugePages, moved by {shift} bytes", expected, there.smaps().anon_huge_pages)
        live.expect("Rss", memory.length, there.smaps().rss)
        there.expect_filled()


@CONTENTS.case(
    "after fork() each process keeps what it wrote: parent, child and grandchild, in whichever order they write",
    "fork(2); mm/huge_memory.c copy_huge_pmd(), do_huge_pmd_wp_page()",
)
def forked(live: Live) -> None:
    parent = huge_pages(live, 2)
    child = parent.fork()
    grandchild = parent.seen_by(child.actor.fork())
    for memory in (parent, child, grandchild):
        live.expect("AnonHugePages", parent.length, memory.smaps().anon_huge_pages)
    child.fill(_NEW_VALUE)
    parent.expect_filled()
    grandchild.expect_filled()
    parent.touch(1, 9)
    child.expect_filled(_NEW_VALUE)
    grandchild.expect_filled()
    parent.actor.exit()
    grandchild.expect_filled()
    child.expect_filled(_NEW_VALUE)


@CONTENTS.case(
    "a huge page that a fault gives is zero from its first word to its last, though its memory held other words before",
    "mm/huge_memory.c vma_alloc_anon_folio_pmd(); mm/memory.c folio_zero_user(), clear_huge_page()",
)
def cleared(live: Live) -> None:
    for other_process in (False, True):
        for _sample in range(SAMPLES):
            dirty = huge_pages(live, _PAGES)
            frames = dirty.frames()
            memory = dirty
            if other_process:
                dirty.actor.end()
                memory = advised(live, _PAGES)
            else:
                dirty.advise(mmap.MADV_DONTNEED)
            for page in range(_PAGES):
                memory.touch(page, 0)
            if not frames.isdisjoint(memory.frames()):
                break
        else:
            raise CannotRun("no fault got memory that had been written before")
        memory.expect_huge()
        memory.expect_zero(0, _PAGES)


@CONTENTS.case(
    "split_huge_pages splits all huge pages into base pages, which hold what they held",
    f"{THP_DOC}; mm/huge_memory.c split_huge_pages_all()",
)
def split(live: Live) -> None:
    let_rest(live)
    memory = huge_pages(live, 2)
    expect_split(live, "1", 2)
    memory.expect_huge(0)
    live.expect("Rss", memory.length, memory.smaps().rss)
    memory.expect_filled()


@CONTENTS.case(
    "split_huge_pages splits the huge pages of a process in a range, which hold what they held, and no others",
    "mm/huge_memory.c split_huge_pages_pid(), since fa6c02315f74",
    since="5.13",
)
def split_in_a_process(live: Live) -> None:
    let_rest(live)
    memory = huge_pages(live, 3)
    expect_split(live, f"{memory.actor.pid},{memory.at(1):#x},{memory.at(3):#x}", 2)
    memory.expect_huge(1)
    live.expect("Rss", memory.length, memory.smaps().rss)
    memory.expect_filled()


@CONTENTS.case(
    "split_huge_pages splits the huge pages of a file in a range, which hold what they held",
    "mm/huge_memory.c split_huge_pages_in_file(), since fbe37501b252",
    since="5.13",
)
def split_in_a_file(live: Live) -> None:
    if live.host.read(f"{DIRECTORY}/shmem_enabled") is None:
        raise CannotRun("this kernel has no shared memory in huge pages")
    let_rest(live)
    live.set_knob(f"{DIRECTORY}/shmem_enabled", "never")  # and not "deny", which goes before huge=
    file = f"{mount_tmpfs(live, 'always')}/file"
    memory = filled_file(live, file, 2)
    expect_split(live, f"{file},0x0,{memory.size // live.base_page:#x}", 1)
    memory.expect_filled()
    live.expect("ShmemPmdMapped, one of two split", memory.size, memory.smaps().shmem_pmd_mapped)
    live.expect("Rss", memory.length, memory.smaps().rss)


@CONTENTS.case(
    "a huge page is split to every order that the kernel offers, all of it into folios of that order, and holds what it"
    " held",
    f"{THP_DOC}; mm/huge_memory.c split_huge_pages_pid(), split_huge_page_to_list_to_order() (c010d47f107f)",
    since="6.9",
)
def split_to_orders(live: Live) -> None:
    let_rest(live)
    highest = (huge_pages(live).size // live.base_page).bit_length() - 1
    for order in (0, *range(2, highest)):
        with live.about(f"order {order}"):
            expect_order(live, partial(_split_to, live, order), order)


@CONTENTS.case(
    "compaction that moves base pages leaves huge pages whole, and all of them hold what they held",
    "Documentation/admin-guide/sysctl/vm.rst compact_memory; mm/compaction.c isolate_migratepages_block()",
)
def compacted(live: Live) -> None:
    fragments = fragment(live)
    memory = huge_pages(live, _PAGES)
    # a hole for the base pages to move to
    memory.actor.call("munmap", memory.at(1), memory.size)
    before = read_vmstat(ObservedTree(live.host))
    fragments.compact(live)
    fragments.need_blocks(live)
    moved = vmstat_delta(before, read_vmstat(ObservedTree(live.host)))["pgmigrate_success"]
    live.expect("pgmigrate_success rose", True, moved > 0)
    memory.expect_huge(1)
    live.expect("AnonHugePages", (_PAGES - 2) * memory.size, memory.smaps(2).anon_huge_pages)
    memory.expect_filled(pages=1)
    memory.expect_filled(first=2)
    fragments.expect_intact(live)


@CONTENTS.case(
    "mbind() moves huge pages to another node as a whole, with what they hold",
    "mbind(2) MPOL_MF_MOVE; mm/mempolicy.c do_mbind(), mm/migrate.c, thp_migration_success",
    nodes=2,
)
def migrated(live: Live) -> None:
    first, second = two_nodes_with_room(live, 2)
    memory = huge_pages(live, 2)
    # the first time they may be there already
    for old, new in ((second, first), (first, second), (second, first)):
        move_all(live, memory, "mbind", old, new)
        expect_all_huge(live, memory, f"on node {new}", new)
        pages = memory.numa_maps().nodes
        live.expect(f"pages left on node {old}", 0, pages.get(old, 0))
        memory.expect_filled()


@CONTENTS.case(
    "what was written and may only be read since, huge or mapped in parts or not, may only be read on another node",
    "mbind(2) MPOL_MF_MOVE; mm/migrate.c remove_migration_pte(), mm/huge_memory.c remove_migration_pmd()",
    nodes=2,
)
def read_only_after_a_move(live: Live) -> None:
    nodes = live.nodes[:2]
    need_memory(live, nodes, pmd_size(live))
    for make in (huge_pages, base_pages, _mapped_in_parts):
        memory = make(live)
        memory.protect(mmap.PROT_READ)
        for other, node in (nodes[::-1], nodes):
            # not strictly: Linux 6.1 refuses a huge page that is mapped in parts, it comes to it once for each part
            move_all(live, memory, "mbind", other, node)
            live.expect(f"nodes of the memory bound to node {node}", [node], list(memory.numa_maps().nodes))
            for offset in (0, memory.length // 2, memory.length - WORD):
                live.expect_signal(signal.SIGSEGV, memory.actor.write, memory.address + offset, _NEW_VALUE)
        memory.expect_filled()


@CONTENTS.case(
    "huge pages that are swapped out, whole or split, come back with what they held",
    f"madvise(2) MADV_PAGEOUT; {THP_DOC} thp_swpout, thp_swpout_fallback",
    since="5.4",
)
def swapped_out(live: Live) -> None:
    need_swap(live, 2 * pmd_size(live))
    memory = expect_change(live, {_SWAPPED_OUT: 2}, partial(huge_pages, live, 2), partial(_swap_out, live), _swaps)
    memory.expect_huge(0)
    memory.expect_filled()
    live.expect("memory in swap after it was read", 0, swapped(memory))
    live.expect("Rss after it was read", memory.length, memory.smaps().rss)


@CONTENTS.case(
    "a huge page that swap has no room for in one piece is split, counts in thp_swpout_fallback, and loses nothing",
    f"madvise(2) MADV_PAGEOUT; {THP_DOC} thp_swpout_fallback; mm/vmscan.c shrink_folio_list()",
    since="5.4",
)
def swapped_out_in_pieces(live: Live) -> None:
    only_swap(live, pmd_size(live))
    change = {"thp_swpout": 0, "thp_swpout_fallback": 1}
    memory = expect_change(live, change, partial(huge_pages, live), lambda page: page.advise(MADV_PAGEOUT))
    memory.expect_huge(0)
    memory.expect_filled()


@CONTENTS.case(
    "swapoff(2) brings huge pages back that were swapped out, to each process that has them, with what they hold",
    "swapoff(2); mm/swapfile.c try_to_unuse(), unuse_pte(); mm/shmem.c shmem_unuse()",
    since="5.4",
)
def swapoff(live: Live) -> None:
    swap_off = only_swap(live, 4 * pmd_size(live))
    private = huge_pages(live)
    allow_on_advice(live)
    shared = map_aligned(live, 1, pmd_size(live), shared=True, advice=MADV_HUGEPAGE)
    expect_shared(live, shared, True, "shmem_enabled=advise")
    for memory in (private, shared):
        _swap_out(live, memory)
    seen = [one.fork() for one in (private, shared)]
    swap_off()
    for memory in (private, shared, *seen):
        live.expect("memory in swap after swapoff(2)", 0, swapped(memory))
        memory.expect_filled()
    seen[0].fill(2)
    private.expect_filled()
    seen[1].fill(3)
    shared.expect_filled(3)


def _split_to(live: Live, order: int) -> Memory:
    memory = huge_pages(live)
    expect_split(live, f"{memory.actor.pid},{memory.address:#x},{memory.at(1):#x},{order}", 1)
    live.expect("AnonHugePages after a split", 0, memory.smaps().anon_huge_pages)
    live.expect("Rss", memory.length, memory.smaps().rss)
    memory.expect_filled()
    return memory


def _mapped_in_parts(live: Live) -> Memory:
    """Return a huge page that is mapped as base pages."""
    memory = huge_pages(live)
    memory.actor.call("mprotect", memory.address, live.base_page, mmap.PROT_READ)
    return memory


def _swap_out(live: Live, memory: Memory) -> None:
    swap_out(live, memory, memory.length)


def _swaps(live: Live) -> dict[str, int]:
    """Return how many huge pages were swapped out: whole, split for lack of contiguous swap, or whole to zswap."""
    counters = read_vmstat(ObservedTree(live.host))
    # since Linux 6.12
    zswapped = read_integer(ObservedTree(live.host), f"{DIRECTORY}/{size_name(pmd_size(live))}/stats/zswpout") or 0
    return {_SWAPPED_OUT: counters["thp_swpout"] + counters["thp_swpout_fallback"] + zswapped}


class ThpContents(LiveTest):
    def test_contents(self) -> None:
        self.run_area(CONTENTS)
