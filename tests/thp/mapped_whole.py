"""Huge pages that are mapped as a whole: by whichever touch, what is allowed on them, and what others read of them."""

import mmap
import signal
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.fragmentation import with_blocks
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.reached_from_outside import read_of_another
from hugepage_qa.cases.thp_memory import map_aligned, pmd_size
from hugepage_qa.cases.thp_policy import huge_pages
from hugepage_qa.cases.thp_shared_memory import (
    expect_mapped_whole,
    let_only_pmd_inherit,
    map_file,
    map_filled_file,
    mount_tmpfs,
    need_any_part,
    shared_huge_pages,
)
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.uapi import PROT_NONE
from hugepage_qa.plugins.avocado_test import LiveTest

WHOLE = Area("thp/mapped-whole", sizes=Sizes.ONCE)
_NEW_VALUE = 77


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
    "a huge page of shared memory is mapped as a whole by whichever part is touched first, read or written, whether it"
    " is there or brought by that",
    "Documentation/admin-guide/mm/transhuge.rst ShmemPmdMapped; mm/memory.c do_set_pmd() (ab1ffc86cb5b); mm/filemap.c"
    " filemap_map_pmd()",
    since="5.12",  # filemap_map_pmd()
)
def touched_first_in_any_part(live: Live) -> None:
    need_any_part(live)
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
    need_any_part(live)
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


class ThpMappedWhole(LiveTest):
    def test_mapped_whole(self) -> None:
        self.run_area(WHOLE)
