"""Blocks of pages that the kernel takes for memory of its own, which huge pages cannot come from any more."""

import mmap

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.process_counters import process_status
from hugepage_qa.cases.result import FRAGMENTED
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.kernel.memory_layout import read_zones
from hugepage_qa.kernel.page_blocks import MOVABLE, PAGE_BLOCKS, UNMOVABLE, ZoneBlocks, read_page_blocks
from hugepage_qa.kernel.uapi import PR_SET_THP_DISABLE
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.sizes import GIB, MIB, format_size

TAKEN = Area("thp/taken-blocks", sizes=Sizes.ONCE)

#: page tables beyond what is free for them already, in bytes and in blocks, and the most that they are
_TABLES, _BLOCKS, _MOST = 64 * MIB, 4, GIB
#: of the blocks that they need, the part that has to be counted: others free memory of the kernel's at the same time
_ENOUGH = 0.5
#: memory that nothing of the kernel's own comes from
_OTHER_ZONES = ("Movable", "Device")


@TAKEN.case(
    "blocks of pages that the kernel takes whole for memory that cannot be moved, as its page tables are, count as"
    " unmovable from then on",
    "Documentation/filesystems/proc.rst pagetypeinfo; mm/page_alloc.c try_to_claim_block(), change_pageblock_range()",
)
def blocks_of_page_tables(live: Live) -> None:
    live.make_room()
    told, share = live.host.last_attempt(lambda: _share_that_is_counted(live), lambda found: found[1] >= _ENOUGH)
    live.expect(f"blocks that count as unmovable since: {told} are enough", True, share >= _ENOUGH)


def _share_that_is_counted(live: Live) -> tuple[str, float]:
    """Have page tables take blocks; return how many count as unmovable since, and which part of those needed that is.

    Raises CannotRun where too few blocks are free as a whole: then the kernel takes parts of others.
    """
    before = _blocks(live)
    size = before[0].pages * live.base_page
    # a processor has lists of its own, of pages that count as free nowhere
    listed = sum(zone.listed for zone in read_zones(live.host))
    spare = (listed + sum(zone.free_pages(UNMOVABLE) for zone in before)) * live.base_page
    # a block of arm64 with base pages of 64K has 512 MiB
    length = spare + max(_TABLES, _BLOCKS * size)
    if length > _MOST:
        raise CannotRun(
            f"it takes page tables of {length >> 20} MiB, more than {format_size(_MOST)}, to need new blocks"
        )
    for node in {zone.node for zone in before}:
        # processes get page tables of their own node first
        if sum(zone.free_blocks(MOVABLE) for zone in before if zone.node == node) * size < 2 * length:
            raise CannotRun(f"{FRAGMENTED}: after compaction node {node} has too few free blocks")
    taken = _page_tables(live, length)
    if taken < length:
        raise CannotRun("page tables of this architecture take too little memory")
    more = sum(zone.blocks[UNMOVABLE] for zone in _blocks(live)) - sum(zone.blocks[UNMOVABLE] for zone in before)
    needed = (taken - spare) // size
    return f"{more} of {needed}", more / needed


def _blocks(live: Live) -> list[ZoneBlocks]:
    """Return the blocks of all zones that the kernel's own memory comes from. Raises CannotRun without them."""
    found = [zone for zone in read_page_blocks(ObservedTree(live.host)) if zone.zone not in _OTHER_ZONES]
    if not found:
        raise CannotRun(f"this kernel has no /{PAGE_BLOCKS}")
    return found


def _page_tables(live: Live, length: int) -> int:
    """Have a process, which lives on, read where it has nothing until it has page tables of ``length`` bytes.

    Returned is how many bytes they are (VmPTE).
    """
    actor = live.actor()
    actor.call("prctl", PR_SET_THP_DISABLE, 1, 0, 0, 0)
    each = pmd_size(live)
    area = length // live.base_page * each
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | live.host.uapi.map_noreserve
    live.expect("words that are not zero", 0, actor.nonzero(actor.mmap(area, mmap.PROT_READ, flags), area, each))
    return process_status(live, actor).page_tables


class TakenBlocks(LiveTest):
    def test_taken_blocks(self) -> None:
        self.run_area(TAKEN)
