"""Who touches a page that is being moved waits until it is there, and does not fault on it over and over meanwhile."""

from collections.abc import Iterator

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.khugepaged_clock import let_nobody_else_act
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.memory_policy import bind, moving, nodes_of
from hugepage_qa.cases.pages_of_a_node import filled_page_on, need_memory
from hugepage_qa.cases.process_counters import faults
from hugepage_qa.cases.thp_memory import map_aligned, mapped_huge, pmd_size
from hugepage_qa.cases.thp_policy import expect_all_huge, map_in_parts, set_policy, some_smaller_sizes
from hugepage_qa.cases.thp_shared_memory import let_only_pmd_inherit
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE, MADV_NOHUGEPAGE
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor_threads import Came

TOUCHED = Area("numa/touched-when-moved")

WAIT = "Documentation/mm/page_migration.rst: processes wait for the page lock, or for the migration entry to be removed"
#: moves of a page; what each may cost who touches it: it is unmapped again where somebody has a hold of it (ten passes
#: in mm/migrate.c, NR_MAX_MIGRATE_PAGES_RETRY), and he may find it so twice; and what he needs for himself
_MOVES, _MOST_OF_A_MOVE, _OWN = 100, 2 * 10, 100


@TOUCHED.case(
    "a process that reads a huge page, whole or in parts, base pages or pages of smaller sizes, private or shared,"
    " while another one moves them from node to node waits, and has not many times as many faults as there are moves",
    f"{WAIT}; mm/migrate.c pmd_migration_entry_wait(), migration_entry_wait()",
    nodes=2,
    sizes=Sizes.ONCE,
)
def transparent_pages(live: Live) -> None:
    let_nobody_else_act(live)
    need_memory(live, live.nodes[:2], 2 * pmd_size(live))
    for name, memory in _kinds(live):
        with live.about(name):
            _expect_few_faults(live, memory, is_one_page=mapped_huge(memory) == memory.length)
        memory.actor.end()


@TOUCHED.case(
    "so does one that reads a page of the pool, private or shared",
    f"{WAIT}; mm/migrate.c migration_entry_wait_huge()",
    nodes=2,
    sizes=Sizes.BUDDY,
)
def pages_of_the_pool(live: Live) -> None:
    here, there = live.nodes[:2]
    for node in (here, there):
        live.reserve(1, node)
    for shared in (False, True):
        memory = filled_page_on(live, here, shared=shared)
        with live.about(f"shared {shared}"):
            _expect_few_faults(live, memory, is_one_page=True)
        memory.actor.end()


def _expect_few_faults(live: Live, memory: Memory, *, is_one_page: bool) -> None:
    """Have a thread read a word of filled ``memory`` while all of it moves, and expect it to wait when it must."""
    mover, actor, middle = live.actor(), memory.actor, memory.length // 2
    # a huge page is named twice, and each base page once
    pages = Memory(live, actor, memory.address, memory.length // (2 * live.base_page), 2 * live.base_page)
    named = memory if is_one_page else pages
    before = faults(live, actor).minor
    actor.threads.watch(memory.address + middle, WORD, WORD, 1 + middle)
    tried = list[bool]()

    def move() -> int:
        """Have all of it go to the node that it is not on, and return how often what is read has gone."""
        node = live.nodes[1 - sum(tried) % 2]
        mover.result("move_pages", *moving(named, node, by_another=True))
        tried.append(nodes_of(mover, [memory.address + middle], actor.pid) == [node])
        return sum(tried)

    for _move in range(_MOVES - 1):
        move()
    # it is left where it is while somebody has a hold of it: on a loaded machine, nearly each time
    times = live.host.last_look(move, bool)
    (thread,) = actor.threads.stop(0)
    live.expect("what came of reading it", Came.DONE, thread.came)
    live.expect("whether what is read went to another node", True, times > 0)
    found = faults(live, actor).minor - before
    live.expect("faults beyond what a move may cost", 0, max(0, found - len(tried) * _MOST_OF_A_MOVE - _OWN))
    memory.expect_filled()


def _kinds(live: Live) -> Iterator[tuple[str, Memory]]:
    """Yield filled memory of one huge page, or of as many smaller pages, on the first node, and what it is called."""
    set_policy(live, "madvise")
    let_only_pmd_inherit(live)
    live.set_knob(f"{DIRECTORY}/shmem_enabled", "advise")
    for shared in (False, True):
        yield f"base pages, shared {shared}", _filled(live, MADV_NOHUGEPAGE, shared=shared)
        memory = _filled(live, MADV_HUGEPAGE, shared=shared)
        expect_all_huge(live, memory, node=live.nodes[0])
        yield f"a huge page, shared {shared}", memory
    memory = _filled(live, MADV_HUGEPAGE)
    map_in_parts(live, memory)
    yield "a huge page in parts", memory
    set_policy(live, "never")
    for size, path in some_smaller_sizes(live):
        live.set_knob(f"{path}/enabled", "always")
        yield f"pages of {size >> 10} kB", _filled(live, None)
        live.set_knob(f"{path}/enabled", "never")


def _filled(live: Live, advice: int | None, *, shared: bool = False) -> Memory:
    memory = map_aligned(live, 1, pmd_size(live), shared=shared, advice=advice)
    bind(memory, live.nodes[:1])
    memory.fill()
    return memory


class TouchedWhenMoved(LiveTest):
    def test_touched_when_moved(self) -> None:
        self.run_area(TOUCHED)
