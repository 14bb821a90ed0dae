"""Memory that the kernel may take, or need not write to swap, until it is written, and that is protected then."""

import mmap
from collections.abc import Callable, Mapping
from functools import partial
from itertools import product
from typing import NamedTuple

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.clear_refs import CLEAR_REFS_ALL, CLEAR_REFS_SOFT_DIRTY, clear_refs
from hugepage_qa.cases.fragmentation import with_blocks
from hugepage_qa.cases.khugepaged_clock import let_nobody_else_act
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.pagemap_scan import PROTECT, Is, Masks, Region, scan_with, track_writes
from hugepage_qa.cases.swapped import need_swap, page_all_out, parts_out
from hugepage_qa.cases.thp_memory import free_lazily, map_aligned, pmd_size
from hugepage_qa.cases.thp_policy import base_pages, huge_pages, mapped_in_parts
from hugepage_qa.cases.thp_shared_memory import expect_mapped_whole, let_only_pmd_inherit
from hugepage_qa.cases.userfaultfd import Feature, Mode, Userfault
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.uapi import PROT_NONE
from hugepage_qa.plugins.avocado_test import LiveTest

WRITTEN_AND_PROTECTED = Area("thp/written-and-protected", sizes=Sizes.ONCE)

KEPT = "madvise(2) MADV_FREE, MADV_PAGEOUT; mm/rmap.c try_to_unmap_one()"
USERFAULT = "Documentation/admin-guide/mm/userfaultfd.rst"
_NEW_VALUE = 77
_KINDS_OF_MEMORY = (
    "base pages or a huge page, mapped as a whole or in parts, after MADV_FREE, to what came back from swap, and to"
    " shared memory that was read before"
)


class Protection(NamedTuple):
    """What forbids writes to ``length`` bytes from ``start`` on, or marks them as unused, and what ends that."""

    begin: Callable[[int, int], object]
    end: Callable[[int, int], object]


#: returns a protection of memory that is not protected yet
Prepare = Callable[[Live, Memory], Protection]


@WRITTEN_AND_PROTECTED.case(
    f"what is written to {_KINDS_OF_MEMORY}, is kept under reclaim when mprotect(2) forbids to write or to access it,"
    " when clear_refs makes it unused or not soft-dirty, and when a child had it",
    f"{KEPT}; mprotect(2); fork(2); Documentation/filesystems/proc.rst clear_refs; mm/mprotect.c change_pte_range();"
    " mm/huge_memory.c change_huge_pmd(), copy_huge_pmd(); fs/proc/task_mmu.c clear_soft_dirty_pmd()",
    since="5.4",  # MADV_PAGEOUT
)
def by_the_kernel(live: Live) -> None:
    ways: Mapping[str, Prepare] = {
        "only read": partial(_by_mprotect, prot=mmap.PROT_READ),
        "not accessed": partial(_by_mprotect, prot=PROT_NONE),
        "unused": partial(_by_clear_refs, what=CLEAR_REFS_ALL),
        "not soft-dirty": partial(_by_clear_refs, what=CLEAR_REFS_SOFT_DIRTY),
        "with a child": _by_a_child,
    }
    _expect_kept(live, ways)


@WRITTEN_AND_PROTECTED.case(
    f"what is written to {_KINDS_OF_MEMORY}, is kept under reclaim when a program has all of it or a part protected",
    f"{KEPT}; {USERFAULT} Write Protect Notifications; mm/mprotect.c change_pte_range(); mm/huge_memory.c"
    " change_huge_pmd()",
    since="5.19",  # UFFD_FEATURE_WP_HUGETLBFS_SHMEM
)
def by_a_program(live: Live) -> None:
    _expect_kept(live, {"UFFDIO_WRITEPROTECT": _by_write_protection})


@WRITTEN_AND_PROTECTED.case(
    f"what is written to {_KINDS_OF_MEMORY}, is kept under reclaim when a program has all of it or a part closed",
    f"{KEPT}; {USERFAULT} Read-Write Protection; mm/mprotect.c change_pte_range(); mm/huge_memory.c change_huge_pmd()",
    since="7.3",
)
def by_closing(live: Live) -> None:
    _expect_kept(live, {"UFFDIO_RWPROTECT": _by_read_write_protection})


@WRITTEN_AND_PROTECTED.case(
    f"what is written to {_KINDS_OF_MEMORY}, is kept under reclaim when a scan of pagemap protects all of it or a part,"
    " and tells of that or is asked to tell nothing",
    f"{KEPT}; Documentation/admin-guide/mm/pagemap.rst PM_SCAN_WP_MATCHING; {USERFAULT} UFFD_FEATURE_WP_ASYNC;"
    " fs/proc/task_mmu.c make_uffd_wp_pte(), make_uffd_wp_pmd()",
    since="6.7",
)
def by_a_scan(live: Live) -> None:
    _expect_kept(live, {"told": partial(_by_scan, regions=1), "nothing told": partial(_by_scan, regions=0)})


def _expect_kept(live: Live, ways: Mapping[str, Prepare]) -> None:
    """Expect what is written to be kept under reclaim, in each kind of memory that is protected in each way."""
    let_nobody_else_act(live)
    let_only_pmd_inherit(live)
    need_swap(live, 2 * pmd_size(live))
    size, base = pmd_size(live), live.base_page
    parts = (0, size), (0, base), (size - base, base), (base, size // 2)
    for (kind, (make, make_needless)), (name, prepare) in product(_KINDS.items(), ways.items()):
        for start, length in parts:
            memory = make(live)
            protection = prepare(live, memory)
            make_needless(live, memory)
            memory.fill(_NEW_VALUE)
            protection.begin(start, length)
            with live.about(f"{kind}, {name}, {length} bytes at {start}"):
                out = partial(parts_out, live, memory, [(0, memory.length)], partial(_is_gone, memory))
                live.expect("whether it is mapped no more", True, live.host.last_look(out, bool))
                protection.end(start, length)
                live.expect("words that changed under reclaim", 0, memory.wrong(0, size, _NEW_VALUE))
            memory.actor.end()


def _is_gone(memory: Memory) -> bool:
    # what is protected in part is several mappings within a page
    return sum(mapping.rss for mapping in memory.all_mappings()) == 0


def _by_mprotect(_live: Live, memory: Memory, *, prot: int) -> Protection:
    def protect(start: int, length: int, prot: int) -> None:
        memory.actor.call("mprotect", memory.address + start, length, prot)

    return Protection(partial(protect, prot=prot), partial(protect, prot=READ_WRITE))


def _by_clear_refs(live: Live, memory: Memory, *, what: str) -> Protection:
    return Protection(lambda _start, _length: clear_refs(live, memory, what), _nothing)


def _by_a_child(_live: Live, memory: Memory) -> Protection:
    return Protection(lambda _start, _length: memory.fork().actor.end(), _nothing)


def _by_write_protection(_live: Live, memory: Memory) -> Protection:
    fault = Userfault(memory, Mode.WRITE_PROTECTED, Feature.PAGEFAULT_FLAG_WP | Feature.WP_HUGETLBFS_SHMEM)
    return Protection(lambda start, length: fault.write_protect(offset=start, length=length), _nothing)


def _by_read_write_protection(_live: Live, memory: Memory) -> Protection:
    fault = Userfault(memory, Mode.READ_WRITE_PROTECTED, Feature.RWP)

    def protect(start: int, length: int, *, on: bool) -> None:
        fault.read_write_protect(on=on, offset=start, length=length)

    return Protection(partial(protect, on=True), partial(protect, on=False))


def _by_scan(live: Live, memory: Memory, *, regions: int) -> Protection:
    track_writes(memory)
    written = Masks(Is(0), Is.WRITTEN, Is(0), Is.WRITTEN)

    def protect(start: int, length: int) -> None:
        told = scan_with(live, memory, written, start, start + length, do=PROTECT, regions=regions).regions
        expected = [Region(start, start + length, Is.WRITTEN)][:regions]
        live.expect(f"what a scan tells that protects {length} bytes at {start}", expected, told)

    return Protection(protect, _nothing)


def _nothing(_start: int, _length: int) -> None:
    """End nothing: what is protected may be read."""


def _freed(live: Live, memory: Memory) -> None:
    live.host.wait_until(partial(free_lazily, live, memory))
    live.expect("LazyFree", memory.length, memory.smaps().fields["LazyFree"])


def _brought_back(live: Live, memory: Memory) -> None:
    page_all_out(live, memory)
    memory.expect_filled()


def _read(live: Live, memory: Memory) -> None:
    live.expect("words that are not zero at first", 0, memory.nonzero(0, memory.length))


def _read_whole(live: Live, memory: Memory) -> None:
    with_blocks(live, memory.size, 1)
    _read(live, memory)
    expect_mapped_whole(live, memory, 1, "shmem_enabled=always")


def _shared_memory(live: Live, *, enabled: str) -> Memory:
    live.set_knob(f"{DIRECTORY}/shmem_enabled", enabled)
    return map_aligned(live, 1, pmd_size(live), shared=True)


#: what makes memory, and what has the kernel need not keep more of it than it has, until it is written
_KINDS: Mapping[str, tuple[Callable[[Live], Memory], Callable[[Live, Memory], None]]] = {
    "a huge page after MADV_FREE": (huge_pages, _freed),
    "a huge page in parts after MADV_FREE": (mapped_in_parts, _freed),
    "base pages after MADV_FREE": (base_pages, _freed),
    "base pages that came back from swap": (base_pages, _brought_back),
    "shared base pages that were read": (partial(_shared_memory, enabled="never"), _read),
    "a shared huge page that was read": (partial(_shared_memory, enabled="always"), _read_whole),
}


class ThpWrittenAndProtected(LiveTest):
    def test_written_and_protected(self) -> None:
        self.run_area(WRITTEN_AND_PROTECTED)
