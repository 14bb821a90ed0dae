"""Huge pages on another node than they should be on: NUMA balancing, policies that are strict, and such as prefer."""

import errno
import mmap
import signal
from collections.abc import Callable
from functools import partial

from hugepage_qa.cases.balanced_pages import waited_for
from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.fragmentation import expect_no_shortage, with_blocks
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.memory_policy import MOVE, STRICT, Mode, bind, move_pages, nodes_of, policy_of, set_policy
from hugepage_qa.cases.pages_of_a_node import need_memory
from hugepage_qa.cases.reached_from_outside import read_of_another
from hugepage_qa.cases.thp_memory import anon_huge_pages, pmd_size
from hugepage_qa.cases.thp_nodes import filled_on
from hugepage_qa.cases.thp_policy import advised, fill_in_huge_pages, huge_pages, map_in_parts, some_smaller_sizes
from hugepage_qa.cases.thp_policy import set_policy as set_thp_policy
from hugepage_qa.kernel.counters import read_vmstat
from hugepage_qa.kernel.uapi import MADV_DONTNEED, MADV_NOHUGEPAGE
from hugepage_qa.machine.host import ObservedTree
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Refused

MISPLACED = Area("thp/misplaced", sizes=Sizes.ONCE)

BALANCED = "mm/huge_memory.c do_huge_pmd_numa_page(); mm/migrate.c migrate_misplaced_page()"
_PAGES = 4
_NEW_VALUE = 77
#: for how long a page may be on its way from place to place
_SECONDS = 10.0


@MISPLACED.case(
    "huge pages that NUMA balancing waits for a fault on hold what they held for who reads or writes them, for a child,"
    " and for another process; each stays whole, wherever it is then, and is counted in numa_hint_faults",
    f"Documentation/admin-guide/sysctl/kernel.rst numa_balancing; {BALANCED}",
    nodes=2,
)
def touched_again(live: Live) -> None:
    memory, _node = waited_for(live, _PAGES)
    actor, size = memory.actor, memory.size
    before = _hint_faults(live)
    live.expect("the first word of the first page", 1, memory.read(0))
    memory.actor.write(memory.at(2) - WORD, _NEW_VALUE)
    live.expect("numa_hint_faults rose by two at least", True, _hint_faults(live) - before >= 2)
    other = live.actor()
    buffer = other.mmap(size, READ_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    local, remote = (live.host.uapi.pack("2Q", address, size) for address in (buffer, memory.at(2)))
    live.expect("bytes that another one reads", size, read_of_another(live, other, actor.pid, local, remote))
    live.expect("words that it reads and that changed", 0, other.check(buffer, size, WORD, 1 + 2 * size))
    child = memory.seen_by(actor.fork())
    child.actor.fill(memory.at(3), size, WORD, _NEW_VALUE)
    live.expect("the word that was written", _NEW_VALUE, memory.actor.read(memory.at(2) - WORD))
    live.expect("words of the first two that changed", 1, memory.wrong(0, 2 * size))
    live.expect("words of the others that changed", 0, memory.wrong(2 * size, 2 * size))
    live.expect("words that the child wrote and changed", 0, child.actor.check(memory.at(3), size, WORD, _NEW_VALUE))
    child.actor.end()
    # all have been touched by now, and nothing is marked any more
    live.expect("AnonHugePages", memory.length, memory.smaps().anon_huge_pages)
    each = size // live.base_page
    found = memory.numa_maps().nodes
    live.expect("base pages", memory.length // live.base_page, sum(found.values()))
    live.expect("huge pages in pieces on a node", {}, {node: count for node, count in found.items() if count % each})
    memory.fill(_NEW_VALUE)
    memory.expect_filled(_NEW_VALUE)


@MISPLACED.case(
    "a huge page that NUMA balancing waits for a fault on keeps to a protection that is given meanwhile: it is read and"
    " not written, and written when it may be",
    f"mprotect(2); mm/huge_memory.c change_huge_pmd(); {BALANCED}",
    nodes=2,
)
def protected_meanwhile(live: Live) -> None:
    memory, _node = waited_for(live, 2)
    live.expect("the first word of the second one", 1 + memory.size, memory.read(1))
    memory.protect(mmap.PROT_READ)
    for offset in (0, memory.size - WORD, memory.size):
        live.expect_signal(signal.SIGSEGV, memory.actor.write, memory.address + offset, _NEW_VALUE)
    memory.expect_filled()
    memory.protect(0)
    live.expect_signal(signal.SIGSEGV, memory.read)
    memory.protect(READ_WRITE)
    memory.expect_filled()
    memory.fill(_NEW_VALUE)
    memory.expect_filled(_NEW_VALUE)
    live.expect("AnonHugePages", memory.length, memory.smaps().anon_huge_pages)


@MISPLACED.case(
    "mbind(2) with MPOL_MF_STRICT alone is EIO where a huge page, or a part of one, lies on another node, moves none,"
    " and changes no policy; where all lie right, it is done; of a range with a hole it is EFAULT",
    "mbind(2) MPOL_MF_STRICT, EIO, EFAULT; mm/mempolicy.c queue_folios_pmd(), queue_pages_test_walk()",
    nodes=2,
)
def strict(live: Live) -> None:
    first, second = live.nodes[:2]
    need_memory(live, (first, second), _PAGES * pmd_size(live))
    memory = _on(live, first, 3)
    each = memory.size // live.base_page
    half = Memory(live, memory.actor, memory.address + memory.size // 2, 1, memory.size // 2)
    for part in (memory, half):
        policy = policy_of(part)
        live.expect_errno(errno.EIO, bind, part, [second], STRICT)
        live.expect("the policy that it has", policy, policy_of(part))
        live.expect("base pages of each node", {first: 3 * each}, memory.numa_maps().nodes)
    live.expect("AnonHugePages", memory.length, anon_huge_pages(memory))
    bind(memory, [first], STRICT)
    memory.unmap(1, 1)
    live.expect_errno(errno.EFAULT, bind, memory, [first], STRICT)
    for page in (0, 2):
        memory.expect_filled(first=page, pages=1)
    live.expect("AnonHugePages of the others", memory.size, memory.smaps(2).anon_huge_pages)


@MISPLACED.case(
    "mbind(2) with MPOL_MF_STRICT alone is EIO of each range that has a byte of a page on another node, and is done of"
    " each other one, whether that is a huge page, one that is mapped as base pages, a smaller one or a base page, with"
    " huge pages before it and behind it; where nothing is, or zeroes are that all share, nothing lies wrong;"
    " move_pages(2) tells of the page that it has moved where it is then",
    "mbind(2) MPOL_MF_STRICT, EIO; move_pages(2); mm/mempolicy.c queue_folios_pte_range(), queue_folios_pmd();"
    " mm/migrate.c add_folio_for_migration()",
    nodes=2,
)
def strict_of_pages_of_each_kind(live: Live) -> None:
    nodes = live.nodes[:2]
    first = nodes[0]
    need_memory(live, nodes, _PAGES * pmd_size(live))
    kinds: dict[str, Callable[[Live, Memory], int]] = {
        "a huge page": _whole,
        "one in parts": _in_parts,
        "base pages": _base_pages,
        **{f"pages of {size} bytes": partial(_smaller, path, size) for size, path in some_smaller_sizes(live)},
        "nothing": _absent,
        "zeroes": _zeroes,
    }
    for name, make in kinds.items():
        with live.about(f"{name} between huge pages"):
            memory = _on(live, first, 3)
            bind(memory, [first])
            each = make(live, memory.part(1))
            _expect_strict(live, memory, first, range(0))
            if each:
                _expect_strict_with_one_away(live, memory, nodes, each)
            for page in (0, 2):
                memory.expect_filled(first=page, pages=1)
            memory.actor.end()


def _expect_strict_with_one_away(live: Live, memory: Memory, nodes: tuple[int, ...], each: int) -> None:
    """Have a page of ``each`` bytes, in the middle of ``memory``, move to the second node, and back to the first."""
    first, second = nodes
    place = memory.size + memory.size // 2 // each * each

    def moved() -> int:
        # one that is there already is told of without a move
        for node in nodes:
            status = move_pages(memory.actor, [memory.address + place], [node])[0]
        return status

    # somebody may have a hold of it for a moment
    live.expect("status of move_pages", second, live.host.last_attempt(moved, second.__eq__))
    told = nodes_of(memory.actor, [memory.address + place, memory.address + place + each - live.base_page])
    live.expect("nodes of the first and the last base page of it", [second, second], told)
    _expect_strict(live, memory, first, range(place, place + each))
    memory.expect_filled()
    bind(memory, [first], MOVE)
    _expect_strict(live, memory, first, range(0))
    memory.expect_filled()


def _expect_strict(live: Live, memory: Memory, node: int, wrong: range) -> None:
    """Expect strict mbind(2) to a node to be EIO of each range with one of the ``wrong`` bytes, and of no other."""
    size, base = memory.size, live.base_page
    for start, length in (
        (0, 3 * size),
        (0, size),
        (size, size),
        (2 * size, size),
        (size // 2, 2 * size),
        (size // 2, size),
        (size + size // 2, size),
        (0, size + base),
        (2 * size - base, size + base),
        (size, base),
        (size + size // 2 - base, base),
        (size + size // 2, base),
        (2 * size - base, base),
    ):
        part = Memory(live, memory.actor, memory.address + start, 1, length)
        expected = errno.EIO if max(start, wrong.start) < min(start + length, wrong.stop) else 0

        def result(part: Memory = part) -> int:
            try:
                bind(part, [node], STRICT)
            except Refused as refusal:
                return refusal.errno or 0
            return 0

        # a page that moves in this moment lies nowhere
        found = live.host.last_look(result, expected.__eq__, _SECONDS)
        if found != expected:
            # each of the others would be waited for as long
            live.fail(f"errno of mbind of {length} bytes at {start}, {len(wrong)} bytes are wrong", expected, found)


def _whole(_live: Live, memory: Memory) -> int:
    return memory.size


def _in_parts(live: Live, memory: Memory) -> int:
    map_in_parts(live, memory)
    return memory.size


def _base_pages(live: Live, memory: Memory) -> int:
    memory.advise(MADV_DONTNEED)
    memory.advise(MADV_NOHUGEPAGE)
    memory.fill(1 + memory.size)
    return live.base_page


def _smaller(directory: str, size: int, live: Live, memory: Memory) -> int:
    memory.advise(MADV_DONTNEED)
    set_thp_policy(live, "madvise", pmd="never")
    live.set_knob(f"{directory}/enabled", "madvise")
    memory.fill(1 + memory.size)
    return size


def _absent(_live: Live, memory: Memory) -> int:
    memory.advise(MADV_DONTNEED)
    return 0


def _zeroes(live: Live, memory: Memory) -> int:
    memory.advise(MADV_DONTNEED)
    live.expect("what is read of memory that was given back", 0, memory.read())
    return 0


@MISPLACED.case(
    "huge pages of a process that prefers one of several nodes come from it, whole, at a fault",
    "set_mempolicy(2) MPOL_PREFERRED_MANY; mm/mempolicy.c vma_alloc_folio(), alloc_pages_preferred_many()",
    since="5.15",
    nodes=2,
)
def prefers_many(live: Live) -> None:
    both = live.nodes[:2]
    need_memory(live, both, _PAGES * pmd_size(live))
    set_thp_policy(live, "madvise")
    for node in (*both, both[0]):
        with_blocks(live, pmd_size(live), _PAGES, node)
        actor = live.actor()
        set_policy(actor, Mode.PREFERRED_MANY, [node])
        memory = advised(live, _PAGES, actor=actor)
        fill_in_huge_pages(live, memory, node)
        live.expect("AnonHugePages", memory.length, memory.smaps().anon_huge_pages)
        wanted, found = {node: memory.length // live.base_page}, memory.numa_maps().nodes
        if found != wanted:
            # it prefers a huge page of another node to base pages of this one
            expect_no_shortage(live, memory.size, _PAGES, node)
        live.expect("base pages of each node", wanted, found)
        memory.expect_filled()
        actor.end()


def _on(live: Live, node: int, pages: int) -> Memory:
    """Return advised memory on ``node``, which is no longer bound to it. Raises CannotRun where it has no blocks."""
    actor = huge_pages(live).actor
    memory = filled_on(live, actor, node, pages)
    set_policy(actor, Mode.DEFAULT, [])
    live.expect("base pages before", {node: memory.length // live.base_page}, memory.numa_maps().nodes)
    return memory


def _hint_faults(live: Live) -> int:
    return read_vmstat(ObservedTree(live.host))["numa_hint_faults"]


class ThpMisplaced(LiveTest):
    def test_misplaced(self) -> None:
        self.run_area(MISPLACED)
