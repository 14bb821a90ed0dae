"""What the kernel counts of transparent huge pages of each size."""

import mmap
from functools import partial

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.changed_counters import expect_change, read_counters
from hugepage_qa.cases.fragmentation import expect_no_shortage, with_blocks
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.memory_policy import move_all
from hugepage_qa.cases.pinned_pages import pipe_with
from hugepage_qa.cases.size_counters import allow_only, counted_sizes, read_size_counters, size_counter
from hugepage_qa.cases.thp_memory import has_folios_of, map_aligned, pmd_size, room_for
from hugepage_qa.cases.thp_nodes import two_nodes_with_room
from hugepage_qa.cases.thp_policy import advised, fill_in_huge_pages, huge_pages, set_policy
from hugepage_qa.cases.thp_shared_memory import let_only_pmd_inherit
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.tree import size_name
from hugepage_qa.kernel.uapi import MADV_COLD, MADV_HUGEPAGE, MAP_FIXED
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.oracle.rules import THP_DOC
from hugepage_qa.plugins.avocado_test import LiveTest

SMALLER = Area("accounting/transparent-sizes", sizes=Sizes.ONCE)

_PAGES = 3
_VALUE = 77


@SMALLER.case(
    "each size of transparent huge pages counts the pages that faults take, and those that there are now, for itself",
    f"{THP_DOC} anon_fault_alloc, nr_anon; mm/huge_memory.c count_mthp_stat()",
    since="6.10",
)
def each_size_is_counted_for_itself(live: Live) -> None:
    for size in (*counted_sizes(live), pmd_size(live)):
        allow_only(live, size)
        taken = dict.fromkeys(_read(live), 0)
        taken |= {size_counter(size, "anon_fault_alloc"): 3, size_counter(size, "nr_anon"): 3}
        touch = partial(_touch_where_there_are_blocks, live)
        memory = expect_change(live, taken, partial(_three, live, size), touch, _read)
        live.expect(f"Rss with pages of {size} bytes", 3 * size, memory.smaps().rss)
        huge = memory.length if size == pmd_size(live) else 0
        live.expect("AnonHugePages, which is for PMD-sized ones", huge, memory.smaps().anon_huge_pages)
        given = {
            size_counter(size, "anon_fault_alloc"): 0,
            size_counter(size, "nr_anon"): -3,
            # nothing is left of any part of them (mm/rmap.c __folio_remove_rmap(), since Linux 6.10)
            size_counter(size, "split_deferred"): 0,
        }
        expect_change(live, given, partial(_three_touched, live, size), Memory.unmap, _read)


@SMALLER.case(
    "there are as many PMD-sized pages as before when they have moved to another node, and back again",
    f"{THP_DOC} nr_anon; mm/migrate.c folio_migrate_mapping()",
    since="6.12",
    nodes=2,
)
def as_many_when_they_move(live: Live) -> None:
    here, there = nodes = two_nodes_with_room(live, _PAGES)
    # smaller ones are unmapped part by part, wait to be split for that, and may be when they move once more
    unchanged = dict.fromkeys(_read(live), 0)

    def on_the_first() -> Memory:
        memory = huge_pages(live, _PAGES)
        move_all(live, memory, "move_pages", there, here)
        return memory

    def there_and_back(memory: Memory) -> None:
        for by, (source, target) in (("move_pages", nodes), ("mbind", nodes[::-1])):
            move_all(live, memory, by, source, target)

    memory = expect_change(live, unchanged, on_the_first, there_and_back, _read)
    memory.expect_huge()
    memory.expect_filled()


@SMALLER.case(
    "a smaller huge page that is unmapped in part is counted as one that waits to be split",
    f"{THP_DOC} split_deferred; mm/huge_memory.c deferred_split_folio()",
    since="6.10",
)
def a_smaller_page_unmapped_in_part(live: Live) -> None:
    size = max(counted_sizes(live))
    allow_only(live, size)
    waiting = {size_counter(size, "split_deferred"): 1, size_counter(size, "anon_fault_alloc"): 0}
    prepare = partial(_three_touched, live, size)
    memory = expect_change(live, waiting, prepare, _unmap_half_of_the_last, _read)
    live.expect("Rss", 5 * size // 2, memory.smaps().rss)


@SMALLER.case(
    "a huge page of which a part is unmapped counts as partially mapped of its size, until it has gone",
    f"{THP_DOC} nr_anon_partially_mapped; mm/huge_memory.c deferred_split_folio(), __folio_unqueue_deferred_split()",
    since="6.12",
)
def partially_mapped(live: Live) -> None:
    for size in (max(counted_sizes(live)), pmd_size(live)):
        allow_only(live, size)
        partly = {size_counter(size, "nr_anon_partially_mapped"): 1, size_counter(size, "nr_anon"): 0}
        prepare = partial(_three_touched, live, size)
        expect_change(live, partly, prepare, _unmap_half_of_the_last, _read)
        gone = {size_counter(size, "nr_anon_partially_mapped"): -1, size_counter(size, "nr_anon"): -3}
        expect_change(live, gone, partial(_unmapped_in_part, live, size), Memory.unmap, _read)


@SMALLER.case(
    "each size of shared memory counts the pages that faults take for itself, and thp_file_alloc those of a PMD alone",
    f"{THP_DOC} shmem_alloc, thp_file_alloc; mm/shmem.c shmem_get_folio_gfp()",
    since="6.11",
)
def shared_memory_of_each_size(live: Live) -> None:
    let_only_pmd_inherit(live, is_used=False)
    each = (*counted_sizes(live), pmd_size(live))
    sizes = [size for size in each if live.host.read(f"{DIRECTORY}/{size_name(size)}/shmem_enabled") is not None]
    live.expect("shared memory has the size of a PMD", has_folios_of(live, pmd_size(live)), pmd_size(live) in sizes)
    for size in sorted({sizes[0], sizes[len(sizes) // 2], *sizes[-2:]}):
        allow_only(live, size, knob="shmem_enabled", policy="always")
        taken = {size_counter(other, "shmem_alloc"): 3 if other == size else 0 for other in sizes}
        taken["thp_file_alloc"] = 3 if size == pmd_size(live) else 0
        touch = partial(_touch_where_there_are_blocks, live)
        prepare = partial(map_aligned, live, 3, size, shared=True)
        memory = expect_change(live, taken, prepare, touch, _read_of_shared_memory)
        live.expect(f"Rss of shared pages of {size} bytes", 3 * size, memory.smaps().rss)


@SMALLER.case(
    "with within_size for several sizes shared memory gets the largest page that lies within it, whichever part of it"
    " is touched first",
    f"{THP_DOC} shmem_enabled within_size; mm/shmem.c shmem_allowable_huge_orders() (d0e6983a6d17)",
    since="6.12.10",  # and in 6.12.y; before, places within the file were taken for places behind its end
)
def largest_within_size(live: Live) -> None:
    let_only_pmd_inherit(live, is_used=False)
    pmd, base = pmd_size(live), live.base_page
    sizes = [size for size in counted_sizes(live) if size <= pmd // 4]
    if not sizes:
        raise CannotRun("this kernel has no size of which two fit into half a PMD-sized page")
    for size in {sizes[0], sizes[-1]}:
        allow_only(live, size, pmd, knob="shmem_enabled", policy="within_size")
        # neither all of a PMD-sized page, nor of the last one of this size, lies within it
        length = pmd // 2 + size - base
        whole = length // size
        for touched, taken in ((0, 1), (size - base, 1), ((whole - 1) * size, 1), (whole * size, 0)):
            expected = {size_counter(pmd, "shmem_alloc"): 0, size_counter(size, "shmem_alloc"): taken}
            prepare = partial(_shared_of_length, live, length)
            touch = partial(_touch_at, live, size, touched)
            with live.about(f"pages of {size} bytes, {length} bytes, touched at {touched}"):
                memory = expect_change(live, expected, prepare, touch, _read_of_shared_memory)
                live.expect("what was written", _VALUE, memory.actor.read(memory.address + touched))


@SMALLER.case(
    "a huge page that somebody holds is not split for advice on a part of it, and counts as one that could not be",
    f"{THP_DOC} thp_split_page_failed, split_failed; mm/madvise.c madvise_cold_or_pageout_pte_range()",
    since="5.4",
)
def a_held_page_is_not_split(live: Live) -> None:
    size = pmd_size(live)
    set_policy(live, "madvise")
    failed = {"thp_split_page_failed": 1, size_counter(size, "split_failed"): 1}
    done = {"thp_split_page": 0, size_counter(size, "split"): 0}
    memory = expect_change(live, failed | done, partial(_held, live), _advise_half, _read_of_splits)
    live.expect("AnonHugePages of a page that is held", size, memory.smaps().anon_huge_pages)
    memory.expect_filled()
    # without the pipe it can be
    split = dict.fromkeys(failed, 0) | dict.fromkeys(done, 1)
    memory = expect_change(live, split, partial(_filled_page, live), _advise_half, _read_of_splits)
    memory.expect_huge(0, about="of a page that nobody holds")
    memory.expect_filled()


def _filled_page(live: Live) -> Memory:
    memory = advised(live)
    fill_in_huge_pages(live, memory)
    return memory


def _held(live: Live) -> Memory:
    memory = _filled_page(live)
    pipe_with(live, memory)
    return memory


def _advise_half(memory: Memory) -> None:
    memory.actor.call("madvise", memory.address, memory.size // 2, MADV_COLD)


def _read_of_splits(live: Live) -> dict[str, int]:
    return read_counters(live) | read_size_counters(live, ("split", "split_failed"))


def _read_of_shared_memory(live: Live) -> dict[str, int]:
    return read_counters(live) | read_size_counters(live, ("shmem_alloc",))


def _read(live: Live) -> dict[str, int]:
    return read_size_counters(live, ("anon_fault_alloc", "nr_anon", "nr_anon_partially_mapped", "split_deferred"))


def _shared_of_length(live: Live, length: int) -> Memory:
    """Map anonymous shared memory of ``length`` bytes, whole base pages, where a PMD-sized page would fit."""
    actor = live.actor()
    address = room_for(actor, 1, pmd_size(live))
    actor.mmap(length, READ_WRITE, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | MAP_FIXED, address=address)
    return Memory(live, actor, address, length // live.base_page, live.base_page)


def _unmapped_in_part(live: Live, size: int) -> Memory:
    memory = _three_touched(live, size)
    _unmap_half_of_the_last(memory)
    return memory


def _three(live: Live, size: int) -> Memory:
    """Return three pages, too few for the next larger size, having compacted memory where it is too fragmented."""
    with_blocks(live, size, 3)
    return map_aligned(live, 3, size, advice=MADV_HUGEPAGE)


def _three_touched(live: Live, size: int) -> Memory:
    """Return three that were touched. Raises CannotRun where memory is too fragmented for them."""
    memory, counter = _three(live, size), size_counter(size, "anon_fault_alloc")
    before = _read(live)[counter]
    _touch_all(memory)
    if _read(live)[counter] - before < memory.pages:
        expect_no_shortage(live, size, memory.pages)
    return memory


def _touch_where_there_are_blocks(live: Live, memory: Memory) -> None:
    """Touch all pages. Raises CannotRun where memory is too fragmented for them."""
    _touch_all(memory)
    expect_no_shortage(live, memory.size, memory.pages)


def _touch_at(live: Live, size: int, offset: int, memory: Memory) -> None:
    """Write at ``offset``. Raises CannotRun where memory is too fragmented for a page of ``size`` bytes."""
    memory.actor.write(memory.address + offset, _VALUE)
    expect_no_shortage(live, size, 1)


def _touch_all(memory: Memory) -> None:
    for page in range(memory.pages):
        memory.touch(page)


def _unmap_half_of_the_last(memory: Memory) -> None:
    memory.actor.call("munmap", memory.at(memory.pages - 1) + memory.size // 2, memory.size // 2)


class SizesAccounting(LiveTest):
    def test_sizes(self) -> None:
        self.run_area(SMALLER)
