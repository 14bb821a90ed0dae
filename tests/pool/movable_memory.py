"""Memory for what can be moved alone (ZONE_MOVABLE): what comes from there, what may not stay, how all leaves it."""

import errno
import fcntl
import os
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.hugetlb_files import new_memfd
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import FRAME, PRESENT, Memory
from hugepage_qa.cases.memory_blocks import (
    ONLINE_MOVABLE,
    MemoryBlock,
    expect_inside,
    movable_block,
    movable_block_for_a_pool,
    need_movable_pages,
    take_a_block,
)
from hugepage_qa.cases.memory_policy import bind, move_pages
from hugepage_qa.cases.movable_kinds import movable_memory
from hugepage_qa.cases.pinned_pages import Pin
from hugepage_qa.cases.struct_pages import keep_struct_pages_that_nobody_counts
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.cases.udmabuf import Part, create_buffer, open_device
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest

MOVABLE = Area("pool/movable-memory", sizes=Sizes.BUDDY)

DOC = "Documentation/admin-guide/mm/memory-hotplug.rst"
PINNED = f"{DOC} ZONE_MOVABLE Sizing Considerations: Long-term pinning; mm/gup.c check_and_migrate_movable_pages()"
OFFLINE = (
    f"{DOC} Offlining Memory Blocks; mm/page_isolation.c has_unmovable_pages(), mm/memory_hotplug.c do_migrate_range()"
)
_PAGES = 4
#: so many pages at least have room in a block
_ROOM = 4 * _PAGES
#: blocks that are left to others where a pool takes all of a node
_LEFT = 32
_NEW_VALUE = 77


# --- what comes from there -------------------------------------------------------------------------------------------


@MOVABLE.case(
    "pages of a pool come from the movable memory of their node as long as it has some, for the pool, as surplus, and"
    " for those that move there",
    f"{DOC} ZONE_MOVABLE; mm/hugetlb.c alloc_buddy_hugetlb_folio(), include/linux/hugetlb.h htlb_alloc_mask()",
)
def pool_in_movable_memory(live: Live) -> None:
    block, node = movable_block_for_a_pool(live, _ROOM)
    live.reserve(_PAGES, node)
    live.overcommit(_PAGES)
    pool, surplus = (_bound(live, node, noreserve=one) for one in (False, True))
    live.expect_pool(nr=2 * _PAGES, free=0, surplus=_PAGES)
    expect_inside(live, block, "pages of the pool", pool)
    expect_inside(live, block, "surplus pages", surplus)
    for one in (pool, surplus):
        one.expect_filled()
        one.actor.end()
    live.expect_pool(nr=_PAGES, free=_PAGES)


@MOVABLE.case(
    "pages that move to a node with movable memory come to lie there",
    f"{DOC} ZONE_MOVABLE; mm/hugetlb.c alloc_migrate_hugetlb_folio(), include/linux/hugetlb.h htlb_alloc_mask()",
    nodes=2,
)
def moved_to_movable_memory(live: Live) -> None:
    block, node = movable_block_for_a_pool(live, _ROOM)
    other = next(each for each in live.nodes if each != node)
    live.reserve(_PAGES, other)
    memory = live.map(_PAGES)
    bind(memory, [other])
    memory.fill()
    move_pages(memory.actor, [memory.at(page) for page in range(_PAGES)], [node] * _PAGES)
    expect_inside(live, block, "pages that have moved", memory)
    memory.expect_filled()
    live.expect_pool(nr=_PAGES, free=0)


@MOVABLE.case(
    "anonymous memory and files of a tmpfs, in huge pages and in base pages, come from the movable memory of their node"
    " as long as it has some",
    f"{DOC} ZONE_MOVABLE; include/linux/gfp_types.h GFP_HIGHUSER_MOVABLE, GFP_TRANSHUGE",
    sizes=Sizes.ONCE,
)
def all_in_movable_memory(live: Live) -> None:
    _each_in_movable_memory(live)


def _each_in_movable_memory(live: Live) -> tuple[MemoryBlock, dict[str, Memory]]:
    """Return movable memory, and memory of each kind, by name, that lies in it."""
    block, node = movable_block(live, pmd_size(live), _ROOM)
    each = {}
    for name, memory in movable_memory(live, node):
        expect_inside(live, block, name, memory)
        each[name] = memory
    return block, each


# --- what may not stay there -----------------------------------------------------------------------------------------


@MOVABLE.case(
    "pages that are pinned for long leave movable memory first, whole or in part, private and shared ones, hold what"
    " they held, and it can be taken while they are pinned",
    PINNED,
    # before f442fa614137 try_grab_folio() let none of them be pinned there, with a warning
    since="6.10",
)
def pinned_pages_leave(live: Live) -> None:
    block, node = movable_block_for_a_pool(live, _ROOM)
    live.reserve(_PAGES, node)
    private, shared = live.map(2), new_memfd(live).map(2)
    pins = []
    for memory in (private, shared):
        bind(memory, [node])
        memory.fill()
        expect_inside(live, block, "pages before", memory)
        with live.about("a shared page" if memory is shared else "a private page"):
            pins.append(_expect_to_leave(live, block, memory))
    live.expect_pool(nr=_PAGES, free=0)
    live.expect("whether the block is taken", True, block.is_taken(live))
    for memory, pin in zip((private, shared), pins, strict=True):
        pin.let_go()
        memory.expect_filled()
        _expect_writable(memory)
        memory.actor.end()
    live.expect_pool(nr=_PAGES, free=_PAGES)


@MOVABLE.case(
    "base pages and transparent huge pages that are pinned for long leave movable memory first, whole or in part,"
    " anonymous ones and such of a tmpfs, hold what they held, and it can be taken while they are pinned",
    PINNED,
    sizes=Sizes.ONCE,
    since="5.13",
)
def all_that_is_pinned_leaves(live: Live) -> None:
    block, each = _each_in_movable_memory(live)
    pins = []
    for name, memory in each.items():
        with live.about(name):
            pins.append(_expect_to_leave(live, block, memory))
    live.expect("whether the block is taken", True, block.is_taken(live))
    for memory, pin in zip(each.values(), pins, strict=True):
        pin.let_go()
        memory.expect_filled()
        _expect_writable(memory)


@MOVABLE.case(
    "a buffer for a device takes no page of movable memory for a hole of a file: where the pool has no other one it is"
    " refused, ENOMEM, wherever the hole is and however often; the file and the pool are then as before, whether pages"
    " are reserved for the hole or not, and the file has them when it is written",
    f"{PINNED}, memfd_pin_folios(); mm/memfd.c memfd_alloc_folio(); mm/hugetlb.c hugetlb_unreserve_pages()",
    since="6.12",
)
def no_buffer_of_holes(live: Live) -> None:
    block, node = movable_block_for_a_pool(live, _ROOM)
    live.reserve(_PAGES, node)
    every = _bound(live, node, noreserve=False)
    expect_inside(live, block, "pages of the pool", every)
    every.actor.end()
    base = live.base_page
    for is_reserved in (False, True):
        actor = live.actor()
        device, file = open_device(live, actor), new_memfd(live, actor, os.MFD_ALLOW_SEALING, pages=_PAGES)
        file.seal(fcntl.F_SEAL_SHRINK)
        memory = file.map(_PAGES, noreserve=not is_reserved)
        # the first page and the last one, across two, all, and one of two parts
        ranges = [(0, base)], [(memory.length - base, base)], [(live.size - base, 2 * base)], [(0, base), (base, base)]
        for parts in ranges:
            asked = [Part(file.descriptor, start, length) for start, length in parts]
            with live.about(f"bytes {parts}, reserved {is_reserved}"):
                for _time in range(2):
                    live.expect_errno(errno.ENOMEM, create_buffer, actor, device, asked)
                    live.expect_pool(nr=_PAGES, free=_PAGES, resv=_PAGES * is_reserved)
                live.expect("bytes that the file occupies", 0, file.blocks)
        memory.fill()
        live.expect_pool(nr=_PAGES, free=0)
        memory.expect_filled()
        actor.end()
        live.host.wait_until(lambda: live.pool().free == _PAGES)
        live.expect_pool(nr=_PAGES, free=_PAGES)


def _expect_to_leave(live: Live, block: MemoryBlock, memory: Memory) -> Pin:
    """Expect what is pinned of ``memory`` not to lie in ``block`` any more; return what has all of it pinned."""
    base, size = live.base_page, memory.size
    pin = Pin(live, memory)
    for parts in ([(size - base, base)], [(0, base), (size // 2, 2 * base)], [(0, memory.length)]):
        with live.about(f"parts {parts}"):
            live.expect_success(pin.hold, *parts)
        addresses = [memory.address + offset + at for offset, length in parts for at in range(0, length, base)]
        frames = [entry & FRAME for entry in _entries(live, memory, addresses) if entry & PRESENT]
        found = len(frames), len(block.held(live, frames))
        live.expect(f"base pages at {parts} that are there, and in movable memory", (len(addresses), 0), found)
        memory.expect_filled()
        if parts[0] != (0, memory.length):
            pin.let_go()
    live.expect("what is read through the pin", 1, pin.read())
    pin.write(_NEW_VALUE)
    live.expect("what is written through the pin", _NEW_VALUE, memory.read())
    memory.touch()
    return pin


# --- how all leaves it -----------------------------------------------------------------------------------------------


@MOVABLE.case(
    "movable memory can be taken whatever of a pool lies there: what is used moves, private, shared, and mapped by"
    " nobody, and holds what it held; free pages are no longer in the pool",
    f"{OFFLINE}; mm/hugetlb.c dissolve_free_hugetlb_folios()",
)
def taken_with_pages(live: Live) -> None:
    block, node = movable_block_for_a_pool(live, _ROOM)
    live.reserve(2 * _PAGES, node)
    private = live.map(1)
    file = new_memfd(live)
    shared, left = file.map(1), file.map(1, first=1)
    for memory in (private, shared, left):
        bind(memory, [node])
        memory.fill()
        expect_inside(live, block, "pages before", memory)
    left.unmap()
    live.expect_pool(nr=2 * _PAGES, free=2 * _PAGES - 3)
    live.expect("whether the block is taken", True, block.is_taken(live))
    live.expect_pool(nr=3, free=0)
    live.expect_sysctl(3)
    for memory in (private, shared, file.map(1, first=1)):
        _expect_outside(live, block, memory)
    for actor in (private.actor, file.actor):
        actor.end()
    live.expect_pool(nr=3, free=3)


@MOVABLE.case(
    "movable memory with free pages of a pool that are all reserved is not taken, EBUSY, whether others are used there"
    " or not: who has reserved them, privately or for a file, gets them, and the memory can be taken then",
    f"{OFFLINE}; mm/hugetlb.c dissolve_free_hugetlb_folio()",
)
def not_taken_with_reserved_pages(live: Live) -> None:
    block, node = movable_block_for_a_pool(live, _ROOM)
    for shared, used in product((False, True), (0, 1)):
        live.reserve(_PAGES, node)
        memory = live.map(_PAGES, shared=shared)
        bind(memory, [node])
        memory.fill()
        expect_inside(live, block, "pages before", memory)
        memory.unmap()
        memory = live.map(_PAGES, memory.actor, shared=shared)
        bind(memory, [node])
        for page in range(used):
            memory.touch(page)
        with live.about(f"shared {shared}, pages in use {used}"):
            live.expect("errno of taking the block", errno.EBUSY, block.errno_of_taking(live))
            live.expect_pool(nr=_PAGES, free=_PAGES - used, resv=_PAGES - used)
            memory.fill()
            memory.expect_filled()
            live.expect_pool(nr=_PAGES, free=0)
            live.expect("whether the block is taken", True, block.is_taken(live))
            _expect_outside(live, block, memory)
        memory.actor.end()
        live.set_nr(0)
        block.add(live, ONLINE_MOVABLE)


@MOVABLE.case(
    "movable memory can be taken whatever of anonymous memory and of files of a tmpfs lies there, in huge pages and in"
    " base pages: all of it moves, and holds what it held",
    OFFLINE,
    sizes=Sizes.ONCE,
)
def taken_with_all(live: Live) -> None:
    # nr_isolated_anon is below 0 then until the machine is rebooted
    live.host.is_spoiled |= live.has_bug(Quirk.TAKEN_HUGE_PAGE_ISOLATED_ONCE)
    block, each = _each_in_movable_memory(live)
    live.expect("whether the block is taken", True, block.is_taken(live))
    for name, memory in each.items():
        with live.about(name):
            _expect_outside(live, block, memory)
            _expect_writable(memory)


@MOVABLE.case(
    "ordinary memory that could be taken can be so with pages of a pool that somebody uses there, which move, and hold"
    " what they held",
    OFFLINE,
)
def ordinary_memory_with_pages(live: Live) -> None:
    live.need_nodes()
    need_movable_pages(live)
    keep_struct_pages_that_nobody_counts(live)
    block = take_a_block(live)
    block.add(live)
    node = block.node(live)
    # what was added is used last of all
    pages = live.free_blocks(node, live.size) - _LEFT
    if pages <= _ROOM:
        raise CannotRun(f"node {node} has no free memory but what is left to others")
    live.reserve(pages, node, movable=True)
    every = live.map(pages)
    bind(every, [node])
    memory = _first_in(live, block, every)
    if memory.address > every.address:
        every.unmap(0, (memory.address - every.address) // live.size)
    live.set_nr(_ROOM)
    live.expect_pool(nr=_ROOM, free=0)
    memory.fill()
    live.expect("whether the block is taken", True, block.is_taken(live))
    _expect_outside(live, block, memory)
    live.expect_pool(nr=_ROOM, free=0)
    memory.actor.end()
    live.expect_pool(nr=_ROOM, free=_ROOM)


def _first_in(live: Live, block: MemoryBlock, every: Memory) -> Memory:
    """Return the first pages of ``every``, which are touched up to there, some of which lie in ``block``.

    What is behind them is unmapped. Raises CannotRun where none does.
    """
    for first in range(0, every.pages - _ROOM, _ROOM):
        part = every.part(first, _ROOM)
        for page in range(_ROOM):
            part.touch(page)
        if block.held(live, part.frames()):
            every.unmap(first + _ROOM)
            return part
    raise CannotRun("the pool has no page in the block")


def _entries(live: Live, memory: Memory, addresses: list[int]) -> list[int]:
    """Return what pagemap shows of some base pages: of all in a few requests."""
    if len(addresses) * live.base_page < memory.length:
        return memory.pagemap(addresses)
    every = memory.whole_pagemap()
    return [every[(address - memory.address) // live.base_page] for address in addresses]


def _expect_outside(live: Live, block: MemoryBlock, memory: Memory) -> None:
    """Expect ``memory`` to hold what it held, all of it somewhere else; what a file has is mapped by that look."""
    memory.expect_filled()
    frames = memory.present_frames(memory.pages)
    found = len(frames), len(block.held(live, frames))
    live.expect("base pages that are there, and in the block", (memory.length // live.base_page, 0), found)


def _expect_writable(memory: Memory) -> None:
    memory.fill(_NEW_VALUE)
    memory.expect_filled(_NEW_VALUE)


def _bound(live: Live, node: int, *, noreserve: bool) -> Memory:
    """Return filled pages of ``node``; surplus pages that are reserved may come from another one before a touch."""
    memory = live.map(_PAGES, noreserve=noreserve)
    bind(memory, [node])
    memory.fill()
    return memory


class MovableMemory(LiveTest):
    def test_movable_memory(self) -> None:
        self.run_area(MOVABLE)
