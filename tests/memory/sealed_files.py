"""Files of huge pages: how long calls, seals and mappings have them be, and the seals that they are made with."""

import errno
import fcntl
import mmap
import os
from itertools import product

from hugepage_qa.cases.case import Area
from hugepage_qa.cases.hugetlb_files import HugeFile, file_of_each_kind, new_memfd
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.sealed_sizes import SEALED_SIZES, SEALS, Change, changes, expect_sizes
from hugepage_qa.kernel.uapi import F_SEAL_EXEC, MFD_EXEC, MFD_NOEXEC_SEAL
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.plugins.avocado_test import LiveTest

SEALED_FILES = Area("memory/sealed-files")
#: 1 and 2 have MFD_NOEXEC_SEAL be meant where nothing is said, 2 refuses all else
_NO_EXEC = "proc/sys/vm/memfd_noexec"
#: flags of memfd_create(2), the mode and the seals of a file that is made with them
_MADE_WITH = (
    (MFD_EXEC, 0o777, fcntl.F_SEAL_SEAL),
    (MFD_EXEC | os.MFD_ALLOW_SEALING, 0o777, 0),
    (MFD_NOEXEC_SEAL, 0o666, F_SEAL_EXEC),
    (MFD_NOEXEC_SEAL | os.MFD_ALLOW_SEALING, 0o666, F_SEAL_EXEC),
    (MFD_NOEXEC_SEAL | os.MFD_CLOEXEC, 0o666, F_SEAL_EXEC),
)
SOURCE = f"{SEALED_SIZES}; fs/hugetlbfs/inode.c hugetlbfs_setattr(), hugetlbfs_fallocate(), hugetlbfs_punch_hole()"


@SEALED_FILES.case(
    "a file that fallocate(2) ends within a page is made longer and shorter, to the byte, where no seal forbids it, and"
    " is as long as before where one does or FALLOC_FL_KEEP_SIZE is given, also within its last page; a seal against"
    " writes refuses holes",
    SOURCE,
    since="5.13",  # F_SEAL_FUTURE_WRITE
    pages=2,
)
def sealed(live: Live) -> None:
    # gigantic pages take seconds each
    kinds = ((live.base_page,), (0, fcntl.F_SEAL_GROW)) if live.is_gigantic else (_lengths(live), SEALS)
    for length, seals in product(*kinds):
        file = new_memfd(live, flags=os.MFD_ALLOW_SEALING)
        Change("fallocate", 0, length).act(file)
        live.expect_pool(nr=2, free=2 - -(-length // live.size))
        expect_sizes(live, file, seals, _changes(live, length))
        file.actor.end()
        live.expect_pool(nr=2, free=2)


@SEALED_FILES.case(
    "a file of hugetlbfs, as one without a name, is as long as ftruncate(2) and fallocate(2) make it, to the byte, and"
    " no longer where FALLOC_FL_KEEP_SIZE is given",
    SOURCE,
    pages=2,
)
def lengths(live: Live) -> None:
    for length in (live.base_page,) if live.is_gigantic else _lengths(live):
        for file in file_of_each_kind(live):
            Change("fallocate", 0, length).act(file)
            expect_sizes(live, file, 0, _changes(live, length))
            file.truncate(0)
            live.expect_pool(nr=2, free=2)


@SEALED_FILES.case(
    "a shared mapping that may write has the file be as long as offset and length together, where it was shorter, and"
    " no other one changes how long it is, nor does munmap(2)",
    "fs/hugetlbfs/inode.c hugetlbfs_file_mmap()",
)
def lengths_by_mappings(live: Live) -> None:
    wrong = list[str]()
    # without a reservation: no page of a pool is needed
    for long, first, pages in product((0, 1, 3), (0, 2, 5), (1, 2)):
        for file in file_of_each_kind(live):
            file.truncate(long)
            for prot, shared in ((0, True), (mmap.PROT_READ, True), (mmap.PROT_READ, False), (READ_WRITE, True)):
                length = live.size * (max(long, first + pages) if prot == READ_WRITE else long)
                memory = file.map(pages, first=first, prot=prot, shared=shared, noreserve=True)
                mapped = file.size
                memory.unmap()
                left = file.size
                if (mapped, left) != (length, length):
                    what = f"{pages} pages from {first} on of {long}, protection {prot}, shared {shared}"
                    wrong.append(f"{what}: {mapped / live.size} pages long, then {left / live.size}")
            file.actor.end()
    live.expect("mappings that have a file be of another length", [], wrong)
    live.expect_pool(nr=0, free=0)


@SEALED_FILES.case(
    "MFD_NOEXEC_SEAL makes a file that has no x bits and F_SEAL_EXEC, and takes further seals, MFD_EXEC one with x bits"
    " and without that seal, in huge pages or not, and both at once are refused",
    "Documentation/userspace-api/mfd_noexec.rst; memfd_create(2) MFD_NOEXEC_SEAL, MFD_EXEC; mm/memfd.c (105ff5339f49)",
    since="6.3",
)
def made_against_executing(live: Live) -> None:
    if (live.host.read(_NO_EXEC) or "0").strip() == "2":
        raise CannotRun(f"/{_NO_EXEC} refuses files that can be executed")
    actor = live.actor()
    for huge, (flags, mode, seals) in product((os.MFD_HUGETLB | live.size_flag, 0), _MADE_WITH):
        with live.about(f"memfd_create(2) with flags {huge | flags:#x}"):
            file = HugeFile(live, actor, actor.call("memfd_create", "hugepage-qa", huge | flags))
            live.expect("mode and seals", (oct(mode), hex(seals)), (oct(file.mode), hex(file.seals)))
            if seals & fcntl.F_SEAL_SEAL:
                live.expect_errno(errno.EPERM, file.seal, fcntl.F_SEAL_GROW)
            else:
                live.expect_success(file.seal, fcntl.F_SEAL_GROW)
                live.expect("seals with F_SEAL_GROW", hex(seals | fcntl.F_SEAL_GROW), hex(file.seals))
                live.expect_errno(errno.EPERM, file.truncate, 1)
            file.close()
    for huge in (os.MFD_HUGETLB | live.size_flag, 0):
        live.expect_errno(errno.EINVAL, actor.call, "memfd_create", "hugepage-qa", huge | MFD_EXEC | MFD_NOEXEC_SEAL)


def _lengths(live: Live) -> tuple[int, ...]:
    return 1, live.base_page, live.size - 1, live.size, live.size + 1


def _changes(live: Live, length: int) -> tuple[Change, ...]:
    size = live.size
    # within the two pages that there are
    ends = {end for end in (length - 1, length + 1, length + live.base_page, size, size + 1, 2 * size) if end > 0}
    if live.is_gigantic:
        ends = {end for end in ends if end <= size}
    return changes(length, ends, {0, size, 2 * size}, (0, size))


class SealedFiles(LiveTest):
    def test_sealed_files(self) -> None:
        self.run_area(SEALED_FILES)
