"""Blocks of pages that the kernel takes for memory of its own: huge pages come from them before and after that."""

import mmap
from collections.abc import Callable
from functools import partial

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.fragments import join_free_pages
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.process_counters import process_status
from hugepage_qa.cases.result import FRAGMENTED
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.kernel.memory_layout import read_zones
from hugepage_qa.kernel.page_blocks import MOVABLE, PAGE_BLOCKS, UNMOVABLE, ZoneBlocks, read_page_blocks
from hugepage_qa.kernel.tree import read_integer
from hugepage_qa.kernel.uapi import PR_SET_THP_DISABLE
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.oracle.rules import HUGETLB_DOC
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor
from hugepage_qa.sizes import GIB, MIB, format_size

TAKEN = Area("thp/taken-blocks", sizes=Sizes.ONCE)

#: page tables beyond what is free for them already, in bytes and in blocks, and the most that they are
_TABLES, _BLOCKS, _MOST = 64 * MIB, 4, GIB
#: of the blocks that they need, the part that has to be counted: others free memory of the kernel's at the same time
_ENOUGH = 0.5
#: memory that nothing of the kernel's own comes from
_OTHER_ZONES = ("Movable", "Device")
#: what a pipe can hold, in bytes (pipe(7), pipe-max-size), and how many of them a process may have open
_PIPE, _PIPES = MIB, 400
#: include/uapi/linux/fcntl.h F_SETPIPE_SZ: the same on all architectures
_SETPIPE_SZ = 1031
#: what nr_hugepages can hold, an unsigned long
_LARGEST = 2**64 - 1


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
    spare, length = _spare_and_length(live, before)
    for node in {zone.node for zone in before}:
        # processes get page tables of their own node first
        if sum(zone.free_blocks(MOVABLE) for zone in before if zone.node == node) * size < 2 * length:
            raise CannotRun(f"{FRAGMENTED}: after compaction node {node} has too few free blocks")
    taken = process_status(live, _page_tables(live, length)).page_tables
    if taken < length:
        raise CannotRun("page tables of this architecture take too little memory")
    more = sum(zone.blocks[UNMOVABLE] for zone in _blocks(live)) - sum(zone.blocks[UNMOVABLE] for zone in before)
    needed = (taken - spare) // size
    return f"{more} of {needed}", more / needed


def _spare_and_length(live: Live, before: list[ZoneBlocks]) -> tuple[int, int]:
    """Return how many bytes are free for the kernel's own memory, and how many take new blocks for it.

    Raises CannotRun where these are too many.
    """
    size = before[0].pages * live.base_page
    # a processor has lists of its own, of pages that count as free nowhere
    listed = sum(zone.listed for zone in read_zones(live.host))
    spare = (listed + sum(zone.free_pages(UNMOVABLE) for zone in before)) * live.base_page
    # a block of arm64 with base pages of 64K has 512 MiB
    length = spare + max(_TABLES, _BLOCKS * size)
    if length > _MOST:
        raise CannotRun(f"it takes {length >> 20} MiB, more than {format_size(_MOST)}, to need new blocks")
    return spare, length


def _blocks(live: Live) -> list[ZoneBlocks]:
    """Return the blocks of all zones that the kernel's own memory comes from. Raises CannotRun without them."""
    found = [zone for zone in read_page_blocks(ObservedTree(live.host)) if zone.zone not in _OTHER_ZONES]
    if not found:
        raise CannotRun(f"this kernel has no /{PAGE_BLOCKS}")
    return found


def _page_tables(live: Live, length: int) -> Actor:
    """Have a process, which lives on, read where it has nothing until it has page tables of ``length`` bytes."""
    actor = live.actor()
    actor.call("prctl", PR_SET_THP_DISABLE, 1, 0, 0, 0)
    each = pmd_size(live)
    area = length // live.base_page * each
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | live.host.uapi.map_noreserve
    live.expect("words that are not zero", 0, actor.nonzero(actor.mmap(area, mmap.PROT_READ, flags), area, each))
    return actor


def _full_pipes(live: Live, length: int) -> Actor:
    """Have a process have pipes that hold ``length`` bytes. Raises CannotRun where these are too many."""
    pipes = -(-length // _PIPE)
    if pipes > _PIPES:
        raise CannotRun(f"it takes {pipes} pipes to need new blocks, more than a process may have open")
    actor = live.actor()
    words = actor.mmap(_PIPE, READ_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for _pipe in range(pipes):
        _reader, writer = actor.pipe()
        actor.call("fcntl", writer, _SETPIPE_SZ, _PIPE)
        live.expect("bytes written to a pipe", _PIPE, actor.call("write", writer, words, _PIPE))
    return actor


@TAKEN.case(
    "blocks that the kernel took for memory of its own, page tables or what pipes hold, make huge pages again when it"
    " has given them back: a pool of all memory has as many as before",
    f"{HUGETLB_DOC} nr_hugepages; mm/page_alloc.c try_to_claim_block()",
    sizes=Sizes.BUDDY,
)
def blocks_given_back(live: Live) -> None:
    if not live.host.is_thrown_away():
        raise CannotRun("no pool takes all memory of a machine that others use")
    before = _all_of_memory(live)
    for take in (_page_tables, _full_pipes):
        join_free_pages(live)
        spare, length = _spare_and_length(live, _blocks(live))
        most = int((length - spare) // live.size * _ENOUGH)
        lost = live.host.last_attempt(partial(_lost, live, before, take, length), most.__ge__)
        told = f"{take.__name__.strip('_')} of {length >> 20} MiB: {lost} huge pages of {before} less, not {most}"
        live.notes.append(told)
        live.expect(told, True, lost <= most)
    live.expect_pool(nr=0, free=0)


def _lost(live: Live, before: int, take: Callable[[Live, int], Actor], length: int) -> int:
    """Have the kernel take ``length`` bytes and give them back; return how many huge pages are had less than before."""
    take(live, length).end()
    join_free_pages(live)
    return before - _all_of_memory(live)


def _all_of_memory(live: Live) -> int:
    """Return how many pages a pool has that was to have all memory; it is given back."""
    join_free_pages(live)
    live.host.write(live.pool_file("nr_hugepages"), str(_LARGEST))
    pages = read_integer(live.host, live.pool_file("nr_hugepages")) or 0
    live.set_nr(0)
    return pages


class TakenBlocks(LiveTest):
    def test_taken_blocks(self) -> None:
        self.run_area(TAKEN)
