"""Pages that move however they came, stay where they are while the kernel holds them, and move afterwards."""

import errno
from collections.abc import Callable
from functools import partial

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.hugetlb_files import new_memfd
from hugepage_qa.cases.hugetlb_of_a_process import forked
from hugepage_qa.cases.hugetlb_segments import get_segment
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.memory_policy import (
    MOVE_ALL,
    STRICT,
    Mode,
    bind,
    migrate,
    move_page,
    move_pages,
    nodes_of,
    pages_told,
    set_policy,
)
from hugepage_qa.cases.pages_of_a_node import expect_left, expect_on_node, filled_page_on, require_no_free_page
from hugepage_qa.cases.pinned_pages import pinned, pipe_with, word_from
from hugepage_qa.cases.thp_memory import map_aligned
from hugepage_qa.cases.userfaultfd import Feature, Userfault
from hugepage_qa.cases.userfaultfd import Mode as Faults
from hugepage_qa.kernel.uapi import MADV_NOHUGEPAGE
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor

HELD = Area("numa/held-pages")

HOLDS = (
    "move_pages(2); mbind(2) EIO; migrate_pages(2); mm/migrate.c unmap_and_move_huge_page(), putback_movable_pages()"
)
OLD = 7
_BASE_PAGES = 4


@HELD.case(
    "a page that a pipe has, a private one or a shared one, stays where it is, with what it holds and the pools as they"
    " are, whichever call is to move it, and moves once the pipe has been read",
    HOLDS,
    nodes=2,
)
def page_in_a_pipe(live: Live) -> None:
    here, there = live.nodes[:2]
    for node in (here, there):
        live.reserve(1, node)
    for shared in (False, True):
        memory = filled_page_on(live, here, shared=shared)
        reader = pipe_with(live, memory)
        _expect_stays(live, memory, here, there, free=1)
        live.expect("what comes out of the pipe", 1, word_from(live, memory.actor, reader))
        _expect_moves(live, memory, there)
        live.expect_pool(node=here, nr=1, free=1)
        live.expect_pool(node=there, nr=1, free=0)
        memory.unmap()
        live.expect_pool(nr=2, free=2)


@HELD.case(
    "a page that is pinned stays where it is, with what it holds, and moves once it is let go; where it was to go there"
    " are as many pages as before, also where none was free",
    f"io_uring_register(2) IORING_REGISTER_BUFFERS; {HOLDS}",
    nodes=2,
    sizes=Sizes.BUDDY,
)
def page_that_is_pinned(live: Live) -> None:
    here, there = live.nodes[:2]
    require_no_free_page(live, there)
    for shared, free in ((False, 1), (True, 0)):
        # the memory for it is there
        live.reserve(1, there)
        live.set_nr(free, there)
        live.reserve(1, here)
        memory = filled_page_on(live, here, shared=shared)
        with pinned(live, memory):
            _expect_stays(live, memory, here, there, free=free)
        _expect_moves(live, memory, there)
        live.expect_pool(node=here, nr=free, free=free)
        live.expect_pool(node=there, nr=1, free=0)
        memory.unmap()
        live.expect_pool(nr=1 + free, free=1 + free)


def _expect_stays(live: Live, memory: Memory, here: int, there: int, *, free: int) -> None:
    """Expect the page of ``memory`` not to move by any call to a node with ``free`` pages, all of which stay so."""

    def expect_on_its_node() -> None:
        expect_on_node(live, memory, here)
        live.expect_pool(nr=1 + free, free=free)
        live.expect_pool(node=here, nr=1, free=0)
        live.expect_pool(node=there, nr=free, free=free)

    found = pages_told(memory.actor, [memory.address], [there])
    live.expect("pages that move_pages leaves, and status", (1, [None]), found, {Quirk.LEFT_PAGE_UNTOLD: (0, [None])})
    expect_on_its_node()
    live.expect_errno(errno.EIO, bind, memory, [there], STRICT | MOVE_ALL)
    expect_on_its_node()
    expect_left(live, memory.actor, here, there, 1)
    expect_on_its_node()


def _expect_moves(live: Live, memory: Memory, node: int) -> None:
    live.expect("status of move_pages", node, move_page(memory, 0, node))
    expect_on_node(live, memory, node)


@HELD.case(
    "a page that is held keeps nothing else where it is: base pages and another page of the pool move that the same"
    " call of move_pages(2), or of migrate_pages(2), is to move, whichever it comes to first",
    f"{HOLDS}; mm/migrate.c migrate_pages(), migrate_hugetlbs()",
    nodes=2,
    sizes=Sizes.BUDDY,
)
def what_is_beside_a_held_page(live: Live) -> None:
    here, there, actor = _nodes_and_bound_actor(live, 2)
    # what is held is given one, too, until it is seen that it cannot move
    live.reserve(2, there)
    small = map_aligned(live, _BASE_PAGES, live.base_page, actor=actor, advice=MADV_NOHUGEPAGE)
    held, other = live.map(1, actor), live.map(1, actor)
    for memory in (small, held, other):
        memory.fill()
    places = [held.address, other.address, *(small.at(page) for page in range(_BASE_PAGES))]
    before, moved = [here] * len(places), [here, *[there] * (len(places) - 1)]
    pipe_with(live, held)

    def after(move: Callable[[], object]) -> list[int]:
        move_pages(actor, places[1:], before[1:])
        move()
        return nodes_of(actor, places)

    ways: dict[str, Callable[[], object]] = {"migrate_pages": partial(migrate, actor, here, there)}
    for at in (0, 1, len(places) - 1):
        # the one that is held comes at that place
        order = [*places[1 : at + 1], places[0], *places[at + 1 :]]
        ways[f"move_pages of all, number {at} is held"] = partial(pages_told, actor, order, [there] * len(order))
    for name, move in ways.items():
        # somebody may have a hold of base pages for a moment
        found = live.host.last_attempt(partial(after, move), moved.__eq__)
        live.expect(f"nodes after {name}", moved, found)
    for memory in (small, held, other):
        memory.expect_filled()


@HELD.case(
    "the copy that a child has from a fork on, since the page of its parent was pinned, moves, and that page stays",
    "move_pages(2); mm/hugetlb.c copy_hugetlb_page_range(), hugetlb_try_dup_anon_rmap() (4eae4efa2c29)",
    nodes=2,
    since="5.12",
)
def copy_of_a_pinned_page(live: Live) -> None:
    here, there, actor = _nodes_and_bound_actor(live, 2)
    memory = live.map(1, actor)
    memory.fill()
    with pinned(live, memory):
        child = forked(live, memory)
        _expect_moves(live, child, there)
        live.expect("node of the page of its parent", {here: 1}, memory.numa_maps().nodes)
    _expect_moves(live, child, here)
    actor.end()
    live.expect_pool(nr=3, free=3)


@HELD.case(
    "a page moves however it came: read first, of a segment, or by fallocate(2)",
    "move_pages(2); mm/hugetlb.c hugetlb_no_page(); fs/hugetlbfs/inode.c hugetlbfs_fallocate()",
    nodes=2,
)
def page_that_came_in_each_way(live: Live) -> None:
    _expect_to_move(live, 1, _read_first, _of_a_segment, _allocated)


@HELD.case(
    "a page moves that is the copy of a page of a file, or of one that a child or its parent has",
    "move_pages(2); mm/hugetlb.c hugetlb_wp()",
    nodes=2,
)
def page_that_was_copied(live: Live) -> None:
    # a child may lack the pages of its parent, where the case ends
    _expect_to_move(live, 2, _copied_from_a_file, _copied_from_a_child, _child)


@HELD.case(
    "a page moves that its program brought by UFFDIO_COPY, a private one or one of a file, or by UFFDIO_CONTINUE",
    "Documentation/admin-guide/mm/userfaultfd.rst; move_pages(2); mm/hugetlb.c hugetlb_mfill_atomic_pte()",
    nodes=2,
    since="5.14",
)
def page_that_its_program_brought(live: Live) -> None:
    _expect_to_move(live, 2, _brought, _brought_into_a_file, _gone_on_with)


def _expect_to_move(live: Live, pages: int, *ways: Callable[[Live, Actor], Memory]) -> None:
    """Expect a filled page to move there and back that came in each of ``ways``, which need ``pages`` pages."""
    for bring in ways:
        here, there, actor = _nodes_and_bound_actor(live, pages)
        with live.about(f"page{bring.__name__.replace('_', ' ')}"):
            memory = bring(live, actor)
            for node in (there, here):
                _expect_moves(live, memory, node)
            actor.end()
            live.expect_pool(nr=pages + 1, free=pages + 1)


def _nodes_and_bound_actor(live: Live, pages: int) -> tuple[int, int, Actor]:
    """Return a node with ``pages`` pages, another one with one page, and an actor that gets memory of the first."""
    here, there = live.nodes[:2]
    live.reserve(pages, here)
    live.reserve(1, there)
    actor = live.actor()
    set_policy(actor, Mode.BIND, [here])
    return here, there, actor


def _read_first(live: Live, actor: Actor) -> Memory:
    memory = live.map(1, actor)
    live.expect("what is read first", 0, memory.read())
    memory.fill()
    return memory


def _of_a_segment(live: Live, actor: Actor) -> Memory:
    memory = get_segment(live, live.size, actor).attach_for_good()
    memory.fill()
    return memory


def _allocated(live: Live, actor: Actor) -> Memory:
    file = new_memfd(live, actor)
    file.allocate(1)
    memory = file.map(1)
    memory.fill()
    return memory


def _copied_from_a_file(live: Live, actor: Actor) -> Memory:
    file = new_memfd(live, actor)
    file.map(1).touch(value=OLD)
    memory = file.map(1, shared=False)
    live.expect("what is read of the file", OLD, memory.read())
    memory.fill()
    return memory


def _copied_from_a_child(live: Live, actor: Actor) -> Memory:
    memory = live.map(1, actor)
    memory.touch(value=OLD)
    forked(live, memory)
    memory.fill()
    return memory


def _child(live: Live, actor: Actor) -> Memory:
    memory = live.map(1, actor)
    memory.touch(value=OLD)
    child = forked(live, memory)
    child.fill()
    return child


def _brought(live: Live, actor: Actor) -> Memory:
    return _filled_by(live, live.map(1, actor))


def _brought_into_a_file(live: Live, actor: Actor) -> Memory:
    return _filled_by(live, new_memfd(live, actor).map(1))


def _filled_by(live: Live, memory: Memory) -> Memory:
    """Have ``memory`` filled by its program (UFFDIO_COPY)."""
    source = live.map(1, memory.actor)
    source.fill()
    fault = Userfault(memory, Faults.MISSING, Feature.MISSING_HUGETLBFS)
    live.expect("bytes copied", live.size, fault.copy(source))
    return memory


def _gone_on_with(live: Live, actor: Actor) -> Memory:
    file = new_memfd(live, actor)
    file.allocate(1)
    memory = file.map(1)
    fault = Userfault(memory, Faults.MINOR, Feature.MINOR_HUGETLBFS)
    fault.go_on()
    memory.fill()
    return memory


class HeldPages(LiveTest):
    def test_held_pages(self) -> None:
        self.run_area(HELD)
