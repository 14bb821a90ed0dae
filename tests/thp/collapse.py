"""MADV_COLLAPSE: huge pages at once and whatever the policies are, unless a process or its memory is exempt."""

import errno
import mmap
from functools import partial

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.changed_counters import expect_change
from hugepage_qa.cases.hugetlb_files import open_file
from hugepage_qa.cases.khugepaged_clock import KHUGEPAGED
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.madv_collapse import collapse, collapse_memory, expect_no_collapse
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.process_counters import process_status
from hugepage_qa.cases.swapped import need_swap, swap_out
from hugepage_qa.cases.thp_memory import map_aligned, mapped_huge, pmd_size
from hugepage_qa.cases.thp_policy import advised, huge_pages, leave_dirt, set_policy, unadvised_base_pages
from hugepage_qa.cases.thp_shared_memory import let_only_pmd_inherit, map_start_of_file, mount_tmpfs
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.tree import size_name
from hugepage_qa.kernel.uapi import MADV_COLLAPSE, MADV_NOHUGEPAGE, PR_SET_THP_DISABLE, PROT_NONE
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.version import KernelVersion

COLLAPSE = Area("thp/collapse", sizes=Sizes.ONCE, uncleared=True)

DOC = "madvise(2) MADV_COLLAPSE; mm/khugepaged.c madvise_collapse()"
SINCE = "6.1"
#: commit 1d65b771bc08 of Linux 6.6; before, others kept their base pages until khugepaged came along
_RETRACTED_EVERYWHERE = KernelVersion(6, 6)
_NEW_VALUE = 77
_SURE_FAULTS = 130


@COLLAPSE.case(
    "MADV_COLLAPSE makes base pages huge with every policy, never included, and they hold what they held",
    DOC,
    since=SINCE,
)
def whatever_the_policy(live: Live) -> None:
    for policy in ("never", "madvise", "always"):
        memory = unadvised_base_pages(live)
        set_policy(live, policy)
        collapse_memory(live, memory)
        live.expect(f"AnonHugePages with enabled={policy}", memory.length, memory.smaps().anon_huge_pages)
        memory.expect_filled()


@COLLAPSE.case(
    "MADV_COLLAPSE of memory that is huge already changes nothing and is no error",
    DOC,
    since=SINCE,
)
def twice(live: Live) -> None:
    memory = unadvised_base_pages(live)
    for _time in range(2):
        collapse_memory(live, memory)
        memory.expect_huge()
    memory.expect_filled()


@COLLAPSE.case(
    "MADV_COLLAPSE keeps to no limit of khugepaged: one page that is present is enough, the others become zero",
    DOC,
    since=SINCE,
)
def one_page_is_enough(live: Live) -> None:
    leave_dirt(live)
    set_policy(live, "never")
    live.set_knob(f"{KHUGEPAGED}/max_ptes_none", "0")
    memory = map_aligned(live, 1, pmd_size(live))
    memory.touch(0, 5)
    collapse_memory(live, memory)
    memory.expect_huge()
    live.expect("the word that was written", 5, memory.read(0))
    live.expect("words that are not zero", 1, memory.nonzero(0, memory.length))


@COLLAPSE.case(
    "MADV_COLLAPSE keeps to no limit of khugepaged: pages in swap, wherever in a huge page, and those shared with a"
    " parent may be as many as there are, and a single piece of a huge page is enough",
    DOC,
    since=SINCE,
)
def beyond_each_limit(live: Live) -> None:
    need_swap(live, pmd_size(live))
    for name in ("swap", "shared", "none"):
        live.set_knob(f"{KHUGEPAGED}/max_ptes_{name}", "0")
    base, size = live.base_page, pmd_size(live)
    for start, length in (
        (0, base),
        (size // 2, base),
        (size - base, base),
        (0, size // 4),
        (size - size // 4, size // 4),
    ):
        memory = unadvised_base_pages(live)
        swap_out(live, memory, length, start)
        _expect_collapsed(live, memory, f"{length} bytes in swap, from {start} on")
        memory.expect_filled()
    for length in (base, pmd_size(live) // 2, pmd_size(live)):
        parent = map_aligned(live, 1, pmd_size(live))
        parent.fill_part(0, length)
        child = parent.fork()
        # of its own: before Linux 6.18 none is made of pages of which none may be written
        child.actor.write(child.at(1) - WORD, 1 + child.length - WORD)
        _expect_collapsed(live, child, f"{length} bytes shared")
        live.expect("words of the child that changed", 0, child.wrong(0, length))
        parent.expect_huge(0, about="of the parent")
        child.fill(_NEW_VALUE)
        live.expect("words of the parent that changed", 0, parent.wrong(0, length))
        child.expect_filled(_NEW_VALUE)
    memory = huge_pages(live)
    memory.actor.call("madvise", memory.address + base, memory.size - base, mmap.MADV_DONTNEED)
    memory.expect_huge(0, about="of a piece")
    _expect_collapsed(live, memory, "one base page of a huge page")
    live.expect("words of it that changed", 0, memory.wrong(0, base))
    live.expect("words beside it that are not zero", 0, memory.nonzero(base, memory.size - base))


@COLLAPSE.case(
    "MADV_COLLAPSE refuses memory with MADV_NOHUGEPAGE, and processes with PR_SET_THP_DISABLE, with EINVAL",
    DOC,
    since=SINCE,
)
def exempt_memory(live: Live) -> None:
    memory = unadvised_base_pages(live)
    memory.advise(MADV_NOHUGEPAGE)
    live.expect_errno(errno.EINVAL, memory.advise, MADV_COLLAPSE)
    other = unadvised_base_pages(live)
    other.actor.call("prctl", PR_SET_THP_DISABLE, 1, 0, 0, 0)
    child = other.fork()
    for each in (other, child):
        # what may only be read is EINVAL before Linux 6.18, too
        each.fill()
        live.expect_errno(errno.EINVAL, each.advise, MADV_COLLAPSE)
    for each in (memory, other, child):
        each.expect_huge(0)
        each.expect_filled()
    child.actor.end()
    other.actor.call("prctl", PR_SET_THP_DISABLE, 0, 0, 0, 0)
    collapse_memory(live, other)
    other.expect_huge(about="of who may have them again")
    other.expect_filled()


@COLLAPSE.case(
    "MADV_COLLAPSE of shared memory makes it huge with shmem_enabled=never, for every process that maps it; where it is"
    " huge already it is mapped so by advice of another process, too, whether that has touched it since or not",
    f"{DOC}, collapse_pte_mapped_thp()",
    since=SINCE,
)
def shared_memory(live: Live) -> None:
    let_only_pmd_inherit(live)
    for is_touched in (True, False):
        ours = map_aligned(live, 1, pmd_size(live), shared=True)
        ours.fill()
        theirs = ours.fork()
        theirs.expect_filled()
        collapse_memory(live, ours)
        if is_touched:
            ours.expect_filled()
            live.expect("ShmemPmdMapped of the process", ours.length, ours.smaps().shmem_pmd_mapped)
            theirs.expect_filled()
            if live.kernel_version >= _RETRACTED_EVERYWHERE:
                live.expect("ShmemPmdMapped of the other one", theirs.length, theirs.smaps().shmem_pmd_mapped)
        # what is huge already: nothing is left to do but to map it, by a page table or where none is left
        for each in (theirs, ours):
            collapse_memory(live, each)
            mapped = each.smaps().shmem_pmd_mapped
            live.expect(f"ShmemPmdMapped after advice of its own, touched {is_touched}", each.length, mapped)
            each.expect_filled()
    live.set_knob(f"{KHUGEPAGED}/max_ptes_none", "0")
    single = map_aligned(live, 1, pmd_size(live), shared=True)
    single.touch(0, 5)
    collapse_memory(live, single)
    live.expect("ShmemPmdMapped where one base page was there", single.length, single.smaps().shmem_pmd_mapped)
    live.expect("the word that was written", 5, single.read())
    live.expect("words that are not zero", 1, single.nonzero(0, single.length))


@COLLAPSE.case(
    "MADV_COLLAPSE of shared memory that has holes fills them with zeroes: Shmem grows by each of their base pages"
    " once, wherever they were, and falls by the whole huge page when that goes",
    "Documentation/filesystems/proc.rst Shmem, ShmemHugePages; mm/khugepaged.c collapse_file()",
    since=SINCE,
)
def shared_memory_with_holes(live: Live) -> None:
    let_only_pmd_inherit(live)
    size, base = pmd_size(live), live.base_page
    for start, length in (
        (0, base),
        (size - base, base),
        (size // 2, size // 2),
        (base, size - base),
        (0, size - base),
    ):
        with live.about(f"{length} bytes at {start}"):
            grown = {"Shmem": size - length, "nr_shmem": (size - length) // base, "ShmemHugePages": size}
            part = partial(_shared_in_part, live, start, length)
            memory = expect_change(live, grown, part, partial(_collapse_all, live))
            live.expect("words that changed", 0, memory.wrong(start, length))
            words = memory.nonzero(0, size)
            live.expect("words that are not zero", length // WORD, words)
            live.expect("ShmemPmdMapped", size, memory.smaps().shmem_pmd_mapped)
            gone = {"Shmem": -size, "nr_shmem": -size // base, "ShmemHugePages": -size}
            expect_change(live, gone, partial(_collapsed_in_part, live, start, length), Memory.unmap)


@COLLAPSE.case(
    "MADV_COLLAPSE of shared memory makes it huge whatever the policy of the size is, never included",
    f"{DOC}; mm/shmem.c shmem_allowable_huge_orders()",
    since="7.3",  # and 6.12.113, 7.2.10: before, shared memory was left out where the size has another policy
)
def shared_memory_of_a_size(live: Live) -> None:
    let_only_pmd_inherit(live)
    for policy in ("never", "advise", "inherit"):
        live.set_knob(f"{DIRECTORY}/{size_name(pmd_size(live))}/shmem_enabled", policy)
        memory = map_aligned(live, 1, pmd_size(live), shared=True)
        memory.fill()
        live.expect(f"ShmemPmdMapped before, shmem_enabled={policy}", 0, memory.smaps().shmem_pmd_mapped)
        collapse_memory(live, memory)
        memory.expect_filled()
        live.expect(f"ShmemPmdMapped, shmem_enabled={policy}", memory.length, memory.smaps().shmem_pmd_mapped)


@COLLAPSE.case(
    "MADV_COLLAPSE of a range is an error where a part of it cannot be collapsed, and what was before it is huge",
    DOC,
    since=SINCE,
)
def a_part_alone(live: Live) -> None:
    set_policy(live, "never")
    memory = advised(live, 2, None)
    first = Memory(live, memory.actor, memory.address, 1, memory.size)
    first.fill()
    # nothing was ever touched in the second: there is nothing to collapse
    expect_no_collapse(live, memory, errno.EINVAL, huge=first.length)
    live.expect("AnonHugePages", first.length, memory.smaps().anon_huge_pages)
    first.expect_filled()


@COLLAPSE.case(
    "a range without a whole huge page is no error, and one that is not mapped is ENOMEM",
    DOC,
    since=SINCE,
)
def odd_ranges(live: Live) -> None:
    memory = unadvised_base_pages(live)
    actor, size = memory.actor, memory.size
    collapse(live, partial(actor.call, "madvise", memory.address, size // 2, MADV_COLLAPSE))
    memory.expect_huge(0, about="of half a page")
    room = actor.mmap(2 * size, PROT_NONE, mmap.MAP_ANONYMOUS | mmap.MAP_PRIVATE)
    actor.call("munmap", room, 2 * size)
    live.expect_errno(errno.ENOMEM, partial(actor.call, "madvise", -(-room // size) * size, size, MADV_COLLAPSE))
    memory.expect_filled()


@COLLAPSE.case(
    "MADV_COLLAPSE makes those huge that lie in its range as a whole, wherever it begins and ends, and none beside it",
    DOC,
    since=SINCE,
)
def ends_of_a_range(live: Live) -> None:
    size, base = pmd_size(live), live.base_page
    for start, end, huge in (
        (base, 3 * size, 2),
        (0, 3 * size - base, 2),
        (base, 3 * size - base, 1),
        (size - base, 2 * size + base, 1),
        (size - base, size + base, 0),
        (2 * size, 3 * size, 1),
    ):
        set_policy(live, "never")
        memory = advised(live, 3, None)
        memory.fill()
        collapse(live, partial(memory.actor.call, "madvise", memory.address + start, end - start, MADV_COLLAPSE))
        live.expect(f"AnonHugePages, from {start} to {end}", huge * size, memory.smaps().anon_huge_pages)
        memory.expect_filled()
        memory.actor.end()


@COLLAPSE.case(
    "what a collapse fills, or maps as a whole again, whichever base pages of it were mapped, is resident as what was"
    " there: RssAnon and RssShmem are the memory of the process, and st_blocks that of its file, of which nothing is"
    " left when it is cut off",
    f"{DOC}; mm/khugepaged.c __collapse_huge_page_copy(), collapse_file(), collapse_pte_mapped_thp()",
    since=SINCE,
)
def resident_when_filled(live: Live) -> None:
    let_only_pmd_inherit(live)
    set_policy(live, "never")
    size, base = pmd_size(live), live.base_page
    point = mount_tmpfs(live, "never")
    for number, (offset, length) in enumerate(((0, base), (size - base, base), (0, size // 2), (0, size))):
        private = map_aligned(live, 1, size)
        shared = map_start_of_file(live, f"{point}/{number}")
        file = open_file(live, f"{point}/{number}", shared.actor)
        with live.about(f"{length} bytes at {offset}"):
            for memory, name in ((private, "RssAnon"), (shared, "RssShmem")):
                memory.fill_part(offset, length)
                _collapse_again(live, memory)
                _have_counted(live, memory)
                resident = process_status(live, memory.actor).sizes[name]
                live.expect(f"{name} in huge pages", 1, (resident + size // 2) // size)
                live.expect("Rss", size, memory.smaps().rss)
                live.expect("words that changed", 0, memory.wrong(offset, length))
                live.expect("words beside them that are not zero", 0, _nonzero_beside(memory, offset, length))
            live.expect("st_blocks", size, file.blocks)
            file.actor.call("ftruncate", file.descriptor, 0)
            live.expect("st_blocks of what was cut off", 0, file.blocks)
        for memory in (private, shared):
            memory.actor.end()


def _shared_in_part(live: Live, start: int, length: int) -> Memory:
    """Return shared memory of one huge page that has ``length`` bytes from ``start`` on, in base pages."""
    memory = map_aligned(live, 1, pmd_size(live), shared=True)
    memory.fill_part(start, length)
    return memory


def _collapse_all(live: Live, memory: Memory) -> None:
    collapse_memory(live, memory)


def _collapsed_in_part(live: Live, start: int, length: int) -> Memory:
    memory = _shared_in_part(live, start, length)
    _collapse_all(live, memory)
    return memory


def _collapse_again(live: Live, memory: Memory) -> None:
    """Collapse, and again when the huge page is mapped as base pages, of a file all or some of them."""
    collapse_memory(live, memory)
    live.expect("huge pages", memory.length, mapped_huge(memory))
    size, base = memory.size, live.base_page
    for start, length in ((0, size), (0, base), (size - base, base), (0, size // 2)):
        memory.actor.call("mprotect", memory.address, base, mmap.PROT_READ)
        # of a file none is mapped any more until it is read again
        memory.nonzero(start, length)
        memory.actor.call("mprotect", memory.address, base, READ_WRITE)
        with live.about(f"{length} bytes at {start} read when they were mapped in parts"):
            collapse_memory(live, memory)
            live.expect("huge pages", memory.length, mapped_huge(memory))


def _have_counted(live: Live, memory: Memory) -> None:
    """Have the kernel add up what the thread has mapped: before Linux 6.2 it does every 64 faults (sync_mm_rss())."""
    length = _SURE_FAULTS * live.base_page
    address = memory.actor.mmap(length, READ_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.actor.fill(address, length, WORD, 1)
    memory.actor.call("munmap", address, length)


def _nonzero_beside(memory: Memory, offset: int, length: int) -> int:
    end = offset + length
    parts = [(memory.address, offset), (memory.address + end, memory.size - end)]
    return sum(memory.actor.nonzero(address, size) for address, size in parts if size)


def _expect_collapsed(live: Live, memory: Memory, where: str) -> None:
    collapse_memory(live, memory)
    live.expect(f"AnonHugePages, {where}", memory.length, memory.smaps().anon_huge_pages)


class ThpCollapse(LiveTest):
    def test_collapse(self) -> None:
        self.run_area(COLLAPSE)
