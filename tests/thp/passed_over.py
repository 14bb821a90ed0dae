"""What NUMA balancing passes over of what processes share, so that no access to it faults, and what it does not."""

import mmap
import os

from hugepage_qa.cases.balanced_pages import await_marks, far_memory
from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.fragmentation import with_blocks
from hugepage_qa.cases.group_memory import file_on_a_disk
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.memory_policy import F_NUMA_BALANCING, Mode, give_policy
from hugepage_qa.cases.process_counters import faults
from hugepage_qa.cases.thp_memory import map_aligned, pmd_size
from hugepage_qa.cases.thp_shared_memory import expect_mapped_whole
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE, MADV_NOHUGEPAGE
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor

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


@PASSED_OVER.case(
    "NUMA balancing waits for a fault on what two processes share and may both write, as it does on huge pages of one"
    " alone: huge pages and base pages of shared memory that MPOL_F_NUMA_BALANCING is given for, and a file of a disk;"
    " both see all of it as it was",
    "Documentation/admin-guide/sysctl/kernel.rst numa_balancing; set_mempolicy(2) MPOL_F_NUMA_BALANCING;"
    " mm/mempolicy.c folio_can_map_prot_numa(), vma_policy_mof(); mm/mprotect.c change_pte_range()",
    since="5.12",  # MPOL_F_NUMA_BALANCING
    nodes=2,
)
def shared_and_written_by_both(live: Live) -> None:
    memory, _near, node = far_memory(live, _OWN)
    with_blocks(live, memory.size, _SHARED, node)
    kinds = {
        "huge pages": _balanced(live, memory.actor, node, MADV_HUGEPAGE),
        "base pages": _balanced(live, memory.actor, node, MADV_NOHUGEPAGE),
        "a file": _clean_file(live, memory.actor),
    }
    expect_mapped_whole(live, kinds["huge pages"], _SHARED, "advised")
    child = memory.fork()
    child.unmap()
    for shared in kinds.values():
        # a child gets no page tables of what is shared before it has used that
        shared.seen_by(child.actor).expect_filled()
        shared.expect_filled()
    await_marks(live, memory.actor, _OWN)
    faulted = {name: bool(_waited_for(live, shared, range(_SHARED))) for name, shared in kinds.items()}
    if not all(faulted.values()) and not _waited_for(live, memory, range(_OWN)):
        raise CannotRun("NUMA balancing waits for a fault on huge pages of others alone")
    live.expect("whether reading a page of it faulted", dict.fromkeys(kinds, True), faulted)
    for shared in kinds.values():
        shared.expect_filled()
        shared.seen_by(child.actor).expect_filled()


def _balanced(live: Live, actor: Actor, node: int, advice: int) -> Memory:
    """Return filled shared memory of ``node``, which balancing passes over without this policy (vma_policy_mof())."""
    memory = map_aligned(live, _SHARED, pmd_size(live), shared=True, actor=actor, advice=advice)
    give_policy(memory, Mode.BIND | F_NUMA_BALANCING, [node])
    memory.fill()
    return memory


def _clean_file(live: Live, actor: Actor) -> Memory:
    """Return a file of a disk that may be written and was not: what is dirty is passed over."""
    length = _SHARED * pmd_size(live)
    file = file_on_a_disk(live, length)
    descriptor = live.open(actor, f"/proc/{file.actor.pid}/fd/{file.descriptor}", os.O_RDWR)
    return Memory(live, actor, actor.mmap(length, READ_WRITE, mmap.MAP_SHARED, descriptor), _SHARED, pmd_size(live))


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
