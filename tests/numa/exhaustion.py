"""A node that is asked for more than it has, and one whose memory is in pieces."""

import errno
import mmap
from collections.abc import Mapping, Sequence
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.fragments import join_free_pages
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.memory_of_others import expect_not_others, used_memory
from hugepage_qa.cases.memory_policy import Mode, bind, run_on_node, set_policy
from hugepage_qa.cases.pages_of_a_node import need_memory
from hugepage_qa.cases.struct_pages import OPTIMIZE
from hugepage_qa.cases.thp_memory import MIN_FREE
from hugepage_qa.kernel.counters import read_meminfo, read_vmstat, vmstat_delta
from hugepage_qa.kernel.nodes import read_nodes
from hugepage_qa.kernel.uapi import MADV_POPULATE_WRITE, PR_SET_THP_DISABLE
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.oracle.rules import HUGETLB_DOC
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.sizes import GIB, KIB, MIB

EXHAUSTION = Area("numa/exhaustion")

COUNTED = (
    "htlb_buddy_alloc_success counts the pages that there are then and none that could not be allocated, which"
    " htlb_buddy_alloc_fail counts"
)
ALLOCATED = (
    f"{HUGETLB_DOC} nr_hugepages; mm/hugetlb.c set_max_huge_pages(), alloc_buddy_frozen_folio(),"
    " alloc_buddy_hugetlb_folio(), HTLB_BUDDY_PGALLOC_FAIL"
)
#: of the blocks that a node has free after compaction, the part that a pool must get at least
_LEAST = 0.8
#: what nr_hugepages can hold, an unsigned long
_LARGEST = 2**64 - 1
#: movable memory that is spread over what the node has free, as a part of that, half of which is given back; and what
#: is asked for afterwards, as a part of what is free then
_FILLED, _ASKED = 0.85, 0.45
#: blocks, at least, that there are only when memory is moved
_PUT_TOGETHER = 4
#: so much of a node is put in pieces, and so many pages at least: an emulated machine takes a minute for gigabytes of
#: base pages, and the pool has the rest meanwhile
_PIECES, _PAGES = 512 * MIB, 64
#: in use in base pages while the machine, or a node, is asked for all it has
_KEPT = 64 * MIB
#: that the kernel keeps for itself meanwhile, and processes have afterwards
_LEFT = 192 * MIB
#: holes are half as large as this, and smaller than any huge page but arm64's smallest
_GRAIN = 128 << 10
#: a page that the pool of another node has free, and surplus pages
_BEYOND = 3
#: machines of this size are made for tests: others have users, whom a machine without free memory stops
_LARGE = 4 * GIB


@EXHAUSTION.case(
    f"a node that is asked for more pages than it has memory gives most of it, and the machine goes on; {COUNTED}",
    ALLOCATED,
    nodes=2,
    sizes=Sizes.BUDDY,
)
def more_than_a_node_has(live: Live) -> None:
    *others, node = live.nodes
    need_memory(live, [max(others, key=lambda other: live.node_meminfo(other)["MemFree"])], _KEPT)
    for other in others:
        live.reserve(1, other)
    live.make_room()
    meminfo, blocks, used = live.node_meminfo(node), live.free_blocks(node, live.size), used_memory(live)
    before = _vmstat(live)
    # the pages of the others are added to it before it is compared with those that there are
    live.host.write(live.pool_file("nr_hugepages", node=node), str(_LARGEST))
    found = live.pool(node).nr
    _expect_counted(live, before, found)
    live.expect_pool(nr=found + len(others), free=found + len(others))
    live.expect_pool(node=node, nr=found, free=found)
    for other in others:
        live.expect_pool(node=other, nr=1, free=1)
    least = int(_LEAST * blocks)
    live.expect(f"{found} pages, at least {least}", True, found >= least)
    live.expect(f"{found} pages, less than the node has", True, found * live.size < meminfo["MemTotal"])
    _base_pages(live, others, _KEPT).expect_filled()
    live.set_nr(0, node)
    live.expect_pool(nr=len(others), free=len(others))
    _expect_back(live, meminfo["MemFree"], live.node_meminfo(node)["MemFree"], used)


@EXHAUSTION.case(
    f"a machine that is asked for more pages than it has memory gives most of it, and goes on; {COUNTED}",
    ALLOCATED,
    sizes=Sizes.BUDDY,
)
def more_than_the_machine_has(live: Live) -> None:
    meminfo = read_meminfo(live.host)
    if meminfo["MemTotal"] > 2 * _LARGE:
        raise CannotRun(f"the machine has more than {2 * _LARGE >> 30} GiB, all of which would be taken")
    used = used_memory(live)
    small = _base_pages(live, live.nodes, _KEPT)
    if live.has_bug(Quirk.OPTIMISED_POOL_KILLS):
        # hugetlb_free_vmemmap=on would have all killed that are there, since 7.1; a case of pool/vmemmap has one killed
        live.set_knob_if_there(OPTIMIZE, "0")
    watermark = int(live.host.read(MIN_FREE) or 0)
    left = _LEFT + watermark * KIB
    # the machine is to go on, and not to kill those who want memory for themselves; with 16M pages of powerpc it keeps
    # more than _LEFT by itself (mm/khugepaged.c set_recommended_min_free_kbytes()), which nobody else may have
    live.set_knob(MIN_FREE, str(left // KIB))
    live.make_room()
    blocks = live.free_blocks(None, live.size)
    before = _vmstat(live)
    live.host.write(live.pool_file("nr_hugepages"), str(_LARGEST))
    live.host.write(MIN_FREE, str(watermark))
    found = live.pool().nr
    _expect_counted(live, before, found)
    live.expect_pool(nr=found, free=found)
    least = int(_LEAST * (blocks - left // live.size))
    live.expect(f"{found} pages, at least {least}", True, found >= least)
    live.expect(f"{found} pages, less than the machine has", True, found * live.size < meminfo["MemTotal"])
    # what is in use stays, and each of the pages can be used
    small.expect_filled()
    memory = live.map(found)
    memory.actor.fill(memory.address, memory.length, live.size, 1)
    live.expect_pool(nr=found, free=0)
    wrong = memory.actor.check(memory.address, memory.length, live.size, 1)
    live.expect("first words of pages that changed", 0, wrong)
    memory.unmap()
    live.set_nr(0)
    live.expect_pool(nr=0, free=0)
    _expect_back(live, meminfo["MemFree"], read_meminfo(live.host)["MemFree"], used)
    small.expect_filled()


@EXHAUSTION.case(
    "who wants pages of a node that has no memory, by a policy or as the process runs there, gets what is free in"
    " the pool of another node, and surplus pages there; who is bound to it gets none",
    f"{HUGETLB_DOC} nr_overcommit_hugepages; set_mempolicy(2) MPOL_PREFERRED, MPOL_PREFERRED_MANY; mm/hugetlb.c"
    " dequeue_hugetlb_folio(), alloc_buddy_hugetlb_folio()",
    nodes=2,
    since="5.15",  # MPOL_PREFERRED_MANY
    sizes=Sizes.BUDDY,
)
def beyond_a_full_node(live: Live) -> None:
    other, *_others, full = live.nodes
    if live.node_meminfo(full)["MemTotal"] > 2 * _LARGE:
        raise CannotRun(f"a node has more than {2 * _LARGE >> 30} GiB, all of which would be used")
    need_memory(live, [other], _BEYOND * live.size)
    live.reserve(1, other)
    live.make_room()
    live.host.write(live.pool_file("nr_hugepages", node=full), str(_LARGEST))
    of_pool = live.pool(full).nr
    taken = live.map(of_pool)
    bind(taken, [full])
    taken.actor.fill(taken.address, taken.length, live.size, 1)
    scraped = _scrape_together(live, full)
    live.overcommit(scraped + _BEYOND - 1)
    pages, surplus = of_pool + scraped + _BEYOND, scraped + _BEYOND - 1
    cpus = read_nodes(live.host).each[full].cpus
    for mode, shared in product((Mode.DEFAULT, Mode.PREFERRED, Mode.INTERLEAVE, Mode.PREFERRED_MANY), (False, True)):
        with live.about(f"{mode.name}, shared {shared}"):
            actor = live.actor()
            if cpus:
                run_on_node(actor, full, cpus)
            set_policy(actor, mode, [] if mode is Mode.DEFAULT else [full])
            memory = live.map(_BEYOND, actor, noreserve=True, shared=shared)
            live.expect_success(memory.advise, MADV_POPULATE_WRITE)
            if full in memory.numa_maps().nodes:
                raise CannotRun(f"node {full} has given a page: somebody has made room there")
            live.expect_pool(nr=pages, free=0, surplus=surplus)
            actor.end()
            live.expect_pool(nr=pages - _BEYOND + 1, free=1, surplus=scraped)


def _scrape_together(live: Live, node: int) -> int:
    """Have all surplus pages in use that a full node still has, for memory that is bound to it; return how many."""
    pages = live.node_meminfo(node)["MemTotal"] // live.size
    live.overcommit(pages)
    memory = live.map(pages, noreserve=True)
    bind(memory, [node])
    live.expect_errno(errno.EFAULT, memory.advise, MADV_POPULATE_WRITE)
    return live.pool().surplus


@EXHAUSTION.case(
    "memory that can be moved makes room for pages where it leaves no range free",
    f"{HUGETLB_DOC} nr_hugepages; mm/compaction.c",
    nodes=2,
    sizes=Sizes.BUDDY,
)
def pieces_are_put_together(live: Live) -> None:
    _put_together(live, locked=False)


@EXHAUSTION.case(
    "memory that is locked makes room for pages, too, on the only node as well, and stays as it was",
    f"{HUGETLB_DOC} nr_hugepages; Documentation/admin-guide/sysctl/vm.rst compact_unevictable_allowed; mm/compaction.c",
    sizes=Sizes.BUDDY,
)
def locked_pieces_are_put_together(live: Live) -> None:
    live.need_nodes()
    if live.node_meminfo(live.nodes[-1])["MemTotal"] > _LARGE:
        raise CannotRun(f"a node has more than {_LARGE >> 30} GiB, most of which would be locked")
    live.set_knob("proc/sys/vm/compact_unevictable_allowed", "1")
    _put_together(live, locked=True)


def _vmstat(live: Live) -> dict[str, int]:
    return read_vmstat(ObservedTree(live.host))


def _expect_counted(live: Live, before: Mapping[str, int], found: int) -> None:
    """Expect ``found`` pages to be counted as allocated since ``before``, and one at least as not to be had.

    Others may get surplus pages at the same time, of any size.
    """
    rose = vmstat_delta(before, _vmstat(live))
    allocated = rose["htlb_buddy_alloc_success"]
    live.expect("htlb_buddy_alloc_success", found, min(found, allocated) if live.host.has_others else allocated)
    refused = rose["htlb_buddy_alloc_fail"]
    live.expect(f"htlb_buddy_alloc_fail rose, by {refused}", True, refused > 0)


def _expect_back(live: Live, before: int, now: int, used: int) -> None:
    """Expect most of the memory that was free ``before`` to be so ``now``; ``used`` was used then.

    Raises CannotRun where others have taken what is missing.
    """
    short = int(_LEAST * before) - now
    expect_not_others(live, short, used)
    live.expect(f"{now} bytes free again, of {before}", True, short <= 0)


def _put_together(live: Live, *, locked: bool) -> None:
    hole = _GRAIN // 2
    if live.size <= hole:
        raise CannotRun(f"holes of {hole} bytes are large enough for a page")
    node = live.nodes[-1]
    join_free_pages(live)
    kept = _beside_pieces(live, node)
    live.reserve(kept, node)
    blocks = live.free_blocks(node, live.size)
    memory = _base_pages(live, [node], int(_FILLED * live.node_meminfo(node)["MemFree"]))
    memory.actor.discard(memory.address, memory.length, _GRAIN, hole)
    if locked:
        # and the holes stay holes
        memory.lock_on_fault()
    whole, free = live.free_blocks(node, live.size), live.node_meminfo(node)["MemFree"]
    # what others have may keep them from being whole again that were not before
    asked = int(min(_ASKED * free / live.size, blocks / 2))
    if asked < whole + _PUT_TOGETHER:
        raise CannotRun("memory is not in pieces: there are as many free blocks as pages that can be asked for")
    pages = kept + asked
    # not that it is always enough: three times in a row compaction may stop before it has moved much
    live.reserve(pages, node)
    live.expect_pool(nr=pages, free=pages)
    live.expect_pool(node=node, nr=pages, free=pages)
    moved = memory.actor.check(memory.address + hole, memory.length - hole, _GRAIN, 1 + hole)
    live.expect("words of moved memory that changed", 0, moved)


def _beside_pieces(live: Live, node: int) -> int:
    """Return how many pages the pool can have of a node beside the memory that is put in pieces."""
    meminfo = live.node_meminfo(node)
    pages = (meminfo["MemFree"] - max(_PIECES, _PAGES * live.size)) // live.size
    return max(0, pages) if meminfo["MemTotal"] <= _LARGE else 0


def _base_pages(live: Live, nodes: Sequence[int], length: int) -> Memory:
    """Return about ``length`` bytes of base pages of ``nodes``, filled; its pages are as large as _GRAIN."""
    actor = live.actor()
    actor.call("prctl", PR_SET_THP_DISABLE, 1, 0, 0, 0)
    if nodes:  # a kernel without NUMA has neither
        set_policy(actor, Mode.BIND, nodes)
    pages = length // _GRAIN
    address = actor.mmap(pages * _GRAIN, READ_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory = Memory(live, actor, address, pages, _GRAIN)
    memory.fill()
    return memory


class ExhaustionTest(LiveTest):
    def test_exhaustion(self) -> None:
        self.run_area(EXHAUSTION)
