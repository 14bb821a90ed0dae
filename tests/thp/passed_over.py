"""Huge pages that NUMA balancing passes over: their process runs far from them, and no access to them is to fault."""

import mmap

from hugepage_qa.cases.balanced_pages import await_marks, far_memory
from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.process_counters import faults
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.plugins.avocado_test import LiveTest

PASSED_OVER = Area("thp/passed-over", sizes=Sizes.ONCE)

_SHARED, _OWN = 3, 3
_NEW_VALUE = 77


@PASSED_OVER.case(
    "while NUMA balancing waits for a fault on huge pages that a child has given back, it waits for none on those that"
    " process and child share since fork(2), and when the child writes these each holds its own",
    "mm/mempolicy.c folio_can_map_prot_numa(); mm/huge_memory.c change_huge_pmd()",
    since="6.19",  # before, huge pages that are shared were waited for as others are
    nodes=2,
)
def shared_until_written(live: Live) -> None:
    memory, _near, _node = far_memory(live, _SHARED + _OWN)
    shared, own = range(_SHARED), range(_SHARED, memory.pages)
    child = memory.fork()
    child.unmap(own.start, _OWN)
    await_marks(live, memory.actor, _OWN)
    found = _waited_for(live, memory, shared)
    live.expect("pages that are shared and whose reading faulted", [], found)
    if not found and not _waited_for(live, memory, own):
        raise CannotRun("NUMA balancing waits for a fault on huge pages of others alone")
    child.part(0, _SHARED).fill(_NEW_VALUE)
    memory.expect_filled()
    child.expect_filled(_NEW_VALUE, 0, _SHARED)


def _waited_for(live: Live, memory: Memory, pages: range) -> list[int]:
    """Read the first word of each of ``pages``, and return of which that was a fault, though they are there."""
    word = memory.actor.mmap(live.base_page, READ_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # what it touches for a request, which may be marked, too, or shared with its child, faults no more after one
    memory.actor.write(word, _NEW_VALUE)
    found = list[int]()
    for page in pages:
        before = faults(live, memory.actor).minor
        live.expect(f"the first word of page {page}", 1 + page * memory.size, memory.read(page))
        if faults(live, memory.actor).minor > before:
            found.append(page)
    return found


class ThpPassedOver(LiveTest):
    def test_passed_over(self) -> None:
        self.run_area(PASSED_OVER)
