"""Huge pages and userfaultfd(2): what a program protects stays protected, and nothing is filled in its place."""

import errno
import mmap
import signal
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.debugfs import expect_split
from hugepage_qa.cases.khugepaged_clock import let_rest
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.madv_collapse import collapse, collapse_memory
from hugepage_qa.cases.mapped_memory import WORD, Memory, runs
from hugepage_qa.cases.pages_of_a_node import need_memory
from hugepage_qa.cases.reached_from_outside import word_read_by
from hugepage_qa.cases.swapped import need_swap, page_all_out, swap_out
from hugepage_qa.cases.thp_memory import pmd_size, room_for
from hugepage_qa.cases.thp_nodes import expect_moved_between
from hugepage_qa.cases.thp_policy import advised, base_pages, huge_pages, huge_zeroes, map_in_parts
from hugepage_qa.cases.thp_shared_memory import let_only_pmd_inherit, shared_base_pages, shared_huge_pages
from hugepage_qa.cases.userfaultfd import Feature, Mode, Userfault, protected_pages
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.uapi import MADV_COLLAPSE, MREMAP_FIXED, MREMAP_MAYMOVE
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.version import KernelVersion

USERFAULT = Area("userfaultfd/transparent-pages", sizes=Sizes.ONCE, uncleared=True)

DOC = "Documentation/admin-guide/mm/userfaultfd.rst"
PROTECTED = f"{DOC} Write Protect Notifications; Documentation/admin-guide/mm/pagemap.rst bit 57"
#: of bit 57 of pagemap
SINCE = "5.13"
#: commit 0cef0bb836e3 and its backports; before, the bit stayed in what was moved, and forbade nothing
_DROPPED_WHEN_MOVED = KernelVersion(6, 13)
_DROPPED_BY_BACKPORTS = KernelVersion(6, 1, 191), KernelVersion(6, 12, 11)
_NEW_VALUE = 77


@USERFAULT.case(
    "a huge page that is protected stays huge, one that is protected in part is mapped as base pages, and what is"
    " protected can be read and not written until it is no longer",
    f"{PROTECTED}; mm/huge_memory.c change_huge_pmd()",
    since=SINCE,
)
def protected(live: Live) -> None:
    memory = huge_pages(live, 3)
    fault = _protect(live, memory)
    memory.expect_huge(2)
    _expect_protected(live, memory)
    fault.write_protect(0, on=False)
    fault.write_protect(1, on=False)
    live.expect("base pages that are protected", [], protected_pages(memory))
    memory.fill(_NEW_VALUE)
    memory.expect_filled(_NEW_VALUE)


@USERFAULT.case(
    "a split of huge pages, whole ones and those that are mapped in parts, leaves protected what was",
    f"{PROTECTED}; mm/huge_memory.c __split_huge_pmd_locked(), remap_page()",
    since=SINCE,
)
def split(live: Live) -> None:
    let_rest(live)
    memory = huge_pages(live, 3)
    _protect(live, memory)
    expect_split(live, f"{memory.actor.pid},{memory.address:#x},{memory.at(3):#x}", 3)
    memory.expect_huge(0)
    _expect_protected(live, memory)


@USERFAULT.case(
    "a protected huge page that is mapped as base pages, since a part of it was unmapped, stays protected",
    f"{PROTECTED}; mm/huge_memory.c __split_huge_pmd_locked()",
    since=SINCE,
)
def mapped_in_parts(live: Live) -> None:
    memory = huge_pages(live)
    fault = Userfault(memory, Mode.WRITE_PROTECTED, Feature.PAGEFAULT_FLAG_WP)
    fault.write_protect()
    rest = memory.size - live.base_page
    memory.actor.call("munmap", memory.address + rest, live.base_page)
    memory.expect_huge(0)
    live.expect("base pages that are protected", [*range(rest // live.base_page)], protected_pages(memory))
    for offset in (0, rest // 2, rest - WORD):
        live.expect_signal(signal.SIGBUS, memory.actor.write, memory.address + offset, _NEW_VALUE)
    live.expect("words that changed", 0, memory.wrong(0, rest))
    fault.write_protect(on=False, length=rest)
    memory.fill_part(0, rest, _NEW_VALUE)
    live.expect("words that were written and changed", 0, memory.wrong(0, rest, _NEW_VALUE))


@USERFAULT.case(
    "a huge page of zeroes that is protected is read and not written, when it is mapped as base pages, too, whatever"
    " was done to a part of it; a child writes to it, and all that nobody wrote is zero",
    f"{PROTECTED}; mm/huge_memory.c __split_huge_zero_page_pmd(), copy_huge_pmd()",
    since=SINCE,
)
def protected_zeroes(live: Live) -> None:
    base, size = live.base_page, pmd_size(live)
    ways: tuple[tuple[str | int, ...], ...]
    ways = ("madvise", mmap.MADV_DONTNEED), ("mprotect", mmap.PROT_READ), ("munmap",)
    for (start, length), (call, *arguments) in product(((0, base), (size // 2, size // 2), (size - base, base)), ways):
        memory = huge_zeroes(live)
        fault = Userfault(memory, Mode.WRITE_PROTECTED, Feature.PAGEFAULT_FLAG_WP)
        fault.write_protect()
        live.expect("base pages that are protected", [*range(size // base)], protected_pages(memory))
        live.expect_signal(signal.SIGBUS, memory.actor.write, memory.at(1) - WORD, _NEW_VALUE)
        memory.actor.call(str(call), memory.address + start, length, *arguments)
        rest = [(begin, end - begin) for begin, end in ((0, start), (start + length, size)) if begin < end]
        with live.about(f"{call}() of {length} bytes at {start}"):
            part = range(start // base, (start + length) // base)
            kept = [number for number in range(size // base) if call == "mprotect" or number not in part]
            live.expect("base pages that are protected", kept, protected_pages(memory))
            for begin, left in rest:
                for offset in (begin, begin + left - WORD):
                    live.expect_signal(signal.SIGBUS, memory.actor.write, memory.address + offset, _NEW_VALUE)
            child = memory.fork()
            for begin, left in rest:
                child.actor.fill(child.address + begin, left, base, _NEW_VALUE)
                live.expect("words that are not zero", 0, memory.nonzero(begin, left))
                fault.write_protect(on=False, offset=begin, length=left)
                memory.actor.write(memory.address + begin, _NEW_VALUE)
                live.expect("words written", 1, memory.nonzero(begin, left))
        memory.actor.end()


@USERFAULT.case(
    "MADV_COLLAPSE refuses base pages of which one is protected, and it stays so; no longer protected, they are huge",
    f"{PROTECTED}; mm/khugepaged.c hpage_collapse_scan_pmd(), collapse_scan_pmd()",
    since="6.1",
)
def collapsed(live: Live) -> None:
    memory = base_pages(live)
    fault = Userfault(memory, Mode.WRITE_PROTECTED, Feature.PAGEFAULT_FLAG_WP)
    half = memory.size // 2
    fault.write_protect(offset=half, length=live.base_page)
    live.expect_errno(errno.EINVAL, collapse, live, partial(memory.advise, MADV_COLLAPSE))
    memory.expect_huge(0, about="while one is protected")
    live.expect("base pages that are protected", [half // live.base_page], protected_pages(memory))
    live.expect_signal(signal.SIGBUS, memory.actor.write, memory.address + half, _NEW_VALUE)
    fault.write_protect(on=False, offset=half, length=live.base_page)
    collapse_memory(live, memory)
    memory.expect_huge(about="when none is")
    memory.expect_filled()


@USERFAULT.case(
    "what was protected can be written where mremap() has moved it, by whole huge pages or not: the program was not"
    " asked to be told of it",
    f"{DOC} UFFD_FEATURE_EVENT_REMAP; mm/mremap.c move_page_tables(), mm/huge_memory.c move_huge_pmd()",
    since=SINCE,
)
def moved(live: Live) -> None:
    let_rest(live)
    for shift in (0, live.base_page):
        memory = huge_pages(live, 3)
        _protect(live, memory)
        there = memory.moved_to(room_for(memory.actor, memory.pages + 1, memory.size) + shift)
        there.expect_filled()
        _expect_dropped(live, there, f"moved to {shift} bytes behind a boundary")
        there.fill(_NEW_VALUE)
        there.expect_filled(_NEW_VALUE)


@USERFAULT.case(
    "what was protected when it was swapped out can be written where mremap() has moved it",
    f"{DOC} UFFD_FEATURE_EVENT_REMAP; mm/mremap.c move_ptes() (0cef0bb836e3)",
    since=SINCE,
)
def moved_in_swap(live: Live) -> None:
    need_swap(live, 3 * pmd_size(live))
    memory = huge_pages(live, 3)
    _protect(live, memory)
    swap_out(live, memory, memory.length)
    _expect_writable_where_moved(live, memory, "moved in swap")


@USERFAULT.case(
    "base pages and shared memory, huge or not, that were protected, in swap or not, can be written where mremap() has"
    " moved them",
    f"{DOC} UFFD_FEATURE_EVENT_REMAP; mm/mremap.c move_ptes() (0cef0bb836e3)",
    since="5.19",  # UFFD_FEATURE_WP_HUGETLBFS_SHMEM
)
def other_memory_moved(live: Live) -> None:
    need_swap(live, pmd_size(live))
    let_only_pmd_inherit(live)
    for make, in_swap in product((base_pages, shared_base_pages, shared_huge_pages), (False, True)):
        memory = make(live)
        fault = Userfault(memory, Mode.WRITE_PROTECTED, Feature.PAGEFAULT_FLAG_WP | Feature.WP_HUGETLBFS_SHMEM)
        fault.write_protect()
        if in_swap:
            page_all_out(live, memory)
        every = memory.length // live.base_page
        live.expect("base pages that are protected before", every, len(protected_pages(memory)))
        _expect_writable_where_moved(live, memory, f"{make.__name__}, in swap {in_swap}")
        memory.actor.end()


@USERFAULT.case(
    "a program fills memory that may only be read, and nobody may write it for that",
    f"{DOC} UFFDIO_COPY; mm/userfaultfd.c mfill_atomic_install_pte() (14fbde3edd81)",
)
def filled_and_read_only(live: Live) -> None:
    source = base_pages(live)
    memory = advised(live, actor=source.actor)
    memory.protect(mmap.PROT_READ)
    fault = Userfault(memory, Mode.MISSING, Feature(0))
    live.expect("bytes copied", memory.length, fault.copy(source))
    for offset in (0, memory.size // 2, memory.size - WORD):
        live.expect_signal(signal.SIGSEGV, memory.actor.write, memory.address + offset, _NEW_VALUE)
    memory.expect_filled()


@USERFAULT.case(
    "shared memory that is collapsed is mapped when the program says so, and not before: huge, it holds what it held",
    f"{DOC} UFFDIO_CONTINUE; madvise(2) MADV_COLLAPSE; mm/khugepaged.c collapse_file(), retract_page_tables()",
    since="6.1",
)
def collapsed_before_it_is_mapped(live: Live) -> None:
    let_only_pmd_inherit(live)
    owner = shared_base_pages(live)
    # both map one file: the new address has what the old one had, and that stays
    other = _mapped_again(live, owner)
    fault = Userfault(other, Mode.MINOR, Feature.MINOR_SHMEM)
    live.expect_signal(signal.SIGBUS, other.read)
    fault.go_on(length=live.base_page)
    live.expect("the first word", 1, other.read())
    live.set_knob(f"{DIRECTORY}/shmem_enabled", "advise")
    collapse_memory(live, owner)
    live.expect("ShmemPmdMapped", owner.length, owner.smaps().shmem_pmd_mapped)
    # what was mapped of base pages is not any more
    for offset in (0, live.base_page, other.size // 2, other.size - WORD):
        live.expect_signal(signal.SIGBUS, other.actor.read, other.address + offset)
    fault.go_on()
    for one in (owner, other):
        one.expect_filled()


@USERFAULT.case(
    "huge pages that move to another node stay protected, whole ones and those that are protected in part",
    f"{PROTECTED}; mm/migrate.c remove_migration_pte(), mm/huge_memory.c remove_migration_pmd()",
    since=SINCE,
    nodes=2,
)
def on_another_node(live: Live) -> None:
    let_rest(live)
    first, second = live.nodes[:2]
    need_memory(live, (first, second), 3 * pmd_size(live))
    memory = huge_pages(live, 3)
    _protect(live, memory)
    # the first time they may be there already
    for old, new in ((second, first), (first, second)):
        expect_moved_between(live, memory, old, new)
        _expect_protected(live, memory)


@USERFAULT.case(
    "after fork() a child writes what its parent has protected, to pages of its own; in the parent it stays protected",
    f"{DOC} UFFD_FEATURE_EVENT_FORK; mm/huge_memory.c copy_huge_pmd(), mm/memory.c copy_present_ptes()",
    since=SINCE,
)
def forked(live: Live) -> None:
    parent = huge_pages(live, 3)
    _protect(live, parent)
    child = parent.fork()
    live.expect("base pages that are protected in the child", [], protected_pages(child))
    child.fill(_NEW_VALUE)
    _expect_protected(live, parent)
    child.expect_filled(_NEW_VALUE)


@USERFAULT.case(
    "huge pages that are swapped out stay protected, in swap and when they come back",
    f"{PROTECTED}; madvise(2) MADV_PAGEOUT; mm/rmap.c try_to_unmap_one(), mm/memory.c do_swap_page()",
    since=SINCE,
)
def swapped_out(live: Live) -> None:
    let_rest(live)
    need_swap(live, 3 * pmd_size(live))
    memory = huge_pages(live, 3)
    _protect(live, memory)
    swap_out(live, memory, memory.length)
    live.expect("base pages that are protected in swap", _to_protect(live, memory), protected_pages(memory))
    _expect_protected(live, memory)


@USERFAULT.case(
    "what parent and child have stays protected in the parent where that has a page of its own, for it is read by"
    " process_vm_readv(2): base pages, and a huge page that is mapped as a whole or in parts",
    f"{PROTECTED}; mm/memory.c wp_page_copy(); mm/huge_memory.c do_huge_pmd_wp_page(), __split_huge_pmd_locked()",
    since="5.19",
)
def read_from_outside(live: Live) -> None:
    for make in (base_pages, huge_pages, _in_parts):
        memory = make(live)
        every = memory.length // live.base_page
        fault = Userfault(memory, Mode.WRITE_PROTECTED, Feature.PAGEFAULT_FLAG_WP)
        fault.write_protect(length=memory.length)
        memory.actor.fork()
        for place in (0, memory.size // 2, memory.size - WORD):
            with live.about(f"{make.__name__.strip('_')}, read at {place}"):
                live.expect("what is read", 1 + place, word_read_by(live, memory.actor, memory, place))
                live.expect("base pages that are protected", every, len(protected_pages(memory)))
                live.expect_signal(signal.SIGBUS, memory.actor.write, memory.address + place, _NEW_VALUE)
        memory.expect_filled()
        memory.actor.end()


def _in_parts(live: Live) -> Memory:
    memory = huge_pages(live)
    map_in_parts(live, memory)
    return memory


def _mapped_again(live: Live, memory: Memory) -> Memory:
    """Return the shared ``memory`` at another aligned address, too: to move none of it leaves it where it is."""
    there = room_for(memory.actor, memory.pages, memory.size)
    memory.actor.call("mremap", memory.address, 0, memory.length, MREMAP_MAYMOVE | MREMAP_FIXED, there)
    return Memory(live, memory.actor, there, memory.pages, memory.size)


def _protect(live: Live, memory: Memory) -> Userfault:
    """Protect the first huge page as a whole, and the first half of the second one but for a base page."""
    fault = Userfault(memory, Mode.WRITE_PROTECTED, Feature.PAGEFAULT_FLAG_WP)
    fault.write_protect(0)
    fault.write_protect(1, offset=live.base_page, length=memory.size // 2 - live.base_page)
    return fault


def _to_protect(live: Live, memory: Memory) -> list[int]:
    """Return the numbers of the base pages that ``_protect`` protects."""
    pages = memory.size // live.base_page
    return [*range(pages), *range(pages + 1, pages + pages // 2)]


def _expect_writable_where_moved(live: Live, memory: Memory, about: str) -> None:
    """Move filled memory, and expect it to hold what it held, and to be protected no more."""
    there = memory.moved_to(room_for(memory.actor, memory.pages, memory.size))
    _expect_dropped(live, there, about)
    there.expect_filled()
    there.fill(_NEW_VALUE)
    there.expect_filled(_NEW_VALUE)


def _expect_dropped(live: Live, there: Memory, how: str) -> None:
    """Expect nothing to be protected of what mremap(2) moved out of a userfaultfd, with a kernel that ends it so."""
    version = live.kernel_version
    if version >= _DROPPED_WHEN_MOVED or version.follows_any(_DROPPED_BY_BACKPORTS):
        live.expect(f"runs of base pages that are protected, {how}", [], runs({*protected_pages(there)}))


def _expect_protected(live: Live, memory: Memory) -> None:
    """Expect that what ``_protect`` protected cannot be written, that all else can, and what was filled everywhere."""
    memory.expect_filled()
    live.expect("base pages that are protected", _to_protect(live, memory), protected_pages(memory))
    half = memory.size // 2
    for offset in (0, half, memory.size - WORD, memory.size + live.base_page, memory.size + half - WORD):
        live.expect_signal(signal.SIGBUS, memory.actor.write, memory.address + offset, _NEW_VALUE)
    for offset in (memory.size, memory.size + half, 2 * memory.size):
        # what is there already: it is written, and nothing changes
        memory.actor.write(memory.address + offset, 1 + offset)
    memory.expect_filled()


class ThpUserfault(LiveTest):
    def test_userfault(self) -> None:
        self.run_area(USERFAULT)
