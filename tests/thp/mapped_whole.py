"""Huge pages that stay mapped as a whole: what is allowed on them, what others read of them, what the kernel shows."""

import errno
import mmap
import signal
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.clear_refs import (
    CLEAR_REFS_ALL,
    clear_refs,
    huge_pages_not_dirty,
    soft_dirty_pages,
)
from hugepage_qa.cases.fragmentation import with_blocks
from hugepage_qa.cases.khugepaged_clock import let_rest
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import EXCLUSIVE, FRAME, OF_A_FILE, PRESENT, WORD, Memory, runs
from hugepage_qa.cases.pages_in_memory import expect_second_in_memory
from hugepage_qa.cases.read_from_outside import read_of_another
from hugepage_qa.cases.swapped import swapped
from hugepage_qa.cases.thp_memory import map_aligned, mapped_huge, pmd_size, room_for
from hugepage_qa.cases.thp_policy import advised, base_pages, huge_pages, mapped_in_parts, need_counted_parts
from hugepage_qa.cases.thp_shared_memory import (
    expect_mapped_whole,
    let_only_pmd_inherit,
    map_file,
    map_filled_file,
    mount_tmpfs,
    shared_base_pages,
    shared_huge_pages,
)
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.uapi import PROT_NONE
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.version import KernelVersion

WHOLE = Area("thp/mapped-whole", sizes=Sizes.ONCE)

PROC_DOC = "Documentation/filesystems/proc.rst"
PAGEMAP_DOC = "Documentation/admin-guide/mm/pagemap.rst"
_NEW_VALUE = 77
#: of shared memory in do_set_pmd(): the kernels in between want it to be the first one that is touched
_FIRST_PART_SINCE, _ANY_PART_AGAIN_SINCE = KernelVersion(6, 8), KernelVersion(6, 10)


@WHOLE.case(
    "mprotect() of a whole huge page forbids each access that it says, keeps the page huge and what it holds",
    "mprotect(2); mm/huge_memory.c change_huge_pmd()",
)
def protected(live: Live) -> None:
    memory = huge_pages(live, 3)
    # the one in the middle, and with it a page table and two of its neighbours
    for prot in (PROT_NONE, mmap.PROT_READ):
        memory.protect(prot, 1, 1)
        for address in _places(live, memory, 1):
            live.expect_signal(signal.SIGSEGV, memory.actor.write, address, _NEW_VALUE)
            if prot == PROT_NONE:
                live.expect_signal(signal.SIGSEGV, memory.actor.read, address)
        if prot != PROT_NONE:
            memory.expect_filled()
            huge = [memory.smaps(page).anon_huge_pages for page in range(3)]
            live.expect("AnonHugePages", 3 * [memory.size], huge)
        memory.protect(READ_WRITE, 1, 1)
        memory.expect_filled()
    memory.expect_huge()
    memory.fill(_NEW_VALUE)
    memory.expect_filled(_NEW_VALUE)


@WHOLE.case(
    "mprotect() that allows writing again lets no process write into the huge page of another one",
    "mprotect(2); fork(2); mm/huge_memory.c change_huge_pmd(), can_change_pmd_writable()",
)
def protected_after_a_fork(live: Live) -> None:
    parent = huge_pages(live, 2)
    child = parent.fork()
    for writer, other in ((parent, child), (child, parent)):
        for prot in (mmap.PROT_READ, READ_WRITE):
            writer.protect(prot)
        page = int(writer is child)
        writer.touch(page, _NEW_VALUE)
        live.expect("what its writer reads", _NEW_VALUE, writer.read(page))
        live.expect("words of the other process that changed", 0, _wrong_words(other, page))


@WHOLE.case(
    "other processes and pipes carry each part of a huge page, and it stays mapped as a whole",
    "process_vm_readv(2); vmsplice(2); mm/gup.c, mm/huge_memory.c follow_trans_huge_pmd()",
)
def parts_for_others(live: Live) -> None:
    theirs, ours = huge_pages(live), huge_pages(live)
    call = ours.actor.call
    for address in _places(live, theirs, 0):
        value = 1 + address - theirs.address
        local, remote = (live.host.uapi.pack("2Q", place, WORD) for place in (ours.address, address))
        live.expect("bytes read", WORD, read_of_another(live, ours.actor, theirs.actor.pid, local, remote))
        live.expect("what was read", value, ours.read())
        live.expect("what came out of a pipe", value, _through_a_pipe(live, theirs, address))
        ours.touch(value=_NEW_VALUE)
        live.expect("bytes written", WORD, call("process_vm_writev", theirs.actor.pid, local, 1, remote, 1, 0))
        live.expect("what was written", _NEW_VALUE, theirs.actor.read(address))
        theirs.actor.write(address, value)
    theirs.expect_filled()
    theirs.expect_huge()


@WHOLE.case(
    "mincore(2) tells of every base page of a huge page that it is there, whichever part is asked for, mapped whole or"
    " in parts, of zeroes too, and of none in front of it or behind it; a length is rounded up to base pages",
    "mincore(2); mm/mincore.c mincore_pte_range(), __mincore_unmapped_range()",
)
def pages_that_are_there(live: Live) -> None:
    let_rest(live)
    for make in (huge_pages, mapped_in_parts, base_pages, _zeroes):
        memory = make(live, 3)
        for page in (0, 2):
            memory.advise(mmap.MADV_DONTNEED, page, 1)
        with live.about(make.__name__.strip("_")):
            expect_second_in_memory(live, memory)
            live.expect("huge pages", memory.size * (make is huge_pages), mapped_huge(memory))
        memory.actor.end()


@WHOLE.case(
    "mincore(2) of what is mapped in part alone is ENOMEM, from inside a base page EINVAL, and to where nothing may be"
    " written EFAULT",
    "mincore(2) ERRORS; mm/mincore.c do_mincore()",
)
def pages_that_cannot_be_asked_for(live: Live) -> None:
    memory, base = huge_pages(live, 3), live.base_page
    memory.unmap(2, 1)
    end = memory.at(2)
    for error, address, length in (
        (errno.ENOMEM, end - base, 2 * base),
        (errno.ENOMEM, end - base, base + 1),
        (errno.ENOMEM, end, base),
        (errno.EINVAL, memory.address + 1, base),
        (errno.EINVAL, end - 1, 1),
    ):
        with live.about(f"{length} bytes, {end - address} before the end"):
            live.expect_errno(error, memory.actor.call_with_buffers, "mincore", address, length, bytes(2))
    nowhere = room_for(memory.actor, 1, memory.size)
    live.expect_errno(errno.EFAULT, memory.actor.call, "mincore", memory.address, base, nowhere)
    memory.expect_huge(2)


@WHOLE.case(
    "mincore(2) tells of every base page of shared memory whether it is there, touched by who asks or not, and that all"
    " of a huge page are, whichever part is asked for",
    "mincore(2); mm/mincore.c __mincore_unmapped_range(), mincore_page()",
)
def shared_pages_that_are_there(live: Live) -> None:
    let_only_pmd_inherit(live)
    count = pmd_size(live) // live.base_page
    # neighbours, the ends of a page table, and what begins one
    parts = *((page, 1) for page in (1, 2, count // 2, count - 1, count)), (count + 3, count // 2)
    for make, gone in ((shared_base_pages, parts), (shared_huge_pages, ((0, count),))):
        memory = make(live, 2)
        there = [1] * 2 * count
        for first, pages in gone:
            address = memory.address + first * live.base_page
            memory.actor.call("madvise", address, pages * live.base_page, mmap.MADV_REMOVE)
            there[first : first + pages] = [0] * pages
        # which has no page tables of it yet
        child = memory.fork()
        for each, first in product((child, memory), (0, 1)):
            address, pages = each.address + first * live.base_page, 2 * count - first
            states = each.actor.call_with_buffers("mincore", address, pages * live.base_page, bytes(pages))[1][0]
            told = enumerate(zip(states, there[first:], strict=True), first)
            wrong = [page for page, (state, is_there) in told if state & 1 != is_there]
            if wrong and swapped(memory):
                raise CannotRun("this machine has swapped out what was there")
            with live.about(f"{make.__name__} from page {first} on, {'child' if each is child else 'parent'}"):
                live.expect("base pages that are told to be there and are not, or to be away", [], wrong)
    memory = shared_huge_pages(live, 3)
    for page in (0, 2):
        memory.advise(mmap.MADV_REMOVE, page, 1)
    expect_second_in_memory(live, memory)


@WHOLE.case(
    "a huge page of shared memory is mapped as a whole by whichever part is touched first, read or written, whether it"
    " is there or brought by that",
    "Documentation/admin-guide/mm/transhuge.rst ShmemPmdMapped; mm/memory.c do_set_pmd() (ab1ffc86cb5b); mm/filemap.c"
    " filemap_map_pmd()",
    since="5.12",  # filemap_map_pmd()
)
def touched_first_in_any_part(live: Live) -> None:
    if _FIRST_PART_SINCE <= live.kernel_version < _ANY_PART_AGAIN_SINCE:
        raise CannotRun(
            "this kernel maps shared memory whole where the first base page of a huge page is touched alone"
        )
    let_only_pmd_inherit(live)
    size, base = pmd_size(live), live.base_page
    for is_there, is_written, offset in product((False, True), (False, True), (0, base, size // 2, size - base)):
        with live.about(f"{'written' if is_written else 'read'} at {offset}, {'there' if is_there else 'brought'}"):
            live.set_knob(f"{DIRECTORY}/shmem_enabled", "always")
            with_blocks(live, size, 2)
            memory = shared_huge_pages(live, 2) if is_there else map_aligned(live, 2, size, shared=True)
            # which has no page tables of it yet
            process = memory.fork() if is_there else memory
            for page in range(2):
                if is_written:
                    process.actor.write(process.at(page) + offset, _NEW_VALUE)
                else:
                    holds = 1 + page * size + offset if is_there else 0
                    live.expect("what is read", holds, process.actor.read(process.at(page) + offset))
            expect_mapped_whole(live, process, 2, "")
        memory.actor.end()


@WHOLE.case(
    "a huge page of a tmpfs file is mapped as a whole by whichever part is read first, in a private mapping as in a"
    " shared one",
    "Documentation/admin-guide/mm/transhuge.rst ShmemPmdMapped; mm/filemap.c filemap_map_pmd()",
    since="5.12",  # filemap_map_pmd()
)
def read_first_in_any_part(live: Live) -> None:
    _need_any_part(live)
    let_only_pmd_inherit(live)
    size, base = pmd_size(live), live.base_page
    file, _filled = map_filled_file(live, mount_tmpfs(live, "always"), "always", 2)
    for shared, offset in product((False, True), (0, base, size // 2, size - base)):
        memory = map_file(live, file.actor, file.descriptor, 2, shared=shared)
        with live.about(f"read at {offset}, shared {shared}"):
            for page in range(2):
                place = page * size + offset
                live.expect("what is read", 1 + place, memory.actor.read(memory.address + place))
            expect_mapped_whole(live, memory, 2)
        memory.unmap()


@WHOLE.case(
    "pagemap tells of each base page of a huge page whether this process alone has it mapped, where another one has"
    " unmapped a part of it",
    f"{PAGEMAP_DOC} bit 56; fs/proc/task_mmu.c pagemap_pmd_range() (2c1f057e5be6)",
    since="6.11",
)
def exclusive_in_part(live: Live) -> None:
    need_counted_parts(live)
    base = live.base_page
    count = pmd_size(live) // base
    rows = (0, 1), (0, count - 1), (1, count // 2), (count // 2, count // 2), (count - 1, 1)
    told = []
    for first, pages in rows:
        memory = huge_pages(live)
        child = memory.actor.fork()
        child.call("munmap", memory.address + first * base, pages * base)
        told.append(runs({page for page, entry in enumerate(memory.whole_pagemap()) if entry & EXCLUSIVE}))
        memory.expect_huge()
        child.end()
        memory.actor.end()
    expected = [[range(first, first + pages)] for first, pages in rows]
    known = {Quirk.EXCLUSIVE_BY_FIRST_PAGE: [[] if first else [range(count)] for first, _pages in rows]}
    live.expect("base pages that are told to be exclusive, of five huge pages", expected, told, known)


@WHOLE.case(
    "pagemap shows the frames of a huge page one after the other, and whether this process alone has it mapped: also"
    " when a child that had it is gone",
    f"{PAGEMAP_DOC} bits 0-54, 56, 61; fs/proc/task_mmu.c pagemap_pmd_range()",
    since="4.2",
)
def frames_in_pagemap(live: Live) -> None:
    memory = huge_pages(live)
    count = memory.size // live.base_page
    entries = memory.whole_pagemap()
    first = entries[0] & FRAME
    live.expect("the first frame is that of a block", 0, first % count)
    live.expect("frames", list(range(first, first + count)), [entry & FRAME for entry in entries])
    _expect_flags(live, entries, {PRESENT, EXCLUSIVE})
    child = memory.fork()
    for each in (memory, child):
        _expect_flags(live, each.whole_pagemap(), {PRESENT})
    child.actor.end()
    with live.about("when a child that had it is gone"):
        _expect_flags(live, memory.whole_pagemap(), {PRESENT, EXCLUSIVE})


@WHOLE.case(
    "Pss shares a huge page among those who have it mapped, to whom it is shared, and private to one alone",
    f"{PROC_DOC} Pss, Shared_Dirty, Private_Dirty; fs/proc/task_mmu.c smaps_account()",
)
def shares_in_smaps(live: Live) -> None:
    memory = huge_pages(live, 2)
    _expect_shares(memory, live, memory.length, 1)
    child = memory.fork()
    for each in (memory, child):
        _expect_shares(each, live, memory.length, 2)
    child.actor.end()
    _expect_shares(memory, live, memory.length, 1)


@WHOLE.case(
    "Referenced is the huge pages that were used since clear_refs was written",
    f"{PROC_DOC} Referenced, clear_refs; fs/proc/task_mmu.c clear_refs_pte_range()",
)
def referenced(live: Live) -> None:
    memory = huge_pages(live, 2)
    live.expect("Referenced", memory.length, memory.smaps().fields["Referenced"])
    clear_refs(live, memory, CLEAR_REFS_ALL)
    # a CPU that has the address in its TLB does not mark it again, and clear_refs leaves it there but with soft-dirty;
    # mprotect() does not, and marks it on powerpc (pmd_modify() in arch/powerpc/include/asm/book3s/64/pgtable.h)
    clear_refs(live, memory)
    live.expect("Referenced after it was cleared", 0, memory.smaps().fields["Referenced"])
    live.expect("what is read", 1 + memory.size, memory.read(1))
    live.expect("Referenced after a read of one", memory.size, memory.smaps().fields["Referenced"])
    memory.expect_huge()
    memory.expect_filled()


@WHOLE.case(
    "pagemap says of what was written since clear_refs was written that it is soft-dirty, and of no other huge page",
    "Documentation/admin-guide/mm/soft-dirty.rst; fs/proc/task_mmu.c clear_soft_dirty_pmd(), pagemap_pmd_range()",
)
def soft_dirty(live: Live) -> None:
    memory = huge_pages_not_dirty(live)
    live.expect("what is read", 1, memory.read(0))
    live.expect("soft-dirty pages after a read", [], soft_dirty_pages(memory))
    memory.expect_huge()
    written = memory.size + memory.size // 2
    memory.actor.write(memory.address + written, _NEW_VALUE)
    dirty = soft_dirty_pages(memory)
    live.expect("the page that was written is soft-dirty", True, written // live.base_page in dirty)
    others = [one for one in dirty if one < memory.size // live.base_page]
    live.expect("soft-dirty pages of the huge page that was not written", [], others)
    memory.actor.write(memory.address + written, 1 + written)
    memory.expect_filled()


@WHOLE.case(
    "what mremap(2) has moved is soft-dirty at its new place, whole huge pages and others, written or not",
    "Documentation/admin-guide/mm/soft-dirty.rst; mm/huge_memory.c move_soft_dirty_pmd(), mm/mremap.c"
    " move_soft_dirty_pte()",
)
def moved_is_soft_dirty(live: Live) -> None:
    let_rest(live)
    for shift in (0, live.base_page):
        memory = huge_pages_not_dirty(live)
        there = memory.moved_to(room_for(memory.actor, memory.pages + 1, memory.size) + shift)
        there.expect_filled()
        every = memory.length // live.base_page
        live.expect(f"soft-dirty pages, moved to {shift} bytes behind a boundary", every, len(soft_dirty_pages(there)))
        live.expect("AnonHugePages", 0 if shift else there.length, there.smaps().anon_huge_pages)


@WHOLE.case(
    "what was written since clear_refs was written stays soft-dirty when its huge page is mapped as base pages, for"
    " whatever a part of it is, and nothing beside it becomes so",
    "Documentation/admin-guide/mm/soft-dirty.rst; mm/huge_memory.c __split_huge_pmd_locked()",
)
def soft_dirty_in_parts(live: Live) -> None:
    let_rest(live)
    count = pmd_size(live) // live.base_page
    ways = ("madvise", mmap.MADV_DONTNEED), ("mprotect", mmap.PROT_READ), ("munmap",), ("mlock",)
    for call, *arguments in ways:
        memory = huge_pages_not_dirty(live)
        memory.actor.write(memory.at(1) + live.base_page, _NEW_VALUE)
        memory.actor.call(call, memory.at(2) - live.base_page, live.base_page, *arguments)
        with live.about(f"{call}() of the last base page"):
            memory.expect_huge(1)
            dirty = soft_dirty_pages(memory)
            live.expect("the base page that was written is soft-dirty", True, count + 1 in dirty)
            live.expect("soft-dirty pages of the huge page beside it", [], [one for one in dirty if one < count])
        memory.actor.end()


def _zeroes(live: Live, pages: int) -> Memory:
    """Return memory that was read alone."""
    memory = advised(live, pages)
    memory.expect_zero(pages=pages)
    return memory


def _places(live: Live, memory: Memory, page: int) -> list[int]:
    """Return the addresses of words in the first base page of a huge page, in the middle, and its last word."""
    offsets = (0, live.base_page + WORD, memory.size // 2, memory.size - WORD)
    return [memory.at(page) + offset for offset in offsets]


def _wrong_words(memory: Memory, page: int) -> int:
    return memory.actor.check(memory.at(page), memory.size, WORD, 1 + page * memory.size)


def _through_a_pipe(live: Live, memory: Memory, address: int) -> int:
    """Return the word at ``address`` as it comes out of a pipe that has the page itself."""
    uapi, actor = live.host.uapi, memory.actor
    reader, writer = actor.pipe()
    live.expect("bytes in the pipe", WORD, actor.call("vmsplice", writer, uapi.pack("2Q", address, WORD), 1, 0))
    _count, (word,) = actor.call_with_buffers("read", reader, bytes(WORD), WORD)
    for end in (reader, writer):
        actor.call("close", end)
    return uapi.unpack("Q", word)[0]


def _need_any_part(live: Live) -> None:
    if _FIRST_PART_SINCE <= live.kernel_version < _ANY_PART_AGAIN_SINCE:
        raise CannotRun(
            "this kernel maps shared memory whole where the first base page of a huge page is touched alone"
        )


def _expect_flags(live: Live, entries: list[int], flags: set[int]) -> None:
    for flag, name in ((PRESENT, "present"), (EXCLUSIVE, "exclusive"), (OF_A_FILE, "of a file")):
        expected = len(entries) if flag in flags else 0
        live.expect(f"base pages that are {name}", expected, sum(bool(entry & flag) for entry in entries))


def _expect_shares(memory: Memory, live: Live, length: int, processes: int) -> None:
    fields = memory.smaps().fields
    shared = processes > 1
    expected = {
        "Rss": length,
        "Pss": length // processes,
        "Shared_Dirty": length if shared else 0,
        "Private_Dirty": 0 if shared else length,
        "Anonymous": length,
        "AnonHugePages": length,
    }
    live.expect("smaps", expected, {name: fields[name] for name in expected})


class ThpMappedWhole(LiveTest):
    def test_mapped_whole(self) -> None:
        self.run_area(WHOLE)
