"""Bytes of files of a tmpfs at the ends of holes and of files, and pages that fallocate(2) put behind the end."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import product
from typing import NamedTuple

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.debugfs import expect_split
from hugepage_qa.cases.file_contents import KnownFile
from hugepage_qa.cases.fragmentation import with_blocks
from hugepage_qa.cases.hugetlb_files import HugeFile, open_file
from hugepage_qa.cases.khugepaged_clock import let_rest
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.swapped import need_swap, page_all_out
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.cases.thp_shared_memory import (
    expect_mapped_whole,
    let_only_pmd_inherit,
    map_file,
    map_filled_file,
    mount_tmpfs,
)
from hugepage_qa.kernel.uapi import FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE
from hugepage_qa.plugins.avocado_test import LiveTest

BYTE_ENDS = Area("files/byte-ends", sizes=Sizes.ONCE, uncleared=True)

CUT = "fallocate(2) FALLOC_FL_PUNCH_HOLE; ftruncate(2); mm/shmem.c shmem_undo_range()"
PARTIAL = f"{CUT}; mm/truncate.c truncate_inode_partial_folio()"
BEHIND = "fallocate(2) FALLOC_FL_KEEP_SIZE; include/linux/shmem_fs.h shmem_fallocend(); mm/shmem.c shmem_fallocate()"
_PAGES = 2
_HOLE = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
#: bytes in front of an end and behind it that are looked at one by one
_AROUND = 2 * WORD
_TEXT = b"behind"
#: of a file with holes over several pages: how many it has room for, and which of them were filled
_LONGER = 3
_FILLED = (0, 1, 2), (0, 2), (0, 1), (1, 2), (0,)


class Hole(NamedTuple):
    """Bytes of a file that are cut out of it, or cut off where ``end`` is that of the file."""

    start: int
    end: int


@BYTE_ENDS.case(
    "a hole in a file is zero from its first byte to its last and no byte beside it changes, wherever in a base or huge"
    " page it begins and ends",
    PARTIAL,
)
def holes(live: Live) -> None:
    let_rest(live)
    for huge in ("always", "never"):
        _expect_holes(live, huge, _holes(live))


@BYTE_ENDS.case(
    "a hole in a file that is in swap is zero from its first byte to its last and no byte beside it changes",
    f"{CUT}, shmem_get_partial_folio()",
    since="5.4",  # MADV_PAGEOUT
)
def holes_in_swap(live: Live) -> None:
    let_rest(live)
    need_swap(live, _PAGES * pmd_size(live))
    for huge in ("always", "never"):
        _expect_holes(live, huge, _holes(live)[::3], is_out=True)


@BYTE_ENDS.case(
    "a file that is made shorter and longer again is zero from the byte on where it ended, and no byte before that"
    " changes",
    f"{PARTIAL}, shmem_setattr()",
)
def cut_off(live: Live) -> None:
    let_rest(live)
    size, base = pmd_size(live), live.base_page
    ends = [edge + by for edge in (base, size // 2, size - base, size, size + base, 2 * size) for by in (-1, 0, 1)]
    places = [Hole(end, _PAGES * size) for end in (0, 1, *ends) if end < _PAGES * size]
    for huge in ("always", "never"):
        _expect_holes(live, huge, places)


@BYTE_ENDS.case(
    "a hole, of fallocate(2) or MADV_REMOVE, gives back each base page that it covers, of the huge pages that it begins"
    " and ends in, too, whether huge pages lie between these or nothing",
    f"{PARTIAL}; madvise(2) MADV_REMOVE",
)
def holes_over_pages(live: Live) -> None:
    let_rest(live)
    for huge, filled in (*product(("always",), _FILLED), ("never", range(_LONGER))):
        _expect_given_back(live, huge, filled)


@BYTE_ENDS.case(
    "a hole gives back each base page that it covers, of the huge pages that it begins and ends in, too, where one of"
    " them is in swap, or what lies between them",
    f"{PARTIAL}, shmem_free_swap(); madvise(2) MADV_REMOVE",
    since="5.4",  # MADV_PAGEOUT
)
def holes_over_pages_in_swap(live: Live) -> None:
    let_rest(live)
    need_swap(live, _LONGER * pmd_size(live))
    for huge, out in (*product(("always",), range(_LONGER)), ("never", 1)):
        _expect_given_back(live, huge, range(_LONGER), out)


def _expect_given_back(live: Live, huge: str, filled: Sequence[int], out: int | None = None) -> None:
    """Expect holes in a file with these pages ``filled``, and one of them ``out`` in swap, to leave none covered."""
    let_only_pmd_inherit(live)
    point, size, base = mount_tmpfs(live, huge), pmd_size(live), live.base_page
    half, third = size // 2, 2 * size
    # from a page to the next but one, from its start or end and to that, and from the middle to what lies beside ends
    places = [Hole(base, _LONGER * size), Hole(size - base, third + base), Hole(half, third), Hole(half, third - base)]
    for place in (*places, Hole(half + WORD, third + half), Hole(size - WORD, third + WORD)):
        left = sum(size - _whole_pages(live, _within(place, page * size, size)) for page in filled)
        # advice is for whole base pages
        for removes in (False, True) if place.start % base == place.end % base == 0 else (False,):
            what = f"pages {[*filled]}, {out} of them in swap" if out is not None else f"pages {[*filled]}"
            how = "MADV_REMOVE of" if removes else "a hole of"
            with live.about(f"huge={huge}, {what}, {how} bytes {place.start} to {place.end}"):
                found = _left_of(live, point, filled, place, is_huge=huge == "always", out=out, removes=removes)
                live.expect("st_blocks", left, found)


def _left_of(
    live: Live, point: str, filled: Sequence[int], place: Hole, *, is_huge: bool, out: int | None, removes: bool
) -> int:
    """Leave a hole in a new file with these pages, and return its st_blocks; expect all beside it as it was."""
    size = pmd_size(live)
    with_blocks(live, size, len(filled) * is_huge)
    file = KnownFile(live, live.actor(), point, _LONGER * size)
    file.truncate(_LONGER * size)
    memory = file.map()
    for page in filled:
        file.store(memory, page * size, size)
    expect_mapped_whole(live, memory, len(filled) * is_huge)
    if out is not None:
        page_all_out(live, memory.part(out), (len(filled) - 1) * size)
    length = place.end - place.start
    if removes:
        file.remove(memory, place.start, length)
    else:
        file.punch(place.start, length)
    left = HugeFile(live, file.actor, file.descriptor).blocks
    file.expect("with the hole")
    file.actor.end()
    return left


def _within(place: Hole, start: int, length: int) -> Hole:
    """Return what of ``place`` lies in ``length`` bytes from ``start`` on."""
    first = min(max(place.start, start), start + length)
    return Hole(first, max(min(place.end, start + length), first))


@BYTE_ENDS.case(
    "pages that fallocate(2) put behind the end of a file stay with it when its huge pages are split or it has holes"
    " beside them, and are zero when it grows; a hole takes those that it covers, and a shorter end, or the same once"
    " more, all behind it",
    f"{BEHIND}, shmem_setattr(); mm/huge_memory.c __split_huge_page(), split_huge_page_to_list()",
    since="5.13",  # a file can be named to split_huge_pages
)
def allocated_behind_the_end(live: Live) -> None:
    let_only_pmd_inherit(live)
    size, base = pmd_size(live), live.base_page
    length = _PAGES * size
    for end in (1, base, base + 1, size // 2, size - 1, size, size + 1, length - base):
        # what is done, and what that takes away
        acts: list[tuple[str, Callable[[HugeFile, str], None], Hole]] = [
            ("a split", partial(_split, live), Hole(0, 0)),
            ("the same end", partial(_truncate, end=end), Hole(end, length)),
            ("a shorter end", partial(_truncate, end=end // 2), Hole(end // 2, length)),
            ("a longer end", partial(_truncate, end=length), Hole(0, 0)),
        ]
        for hole in (Hole(0, base), Hole(1, base - 1), Hole(end - 1, min(end + size // 2, length)), Hole(end, length)):
            acts.append((f"a hole from {hole.start} to {hole.end}", partial(_punch, place=hole), hole))
        for name, act, gone in acts:
            with live.about(f"{name}, a file of {end} bytes"):
                _expect_behind_the_end(live, end, act, gone)


def _expect_behind_the_end(live: Live, end: int, act: Callable[[HugeFile, str], None], gone: Hole) -> None:
    """Expect ``act`` to leave of a file of ``end`` bytes, and of all that was put behind, all but what has ``gone``."""
    size, base = pmd_size(live), live.base_page
    point = mount_tmpfs(live, "always")
    with_blocks(live, size, _PAGES)
    actor = live.actor()
    path, length = f"{point}/file", _PAGES * size
    file = open_file(live, path, actor)
    actor.call("ftruncate", file.descriptor, end)
    actor.call("fallocate", file.descriptor, FALLOC_FL_KEEP_SIZE, 0, length)
    live.expect("length and st_blocks of the file before", (end, length), (file.size, file.blocks))
    act(file, path)
    left = length - _whole_pages(live, gone)
    live.expect("st_blocks", left, file.blocks)
    live.expect("bytes that are taken of the mount", left, live.host.file_system(point).taken_bytes)
    actor.call("ftruncate", file.descriptor, length)
    live.expect("st_blocks when the file has grown over them", left, file.blocks)
    memory = map_file(live, actor, file.descriptor, _PAGES)
    live.expect("words that are not zero", 0, actor.nonzero(memory.address, length))
    live.expect("bytes written behind the old end", len(_TEXT), _write(file, length - base))
    live.expect("bytes read there", _TEXT, file.read(length - base, len(_TEXT)))
    actor.end()


def _punch(file: HugeFile, _path: str, *, place: Hole) -> None:
    file.actor.call("fallocate", file.descriptor, _HOLE, place.start, place.end - place.start)


def _truncate(file: HugeFile, _path: str, *, end: int) -> None:
    file.actor.call("ftruncate", file.descriptor, end)


def _split(live: Live, _file: HugeFile, path: str) -> None:
    expect_split(live, f"{path},0x0,{_PAGES * pmd_size(live) // live.base_page:#x}", 1)


def _whole_pages(live: Live, place: Hole) -> int:
    """Return the bytes of the base pages that ``place`` covers: these it takes, and of others it zeroes its part."""
    return max(place.end // live.base_page - -(-place.start // live.base_page), 0) * live.base_page


def _holes(live: Live) -> list[Hole]:
    """Return holes in two huge pages that begin and end at, before and behind where their pages do."""
    size, base = pmd_size(live), live.base_page
    length = _PAGES * size
    starts = [edge + by for edge in (base, size - base, size) for by in (-1, 0, 1)]
    ends = [edge + by for edge in (base, size, size + base) for by in (-1, 0, 1)]
    # each of them against one that is far away, and near ones
    places = [Hole(start, size + size // 2 + 3) for start in starts] + [Hole(5, end) for end in ends]
    places += [Hole(edge - 1, edge + by) for edge in (base, size // 2, size, length) for by in (0, 1)]
    return [place for place in (*places, Hole(0, 1), Hole(100, base + 900), Hole(0, length - 1)) if place.end <= length]


def _expect_holes(live: Live, huge: str, places: list[Hole], *, is_out: bool = False) -> None:
    """Expect each of ``places`` to be cut out of a file that was filled, and ``is_out`` in swap, and nothing else."""
    let_only_pmd_inherit(live)
    point = mount_tmpfs(live, huge)
    for place in places:
        where = f"huge={huge}, bytes {place.start} to {place.end}"
        with live.about(where), _filled(live, point, huge) as (file, memory):
            if is_out:
                page_all_out(live, memory)
            if place.end == memory.length:
                _truncate(file, "", end=place.start)
            else:
                _punch(file, "", place=place)
            live.expect("st_blocks", memory.length - _whole_pages(live, place), file.blocks)
            if place.end == memory.length:
                _truncate(file, "", end=place.end)
            _expect_zeroes(live, file, memory, place)


@contextmanager
def _filled(live: Live, point: str, huge: str) -> Iterator[tuple[HugeFile, Memory]]:
    """Give a file of two huge pages that is filled, and its mapping, and remove it."""
    file, memory = map_filled_file(live, point, huge, _PAGES)
    yield file, memory
    file.actor.call("unlinkat", -1, f"{point}/file", 0)
    file.actor.end()


def _expect_zeroes(live: Live, file: HugeFile, memory: Memory, place: Hole) -> None:
    """Expect the bytes of ``place`` to be zero and all others as ``memory`` was filled, read and mapped."""
    before, behind = place.start // WORD * WORD, -(-place.end // WORD) * WORD
    within, to = -(-place.start // WORD) * WORD, place.end // WORD * WORD
    wrong = memory.wrong_beside(before, behind)
    live.expect("words beside it that changed", 0, wrong)
    if within < to:
        live.expect("words of it that are not zero", 0, memory.nonzero(within, to - within))
    for edge in place:
        start, end = max(edge // WORD * WORD - _AROUND, 0), min(edge // WORD * WORD + _AROUND, memory.length)
        filled = file.actor.uapi.pack(f"{(end - start) // WORD}Q", *(1 + at for at in range(start, end, WORD)))
        expected = bytes(0 if place.start <= start + at < place.end else byte for at, byte in enumerate(filled))
        live.expect(f"bytes {start} to {end}", expected.hex(), file.read(start, end - start).hex())


def _write(file: HugeFile, offset: int) -> int:
    return file.actor.call("pwrite64", file.descriptor, _TEXT, len(_TEXT), offset)


class ThpByteEnds(LiveTest):
    def test_byte_ends(self) -> None:
        self.run_area(BYTE_ENDS)
