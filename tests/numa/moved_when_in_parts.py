"""Huge pages of files that are mapped in part, wherever that part lies, and copies of them, that go to another node."""

import mmap
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from operator import eq, not_

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.khugepaged_clock import let_rest
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.memory_policy import (
    MOVE_ALL,
    STRICT,
    base_pages_of,
    bind,
    migrate,
    move_page,
    node_of,
    nodes_of,
)
from hugepage_qa.cases.pages_of_a_node import need_memory
from hugepage_qa.cases.places import end_of_addresses
from hugepage_qa.cases.thp_memory import let_nothing_be_balanced, pmd_size, room_for
from hugepage_qa.cases.thp_nodes import filled_on, two_nodes_with_room
from hugepage_qa.cases.thp_shared_memory import expect_shared, let_only_pmd_inherit, map_start_of_file, mount_tmpfs
from hugepage_qa.kernel.uapi import MADV_DONTNEED, MAP_FIXED_NOREPLACE
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor, Refused
from hugepage_qa.version import KernelVersion

IN_PARTS = Area("numa/moved-when-in-parts", sizes=Sizes.ONCE)

MOVES = "move_pages(2); mm/migrate.c do_pages_move()"
_NEW = 0x5EED
#: one that moves, and room for what is copied of it
_HUGE_PAGES = 2
#: a multiple of what a table of each level of most architectures covers
_BORDER_BITS = 40
#: 1cb5d11a370f: before, each base page of a huge page but the first one that is met is one that cannot be moved
_STRICT_SINCE = KernelVersion(6, 7)
#: memory, and those base pages of it that are there
Parts = tuple[Memory, Sequence[int]]


@IN_PARTS.case(
    "a huge page of a file of a tmpfs moves to another node where a part of it alone is mapped, by one process or by"
    " several: a base page at its begin, at its end or within, some of them, or all but one, whichever is named; all"
    " who have it mapped find on the new node what they had",
    f"{MOVES}; mm/rmap.c rmap_walk_file(), try_to_migrate(); mm/page_vma_mapped.c check_pte()",
    nodes=2,
)
def parts_of_a_file(live: Live) -> None:
    path = _file_on_a_node(live)
    owner = live.actor()
    descriptor = live.open(owner, path)
    for first, end in _parts(live):
        with live.about(f"base pages {first} to {end - 1}"):
            part = _map_part(live, owner, descriptor, first, end)
            other = part.fork()
            # what a child has not looked at it has not mapped
            _expect_held(live, other, range(other.pages), first)
            # of many the first ones and the last ones
            _expect_to_move(live, part, sorted({*range(part.pages)[:2], *range(part.pages)[-2:]}), first)
            _expect_to_move(live, other, [other.pages - 1], first)
            other.actor.end()
            # nobody else has it mapped now
            _expect_to_move(live, part, [part.pages - 1, 0], first)
            part.unmap()


@IN_PARTS.case(
    "a huge page of a file of a tmpfs that lies across the end of what a page table of any level covers moves where"
    " base pages on one side alone were touched, of which the other has no table; each holds what it held",
    f"{MOVES}; mm/page_vma_mapped.c page_vma_mapped_walk()",
    nodes=2,
)
def across_tables(live: Live) -> None:
    path = _file_on_a_node(live)
    actor = live.actor()
    descriptor, half = live.open(actor, path), pmd_size(live) // live.base_page // 2
    for border in _borders(live, actor):
        for first, end in ((0, half), (half, 2 * half)):
            with live.about(f"base pages {first} to {end - 1} of a page across {border:#x}"):
                place = border - half * live.base_page
                whole = _map_part(live, actor, descriptor, 0, 2 * half, place)
                part = Memory(live, actor, whole.at(first), end - first, live.base_page)
                _expect_to_move(live, part, [0, part.pages - 1], first)
                whole.unmap()


@IN_PARTS.case(
    "copies of base pages of a file, which a private mapping has, move to another node after parts of the mapping were"
    " protected otherwise and are as the rest again, whichever they are, and where all of it was moved in memory since",
    f"{MOVES}; mm/vma.c vma_modify_flags(), vma_merge_existing_range(); mm/rmap.c rmap_walk_anon()",
    nodes=2,
)
def copies_in_merged_mappings(live: Live) -> None:
    path = _file_on_a_node(live)
    every = pmd_size(live) // live.base_page
    half = every // 2
    written = (0, half - 1, half, every - 1)
    for is_moved in (False, True):
        for first, end in ((0, half), (half, every), (1, every - 1), (half, half + 1)):
            actor = live.actor()
            memory = _map_part(live, actor, live.open(actor, path), 0, every, kind=mmap.MAP_PRIVATE)
            bind(memory, [live.nodes[0]])
            with live.about(f"base pages {first} to {end - 1} protected, moved in memory {is_moved}"):
                for page in written[::2]:
                    memory.touch(page, _NEW + page)
                memory.protect(mmap.PROT_READ, first, end - first)
                memory.protect(READ_WRITE)
                for page in written[1::2]:
                    memory.touch(page, _NEW + page)
                if is_moved:
                    memory = memory.moved_to(room_for(actor, 1, memory.length))
                _expect_to_move(live, memory, written, _NEW - 1)
            actor.end()


@IN_PARTS.case(
    "what is left of a huge page moves to another node with what has taken the place of other parts, whichever they"
    " are: nothing, as they were given back, base pages that were written again, or copies that a private mapping has"
    " of a file, or a child of what its parent has; by mbind(2), which is no error then though it is strict, and by"
    " migrate_pages(2)",
    "mbind(2) MPOL_MF_MOVE_ALL, MPOL_MF_STRICT; migrate_pages(2); mm/mempolicy.c queue_folios_pte_range()"
    " (1cb5d11a370f)",
    nodes=2,
)
def among_other_parts(live: Live) -> None:
    here, there = two_nodes_with_room(live, _HUGE_PAGES)
    let_nothing_be_balanced(live)
    let_rest(live)
    makes = {
        "given back": _given_back,
        "written again": _written_again,
        "copies of a file": _copies_of_a_file,
        "copies of a child": _copies_of_a_child,
    }
    flags = MOVE_ALL | STRICT if live.kernel_version >= _STRICT_SINCE else MOVE_ALL
    ways: dict[str, Callable[[Memory], object]] = {
        f"mbind(2) with flags {flags}": partial(bind, nodes=[there], flags=flags),
        "migrate_pages(2)": lambda memory: migrate(memory.actor, here, there),
    }
    for (name, make), (way, move) in product(makes.items(), ways.items()):
        with live.about(f"{name}, by {way}"):
            # somebody may have a hold of one for a moment, and the huge page may be split when it has moved
            try_it = partial(_left_behind, live, partial(make, live, here), move, (here, there))
            left = live.host.last_attempt(try_it, not_)
            live.expect("base pages that did not move", [], left)


def _left_behind(
    live: Live, make: Callable[[], Parts], move: Callable[[Memory], object], nodes: tuple[int, int]
) -> list[int | str]:
    """Make a huge page on the first of ``nodes``, have it ``move`` to the other, and return which did not.

    Returned is besides with which error it was refused, if it was.
    """
    here, there = nodes
    memory, pages = make()
    # what nobody has looked at since is not mapped
    _expect_held(live, memory, pages, 0)
    live.expect("base pages that are not on the first node", [], _elsewhere(live, memory, pages, here))
    left = list[int | str]()
    try:
        move(memory)
    except Refused as refusal:
        left.append(str(refusal))
    left += _elsewhere(live, memory, pages, there)
    _expect_held(live, memory, pages, 0)
    memory.actor.end()
    return left


def _elsewhere(live: Live, memory: Memory, pages: Sequence[int], node: int) -> list[int]:
    """Return which of the base ``pages`` of ``memory`` are not on ``node``."""
    found = nodes_of(memory.actor, base_pages_of(live, memory))
    return [page for page in pages if found[page] != node]


def _given_back(live: Live, node: int) -> Parts:
    """Return a huge page, mapped as base pages, of which some are not there since they were given back."""
    memory = _numbered(live, filled_on(live, live.actor(), node, 1))
    for page in _some(memory):
        memory.advise(MADV_DONTNEED, page, 1)
    return memory, sorted(set(range(memory.pages)) - set(_some(memory)))


def _written_again(live: Live, node: int) -> Parts:
    """Return a huge page, mapped as base pages, of which some are small ones since they were written again."""
    memory, _rest = _given_back(live, node)
    return _written(memory)


def _copies_of_a_child(live: Live, node: int) -> Parts:
    """Return a huge page of a parent, as its child has it, which has copies of some base pages."""
    return _written(_numbered(live, filled_on(live, live.actor(), node, 1)).fork())


def _copies_of_a_file(live: Live, node: int) -> Parts:
    """Return a huge page of a file, as a private mapping has it, which has copies of some base pages."""
    path, actor = _file_on_a_node(live), live.actor()
    every = pmd_size(live) // live.base_page
    memory = _map_part(live, actor, live.open(actor, path), 0, every, kind=mmap.MAP_PRIVATE)
    bind(memory, [node])
    return _written(memory)


def _written(memory: Memory) -> Parts:
    """Write the number of some base pages into each of them, and return all of ``memory``."""
    for page in _some(memory):
        memory.touch(page, 1 + page)
    return memory, range(memory.pages)


def _numbered(live: Live, whole: Memory) -> Memory:
    """Return a huge page as the base pages that it has, of which each holds its number, counted from 1."""
    each = Memory(live, whole.actor, whole.address, whole.length // live.base_page, live.base_page)
    for page in range(each.pages):
        each.touch(page, 1 + page)
    return each


def _some(memory: Memory) -> list[int]:
    """Return base pages: the first and the last one, and such as lie alone and beside each other."""
    half = memory.pages // 2
    return [0, 2, half - 1, half, memory.pages - 1]


def _file_on_a_node(live: Live) -> str:
    """Return the path of a file of one huge page, on the first node, of which each base page holds its number."""
    here, there = live.nodes[:2]
    need_memory(live, (here, there), 4 * pmd_size(live))
    let_nothing_be_balanced(live)
    let_rest(live)
    let_only_pmd_inherit(live)
    path = f"{mount_tmpfs(live, 'always')}/file"
    writer = map_start_of_file(live, path)
    bind(writer, [here])
    expect_shared(live, writer, True, "huge=always")
    _numbered(live, writer)
    writer.actor.end()
    return path


def _parts(live: Live) -> list[tuple[int, int]]:
    """Return parts of a huge page, each as its first base page and the one behind it."""
    every = pmd_size(live) // live.base_page
    half = every // 2
    ends = [(0, 1), (every - 1, every), (0, every - 1), (1, every)]
    return [*ends, (1, 2), (half, half + 1), (half - 1, half + 1), (half, every), (0, half)]


def _borders(live: Live, actor: Actor) -> Iterator[int]:
    """Yield addresses at which tables of each level end, whatever they cover: multiples of powers of two."""
    first = pmd_size(live).bit_length() - 1
    # far from where mmap(2) begins, also where addresses have 39 bits or fewer
    highest = min(_BORDER_BITS, end_of_addresses(live, actor).bit_length() - 2)
    for bits in range(first, highest):
        yield (1 << highest) + (1 << bits)
    yield 1 << highest


def _map_part(
    live: Live, actor: Actor, descriptor: int, first: int, end: int, place: int = 0, kind: int = mmap.MAP_SHARED
) -> Memory:
    """Map base pages of an open file from ``first`` to the one before ``end``, at ``place`` if that is not 0."""
    base = live.base_page
    flags = kind | (MAP_FIXED_NOREPLACE if place else 0)
    address = actor.mmap((end - first) * base, READ_WRITE, flags, descriptor, first * base, place)
    return Memory(live, actor, address, end - first, base)


def _expect_to_move(live: Live, memory: Memory, pages: Sequence[int], before: int) -> None:
    """Expect each of ``pages``, which hold their number, counted from 1, and ``before``, to go from node to node."""
    _expect_held(live, memory, pages, before)
    for page in pages:
        here = node_of(memory, page)
        there = next(node for node in live.nodes[:2] if node != here)
        # somebody may have a hold of it for a moment
        told = live.host.last_attempt(partial(move_page, memory, page, there, MOVE_ALL), partial(eq, there))
        found = told, node_of(memory, page)
        live.expect(f"where base page {page} of node {here} is, as told and as it is", (there, there), found)
    _expect_held(live, memory, pages, before)


def _expect_held(live: Live, memory: Memory, pages: Sequence[int], before: int) -> None:
    held = [1 + before + page for page in pages]
    live.expect("what the base pages hold", held, [memory.read(page) for page in pages])


class MovedWhenInParts(LiveTest):
    def test_moved_when_in_parts(self) -> None:
        self.run_area(IN_PARTS)
