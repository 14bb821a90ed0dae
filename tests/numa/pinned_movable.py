"""Pages that leave movable memory (ZONE_MOVABLE) because they are pinned for long: the node to which they come."""

from collections.abc import Iterable, Iterator

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.hugetlb_files import new_memfd
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.memory_blocks import MemoryBlock, take_and_make_movable
from hugepage_qa.cases.memory_policy import bind, run_on_node
from hugepage_qa.cases.movable_kinds import movable_memory
from hugepage_qa.cases.pages_of_a_node import need_memory
from hugepage_qa.cases.pinned_pages import Pin
from hugepage_qa.cases.struct_pages import keep_struct_pages_that_nobody_counts
from hugepage_qa.cases.thp_memory import let_nothing_be_balanced, pmd_size
from hugepage_qa.kernel.nodes import read_nodes
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.plugins.avocado_test import LiveTest

PINNED_MOVABLE = Area("numa/pinned-movable", sizes=Sizes.BUDDY)

RULE = (
    "Documentation/admin-guide/mm/memory-hotplug.rst ZONE_MOVABLE Sizing Considerations: Long-term pinning;"
    " Documentation/admin-guide/mm/numa_memory_policy.rst MPOL_BIND; mm/gup.c check_and_migrate_movable_pages(),"
    " mm/migrate.c alloc_migration_target()"
)
_PAGES = 2
#: of one kind at most that is movable, in pages of the size
_MOST = 4
#: free blocks beside those that the pages come to: others allocate at the same time
_MARGIN = 16


@PINNED_MOVABLE.case(
    "base pages and transparent huge pages of movable memory that are pinned for long, anonymous ones and such of a"
    " tmpfs, whole or in part, stay on the node that they are bound to, whichever processor has them pinned",
    RULE,
    sizes=Sizes.ONCE,
    nodes=2,
    since="5.13",
)
def memory_of_no_pool(live: Live) -> None:
    block, node = _movable(live, pmd_size(live))
    for near in _nodes_with_processors(live):
        for name, memory in movable_memory(live, node):
            with live.about(f"{name}, processor on node {near[0]}"):
                base_pages = memory.length // live.base_page
                _expect_to_stay(live, block, memory, node, near, base_pages)
            memory.actor.end()


@PINNED_MOVABLE.case(
    "pages of a pool in movable memory that are pinned for long, private and shared ones, whole or in part, stay on the"
    " node that they are bound to, whichever processor has them pinned, and so does their place in the pool",
    f"{RULE}, mm/hugetlb.c alloc_hugetlb_folio_nodemask()",
    nodes=2,
    # before f442fa614137 try_grab_folio() let none of them be pinned there, with a warning
    since="6.10",
)
def pages_of_a_pool(live: Live) -> None:
    let_nothing_be_balanced(live)
    block, node = _movable(live, live.size)
    for near in _nodes_with_processors(live):
        for shared in (False, True):
            # free pages that have left movable memory would be had again
            live.set_nr(0)
            live.reserve(_PAGES, node)
            memory = new_memfd(live).map(_PAGES) if shared else live.map(_PAGES)
            bind(memory, [node])
            memory.fill()
            with live.about(f"{'shared' if shared else 'private'}, processor on node {near[0]}"):
                _expect_to_stay(live, block, memory, node, near, _PAGES)
                live.expect_pool(node=node, nr=_PAGES, free=0)
            memory.actor.end()
            live.expect_pool(nr=_PAGES, free=_PAGES)


def _expect_to_stay(
    live: Live, block: MemoryBlock, memory: Memory, node: int, near: tuple[int, Iterable[int]], pages: int
) -> None:
    """Expect what is pinned of ``memory``, a part first, to leave ``block`` and to stay on ``node``.

    ``pages`` are all that numa_maps counts of it.
    """
    bind(memory, [node])
    held = block.held(live, memory.present_frames(memory.pages))
    live.expect("base pages in movable memory before", memory.length // live.base_page, len(held))
    run_on_node(memory.actor, *near)
    pin = Pin(live, memory)
    for part in ((memory.size - live.base_page, live.base_page), (0, memory.length)):
        pin.hold(part)
        with live.about(f"pinned bytes from, and how many: {part}"):
            live.expect("pages on nodes in numa_maps", {node: pages}, memory.numa_maps().nodes)
        memory.expect_filled()
        if part != (0, memory.length):
            pin.let_go()
    held = block.held(live, memory.present_frames(memory.pages))
    live.expect("base pages that are pinned, and in movable memory", 0, len(held))
    pin.let_go()


def _movable(live: Live, size: int) -> tuple[MemoryBlock, int]:
    """Return a block of movable memory, and its node, which has as much room outside. Raises CannotRun without."""
    keep_struct_pages_that_nobody_counts(live)
    block = take_and_make_movable(live)
    node = block.node(live)
    if block.size // size < 2 * _MOST:
        raise CannotRun(f"a block of memory has {block.size >> 20} MiB, and no room for {2 * _MOST} pages")
    need_memory(live, [node], block.size)
    if live.free_blocks(node, size) - block.size // size < _MOST + _MARGIN:
        # a page for which its node has no block may come from another one
        raise CannotRun(f"node {node} has too few free blocks outside of movable memory")
    return block, node


def _nodes_with_processors(live: Live) -> Iterator[tuple[int, Iterable[int]]]:
    nodes = read_nodes(live.host)
    return ((node, nodes.each[node].cpus) for node in live.nodes if nodes.each[node].cpus)


class PinnedMovable(LiveTest):
    def test_pinned_movable(self) -> None:
        self.run_area(PINNED_MOVABLE)
