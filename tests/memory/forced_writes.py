"""What debuggers write into huge pages that their owners may not write: /proc/PID/mem with FOLL_FORCE."""

import errno
import mmap
import signal
from collections.abc import Iterable
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.clear_refs import clear_refs, need_soft_dirty, soft_dirty_pages
from hugepage_qa.cases.forced_writes import FORCED_VALUE, forced_write, need_forced_writes
from hugepage_qa.cases.fragmentation import with_blocks
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.cases.thp_policy import advised, expect_all_huge, huge_pages, huge_zeroes, set_policy
from hugepage_qa.cases.thp_shared_memory import let_only_pmd_inherit, shared_huge_pages
from hugepage_qa.cases.userfaultfd import Feature, Mode, Userfault
from hugepage_qa.kernel.uapi import PROT_NONE
from hugepage_qa.plugins.avocado_test import LiveTest

FORCED = Area("memory/forced-writes", sizes=Sizes.ONCE)

DOC = "fs/proc/base.c mem_rw(); mm/gup.c FOLL_FORCE, check_vma_flags(); mm/huge_memory.c can_follow_write_pmd()"
OLD = 7


@FORCED.case(
    "a huge page that its owner may only read, or not use at all, is written by a debugger, wherever in it, for that"
    " owner alone, parent or child, who still may not write",
    f"{DOC} (CVE-2022-2590)",
)
def read_only(live: Live) -> None:
    need_forced_writes(live)
    for prot, before_the_fork, of_the_child in product((PROT_NONE, mmap.PROT_READ), (False, True), (False, True)):
        parent = huge_pages(live)
        if before_the_fork:
            parent.protect(prot)
        child = parent.fork()
        both = parent, child
        if not before_the_fork:
            for one in both:
                one.protect(prot)
        written, other = reversed(both) if of_the_child else both
        places = _places(live, written)
        for offset in places:
            live.expect("bytes written", WORD, forced_write(live, written, offset))
        for one in both:
            for offset in places:
                live.expect_signal(signal.SIGSEGV, one.actor.write, one.address + offset, OLD)
            one.protect(mmap.PROT_READ)
        live.expect("what its owner reads", [FORCED_VALUE] * len(places), _words(written, places))
        live.expect("words that changed, but for these", 0, written.wrong(0, written.length) - len(places))
        other.expect_filled()
        parent.actor.end()


@FORCED.case(
    "what a debugger writes into memory that its owner may only read, or not use at all, and that nobody has touched,"
    " is in a huge page where the policy has some, zero beside it, which the owner still may not write",
    f"{DOC}; mm/huge_memory.c __do_huge_pmd_anonymous_page() maybe_pmd_mkwrite(); mm/memory.c do_anonymous_page()",
)
def untouched(live: Live) -> None:
    need_forced_writes(live)
    size = pmd_size(live)
    for enabled, prot, first in product(("madvise", "never"), (PROT_NONE, mmap.PROT_READ), (0, 2)):
        set_policy(live, enabled)
        with_blocks(live, size, 1)
        memory = advised(live)
        memory.protect(prot)
        places = _places(live, memory)
        # the page comes with the first of them
        for offset in places[first:] + places[:first]:
            live.expect("bytes written", WORD, forced_write(live, memory, offset))
            for place in places:
                live.expect_signal(signal.SIGSEGV, memory.actor.write, memory.address + place, OLD)
        with live.about(f"enabled={enabled}, protection {prot}"):
            # what may not be used at all smaps passes over before Linux 6.6 (8b9c1cc0418a)
            memory.protect(mmap.PROT_READ)
            if enabled == "never":
                memory.expect_huge(0)
            else:
                expect_all_huge(live, memory, "of memory that was written by a debugger")
            live.expect("what its owner reads", [FORCED_VALUE] * len(places), _words(memory, places))
            live.expect("words that are not zero", len(places), memory.nonzero(0, memory.length))
            live.expect_signal(signal.SIGSEGV, memory.touch)
            memory.protect(READ_WRITE)
            memory.fill(OLD)
            memory.expect_filled(OLD)
        memory.actor.end()


@FORCED.case(
    "what a debugger writes into a huge page of zeroes that may only be read is its owner's alone: the rest of it is"
    " zero, and so is that of others",
    f"{DOC}; mm/huge_memory.c do_huge_pmd_wp_page()",
)
def zeroes(live: Live) -> None:
    need_forced_writes(live)
    memory, stranger = (huge_zeroes(live) for _each in range(2))
    memory.protect(mmap.PROT_READ)
    child = memory.fork()
    places = _places(live, memory)
    for offset in places:
        live.expect("bytes written", WORD, forced_write(live, memory, offset))
        live.expect_signal(signal.SIGSEGV, memory.actor.write, memory.address + offset, OLD)
    live.expect("what its owner reads", [FORCED_VALUE] * len(places), _words(memory, places))
    live.expect("words that are not zero", len(places), memory.nonzero(0, memory.length))
    for one in (child, stranger):
        one.expect_zero()


@FORCED.case(
    "no debugger writes into a shared huge page that may only be read, nor into one that userfaultfd protects",
    f"{DOC}; Documentation/admin-guide/mm/userfaultfd.rst Write Protect Notifications",
    since="5.13",
)
def shared_or_protected(live: Live) -> None:
    need_forced_writes(live)
    let_only_pmd_inherit(live)
    shared, private = shared_huge_pages(live), huge_pages(live)
    fault = Userfault(private, Mode.WRITE_PROTECTED, Feature.PAGEFAULT_FLAG_WP)
    fault.write_protect()
    for memory, prot in ((shared, mmap.PROT_READ), (private, READ_WRITE), (private, mmap.PROT_READ)):
        memory.protect(prot)
        for offset in _places(live, memory):
            live.expect_errno(errno.EIO, forced_write, live, memory, offset)
        memory.expect_filled()
    fault.write_protect(on=False)
    live.expect("bytes written", WORD, forced_write(live, private))
    live.expect("what its owner reads", FORCED_VALUE, private.read())


@FORCED.case(
    "what a debugger writes into a huge page that may only be read is soft-dirty, and no huge page beside it",
    f"{DOC}; Documentation/admin-guide/mm/soft-dirty.rst",
)
def soft_dirty(live: Live) -> None:
    need_forced_writes(live)
    memory = huge_pages(live, 2)
    need_soft_dirty(live, memory)
    # the memory is written, and then it may only be read
    memory.protect(mmap.PROT_READ)
    clear_refs(live, memory)
    offset = memory.size - WORD
    live.expect("bytes written", WORD, forced_write(live, memory, offset))
    dirty = soft_dirty_pages(memory)
    count = memory.size // live.base_page
    live.expect("the base page that was written is soft-dirty", True, count - 1 in dirty)
    live.expect("soft-dirty pages of the huge page behind it", 0, sum(number >= count for number in dirty))


def _places(live: Live, memory: Memory) -> tuple[int, ...]:
    """Return the offsets of the first word, of one in the middle and of one behind that, and of the last word."""
    return 0, memory.size // 2, memory.size // 2 + live.base_page + WORD, memory.size - WORD


def _words(memory: Memory, offsets: Iterable[int]) -> list[int]:
    return [memory.actor.read(memory.address + offset) for offset in offsets]


class ForcedWrites(LiveTest):
    def test_forced_writes(self) -> None:
        self.run_area(FORCED)
