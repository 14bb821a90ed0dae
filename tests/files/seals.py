"""Files of shared memory in huge pages: how long they are, and when seals are given, which keep what they are."""

import errno
import fcntl
import os
import signal
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.fragmentation import with_blocks
from hugepage_qa.cases.hugetlb_files import HugeFile
from hugepage_qa.cases.khugepaged_clock import let_nobody_else_act, let_rest
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.pinned_pages import in_a_pipe, pinned
from hugepage_qa.cases.sealed_sizes import SEALED_SIZES, SEALS, Change, changes, expect_sizes, named
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.cases.thp_shared_memory import expect_shared, let_only_pmd_inherit, map_file, map_start, mount_tmpfs
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.uapi import F_SEAL_FUTURE_WRITE, FALLOC_FL_KEEP_SIZE
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor, Refused

SEALED_FILES = Area("files/seals", sizes=Sizes.ONCE)
SOURCE = f"{SEALED_SIZES}; mm/shmem.c shmem_fallocate(), shmem_setattr(), shmem_write_begin()"
_VALUE = 77
#: for compaction and reclaim to let go of a page
_LET_GO_SECONDS = 30
#: bytes: a few base pages of them can be carried at once, but where these have 64 KiB
_MOST_WRITTEN = 4096


@SEALED_FILES.case(
    "a file in huge pages, of a tmpfs or without a name, is made longer and shorter, to the byte, by ftruncate(2),"
    " fallocate(2) and write(2) where no seal forbids it, and is as long as before where one does or"
    " FALLOC_FL_KEEP_SIZE is given, also within its last huge page; a write across an end that is sealed stops there;"
    " a seal against writes refuses writes and holes, and what was written stays",
    SOURCE,
)
def sealed(live: Live) -> None:
    let_only_pmd_inherit(live)
    live.set_knob(f"{DIRECTORY}/shmem_enabled", "always")
    actor = live.actor()
    with_blocks(live, pmd_size(live), 2)
    for size, seals in product(_lengths(live), SEALS):
        file = _new_file(live, actor, None)
        word = live.host.uapi.pack("Q", _VALUE)
        actor.call("ftruncate", file.descriptor, size)
        actor.call("pwrite64", file.descriptor, word, WORD, 0)
        expect_sizes(live, file, seals, _changes(live, size))
        # else it was made shorter
        if seals & fcntl.F_SEAL_SHRINK and seals & (fcntl.F_SEAL_WRITE | F_SEAL_FUTURE_WRITE):
            live.expect(f"what was written before {named(seals)}", word, file.read(0, WORD))
        file.close()
        # a write that goes across the end is like any other where it may
        if seals & fcntl.F_SEAL_GROW or not seals:
            file = _new_file(live, actor, None)
            actor.call("ftruncate", file.descriptor, size)
            expect_sizes(live, file, seals, _writes(live, size), (live.base_page, pmd_size(live)))
            file.close()
    point = mount_tmpfs(live, "always")
    for size in (0, *_lengths(live)):
        file = _new_file(live, actor, f"{point}/{size}")
        actor.call("ftruncate", file.descriptor, size)
        expect_sizes(live, file, 0, _changes(live, size))
        actor.call("ftruncate", file.descriptor, 0)
        file.close()


@SEALED_FILES.case(
    "what FALLOC_FL_KEEP_SIZE allocates behind the end of a file is the file's and counts as such, is reached neither"
    " by read(2) nor through a mapping until the file is longer, is zero then, and is given back by a shorter one",
    "fallocate(2) FALLOC_FL_KEEP_SIZE; mmap(2) SIGBUS; mm/shmem.c shmem_fallocate(), shmem_fault()",
)
def size_that_is_kept(live: Live) -> None:
    let_nobody_else_act(live)
    live.set_knob(f"{DIRECTORY}/shmem_enabled", "always")
    point, actor, size = mount_tmpfs(live, "always"), live.actor(), pmd_size(live)
    for of_a_mount, length in product((True, False), (0, WORD, size, size + live.base_page)):
        with live.about(f"a file of {length} bytes, of a mount {of_a_mount}"):
            with_blocks(live, size, 2)
            file = _new_file(live, actor, f"{point}/{length}" if of_a_mount else None)
            actor.call("ftruncate", file.descriptor, length)
            Change("fallocate", 0, 2 * size, FALLOC_FL_KEEP_SIZE).act(file)
            live.expect("size, st_blocks", (length, 2 * size), (file.size, file.blocks))
            live.expect("what is read at the end", b"", file.read(length, WORD))
            memory = map_file(live, actor, file.descriptor, 2)
            end = -(-length // live.base_page) * live.base_page
            for offset in {end, -(-(end + 1) // size) * size - WORD, 2 * size - WORD}:
                live.expect_signal(signal.SIGBUS, actor.write, memory.address + offset, _VALUE)
            live.expect("size, st_blocks", (length, 2 * size), (file.size, file.blocks))
            actor.call("ftruncate", file.descriptor, 2 * size)
            live.expect("words that are not zero", 0, actor.nonzero(memory.address, memory.length))
            memory.fill()
            memory.expect_filled()
            live.expect("st_blocks of a longer file", 2 * size, file.blocks)
            actor.call("ftruncate", file.descriptor, length)
            live.expect("st_blocks of a shorter file", end, file.blocks)
            actor.call("munmap", memory.address, memory.length)
            actor.call("ftruncate", file.descriptor, 0)
            file.close()


@SEALED_FILES.case(
    "F_SEAL_WRITE is refused, EBUSY, while a page of a file is pinned that nobody maps any more, in a huge page or not,"
    " wherever in it, by a pipe or a buffer of io_uring, and is given when it is let go",
    "fcntl(2) F_SEAL_WRITE EBUSY; mm/memfd.c memfd_wait_for_pins(), memfd_tag_pins()",
    since="5.12",
)
def pinned_against_a_seal(live: Live) -> None:
    let_only_pmd_inherit(live)
    let_rest(live)
    size, base = pmd_size(live), live.base_page
    places = 0, 7 * base, size + base, 2 * size - base
    for policy, pin, place in product(("always", "never"), (in_a_pipe, pinned), places):
        live.set_knob(f"{DIRECTORY}/shmem_enabled", policy)
        actor = live.actor()
        file = _new_file(live, actor, None)
        memory = map_start(live, actor, file.descriptor, 2)
        with live.about(f"shmem_enabled={policy}, {pin.__name__}, base page at {place}"):
            expect_shared(live, memory, policy == "always", policy)
            with pin(live, Memory(live, actor, memory.address + place, 1, base)):
                memory.unmap()
                # twice: what the first one has marked would be in the way of the second
                for _time in range(2):
                    live.expect_errno(errno.EBUSY, file.seal, fcntl.F_SEAL_WRITE)
                live.expect("seals", 0, file.seals)
                memory = map_file(live, actor, file.descriptor, 2)
                memory.expect_filled()
                memory.unmap()
            # compaction and reclaim have a hold of pages for a moment, as who pins them
            if not live.host.last_look(partial(_is_sealed, file), bool, _LET_GO_SECONDS):
                # each of the others would be waited for as long
                live.fail("seals then", fcntl.F_SEAL_WRITE, file.seals)
            live.expect("seals then", fcntl.F_SEAL_WRITE, file.seals)
            live.expect_errno(errno.EPERM, actor.call, "pwrite64", file.descriptor, b"x", 1, 0)
        actor.end()


def _is_sealed(file: HugeFile) -> bool:
    """Seal ``file`` against writes, and tell whether that was not refused for a page that somebody has a hold of."""
    try:
        file.seal(fcntl.F_SEAL_WRITE)
    except Refused as refusal:
        if refusal.errno != errno.EBUSY:
            raise
        return False
    return True


def _lengths(live: Live) -> tuple[int, ...]:
    """Return lengths of files that end at a base page, at a huge page, and within both."""
    size, base = pmd_size(live), live.base_page
    return WORD, size - base, size, size + WORD, size + base


def _changes(live: Live, length: int) -> tuple[Change, ...]:
    size, base = pmd_size(live), live.base_page
    end = -(-(length + 1) // size) * size
    ends = {length + 1, length + base, end, end + 1, *((length - 1,) if length > 1 else ())}
    shorter = {0, length // 2, max(0, length - base), max(0, length - 1)}
    writes = (Change("pwrite64", start, start + WORD) for start in (0, length, length + base))
    return *changes(length, ends, {*ends, *shorter, length}, (0, base)), *writes


def _writes(live: Live, length: int) -> tuple[Change, ...]:
    """Return writes to a file of ``length`` bytes: up to its end, across it, and behind it."""
    # what is written has to fit into a request
    base = min(live.base_page, _MOST_WRITTEN)
    starts = sorted({max(0, length - before) for before in (1, WORD, base, base + WORD)})
    return (
        *(Change("pwrite64", start, length) for start in starts),
        *(Change("pwrite64", start, length + behind) for behind in (1, base) for start in starts),
        *(Change("pwrite64", start, start + WORD) for start in (length, length + base)),
    )


def _new_file(live: Live, actor: Actor, path: str | None) -> HugeFile:
    """Return a new file of a mount, or one without a name."""
    descriptor = live.open(actor, path) if path else actor.call("memfd_create", "sealed", os.MFD_ALLOW_SEALING)
    return HugeFile(live, actor, descriptor)


class ThpSealedFiles(LiveTest):
    def test_sealed_files(self) -> None:
        self.run_area(SEALED_FILES)
