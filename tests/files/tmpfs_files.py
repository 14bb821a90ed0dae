"""Files of a tmpfs with huge=always: where their pages are mapped, and what they hold."""

import errno
import mmap
import os
from collections.abc import Callable
from functools import partial

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.fragmentation import SAMPLES, with_blocks
from hugepage_qa.cases.hugetlb_files import HugeFile, open_file
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.pinned_pages import pipe_with
from hugepage_qa.cases.swapped import need_swap, page_all_out
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.cases.thp_policy import huge_pages
from hugepage_qa.cases.thp_shared_memory import (
    expect_mapped_whole,
    expect_shared,
    filled_file,
    let_only_pmd_inherit,
    map_file,
    map_start,
    map_start_of_file,
    mount_tmpfs,
    need_huge_pages_for_words,
    remount_tmpfs,
)
from hugepage_qa.kernel.proc_tables import find_mount, huge_policy
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.oracle.rules import THP_DOC
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.sizes import MIB

TMPFS_FILES = Area("files/tmpfs-files", sizes=Sizes.ONCE, uncleared=True)

DOC = f"{THP_DOC} Hugepages in tmpfs/shmem"
#: huge pages that are written and given back, and bytes that they are at most where they are no larger each
_PAGES, _MOST = 8, 256 * MIB
_VALUE = 77


@TMPFS_FILES.case(
    "lseek() finds the data of a file that is in a huge page from its first byte to its last, and holes beside it",
    "lseek(2) SEEK_DATA, SEEK_HOLE; mm/shmem.c shmem_file_llseek()",
)
def data_and_holes(live: Live) -> None:
    let_only_pmd_inherit(live)
    path, size = f"{mount_tmpfs(live, 'always')}/file", pmd_size(live)
    with_blocks(live, size, 1)
    memory = map_start_of_file(live, path, pages=3)
    memory.touch(1)
    expect_mapped_whole(live, memory, 1)
    file = live.open(memory.actor, path)
    within = size + 5 * live.base_page + 1
    for whence, start, expected in (
        (os.SEEK_DATA, 0, size),
        (os.SEEK_HOLE, 0, 0),
        (os.SEEK_DATA, within, within),
        (os.SEEK_HOLE, within, 2 * size),
        (os.SEEK_HOLE, size, 2 * size),
        (os.SEEK_DATA, size - 1, size),
    ):
        found = memory.actor.call("lseek", file, start, whence)
        live.expect(f"{'data' if whence == os.SEEK_DATA else 'a hole'} from {start} on", expected, found)
    live.expect_errno(errno.ENXIO, memory.actor.call, "lseek", file, 2 * size, os.SEEK_DATA)


@TMPFS_FILES.case(
    "a few bytes that are written to a file that has no pages make a huge page of zeroes beside them, though its memory"
    " held other words before",
    "write(2); mm/shmem.c shmem_write_end()",
)
def written_in_part(live: Live) -> None:
    need_huge_pages_for_words(live)
    let_only_pmd_inherit(live)
    point = mount_tmpfs(live, "always")
    for offset in (0, pmd_size(live) // 2 + live.base_page - WORD, pmd_size(live) - WORD):
        make = partial(_write, live, offset=offset)
        memory = _made_where_words_were(live, f"{point}/{offset}", make, 0 if offset else _VALUE)
        _expect_one_word(live, memory, offset)


@TMPFS_FILES.case(
    "a huge page that fallocate(2) gives to a file is zero in each word when it is used first, mapped or written in"
    " part, though its memory held other words before",
    "fallocate(2); mm/shmem.c shmem_get_folio_gfp(), shmem_fallocate()",
)
def allocated(live: Live) -> None:
    let_only_pmd_inherit(live)
    point = mount_tmpfs(live, "always")
    memory = _made_where_words_were(live, f"{point}/mapped", _allocate)
    live.expect("words that are not zero when it was mapped", 0, memory.nonzero(0, memory.size))
    expect_mapped_whole(live, memory, 1)
    for offset in (0, live.base_page, pmd_size(live) - WORD):

        def make(file: HugeFile, offset: int = offset) -> None:
            _allocate(file)
            _write(live, file, offset)

        memory = _made_where_words_were(live, f"{point}/written-{offset}", make, 0 if offset else _VALUE)
        _expect_one_word(live, memory, offset)


@TMPFS_FILES.case(
    "mmap() without an address maps a file where its huge pages fit, whatever its offset is, if it has room for one of"
    " them at least, shared and private, and a memfd, too",
    f"{DOC} huge=; mm/shmem.c shmem_get_unmapped_area()",
)
def fitting_addresses(live: Live) -> None:
    let_only_pmd_inherit(live)
    live.set_knob(f"{DIRECTORY}/shmem_enabled", "always")
    size, actor = pmd_size(live), live.actor()
    files = live.open(actor, f"{mount_tmpfs(live, 'always')}/file"), actor.call("memfd_create", "fitting", 0)
    for file in files:
        actor.call("ftruncate", file, 4 * size)
        with_blocks(live, size, 1)
        for offset, length in _with_a_huge_page(size, live.base_page):
            for kind in (mmap.MAP_PRIVATE, mmap.MAP_SHARED) * SAMPLES:
                # so that the next free address is not one that fits
                actor.mmap(live.base_page, READ_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
                address = actor.mmap(length, READ_WRITE, kind, file, offset)
                where = f"{length} bytes from {offset} on, {'shared' if kind == mmap.MAP_SHARED else 'private'}"
                live.expect(f"address beyond one that fits, {where}", offset, address % size)
                if kind == mmap.MAP_SHARED:
                    memory = Memory(live, actor, address - offset, 2, size)
                    memory.touch(int(offset > 0))
                    expect_mapped_whole(live, memory.part(int(offset > 0)), 1)


def _with_a_huge_page(size: int, page: int) -> tuple[tuple[int, int], ...]:
    """Return offsets and lengths of mappings that have a whole huge page, some no byte more behind it."""
    return (
        *((0, size), (0, size + page), (page, 2 * size), (2 * page, 2 * size)),
        *((offset, 2 * size - offset) for offset in (page, size // 2, size - page)),
        *((offset, 2 * size - offset + page) for offset in (page, size // 2, size - page)),
    )


@TMPFS_FILES.case(
    "what is written to a huge page that was mapped to be read first is kept when it is unmapped and swapped out",
    "mm/huge_memory.c zap_huge_pmd(), CVE-2026-89987; madvise(2) MADV_PAGEOUT",
    since="5.4",  # MADV_PAGEOUT
)
def written_after_a_read(live: Live) -> None:
    let_only_pmd_inherit(live)
    need_swap(live, pmd_size(live))
    with_blocks(live, pmd_size(live), 1)
    actor = live.actor()
    file = live.open(actor, f"{mount_tmpfs(live, 'always')}/file")
    memory = map_start(live, actor, file)
    live.expect("what is read first", 0, memory.read())
    expect_mapped_whole(live, memory, 1)
    memory.fill()
    memory.unmap()
    memory = map_file(live, actor, file, 1)
    live.expect("what is read when it is mapped again", 1, memory.read())
    page_all_out(live, memory)
    wrong = memory.wrong(0, memory.length)
    live.expect("words that changed", 0, wrong, {Quirk.DIRTY_LOST_AT_UNMAP: memory.length // WORD})


@TMPFS_FILES.case(
    "a mount shows its huge=, and a remount has another one decide for what is written then",
    f"{DOC} huge=; mm/shmem.c shmem_show_options(), shmem_reconfigure()",
)
def remounted(live: Live) -> None:
    let_only_pmd_inherit(live)
    point = mount_tmpfs(live, "never")
    for huge, given in (("always", True), ("never", False), ("within_size", True), ("advise", False)):
        remount_tmpfs(live.actor(), point, f"huge={huge}")
        mount = find_mount(ObservedTree(live.host), point)
        live.expect("huge= in /proc/mounts", huge, mount and huge_policy(mount))
        expect_shared(live, map_start_of_file(live, f"{point}/{huge}"), given, f"a remount with huge={huge}")


@TMPFS_FILES.case(
    "a hole in a huge page that somebody has a hold of, so that it cannot be split, is zero, whole base pages and parts"
    " of them, and no word beside it is",
    "fallocate(2) FALLOC_FL_PUNCH_HOLE; mm/truncate.c truncate_inode_partial_folio(); vmsplice(2)",
)
def hole_in_a_held_page(live: Live) -> None:
    let_only_pmd_inherit(live)
    point, page = mount_tmpfs(live, "always"), live.base_page
    half = pmd_size(live) // 2
    for start, length in ((half, 16 * page), (page, page), (half + WORD, 2 * page), (half + 2 * WORD, page - 4 * WORD)):
        with live.about(f"{length} bytes at {start}"):
            path = f"{point}/{start}-{length}"
            memory = filled_file(live, path, 1)
            pipe_with(live, memory)
            open_file(live, path, memory.actor).punch_bytes(start, length)
            live.expect("words of the hole that are not zero", 0, memory.nonzero(start, length))
            end = start + length
            wrong = memory.wrong_beside(start, end)
            live.expect("words beside the hole that changed", 0, wrong)
            memory.actor.end()


@TMPFS_FILES.case(
    "read(2) gives what is in each part of a huge page, and in two of them at once",
    "read(2); mm/shmem.c shmem_file_read_iter()",
)
def read_in_parts(live: Live) -> None:
    let_only_pmd_inherit(live)
    path = f"{mount_tmpfs(live, 'always')}/file"
    memory = filled_file(live, path, 2)
    actor, size, length = memory.actor, memory.size, 2 * live.base_page
    file = live.open(actor, path)
    buffer = actor.mmap(length, READ_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for start in (0, live.base_page, size // 2 + WORD, size - length, size - live.base_page - WORD, 2 * size - length):
        live.expect(f"bytes read at {start}", length, actor.call("pread64", file, buffer, length, start))
        wrong = actor.check(buffer, length, WORD, 1 + start)
        live.expect(f"words that are wrong at {start}", 0, wrong)
    expect_mapped_whole(live, memory, 2)


def _write(live: Live, file: HugeFile, offset: int) -> None:
    written = file.actor.call("pwrite64", file.descriptor, live.host.uapi.pack("Q", _VALUE), WORD, offset)
    live.expect("bytes written", WORD, written)


def _allocate(file: HugeFile) -> None:
    file.actor.call("fallocate", file.descriptor, 0, 0, file.size)


def _expect_one_word(live: Live, memory: Memory, offset: int) -> None:
    """Expect a huge page to have the word that was written at ``offset``, and else zeroes."""
    live.expect("what was written", _VALUE, memory.actor.read(memory.address + offset))
    live.expect("words that are not zero", 1, memory.nonzero(0, memory.size))
    expect_mapped_whole(live, memory, 1)


def _made_where_words_were(live: Live, path: str, make: Callable[[HugeFile], None], first: int = 0) -> Memory:
    """Map a new file of one huge page that ``make`` had made, in memory where words were; its ``first`` one is read.

    Raises CannotRun where no file gets such memory.
    """
    for sample in range(SAMPLES):
        dirty = huge_pages(live, max(1, min(_PAGES, _MOST // pmd_size(live))))
        frames = dirty.frames()
        # a CPU takes first what it has given back last
        actor = dirty.actor
        dirty.unmap()
        file = open_file(live, f"{path}-{sample}", actor)
        actor.call("ftruncate", file.descriptor, pmd_size(live))
        make(file)
        memory = map_file(live, actor, file.descriptor, 1)
        live.expect("the first word", first, memory.read())
        if not frames.isdisjoint(memory.frames()):
            return memory
    raise CannotRun("no file got memory that had been written before")


class ThpTmpfsFiles(LiveTest):
    def test_tmpfs_files(self) -> None:
        self.run_area(TMPFS_FILES)
