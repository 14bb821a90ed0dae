"""Files in large folios that have holes: what each call reads there and beside them, and where lseek(2) finds data."""

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate, pairwise, product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.file_contents import TMPFS, Brought, KnownFile, data_of, is_offered
from hugepage_qa.cases.file_transfers import READS
from hugepage_qa.cases.hugetlb_files import HugeFile
from hugepage_qa.cases.large_folios import block_size, file_case
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import WORD
from hugepage_qa.plugins.avocado_test import LiveTest

SPARSE = Area("files/sparse-files", sizes=Sizes.ONCE, uncleared=True)

#: for how long somebody else may have a hold of a folio
_SECONDS = 30.0

case = partial(file_case, SPARSE)


@case(
    "a read, whichever call makes it, gives zeroes of holes, of what is allocated alone and of what a longer file has"
    " got, and what stands before and behind them, up to the end of the file",
    "read(2); splice(2); sendfile(2); copy_file_range(2); mm/shmem.c shmem_file_read_iter(), shmem_file_splice_read();"
    " mm/filemap.c filemap_read(), filemap_splice_read()",
)
def read_over_holes(live: Live, file: KnownFile) -> None:
    base = live.base_page
    _leave_holes(live, file, file.contents.length)
    ends = _ends(file)
    for read in READS:
        for number, end in enumerate(ends):
            # within one page each time, and in turn some that go on for longer
            for first, length in ((end - WORD, 2 * WORD), (end - WORD * (number % 3), base + WORD * number)):
                with live.about(f"{length} bytes from {first} on, {read.__name__}"):
                    file.expect_read(read, first, length)
    file.expect("with holes")


@case(
    "a read, whichever call makes it, gives zeroes of holes and leaves them: a file has blocks then for what"
    " it holds alone, whether it is a hole from its start to its end or holds something, too",
    "stat(2) st_blocks; splice(2); sendfile(2); mm/shmem.c shmem_file_read_iter(), shmem_file_splice_read()",
    # on disks what was written before gets its blocks, or gives them back, at any time
    on=(TMPFS,),
)
def holes_that_are_read(live: Live, file: KnownFile) -> None:
    base, block, whole = live.base_page, block_size(live), file.contents.length
    shown = HugeFile(live, file.actor, file.descriptor)

    def leave_holes(state: str) -> int:
        """Have all holes be without blocks once more, and return how many bytes there are blocks for."""
        if state == "with holes":
            _leave_holes(live, file, whole)
        else:
            file.truncate(0)
            file.truncate(whole)
        return shown.blocks

    for state, read in product(("with holes", "a hole alone"), READS):
        # a folio that somebody has a hold of keeps its blocks until he has none
        leave = partial(leave_holes, state)
        found = live.host.last_look(leave, lambda blocks: blocks == _held(live, file), _SECONDS)
        with live.about(f"{state}, {read.__name__}"):
            live.expect("bytes that it has blocks for", _held(live, file), found)
            for end in sorted({*_ends(file), 0, block // 2, block, file.contents.length - base}):
                file.expect_read(read, max(0, end - base), 2 * base)
            live.expect("bytes that it has blocks for when it was read", _held(live, file), shown.blocks)


@case(
    "lseek(2) finds data and holes in turn up to the end of a file, which is a hole: no word that is not zero lies in a"
    " hole, no base page of a hole in data, and what is asked from within either, or behind the end, is told so",
    "lseek(2) SEEK_DATA, SEEK_HOLE; mm/filemap.c mapping_seek_hole_data(); mm/shmem.c shmem_file_llseek(); fs/iomap"
    "/seek.c iomap_seek_data()",
)
def found_data(live: Live, file: KnownFile) -> None:
    length = file.contents.length

    def pages_in_data() -> list[int]:
        _leave_holes(live, file, length)
        return _hole_pages_in(live, file, _data(live, file))

    # a folio of a tmpfs that somebody has a hold of cannot be split for a hole, and is data, until he has none
    left = live.host.last_look(pages_in_data, lambda found: not found, _SECONDS)
    live.expect("starts of base pages of holes that are found as data", [], left)
    whole = file.contents.length
    for state in ("in memory", "synced", "with data at its end"):
        if state == "with data at its end":
            file.write(whole - WORD, WORD)
        data = _data(live, file)
        with live.about(state):
            for start, length in _written(file):
                found = [each for each in data if each[0] <= start and start + length <= each[1]]
                live.expect(f"data with all of {length} bytes at {start}", 1, len(found))
            for start, end in data:
                for inner in (start, (start + end) // 2, end - 1):
                    _expect_found(live, file, inner, (inner, end))
            for (_start, end), (start, _end) in pairwise(data):
                for inner in (end, (start + end) // 2, start - 1):
                    _expect_found(live, file, inner, (start, inner))
            for behind in (whole, whole + 1, whole + live.base_page):
                _expect_found(live, file, behind, (-errno.ENXIO, -errno.ENXIO))
        file.evict()


#: what not each file system can do to a range
_NOT_EVERYWHERE = {"made zero", "taken out", "put in"}


@case(
    "what was written beside a range of a file, or stored there, and is on no disk yet, stays when the range becomes a"
    " hole or zero, is copied over, taken out or put in, or what begins there is cut off, once more as well: then"
    " folios begin and end where the range does",
    "fallocate(2); madvise(2) MADV_REMOVE; ftruncate(2); copy_file_range(2); mm/truncate.c"
    " truncate_inode_pages_range(), truncate_inode_partial_folio(); mm/shmem.c shmem_undo_range()",
    # the whole of it is written each time
    by=(Brought.WRITTEN,),
)
def beside_a_range(live: Live, file: KnownFile) -> None:
    base, block, whole = live.base_page, block_size(live), file.contents.length
    memory, other = file.map(), file.copy()
    other.write(0, whole)
    acts: dict[str, Callable[[int, int], None]] = {
        "a hole": file.punch,
        "MADV_REMOVE": partial(file.remove, memory),
        "made zero": file.zero,
        "taken out": file.take_out,
        "put in": file.put_in,
        "copied over": partial(_copy, live, other, file),
        "cut off": partial(_cut, file, whole),
    }
    places = (5 * base, 3 * base), (block - base, 2 * base), (block // 4, block // 4)
    for number, ((name, act), (first, length)) in enumerate(product(acts.items(), places)):
        is_stored = bool(number % 2)
        with live.about(f"{length} bytes at {first}, {name}, {'stored' if is_stored else 'written'} beside it"):
            file.truncate(whole)
            file.write(0, whole)
            if name not in _NOT_EVERYWHERE:
                act(first, length)
            elif not is_offered(act, first, length):
                continue
            file.expect_mapped(memory)
            # a folio with buffers that are dirty is not split (mm/huge_memory.c __folio_split() EBUSY)
            file.actor.call("fsync", file.descriptor)
            act(first, length)
            for start in (first - base, first + length):
                if is_stored:
                    file.store(memory, start, base)
                else:
                    file.write(start, base)
            act(first, length)
            file.expect("in the end")
    memory.unmap()


def _copy(live: Live, source: KnownFile, to: KnownFile, first: int, length: int) -> None:
    live.expect("bytes copied", length, to.copy_from(source, first, first, length))
    to.replace(first, source.contents.between(first, first + length))


def _cut(file: KnownFile, whole: int, first: int, _length: int) -> None:
    file.truncate(first)
    file.truncate(whole)


def _expect_found(live: Live, file: KnownFile, start: int, expected: tuple[int, int]) -> None:
    found = _seek(file, start, os.SEEK_DATA), _seek(file, start, os.SEEK_HOLE)
    live.expect(f"data and a hole from {start} on", expected, found)


def _seek(file: KnownFile, start: int, whence: int) -> int:
    return file.actor.result("lseek", file.descriptor, start, whence)


def _data(live: Live, file: KnownFile) -> list[tuple[int, int]]:
    return data_of(live, file.actor, file.descriptor, file.contents.length)


def _written(file: KnownFile) -> Iterator[tuple[int, int]]:
    """Yield start and length of what is not zero."""
    start = 0
    for piece in file.contents.pieces:
        if piece.value is not None:
            yield start, piece.length
        start += piece.length


def _held(live: Live, file: KnownFile) -> int:
    """Return the bytes of the base pages that have anything that is not zero."""
    base = live.base_page
    return base * len(
        {page for start, length in _written(file) for page in range(start // base, -(-(start + length) // base))}
    )


def _hole_pages_in(live: Live, file: KnownFile, data: Sequence[tuple[int, int]]) -> list[int]:
    """Return the starts of the whole base pages of holes of which ``data`` has any byte."""
    base, start, found = live.base_page, 0, list[int]()
    for piece in file.contents.pieces:
        if piece.value is None:
            pages = range(-(-start // base) * base, (start + piece.length) // base * base, base)
            found += (page for page in pages if any(first < page + base and page < end for first, end in data))
        start += piece.length
    return found


def _leave_holes(live: Live, file: KnownFile, whole: int) -> None:
    """Have a file of which ``whole`` bytes were written be sparse; once more, it is so as before.

    It has holes of and in base pages, and over the end of a huge page.
    """
    base, block = live.base_page, block_size(live)
    for first, length in (
        (3 * base, 2 * base),
        (7 * base, base),
        (block // 2 + WORD, base),
        (block - base, 2 * base),
        (block + 5 * base - WORD, 3 * base),
    ):
        file.punch(first, length)
    file.truncate(whole - 3 * base)
    file.truncate(whole + base // 2)


def _ends(file: KnownFile) -> list[int]:
    """Return where a file begins to hold something else, and its last word."""
    starts = accumulate(piece.length for piece in file.contents.pieces)
    return [start for start in starts if start < file.contents.length] + [file.contents.length - WORD]


class ThpSparseFiles(LiveTest):
    def test_sparse_files(self) -> None:
        self.run_area(SPARSE)
