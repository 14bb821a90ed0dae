"""Files of a tmpfs with huge=always: where its room ends, where their pages are mapped, and what is kept of them."""

import errno
import mmap
import os
import signal
from collections.abc import Callable
from functools import partial
from itertools import product
from operator import eq

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
    expect_blocks,
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
from hugepage_qa.kernel.uapi import FALLOC_FL_KEEP_SIZE
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.oracle.rules import THP_DOC
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.version import KernelVersion

TMPFS_FILES = Area("files/tmpfs-files", sizes=Sizes.ONCE, uncleared=True)

DOC = f"{THP_DOC} Hugepages in tmpfs/shmem"
_PAGES = 8
_VALUE = 77
#: "mm: shmem: fix minor off-by-one in shrinkable calculation": before, one base page behind the end was too few
_ONE_PAGE_SINCE = KernelVersion(6, 12)


@TMPFS_FILES.case(
    "a tmpfs without room for one more huge page gives base pages until it is full, and only then ENOSPC and SIGBUS",
    f"{DOC} huge=; mm/shmem.c shmem_get_folio_gfp()",
)
def full(live: Live) -> None:
    let_only_pmd_inherit(live)
    room = 2 * pmd_size(live) + 3 * live.base_page
    path = f"{_mount(live, room)}/file"
    with_blocks(live, pmd_size(live), 2)
    memory = map_start_of_file(live, path, pages=3)
    memory.fill_part(0, room)
    expect_mapped_whole(live, memory, 2)
    file = live.open(memory.actor, path)
    live.expect_signal(signal.SIGBUS, memory.actor.write, memory.address + room, _VALUE)
    live.expect_errno(errno.ENOSPC, memory.actor.call, "pwrite64", file, bytes(WORD), WORD, room)
    live.expect("words that changed", 0, memory.wrong(0, room))
    memory.advise(mmap.MADV_REMOVE, 0, 1)
    memory.actor.write(memory.address + room, _VALUE)
    live.expect("what is written when there is room again", _VALUE, memory.actor.read(memory.address + room))


@TMPFS_FILES.case(
    "what a huge page takes behind the end of a file, in whichever of its huge pages that is, is given to another file"
    " before a tmpfs is full, no more than that, and is room of the mount again",
    f"{DOC} huge=; mm/shmem.c shmem_unused_huge_shrink(), shmem_uncharge()",
)
def room_behind_the_end(live: Live) -> None:
    need_huge_pages_for_words(live)
    let_only_pmd_inherit(live)
    size, page = pmd_size(live), live.base_page
    point = _mount(live, size)
    for offset in (0, size // 2, size, 2 * size - 2 * page, 2 * size - WORD):
        with live.about(f"a file that ends {WORD} bytes behind {offset}"):
            _expect_given_up(live, point, offset, offset % size // page * page + page)


def _expect_given_up(live: Live, point: str, offset: int, left: int) -> None:
    """Expect a file that fills a mount by a word at ``offset`` to keep ``left`` bytes, and another to get a page."""
    with_blocks(live, pmd_size(live), 1)
    actor = live.actor()
    first, second = (open_file(live, f"{point}/{offset}-{name}", actor) for name in (1, 2))
    _write(live, first, offset)

    def expect_held() -> None:
        live.expect("what the first file holds", _VALUE, _read(live, first, offset))

    _expect_room_given(live, point, first, second, left, expect_held)
    _expect_gone(live, point, first, second)


def _expect_room_given(
    live: Live, point: str, first: HugeFile, second: HugeFile, left: int, expect_held: Callable[[], None]
) -> None:
    """Expect the ``first`` file, a huge page that fills a mount, to keep ``left`` bytes, and the second to get a page.

    ``expect_held`` judges what the first one holds then. Raises CannotRun where memory is too fragmented for it.
    """
    size, page = pmd_size(live), live.base_page
    expect_blocks(live, first, size, "st_blocks of a file in a huge page")
    live.expect("bytes that statfs tells as free", 0, _free_room(live, point))
    if left == size:
        live.expect_errno(errno.ENOSPC, second.actor.call, "pwrite64", second.descriptor, bytes(WORD), WORD, 0)
    else:
        word = live.host.uapi.pack("Q", _VALUE)
        written = second.actor.result("pwrite64", second.descriptor, word, WORD, 0)
        live.expect("bytes that a second file had room for", WORD, written)
        live.expect("what the second file holds", _VALUE, _read(live, second, 0))
    expect_held()
    expected = left, min(page, size - left)
    live.expect("st_blocks of both files", expected, (first.blocks, second.blocks))
    live.expect("bytes that statfs tells as free then", size - sum(expected), _free_room(live, point))


def _expect_gone(live: Live, point: str, *files: HugeFile) -> None:
    for file in files:
        file.actor.call("ftruncate", file.descriptor, 0)
    live.expect("bytes that statfs tells as free without files", pmd_size(live), _free_room(live, point))


@TMPFS_FILES.case(
    "of a file that had its length before it got a huge page, written or mapped, what this takes behind the end is"
    " given to another file before a tmpfs is full, be it one base page or all but one, wherever in a page the end is",
    f"{DOC} huge=; mm/shmem.c shmem_get_folio_gfp() shrinklist, shmem_unused_huge_shrink()",
)
def room_behind_the_length(live: Live) -> None:
    need_huge_pages_for_words(live)
    let_only_pmd_inherit(live)
    size, page = pmd_size(live), live.base_page
    point = _mount(live, size)
    ends = [1, page, page + 1, size // 2 + WORD, size - 2 * page, size - page + 1]
    if live.kernel_version >= _ONE_PAGE_SINCE:
        ends += size - 2 * page + 1, size - page - 1, size - page
    for start, end in product((0, size), ends):
        last = (end - 1) // page * page
        for is_mapped, place in sorted({(False, 0), (True, 0), (True, last)}):
            how = "mapped" if is_mapped else "written"
            with live.about(f"a file of {start + end} bytes that is {how} at {start + place}"):
                _expect_rest_given_up(live, point, start + end, start + place, last + page, is_mapped)


def _expect_rest_given_up(live: Live, point: str, length: int, place: int, left: int, is_mapped: bool) -> None:
    """Expect a file of ``length`` bytes, in a huge page since it was touched at ``place``, to keep ``left`` bytes."""
    with_blocks(live, pmd_size(live), 1)
    actor = live.actor()
    name = f"{point}/{length}-{place}-{is_mapped}"
    first, second = (open_file(live, f"{name}-{number}", actor) for number in (1, 2))
    actor.call("ftruncate", first.descriptor, length)
    if is_mapped:
        actor.write(map_file(live, actor, first.descriptor, 2).address + place, _VALUE)
    else:
        # no word: it may be longer than the file
        live.expect("bytes written", 1, actor.call("pwrite64", first.descriptor, bytes([_VALUE]), 1, place))

    def expect_held() -> None:
        _count, (found,) = actor.call_with_buffers("pread64", first.descriptor, bytes(1), 1, place)
        live.expect("length of the first file, and what it holds", (length, _VALUE), (first.size, found[0]))

    _expect_room_given(live, point, first, second, left, expect_held)
    _expect_gone(live, point, first, second)
    actor.end()


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
    "statfs(2) counts the whole memory of a huge page, and fallocate(2) that finds no room leaves a file without pages",
    "statfs(2); fallocate(2) ENOSPC; mm/shmem.c shmem_inode_acct_blocks(), shmem_fallocate()",
    since="5.15",  # 050dcb5c85bb: before, huge pages stay that were allocated until there was no room
)
def room_that_is_taken(live: Live) -> None:
    need_huge_pages_for_words(live)
    let_only_pmd_inherit(live)
    size = pmd_size(live)
    point = _mount(live, 4 * size)
    with_blocks(live, size, 4)
    actor = live.actor()
    first, second = (open_file(live, f"{point}/{name}", actor) for name in ("first", "second"))
    # a whole one: what lies behind the end of a file would be given to who finds no room
    memory = map_start(live, actor, first.descriptor)
    _write(live, first, 0)
    live.expect("what was written", _VALUE, memory.read())
    expect_mapped_whole(live, memory, 1)
    live.expect("bytes that statfs tells as free", 3 * size, _free_room(live, point))
    live.expect_errno(errno.ENOSPC, actor.call, "fallocate", second.descriptor, 0, 0, 4 * size)
    live.expect("size and st_blocks of a file that found no room", (0, 0), (second.size, second.blocks))
    live.expect("bytes that statfs tells as free after that", 3 * size, _free_room(live, point))
    actor.call("ftruncate", first.descriptor, 0)
    live.expect("bytes that statfs tells as free without files", 4 * size, _free_room(live, point))


@TMPFS_FILES.case(
    "what fallocate(2) has allocated behind the end of a file stays its own, but for the hole that is punched there or"
    " before it; a huge page that is split so keeps what lies behind the end",
    "fallocate(2) FALLOC_FL_KEEP_SIZE; mm/shmem.c shmem_fallocate(), fallocend, since d144bf620534",
    since="5.15",
)
def kept_behind_the_end(live: Live) -> None:
    let_only_pmd_inherit(live)
    size, page = pmd_size(live), live.base_page
    point, actor = mount_tmpfs(live, "always"), live.actor()
    with_blocks(live, size, 2)
    for place in (16 * page, size - page, size, 2 * size - 2 * page):
        file = open_file(live, f"{point}/{place}", actor)
        _write(live, file, 0)
        with live.about(f"a hole at {place}"):
            actor.call("fallocate", file.descriptor, FALLOC_FL_KEEP_SIZE, 0, 2 * size)
            live.expect("size and st_blocks", (WORD, 2 * size), (file.size, file.blocks))
            left = WORD, 2 * size - page
            # a page that somebody has a hold of cannot be split, and stays whole, until he has none
            found = live.host.last_look(partial(_punched, file, place, page), partial(eq, left))
            live.expect("size and st_blocks with the hole", left, found)
            live.expect("what the file holds", _VALUE, _read(live, file, 0))


def _punched(file: HugeFile, place: int, length: int) -> tuple[int, int]:
    """Punch a hole of ``length`` bytes at ``place``, and return size and st_blocks of the file."""
    file.punch_bytes(place, length)
    return file.size, file.blocks


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


def _mount(live: Live, room: int) -> str:
    """Mount a tmpfs for ``room`` bytes with huge=always until the case ends, and return where. Raises Refused."""
    return live.mount_other(f"huge=always,size={room},mode=0700", "tmpfs")


def _free_room(live: Live, point: str) -> int:
    return live.host.file_system(point).free_bytes


def _write(live: Live, file: HugeFile, offset: int) -> None:
    written = file.actor.call("pwrite64", file.descriptor, live.host.uapi.pack("Q", _VALUE), WORD, offset)
    live.expect("bytes written", WORD, written)


def _read(live: Live, file: HugeFile, offset: int) -> int:
    _count, (word,) = file.actor.call_with_buffers("pread64", file.descriptor, bytes(WORD), WORD, offset)
    return live.host.uapi.unpack("Q", word)[0]


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
        dirty = huge_pages(live, _PAGES)
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
