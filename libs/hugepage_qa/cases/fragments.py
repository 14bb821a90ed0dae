"""Memory that is fragmented on purpose, and memory without free blocks, where a huge page needs compaction."""

from collections.abc import Iterable
from dataclasses import dataclass

from hugepage_qa.cases.commit_policy import need_overcommit
from hugepage_qa.cases.fragmentation import Fragmentation, fragmentation, tell
from hugepage_qa.cases.frames import flags_from
from hugepage_qa.cases.free_ranges import BUDDY
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.memory_policy import Mode
from hugepage_qa.cases.memory_policy import set_policy as set_memory_policy
from hugepage_qa.cases.thp_memory import map_aligned, pmd_size
from hugepage_qa.cases.thp_policy import advised, set_policy
from hugepage_qa.cases.thp_shared_memory import let_only_pmd_inherit
from hugepage_qa.kernel.counters import read_meminfo, read_vmstat, vmstat_delta
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.tree import read_integer
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.process.actor import Actor
from hugepage_qa.sizes import GIB

#: how much is fragmented: one part of so many of what is available, but not more than the second beyond what lies
#: scattered anyway, for that is filled first
_PARTS, _MOST = 8, GIB
#: where no free blocks are left, all others live of what is fragmented; on a small machine nobody else works
_PARTS_OF_LARGE, _LARGE = 4, 8 * GIB
_FEWEST_BLOCKS = 16
#: pages of which every base page is looked at: a block holds the base pages of one, or of two
_SAMPLED_PAGES = 64
#: blocks that come and go by themselves
_NOISE = 16
#: free blocks that are left to others while pages of a pool take the rest
_MARGIN = 32
#: blocks that the lists of the CPUs may hold, which /proc/buddyinfo does not show
_SPARE = 8
#: one part of so many of the memory that was left for others is enough for them
_LEAST_LEFT = 2
#: how often free blocks are taken until none comes back
_ATTEMPTS = 20


@dataclass(frozen=True)
class Compaction:
    """What compaction made of fragmented memory.

    ``emptied`` is the share of the mostly free blocks our pages lay in that hold none of them any more, or were filled
    with pages of others: it moves what lies low to what is free above. ``made`` are the free blocks that there are
    more, ``others`` those that somebody took or gave back meanwhile, both as a share of what it owed.
    """

    emptied: float
    made: float
    others: float

    @property
    def share(self) -> float:
        """What it has done of what it owed, in whichever way it did."""
        return max(self.emptied, self.made)

    def __str__(self) -> str:
        return f"{self.emptied:.0%} emptied or filled, {self.made:.0%} made, {self.others:.0%} of others"


@dataclass(frozen=True)
class Fragments:
    """Memory of which one base page of ``kept`` is left, and how fragmented memory is without it and with it.

    That is memory of ``node`` if all of it comes from one alone, else of the machine.
    """

    memory: Memory
    kept: int
    before: Fragmentation
    after: Fragmentation
    node: int | None = None

    @property
    def owed(self) -> int:
        """The free blocks that compaction can make: those that were lost, but for what the pages left would fill."""
        return self.before.blocks - self.after.blocks - self.memory.pages // self.kept

    def compact(self, live: Live) -> None:
        """Have the kernel compact what it is of, a node or all memory, and note how fragmented that is then."""
        live.compact(self.node)
        live.notes.append(f"compacted {fragmentation(live, self.memory.size, self.node)}")

    def compact_and_look(self, live: Live) -> Compaction:
        """Compact memory that owes blocks, as ``compact`` does, and return what came of it."""
        blocks = self.blocks(live)
        held, before = self._mostly_free(live, blocks), fragmentation(live, self.memory.size, self.node)
        if not held:
            raise CannotRun("others have filled the blocks that were fragmented")
        self.compact(live)
        left, after = held & self.blocks(live), fragmentation(live, self.memory.size, self.node)
        left &= self._mostly_free(live, blocks)
        others = abs(after.free - before.free) / (self.owed * self.memory.size)
        return Compaction(len(held - left) / len(held), (after.blocks - before.blocks) / self.owed, others)

    def blocks(self, live: Live) -> set[int]:
        """Return the numbers of the blocks of memory that some of the pages that are left lie in.

        Whatever others take and free, it tells which blocks the kernel has emptied of our pages.
        """
        base_pages = self.memory.size // live.base_page
        frames = self.memory.present_frames(min(self.memory.pages, _SAMPLED_PAGES))
        return {frame // base_pages for frame in frames}

    def _mostly_free(self, live: Live, blocks: Iterable[int]) -> set[int]:
        """Return those of ``blocks`` of which most is free. Raises CannotRun for a kernel without /proc/kpageflags."""
        pages = self.memory.size // live.base_page
        flags = {block: flags_from(live, self.memory.actor, block * pages, pages) for block in sorted(blocks)}
        return {block for block, of_block in flags.items() if sum(bool(one & BUDDY) for one in of_block) > pages // 2}

    @property
    def owes_blocks(self) -> bool:
        """Whether compaction has blocks to make: not so where memory was fragmented as much before."""
        return self.owed > max(_NOISE, self.memory.pages // _PARTS)

    def need_blocks(self, live: Live) -> None:
        """Raise CannotRun where compaction has no blocks to make."""
        if not self.owes_blocks:
            raise CannotRun(f"memory cannot be fragmented further: {live.notes[-1]}")

    def expect_intact(self, live: Live) -> None:
        """Expect the pages that are left to hold what they held."""
        memory = self.memory
        wrong = memory.actor.check(memory.address, memory.length, self.kept * live.base_page, 1)
        live.expect("words of the pages that are left that changed", 0, wrong)


def fragment(live: Live, kept: int = 8, *, shared: bool = False) -> Fragments:
    """Fill a part of the memory with base pages, ``shared`` or private, and give all but one of ``kept`` back.

    Raises CannotRun where the machine is too small.
    """
    join_free_pages(live)
    return _fragment_part(live, kept, shared=shared)


def fragment_nodes(live: Live, nodes: Iterable[int], kept: int) -> list[Fragments]:
    """Fragment memory of each of ``nodes`` as ``fragment`` does, which nobody compacts unasked."""
    _keep_daemons_from_compacting(live)
    join_free_pages(live)
    return [_fragment_part(live, kept, node) for node in nodes]


def fragment_the_rest(live: Live, node: int, kept: int) -> Fragments:
    """Have a pool take most memory of ``node``, and fragment a half of the rest, which nobody compacts unasked.

    Raises CannotRun where the machine is too small.
    """
    _keep_daemons_from_compacting(live)
    join_free_pages(live)
    length = min(_available(live, node) // _PARTS, _MOST)
    take_into_pool(live, node, 2 * length)
    actor = live.actor()
    set_memory_policy(actor, Mode.BIND, [node])
    return _fragment(live, actor, kept, length, node)


def without_free_blocks(live: Live) -> tuple[Fragments, Actor]:
    """Fragment memory of one node where no free block is left beside it; the actor that has them is returned, too.

    Its memory goes to that node alone. Two base pages are left in each block that was fragmented, so that compaction
    has little to move, and nothing but a PMD-sized page has to wait for it. Raises CannotRun where the machine is too
    small.
    """
    actor = live.actor()
    node = None
    available = _available(live)
    if live.has_several_nodes:
        free = {each: live.node_meminfo(each)["MemFree"] for each in live.nodes}
        # the one that is filled first, but for those that are full already
        node = min((each for each in free if _PARTS * free[each] >= max(free.values())), key=free.__getitem__)
        available = free[node]
        set_memory_policy(actor, Mode.BIND, [node])
    _keep_daemons_from_compacting(live)
    join_free_pages(live)
    length = available // (_PARTS if available < _LARGE else _PARTS_OF_LARGE)
    take_into_pool(live, node, length)
    fragments = _fragment(live, actor, pmd_size(live) // live.base_page // 2, length, node)
    take_free_blocks(live, actor, length, node)
    return fragments, actor


def take_into_pool(live: Live, node: int | None, left: int) -> None:
    """Have a hugetlb pool take all free blocks but those of ``left`` bytes: it need not clear them.

    Without such a pool faults have to take them, which clear each of them. Raises CannotRun where nobody could commit
    any memory then: CommitLimit is a part of what is in no pool (mm/util.c vm_commit_limit()).
    """
    need_overcommit(live)
    size = pmd_size(live)
    path = live.pool_file("nr_hugepages", size=size, node=node)
    pages = read_integer(live.host, path)
    more = fragmentation(live, size, node).owed - left // size - _MARGIN
    if pages is not None and more > 0:
        live.set_knob(path, str(pages + more))


def take_free_blocks(live: Live, actor: Actor, left: int, node: int | None) -> None:
    """Have ``actor``, which is bound to ``node`` if any, take every free block that a fault gets without compaction.

    It keeps them. ``left`` are the bytes that others had in base pages when it began. Raises Failed where these faults
    compact, CannotRun where others give blocks back as fast as they are taken, or have used up most of what they had.
    """
    set_policy(live, "madvise", defrag="never")
    before = read_vmstat(ObservedTree(live.host))
    for _attempt in range(_ATTEMPTS):
        if _available(live, node) < left // _LEAST_LEFT:
            # a busy machine would do nothing any more but read its programs from the disk
            raise CannotRun("others need the memory that is left")
        # each that is not to be had costs a base page and a page table
        memory = advised(live, fragmentation(live, pmd_size(live), node).blocks + _SPARE, actor=actor)
        # what is reclaimed would be free blocks again
        memory.lock_on_fault()
        actor.fill(memory.address, memory.length, memory.size, 1)
        if memory.smaps().anon_huge_pages == 0:
            return
    compacted = vmstat_delta(before, read_vmstat(ObservedTree(live.host)))["compact_stall"]
    if compacted >= _ATTEMPTS:
        live.fail(f"compact_stall of faults with defrag=never, advice {MADV_HUGEPAGE}", 0, compacted)
    raise CannotRun(f"free blocks come back while they are taken: {fragmentation(live, pmd_size(live))}")


def _fragment_part(live: Live, kept: int, node: int | None = None, *, shared: bool = False) -> Fragments:
    scattered = fragmentation(live, pmd_size(live), node).scattered
    actor = live.actor()
    if node is not None:
        set_memory_policy(actor, Mode.BIND, [node])
    length = min(_available(live, node) // _PARTS, _MOST + scattered)
    return _fragment(live, actor, kept, length, node, shared=shared)


def _fragment(
    live: Live, actor: Actor, kept: int, length: int, node: int | None = None, *, shared: bool = False
) -> Fragments:
    set_policy(live, "madvise")
    if shared:
        let_only_pmd_inherit(live, is_used=False)
    size = pmd_size(live)
    pages = length // size
    if pages <= _FEWEST_BLOCKS:
        raise CannotRun(f"the part of the memory that is fragmented has {pages} blocks of {size >> 20} MiB")
    before = fragmentation(live, size, node)
    memory = map_aligned(live, pages, size, shared=shared, actor=actor)
    actor.fill(memory.address, memory.length, live.base_page, 1)
    step = kept * live.base_page
    actor.discard(memory.address + live.base_page, memory.length, step, step - live.base_page, shared=shared)
    fragments = Fragments(memory, kept, before, fragmentation(live, size, node), node)
    tell(live, f"before {fragments.before}", f"fragmented {fragments.after}")
    return fragments


def _available(live: Live, node: int | None = None) -> int:
    if node is not None:
        return live.node_meminfo(node)["MemFree"]
    return read_meminfo(live.host).get("MemAvailable", 0)


def join_free_pages(live: Live) -> None:
    """Have free base pages join blocks: those that there are, for they would be filled first, and new ones at once.

    Since Linux 6.7 the lists of a CPU grow to an eighth of its memory, and what is in them is in no block.
    """
    live.set_knob_if_there("proc/sys/vm/percpu_pagelist_high_fraction", str(GIB))  # since Linux 5.14
    live.make_room()


def _keep_daemons_from_compacting(live: Live) -> None:
    """Have nobody compact memory but those who want a block of it: neither khugepaged, nor kcompactd beforehand.

    Nor is kswapd woken for blocks in which pages of another mobility are allocated.
    """
    live.set_knob(f"{DIRECTORY}/khugepaged/defrag", "0")
    live.set_knob_if_there("proc/sys/vm/compaction_proactiveness", "0")  # since Linux 5.9
    live.set_knob_if_there("proc/sys/vm/watermark_boost_factor", "0")  # since Linux 5.0
