"""Memory that is taken from a machine that uses it: all that is there moves, and what is broken holds up nothing."""

from collections import Counter
from collections.abc import Callable
from functools import partial

from hugepage_qa.cases.broken_memory import EHWPOISON, break_page
from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.debugfs import expect_split
from hugepage_qa.cases.khugepaged_clock import let_rest
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.lru_batches import drain_lru_batches
from hugepage_qa.cases.mapped_memory import FRAME, Memory
from hugepage_qa.cases.memory_blocks import MOVABLE, MemoryBlock, memory_blocks
from hugepage_qa.cases.memory_policy import bind
from hugepage_qa.cases.pages_of_a_node import need_memory
from hugepage_qa.cases.result import FRAGMENTED
from hugepage_qa.cases.struct_pages import keep_struct_pages_that_nobody_counts
from hugepage_qa.cases.thp_memory import map_aligned, mapped_huge, need_blocks, pmd_size
from hugepage_qa.cases.thp_policy import give_on_advice
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE, MADV_HWPOISON
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.sizes import MIB
from hugepage_qa.version import KernelVersion

TAKEN = Area("pool/taken-in-use", sizes=Sizes.BUDDY)

DOC = "Documentation/admin-guide/mm/memory-hotplug.rst Offlining Memory Blocks"
#: so many times a block is filled, so that some block is full, and the largest one of which that is done
_BLOCKS, _LARGEST = 3, 128 * MIB
#: 5033091de814
_REFUSED_SINCE = KernelVersion(6, 2)


@TAKEN.case(
    "a block of ordinary memory that is full of transparent huge pages, anonymous ones or such of a tmpfs, can be taken"
    " from the machine: all of them are elsewhere then, and hold what they held",
    f"{DOC}; mm/page_isolation.c has_unmovable_pages(); mm/memory_hotplug.c do_migrate_range()",
    sizes=Sizes.ONCE,
)
def full_of_huge_pages(live: Live) -> None:
    # nr_isolated_anon is below 0 then until the machine is rebooted
    live.host.is_spoiled |= live.has_bug(Quirk.TAKEN_HUGE_PAGE_ISOLATED_ONCE)
    for shared in (False, True):
        with live.about(f"shared {shared}"):
            memory, block = _in_a_block(live, pmd_size(live), partial(_transparent, shared=shared))
            _expect_taken(live, memory, block)


@TAKEN.case(
    "the same of one that is full of the base pages that such huge pages were split to",
    f"{DOC}; mm/page_isolation.c has_unmovable_pages(); mm/memory_hotplug.c do_migrate_range()",
    sizes=Sizes.ONCE,
)
def full_of_split_pages(live: Live) -> None:
    for shared in (False, True):
        with live.about(f"shared {shared}"):
            memory, block = _in_a_block(live, pmd_size(live), partial(_transparent, shared=shared))
            end = memory.address + memory.length
            # what a CPU has not put on the lists yet is not split
            drain_lru_batches(live, memory.actor)
            expect_split(live, f"{memory.actor.pid},{memory.address:#x},{end:#x}", memory.pages)
            live.expect("bytes in huge pages", 0, mapped_huge(memory))
            _expect_taken(live, memory, block)


def _expect_taken(live: Live, memory: Memory, block: MemoryBlock) -> None:
    """Expect a block to go that ``memory`` lies in, which ends, and to come back."""
    live.when_actors_have_ended(block.put_back, live)
    live.expect("whether the block is taken", True, block.is_taken(live))
    # what a file has is mapped by that look
    _expect_intact(live, memory, 0, memory.pages)
    live.expect("base pages in the block", 0, len(block.held(live, memory.present_frames(memory.pages))))
    memory.actor.end()
    block.put_back(live)


@TAKEN.case(
    "a block of memory with a broken page of a pool can be taken once nobody has the page any more; it does not come"
    " back while the page is broken",
    f"{DOC}; include/linux/page-isolation.h MEMORY_OFFLINE; mm/page_isolation.c test_pages_isolated();"
    " drivers/base/memory.c memory_block_online() (5033091de814)",
)
def broken_page_of_a_pool(live: Live) -> None:
    _expect_taken_when_broken(live, live.size, _of_the_pool)


@TAKEN.case(
    "a block of memory with a broken page of a transparent huge page can be taken, and all else that processes have"
    " there moves; it does not come back while the page is broken",
    f"{DOC}; mm/memory_hotplug.c do_migrate_range(); mm/page_isolation.c test_pages_isolated();"
    " drivers/base/memory.c memory_block_online() (5033091de814)",
    sizes=Sizes.ONCE,
    since="6.12",
)
def broken_transparent_page(live: Live) -> None:
    _expect_taken_when_broken(live, pmd_size(live), partial(_transparent, shared=False))


def _expect_taken_when_broken(live: Live, size: int, make: Callable[[Live, int, int], Memory]) -> None:
    """Break a base page of what ``make`` gives, and expect the block that it lies in to go, for good.

    The machine lacks it then: it is one that is thrown away.
    """
    memory, block = _in_a_block(live, size, make)
    first = next(page for page in range(memory.pages) if block.held(live, [memory.frame(page * size)]))
    break_page(live, memory, first * size + size // 2, MADV_HWPOISON)
    if make is _of_the_pool:
        memory.actor.end()
        live.set_nr(0)
        live.expect_pool(nr=0, free=0)
    live.expect("whether the block is taken", True, block.is_taken(live))
    if make is not _of_the_pool:
        _expect_intact(live, memory, 0, first)
        _expect_intact(live, memory, first + 1, memory.pages)
    if live.kernel_version >= _REFUSED_SINCE:
        live.host.is_spoiled = live.host.lacks_memory = True
        live.expect_errno(EHWPOISON, block.add, live)
    else:
        block.put_back(live)


def _transparent(live: Live, node: int, pages: int, *, shared: bool) -> Memory:
    give_on_advice(live)
    memory = map_aligned(live, pages, pmd_size(live), shared=shared, advice=MADV_HUGEPAGE)
    bind(memory, [node])
    memory.actor.fill(memory.address, memory.length, live.base_page, 1)
    need_blocks(live, memory, node)
    live.expect("bytes in huge pages", memory.length, mapped_huge(memory))
    return memory


def _of_the_pool(live: Live, node: int, pages: int) -> Memory:
    # the node before, whose pages filled no block, has them still
    live.set_nr(0)
    live.reserve(pages, node)
    memory = live.map(pages)
    bind(memory, [node])
    memory.actor.fill(memory.address, memory.length, live.size, 1)
    live.expect_pool(nr=pages, free=0)
    return memory


def _expect_intact(live: Live, memory: Memory, first: int, end: int) -> None:
    """Expect what ``_transparent`` stored, a word of each base page, to be in the pages from ``first`` to ``end``."""
    offset = first * memory.size
    wrong = memory.actor.check(memory.address + offset, end * memory.size - offset, live.base_page, 1 + offset)
    live.expect(f"words of the pages from {first} to {end} that changed", 0, wrong)


def _in_a_block(live: Live, size: int, make: Callable[[Live, int, int], Memory]) -> tuple[Memory, MemoryBlock]:
    """Return memory in pages of ``size`` bytes that has all of a block of ordinary memory, and that block.

    ``make`` gives it from a node, so many pages of it. Raises CannotRun where no block is free as a whole, on a kernel
    without nodes, and as ``memory_blocks()`` does.
    """
    live.need_nodes()
    keep_struct_pages_that_nobody_counts(live)
    let_rest(live)
    blocks = {block.number: block for block in memory_blocks(live) if block.zone(live) != MOVABLE}
    length = next((block.size for block in blocks.values()), 0)
    if not size < length <= _LARGEST:
        raise CannotRun(f"no block of ordinary memory has more than {size >> 20} MiB and {_LARGEST >> 20} at most")
    for node in live.nodes:
        need_memory(live, [node], _BLOCKS * length)
        memory = make(live, node, _BLOCKS * length // size)
        frames = [entry & FRAME for entry in memory.pagemap(memory.at(page) for page in range(memory.pages))]
        ours = Counter(frame * live.base_page // length for frame in frames)
        full = [number for number, pages in ours.items() if pages == length // size and number in blocks]
        if full:
            return memory, blocks[full[0]]
        memory.actor.end()
    raise CannotRun(f"{FRAGMENTED}: no block of memory is free as a whole")


class TakenInUse(LiveTest):
    def test_taken_in_use(self) -> None:
        self.run_area(TAKEN)
