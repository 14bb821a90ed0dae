"""How long files of a tmpfs keep what their huge pages have behind the ends: until the kernel shrinks its caches."""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from operator import eq
from typing import TypeVar

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.fragmentation import expect_no_node_short, with_blocks
from hugepage_qa.cases.hugetlb_files import HugeFile, open_file
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import WORD
from hugepage_qa.cases.pinned_pages import pipe_with, word_from
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.cases.thp_shared_memory import (
    let_only_pmd_inherit,
    map_file,
    mount_tmpfs,
    need_huge_pages_for_words,
)
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.uapi import AT_FDCWD, FALLOC_FL_KEEP_SIZE
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor
from hugepage_qa.version import KernelVersion

Row = TypeVar("Row")

SHRUNK_ENDS = Area("files/shrunk-ends", sizes=Sizes.ONCE, uncleared=True)

DOC = "Documentation/admin-guide/sysctl/vm.rst drop_caches"
SHRINK = f"{DOC}; mm/shmem.c shmem_unused_huge_scan(), shmem_unused_huge_shrink() (779750d20b93)"
#: what drop_caches takes to have all shrinkers run
_SHRINKERS = "2"
_VALUE = 77
#: files that have huge pages at a time: some machines have large ones
_AT_ONCE = 4
#: for how long somebody else may have a hold of a page, or of the mount
_SECONDS = 30.0
#: "mm: shmem: fix minor off-by-one in shrinkable calculation": before, one base page behind the end was too few
_ONE_PAGE_SINCE = KernelVersion(6, 12)


@SHRUNK_ENDS.case(
    "what huge pages that were mapped have behind the ends of files, wherever in a huge page each ends, is given back"
    " when the kernel shrinks its caches, of all files at once and by whole base pages: it is room of the mount again,"
    " the files are as long as before and hold what they held, and when they grow there are zeroes",
    SHRINK,
)
def mapped(live: Live) -> None:
    _expect_ends_given_back(live, is_mapped=True)


@SHRUNK_ENDS.case(
    "what huge pages that were written have behind the ends of files, wherever in a huge page each ends, is given back"
    " when the kernel shrinks its caches, of all files at once and by whole base pages: it is room of the mount again,"
    " the files are as long as before and hold what they held, and when they grow there are zeroes",
    SHRINK,
)
def written(live: Live) -> None:
    need_huge_pages_for_words(live)
    _expect_ends_given_back(live, is_mapped=False)


def _expect_ends_given_back(live: Live, *, is_mapped: bool) -> None:
    let_only_pmd_inherit(live)
    point, actor = mount_tmpfs(live, "always"), live.actor()
    for start, ends in product((0, pmd_size(live)), _groups(_ends(live))):
        lengths = [start + end for end in ends]
        with live.about(f"files of {lengths} bytes"):
            files = _short_files(live, actor, [point] * len(lengths), lengths, is_mapped=is_mapped)
            _expect_shrunk(live, files, [_rounded(live, end) for end in ends])
            _expect_taken(live, point, files)
            for file, length in zip(files, lengths, strict=True):
                _expect_held(live, file, length)
        _forget(files)


@SHRUNK_ENDS.case(
    "what fallocate(2) has put behind the end of a file is kept when the kernel shrinks its caches, and no more than"
    " that; a file that has grown since keeps what is within it, and a huge page that has nothing behind the end stays"
    " one",
    f"{SHRINK}, shmem_fallocend(); fallocate(2) FALLOC_FL_KEEP_SIZE",
    since="6.12",  # before, it is split in any case (mm/shmem.c shmem_unused_huge_shrink())
)
def kept(live: Live) -> None:
    let_only_pmd_inherit(live)
    size, page = pmd_size(live), live.base_page
    point, actor = mount_tmpfs(live, "always"), live.actor()
    rows = [(grown, end) for grown, end in product((False, True), (2 * page, size // 2, size - page, size))]
    for group in _groups(rows):
        with live.about(f"files of a base page, grown, or else with pages allocated, up to {group}"):
            files = _short_files(live, actor, [point] * len(group), [page] * len(group))
            for file, (grown, end) in zip(files, group, strict=True):
                if grown:
                    actor.call("ftruncate", file.descriptor, end)
                else:
                    actor.call("fallocate", file.descriptor, FALLOC_FL_KEEP_SIZE, 0, end)
            _expect_shrunk(live, files, [end for _grown, end in group])
            _expect_taken(live, point, files)
            for file, (grown, end) in zip(files, group, strict=True):
                live.expect("length", end if grown else page, file.size)
                memory = map_file(live, actor, file.descriptor, 1)
                live.expect("what it holds", _word(live), memory.read())
                whole = size if end == size else 0
                live.expect("ShmemPmdMapped when it is mapped again", whole, memory.smaps().shmem_pmd_mapped)
                memory.unmap()
        _forget(files)


@SHRUNK_ENDS.case(
    "a huge page that somebody holds stays whole when the kernel shrinks its caches, those of other files beside it, on"
    " the same mount and on another one, give back what they have behind the ends; once it is let go, it does, too",
    SHRINK,
)
def held(live: Live) -> None:
    let_only_pmd_inherit(live)
    size, page = pmd_size(live), live.base_page
    actor, points = live.actor(), [mount_tmpfs(live, "always") for _mount in range(2)]
    for which in range(3):
        # the one that is held comes first, between others, and last
        with live.about(f"file {which} of three of a mount is held"):
            files = _short_files(live, actor, [points[0]] * 3 + points[1:], [page] * 4)
            memory = map_file(live, actor, files[which].descriptor, 1)
            reader = pipe_with(live, memory)
            memory.unmap()
            left = [size if number == which else page for number in range(4)]
            _expect_shrunk(live, files, left)
            live.expect("what came out of the pipe", _word(live), word_from(live, actor, reader))
            _expect_shrunk(live, files, [page] * 4)
            for file in files:
                _expect_held(live, file, page)
        _forget(files)


@SHRUNK_ENDS.case(
    "files without a name, and those that were deleted and are open, give back what their huge pages have behind the"
    " ends when the kernel shrinks its caches, mapped meanwhile, too; files that have gone before that, or"
    " after it, take nothing",
    f"{SHRINK}, shmem_evict_inode(); memfd_create(2)",
)
def without_names(live: Live) -> None:
    let_only_pmd_inherit(live)
    live.set_knob(f"{DIRECTORY}/shmem_enabled", "always")
    page = live.base_page
    actor, point = live.actor(), mount_tmpfs(live, "always")
    files = _short_files(live, actor, [None, None, point, point], [page] * 4)
    for name in (2, 3):
        actor.call("unlinkat", AT_FDCWD, f"{point}/{name}", 0)
    memories = [map_file(live, actor, files[number].descriptor, 1) for number in (1, 3)]
    for memory in memories:
        live.expect("what is mapped", _word(live), memory.read())
    _expect_shrunk(live, files, [page] * 4)
    _expect_taken(live, point, files[2:])
    for memory in memories:
        live.expect("what is mapped", _word(live), memory.read())
        memory.unmap()
    for file in files:
        _expect_held(live, file, page)
        file.close()
    live.expect("bytes that are taken without files", 0, live.host.file_system(point).taken_bytes)
    # of these some go before the shrinkers come to them
    files = _short_files(live, actor, [point] * _AT_ONCE, [page] * _AT_ONCE)
    for number, file in enumerate(files):
        actor.call("unlinkat", AT_FDCWD, f"{point}/{number}", 0)
        if number % 2:
            file.close()
    _expect_shrunk(live, files[::2], [page] * len(files[::2]))
    _expect_taken(live, point, files[::2])
    for file in files[::2]:
        _expect_held(live, file, page)


def _ends(live: Live) -> list[int]:
    """Return the ends of files in a huge page behind which there are base pages to give back."""
    size, page = pmd_size(live), live.base_page
    ends = [1, page - 1, page, page + 1, size // 2 - page, size // 2 + WORD, size - 2 * page]
    if live.kernel_version >= _ONE_PAGE_SINCE:
        ends += size - 2 * page + 1, size - page
    return ends


def _groups(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    for first in range(0, len(rows), _AT_ONCE):
        yield rows[first : first + _AT_ONCE]


def _rounded(live: Live, length: int) -> int:
    return -(-length // live.base_page) * live.base_page


def _short_files(
    live: Live, actor: Actor, points: Sequence[str | None], lengths: Sequence[int], *, is_mapped: bool = True
) -> list[HugeFile]:
    """Make files of ``lengths``, each in one huge page with its end: on the mounts at ``points``, or without a name.

    They are called 0, 1, and so on; where the last byte is, or was mapped, there is a value. Raises CannotRun where
    memory is too fragmented for huge pages.
    """
    size = pmd_size(live)
    # before: whoever makes room for one shrinks caches, and with them what the others have
    with_blocks(live, size, len(lengths))
    files = list[HugeFile]()
    for number, (point, length) in enumerate(zip(points, lengths, strict=True)):
        file = (
            open_file(live, f"{point}/{number}", actor)
            if point
            else HugeFile(live, actor, actor.call("memfd_create", "short", 0))
        )
        actor.call("ftruncate", file.descriptor, length)
        _store(live, file, length, is_mapped=is_mapped)
        files.append(file)
    wanted, found = [size] * len(files), [file.blocks for file in files]
    if found != wanted:
        expect_no_node_short(live, size, len(files))
        live.fail("st_blocks of files in huge pages", wanted, found)
    return files


def _store(live: Live, file: HugeFile, length: int, *, is_mapped: bool) -> None:
    """Store at the start of the last base page of a file, of which no other is there: the value, or its first byte."""
    place = (length - 1) // live.base_page * live.base_page
    if not is_mapped:
        # no word: it may be longer than the file
        live.expect("bytes written", 1, file.actor.call("pwrite64", file.descriptor, bytes([_VALUE]), 1, place))
        return
    memory = map_file(live, file.actor, file.descriptor, length // pmd_size(live) + 1)
    file.actor.write(memory.address + place, _word(live))
    memory.unmap()


def _word(live: Live) -> int:
    """Return the word that begins with the value, and is zero behind its first byte."""
    return int.from_bytes(bytes([_VALUE]).ljust(WORD, b"\0"), live.host.byte_order)


def _expect_shrunk(live: Live, files: Sequence[HugeFile], expected: list[int]) -> None:
    """Have the kernel shrink its caches, and expect so many bytes to be left of each file. Raises Failed."""

    def shrunk() -> list[int]:
        live.host.write("proc/sys/vm/drop_caches", _SHRINKERS)
        return [file.blocks for file in files]

    found = live.host.last_look(shrunk, partial(eq, expected), _SECONDS)
    if found != expected:
        # each of the others would be waited for as long
        live.fail("st_blocks of each file when caches were shrunk", expected, found)


def _expect_taken(live: Live, point: str, files: Sequence[HugeFile]) -> None:
    """Expect a mount to have taken what its ``files`` have, and nothing else."""
    taken = live.host.file_system(point).taken_bytes
    live.expect("bytes that are taken of the mount", sum(file.blocks for file in files), taken)


def _expect_held(live: Live, file: HugeFile, length: int) -> None:
    """Expect a file, which is made longer for that, to hold what was stored, and else zeroes."""
    live.expect("length", length, file.size)
    blocks, size = file.blocks, pmd_size(live)
    pages = length // size + 1
    place = (length - 1) // live.base_page * live.base_page
    file.actor.call("ftruncate", file.descriptor, pages * size)
    live.expect("st_blocks when it has grown", blocks, file.blocks)
    memory = map_file(live, file.actor, file.descriptor, pages)
    live.expect("the byte that was stored", _VALUE, file.read(place, 1)[0])
    live.expect("words that are not zero", 1, memory.nonzero(0, memory.length))
    memory.unmap()


def _forget(files: Sequence[HugeFile]) -> None:
    for file in files:
        file.actor.call("ftruncate", file.descriptor, 0)
        file.close()


class ThpShrunkEnds(LiveTest):
    def test_shrunk_ends(self) -> None:
        self.run_area(SHRUNK_ENDS)
