"""Files in large folios that are written by other calls than write(2), or by parts of them: what they hold then."""

import errno
import mmap
import os
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.expected_contents import Piece
from hugepage_qa.cases.file_contents import TMPFS, KnownFile
from hugepage_qa.cases.file_transfers import WRITES
from hugepage_qa.cases.hugetlb_files import open_file
from hugepage_qa.cases.large_folios import DISKS, block_size, file_case
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import WORD
from hugepage_qa.plugins.avocado_test import LiveTest

WRITTEN = Area("files/written-otherwise", sizes=Sizes.ONCE, uncleared=True)

case = partial(file_case, WRITTEN)
#: of what is written from where memory ends: more than what a file holds otherwise
_FROM_THE_END = 1 << 52


@case(
    "what is written past the page cache takes the place of what a mapping has, though it was dirty there, and nothing"
    " beside it changes; what is read past it is what was stored",
    "open(2) O_DIRECT; mm/filemap.c kiocb_invalidate_pages(), kiocb_write_and_wait(); mm/truncate.c"
    " invalidate_inode_pages2_range()",
    on=DISKS,
)
def past_the_cache(live: Live, file: KnownFile) -> None:
    base, block, whole = live.base_page, block_size(live), file.contents.length
    memory = file.map()
    direct = open_file(live, file.path, file.actor, os.O_RDWR | live.host.uapi.o_direct)
    least = direct.direct_alignment

    def write(_file: KnownFile, address: int, first: int, length: int) -> int:
        return file.actor.call("pwrite64", direct.descriptor, address, length, first)

    def read(_file: KnownFile, address: int, first: int, length: int) -> int:
        return file.actor.call("pread64", direct.descriptor, address, length, first)

    for first, length in (
        (base, base),
        (5 * base - least, 2 * least),
        (block // 2, 3 * base),
        (block - base, 2 * base),
        (0, base),
        (whole - base, base),
        (0, whole),
        (whole, base),
    ):
        with live.about(f"{length} bytes at {first}"):
            start, end = max(first - base // 2, 0), min(first + length + base // 2, whole)
            file.store(memory, start, end - start)
            file.expect_read(read, start // base * base, base)
            file.store(memory, start, end - start)
            file.write_by(write, first, length)
            file.expect_mapped(memory)
    file.expect("written past the page cache")


@case(
    "what copy_file_range(2) puts into a file, from another one or from elsewhere in it, takes the place of what stood"
    " there, mapped and dirty, and of nothing beside it; ranges of a file that overlap are EINVAL and change nothing",
    "copy_file_range(2); fs/read_write.c generic_copy_file_checks(); fs/remap_range.c",
)
def copied_over(live: Live, file: KnownFile) -> None:
    base, block, whole = live.base_page, block_size(live), file.contents.length
    memory, other = file.map(), file.copy()
    other.write(0, whole)
    for source, (start, to, length) in product(
        (other, file),
        (
            (0, 8 * base, 4 * base),
            (block // 2, base, base),
            (base, block - base, 2 * base),
            (base + 8, 16 * base + 24, base),
            (3 * base, block // 2 - 8, 16),
            (0, whole - base, 3 * base // 2),
        ),
    ):
        with live.about(f"{length} bytes from {start} to {to}, of the same file {source is file}"):
            file.store(memory, to - 8, 16)
            pieces = source.contents.between(start, start + length)
            live.expect("bytes copied", length, file.copy_from(source, start, to, length))
            file.replace(to, pieces)
            file.expect_mapped(memory)
            file.store(memory, to, 8)
            file.truncate(whole)
    for start, to in ((0, base), (base, 0), (8, 16), (block // 2, block // 2)):
        live.expect_errno(errno.EINVAL, file.copy_from, file, start, to, 2 * base)
    file.expect("copied to")
    other.expect("copied from")


@case(
    "a write, whichever call makes it, puts what it was given where it begins, wherever in a folio or across two, in a"
    " hole or behind the end, and nothing else changes",
    "pwritev(2); splice(2); vmsplice(2); tee(2); sendfile(2); fs/splice.c iter_file_splice_write()",
)
def by_each_call(live: Live, file: KnownFile) -> None:
    base, block = live.base_page, block_size(live)
    lengths = 16, base, 2 * base + 16
    for write in WRITES:
        with live.about(write.__name__):
            file.punch(block // 2 - 2 * base, 8 * base)
            for first, length in zip((0, 3 * base + 8, block // 2 - 8), lengths, strict=True):
                file.write_by(write, first, length)
            for first, length in zip((5 * base + 8, block // 2 + 3 * base, block - 8), lengths, strict=True):
                file.write_by(write, first, length)
            file.write_by(write, file.contents.length - 8, base)
            file.expect("written")


@case(
    "a write from memory that ends within it is a short one: the file holds what was written, and what it held behind"
    " that, in a hole and behind the end, too; a read to such memory is a short one",
    "write(2); read(2); mm/filemap.c generic_perform_write(); fs/iomap/buffered-io.c iomap_write_end(); mm/shmem.c"
    " shmem_write_end()",
    # btrfs refuses it as a whole, and so do all file systems before fault_in_iov_iter_readable() of 5.16
    on=("ext4", "xfs", TMPFS),
    since="5.16",
)
def where_memory_ends(live: Live, file: KnownFile) -> None:
    base, block, actor = live.base_page, block_size(live), file.actor
    file.punch(block // 2 - 2 * base, 8 * base)
    buffer = actor.mmap(3 * base, READ_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    end = buffer + 2 * base
    actor.call("munmap", end, base)
    places = 8, 3 * base - 8, block // 2 - base, block // 2 - 8, block // 2 + base + 8, block - 8
    for at, left in product((*places, file.contents.length), (8, base // 2 + 8, base, 2 * base - 8)):
        first = min(at, file.contents.length)
        with live.about(f"{left} bytes of {left + base}, at {first}"):
            value = _FROM_THE_END + (first + left << 12)
            actor.fill(end - left, left, WORD, value)
            written = actor.call("pwrite64", file.descriptor, end - left, left + base, first)
            live.expect(f"bytes written are 1 to {left}: {written}", True, 0 < written <= left)
            # the rest of what could be read may have been copied, and nobody says so
            actor.call("pwrite64", file.descriptor, end - left, left, first)
            file.replace(first, [Piece(left, value)])
            actor.fill(end - left, left, WORD, 0)
            read = actor.call("pread64", file.descriptor, end - left, left + base, first)
            live.expect(f"bytes read are 1 to {left}: {read}", True, 0 < read <= left)
            wrong = actor.check(end - left, read // WORD * WORD, WORD, value)
            live.expect("words that were read otherwise", 0, wrong)
    for call in ("pwrite64", "pread64"):
        live.expect_errno(errno.EFAULT, actor.call, call, file.descriptor, end, base, 8)
    file.expect("written from where memory ends")


class ThpWrittenOtherwise(LiveTest):
    def test_written_otherwise(self) -> None:
        self.run_area(WRITTEN)
