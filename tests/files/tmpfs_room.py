"""Room of a tmpfs with huge=always: what huge pages take of it, also behind the end of a file, and who gets that."""

import errno
import mmap
import signal
from collections.abc import Callable
from functools import partial
from itertools import product
from operator import eq

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.fragmentation import with_blocks
from hugepage_qa.cases.hugetlb_files import HugeFile, open_file
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import WORD
from hugepage_qa.cases.swapped import need_swap, swap_out
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.cases.thp_shared_memory import (
    expect_blocks,
    expect_mapped_whole,
    let_only_pmd_inherit,
    map_file,
    map_start,
    map_start_of_file,
    mount_tmpfs,
    need_huge_pages_for_words,
)
from hugepage_qa.kernel.uapi import FALLOC_FL_KEEP_SIZE
from hugepage_qa.oracle.rules import THP_DOC
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.version import KernelVersion

TMPFS_ROOM = Area("files/tmpfs-room", sizes=Sizes.ONCE, uncleared=True)

DOC = f"{THP_DOC} Hugepages in tmpfs/shmem"
_VALUE = 77
#: "mm: shmem: fix minor off-by-one in shrinkable calculation": before, one base page behind the end was too few
_ONE_PAGE_SINCE = KernelVersion(6, 12)


@TMPFS_ROOM.case(
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


@TMPFS_ROOM.case(
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
        write = partial(second.actor.result, "pwrite64", second.descriptor, word, WORD, 0)
        # a huge page that somebody has a hold of cannot be split, and stays whole, until he has none
        written = live.host.last_look(write, partial(eq, WORD))
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


@TMPFS_ROOM.case(
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


@TMPFS_ROOM.case(
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


@TMPFS_ROOM.case(
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


@TMPFS_ROOM.case(
    "what a file of a full tmpfs has in swap, huge pages or base pages, takes its room all the same: whatever it, and"
    " another file, is asked to take more, and however often, finds none, ENOSPC and SIGBUS, and takes none",
    "Documentation/filesystems/tmpfs.rst size; write(2), fallocate(2) ENOSPC; mm/shmem.c shmem_alloc_and_add_folio(),"
    " shmem_recalc_inode()",
)
def full_with_what_is_in_swap(live: Live) -> None:
    let_only_pmd_inherit(live)
    size, page = pmd_size(live), live.base_page
    need_swap(live, 2 * size)
    for huge, in_swap in product(("always", "never"), (size, 2 * size)):
        with_blocks(live, size, 2)
        point = _mount(live, 2 * size, huge)
        path = f"{point}/file"
        memory = map_start_of_file(live, path, pages=3)
        actor = memory.actor
        file, other = (open_file(live, name, actor) for name in (path, f"{path}-other"))
        memory.fill_part(0, 2 * size)
        expect_mapped_whole(live, memory, 2 if huge == "always" else 0, f"huge={huge}")
        with live.about(f"huge={huge}, {in_swap} bytes in swap"):
            swap_out(live, memory, in_swap)
            both = (file, memory), (other, map_start(live, actor, other.descriptor, pages=3))
            for (one, mapped), offset in product(both, (2 * size, 3 * size - page)):
                for _time in range(2):
                    live.expect_errno(errno.ENOSPC, actor.call, "pwrite64", one.descriptor, bytes(WORD), WORD, offset)
                    live.expect_errno(errno.ENOSPC, actor.call, "fallocate", one.descriptor, 0, offset, page)
                    live.expect_signal(signal.SIGBUS, actor.write, mapped.address + offset, _VALUE)
                    found = file.blocks, other.blocks, _free_room(live, point)
                    live.expect("st_blocks of both files, free bytes", (2 * size, 0, 0), found)
            live.expect("words that changed", 0, memory.wrong(0, 2 * size))
        actor.end()


def _mount(live: Live, room: int, huge: str = "always") -> str:
    """Mount a tmpfs for ``room`` bytes until the case ends, and return where. Raises Refused."""
    return live.mount_other(f"huge={huge},size={room},mode=0700", "tmpfs")


def _free_room(live: Live, point: str) -> int:
    return live.host.file_system(point).free_bytes


def _write(live: Live, file: HugeFile, offset: int) -> None:
    written = file.actor.call("pwrite64", file.descriptor, live.host.uapi.pack("Q", _VALUE), WORD, offset)
    live.expect("bytes written", WORD, written)


def _read(live: Live, file: HugeFile, offset: int) -> int:
    _count, (word,) = file.actor.call_with_buffers("pread64", file.descriptor, bytes(WORD), WORD, offset)
    return live.host.uapi.unpack("Q", word)[0]


class ThpTmpfsRoom(LiveTest):
    def test_tmpfs_room(self) -> None:
        self.run_area(TMPFS_ROOM)
