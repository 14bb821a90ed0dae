"""Huge pages that go on moving from node to node, and are protected, watched or inherited meanwhile: it is so then."""

import mmap
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.clear_refs import clear_refs, need_soft_dirty, soft_dirty_pages
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.memory_policy import moving
from hugepage_qa.cases.race import at_once
from hugepage_qa.cases.thp_memory import map_aligned, mapped_huge, need_blocks, pmd_size
from hugepage_qa.cases.thp_nodes import two_nodes_with_room
from hugepage_qa.cases.userfaultfd import Feature, Mode, Userfault, protected_pages
from hugepage_qa.kernel.counters import read_vmstat, vmstat_delta
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE
from hugepage_qa.machine.host import ObservedTree
from hugepage_qa.plugins.avocado_test import LiveTest

CHANGED = Area("userfaultfd/changed-while-moved", sizes=Sizes.ONCE)

MOVED = "move_pages(2); mm/huge_memory.c change_huge_pmd(), set_pmd_migration_entry(), remove_migration_pmd()"
PROTECT = "Documentation/admin-guide/mm/userfaultfd.rst Write Protect Notifications"
_PAGES = 2
_ROUNDS = 10
_NEW_VALUE = 1 << 41


@CHANGED.case(
    "anonymous huge pages that a program protects while they move to another node are protected when they are there,"
    " pagemap says so of each base page all the time, and a write is told; protected no longer, they are written",
    f"{PROTECT}; {MOVED}",
    since="5.19",  # before, pagemap does not tell
    nodes=2,
)
def protected(live: Live) -> None:
    _expect_protection(live, shared=False, feature=Feature.PAGEFAULT_FLAG_WP)


@CHANGED.case(
    "shared huge pages that a program protects while they move to another node are protected when they are there,"
    " pagemap says so of each base page all the time, and a write is told; protected no longer, they are written",
    f"{PROTECT}; {MOVED}, __split_huge_pmd_locked()",
    since="5.19",
    nodes=2,
)
def shared_protected(live: Live) -> None:
    _expect_protection(live, shared=True, feature=Feature.PAGEFAULT_FLAG_WP | Feature.WP_HUGETLBFS_SHMEM)


@CHANGED.case(
    "huge pages that may no longer be written, or accessed, while they move to another node may not when they are there"
    " either, and hold what they held; allowed again, they are written",
    f"mprotect(2); {MOVED}",
    nodes=2,
)
def forbidden(live: Live) -> None:
    for shared in (False, True):
        memory = _filled(live, shared)
        with _moved_on_and_on(live, memory), live.about(f"shared {shared}"):
            for number in range(_ROUNDS):
                for prot in (mmap.PROT_READ, 0):
                    memory.protect(prot)
                    for place in _places(memory):
                        live.expect_signal(signal.SIGSEGV, memory.actor.write, place, _NEW_VALUE)
                    if not prot:
                        live.expect_signal(signal.SIGSEGV, memory.read)
                    memory.protect(READ_WRITE)
                memory.expect_filled(1 + number)
                memory.fill(2 + number)
                if live.differences:
                    return
        memory.expect_filled(1 + _ROUNDS)
        memory.actor.end()


@CHANGED.case(
    "huge pages that a child inherits while they move to another node are the child's own: neither sees what the other"
    " one writes from then on, whichever writes first",
    f"fork(2); {MOVED}, copy_huge_pmd()",
    nodes=2,
)
def inherited(live: Live) -> None:
    parent = _filled(live, shared=False)
    with _moved_on_and_on(live, parent):
        for number in range(_ROUNDS):
            child = parent.fork()
            first, second = (parent, child) if number % 2 else (child, parent)
            first.fill(2 + number)
            second.expect_filled(1 + number)
            second.fill(_NEW_VALUE)
            first.expect_filled(2 + number)
            child.actor.end()
            parent.fill(2 + number)
            if live.differences:
                return
    parent.expect_filled(1 + _ROUNDS)


@CHANGED.case(
    "what is written to huge pages after clear_refs was is soft-dirty, though they were moving to another node when it"
    " was written, or move afterwards",
    f"Documentation/admin-guide/mm/soft-dirty.rst; fs/proc/task_mmu.c clear_soft_dirty_pmd(); {MOVED}",
    nodes=2,
)
def written_afterwards(live: Live) -> None:
    memory = _filled(live, shared=False)
    need_soft_dirty(live, memory)
    every = memory.size // live.base_page
    with _moved_on_and_on(live, memory):
        for number in range(_ROUNDS):
            clear_refs(live, memory)
            memory.touch(number % _PAGES, _NEW_VALUE + number)
            written = number % _PAGES * every
            live.expect("the base page that was written is soft-dirty", True, written in soft_dirty_pages(memory))
    live.expect("words that changed", _PAGES, memory.wrong(0, memory.length))


def _expect_protection(live: Live, *, shared: bool, feature: Feature) -> None:
    memory = _filled(live, shared)
    fault = Userfault(memory, Mode.WRITE_PROTECTED, feature)
    every = memory.length // live.base_page
    with _moved_on_and_on(live, memory):
        for number in range(_ROUNDS):
            fault.write_protect(length=memory.length)
            live.expect("base pages that are protected", every, len(protected_pages(memory)))
            for place in _places(memory):
                live.expect_signal(signal.SIGBUS, memory.actor.write, place, _NEW_VALUE)
            memory.expect_filled(1 + number)
            live.expect("base pages that are protected then", every, len(protected_pages(memory)))
            fault.write_protect(on=False, length=memory.length)
            live.expect("base pages that are protected no longer, and are", [], protected_pages(memory))
            memory.fill(2 + number)
            if live.differences:
                return
    memory.expect_filled(1 + _ROUNDS)


def _filled(live: Live, shared: bool) -> Memory:
    """Return filled memory in huge pages, which may move to another node and back. Raises CannotRun."""
    two_nodes_with_room(live, 2 * _PAGES)
    memory = map_aligned(live, _PAGES, pmd_size(live), shared=shared, advice=MADV_HUGEPAGE)
    memory.fill()
    need_blocks(live, memory)
    live.expect("bytes in huge pages before", memory.length, mapped_huge(memory))
    return memory


@contextmanager
def _moved_on_and_on(live: Live, memory: Memory) -> Iterator[None]:
    """Have another process move ``memory`` to each of two nodes, on and on, in this block; some of it does move."""
    before = read_vmstat(ObservedTree(live.host))
    with at_once(live, live.actor()) as threads:
        for node in live.nodes[:2]:
            threads.call("move_pages", *moving(memory, node, by_another=True))
        yield
    moved = vmstat_delta(before, read_vmstat(ObservedTree(live.host)))["pgmigrate_success"]
    live.expect("pgmigrate_success rose", True, moved > 0)


def _places(memory: Memory) -> list[int]:
    """Return where each page begins and ends, and the middle of it."""
    inside = 0, memory.size // 2, memory.size - WORD
    return [memory.at(page) + offset for page in range(memory.pages) for offset in inside]


class ChangedWhileMoved(LiveTest):
    def test_changed_while_moved(self) -> None:
        self.run_area(CHANGED)
