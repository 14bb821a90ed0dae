"""memfd_create(2) with huge pages, and its seals."""

import errno
import fcntl
import mmap
import os
from contextlib import suppress

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.hugetlb_files import HugeFile, new_memfd, new_memfd_of_no_size, open_again, open_file
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.pinned_pages import pipe_with, word_from
from hugepage_qa.kernel.uapi import F_SEAL_EXEC, F_SEAL_FUTURE_WRITE, HUGE_SHIFT, MAP_HUGETLB
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Refused
from hugepage_qa.sizes import format_size

MEMFD = Area("memory/memfd")
_X_BITS = 0o111
#: NAME_MAX without "memfd:"
_LONGEST_NAME = 249
#: the last one below what encodes the page size
_UNKNOWN_FLAG = 1 << 25
_NO_EXEC = "proc/sys/vm/memfd_noexec"
CREATE = "memfd_create(2) MFD_HUGETLB; mm/memfd.c"
SEALS = "fcntl(2) File Sealing; fs/hugetlbfs/inode.c hugetlbfs_setattr(), hugetlbfs_fallocate(), hugetlbfs_punch_hole()"


def sealable(live: Live) -> HugeFile:
    """Return a file that takes seals."""
    return new_memfd(live, flags=os.MFD_ALLOW_SEALING)


def need_no_other_seals(live: Live) -> None:
    """Raise CannotRun where a file is sealed against execution if nothing else is asked for, and takes seals then."""
    if (live.host.read(_NO_EXEC) or "0").strip() != "0":
        raise CannotRun(f"/{_NO_EXEC} has all files without a name be sealed, and take seals")


@MEMFD.case("a new file has no pages and reserves none", CREATE, pages=1)
def new_file(live: Live) -> None:
    file = new_memfd(live)
    live.expect_pool(nr=1, free=1)
    live.expect("the size of the file", 0, file.size)
    memory = file.map(1)
    memory.touch()
    live.expect_pool(nr=1, free=0)
    memory.unmap()
    live.expect_pool(nr=1, free=0)
    file.close()
    live.expect_pool(nr=1, free=1)


@MEMFD.case(
    "MFD_HUGE_* makes a file of pages of that size, also where none can be had: its blocks and its mappings say so",
    f"{CREATE}; fs/hugetlbfs/inode.c hugetlbfs_statfs()",
)
def size_of_a_file_without_pages(live: Live) -> None:
    file = new_memfd(live)
    size = format_size(live.size)
    blocks = live.host.file_system(f"/proc/{file.actor.pid}/fd/{file.descriptor}").block_size
    live.expect(f"f_bsize of a file with MFD_HUGE_* of {size}", size, format_size(blocks))
    found = file.map(1, noreserve=True).smaps().kernel_page_size
    live.expect(f"KernelPageSize of a file with MFD_HUGE_* of {size}", size, format_size(found))
    live.expect_pool(nr=0, free=0)


@MEMFD.case("MFD_HUGETLB alone makes pages of the default size", CREATE, sizes=Sizes.DEFAULT, pages=1)
def file_of_the_default_size(live: Live) -> None:
    new_memfd_of_no_size(live).map(1).touch()
    live.expect_pool(nr=1, free=0)


@MEMFD.case(
    "MAP_HUGETLB of a file without huge pages is refused, of one with huge pages it maps these",
    "mmap(2) MAP_HUGETLB; mm/mmap.c ksys_mmap_pgoff()",
    pages=1,
)
def file_without_huge_pages(live: Live) -> None:
    actor = live.actor()
    small, flags = HugeFile(live, actor, actor.call("memfd_create", "hugepage-qa", 0)), MAP_HUGETLB | live.size_flag
    small.truncate(1)
    for shared in (False, True):
        live.expect_errno(errno.EINVAL, small.map, 1, shared=shared, flags=flags)
    memory = new_memfd(live, actor).map(1, flags=flags)
    memory.fill()
    live.expect_pool(nr=1, free=0)
    memory.expect_filled()


@MEMFD.case("a page size that the machine does not have is refused", CREATE, sizes=Sizes.DEFAULT)
def sizes_that_are_none(live: Live) -> None:
    actor = live.actor()
    for shift in range(1, 64):
        if 1 << shift not in live.sizes:
            flags = os.MFD_HUGETLB | shift << HUGE_SHIFT
            live.expect_errno(errno.ENODEV, actor.call, "memfd_create", "hugepage-qa", flags)


@MEMFD.case(
    "a file without MFD_ALLOW_SEALING has the one seal F_SEAL_SEAL and takes no others, and so have files of a mount,"
    " with a name or without",
    f"{SEALS}; hugetlbfs_get_inode()",
)
def sealed_against_seals(live: Live) -> None:
    need_no_other_seals(live)
    point = live.mount()
    without = new_memfd(live)
    named = open_file(live, f"{point}/file", without.actor)
    unnamed = open_file(live, point, without.actor, os.O_RDWR | live.host.uapi.o_tmpfile)
    for file in (without, named, unnamed):
        live.expect("seals", fcntl.F_SEAL_SEAL, file.seals)
        for added in (0, fcntl.F_SEAL_SHRINK, fcntl.F_SEAL_GROW, fcntl.F_SEAL_WRITE, fcntl.F_SEAL_SEAL):
            live.expect_errno(errno.EPERM, file.seal, added)
        live.expect("seals", fcntl.F_SEAL_SEAL, file.seals)


@MEMFD.case(
    "MFD_CLOEXEC alone makes a file that execve(2) closes, with MFD_ALLOW_SEALING or without, and its pages go; the"
    " others stay open and keep what they hold",
    f"{CREATE}; execve(2)",
    pages=4,
)
def closed_by_exec(live: Live) -> None:
    need_no_other_seals(live)
    actor = live.actor()
    wanted = (0, os.MFD_CLOEXEC, os.MFD_ALLOW_SEALING, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    files = [new_memfd(live, actor, flags) for flags in wanted]
    for file, flags in zip(files, wanted, strict=True):
        file.map(1).fill(flags)
        closes = actor.call("fcntl", file.descriptor, fcntl.F_GETFD) == fcntl.FD_CLOEXEC
        live.expect(f"whether execve(2) closes a file of {flags:#x}", bool(flags & os.MFD_CLOEXEC), closes)
        may_be_sealed = not file.seals & fcntl.F_SEAL_SEAL
        live.expect(f"whether a file of {flags:#x} takes seals", bool(flags & os.MFD_ALLOW_SEALING), may_be_sealed)
    live.expect_pool(nr=4, free=0)
    actor.exec()
    live.expect_pool(nr=4, free=2)
    for file, flags in zip(files, wanted, strict=True):
        if flags & os.MFD_CLOEXEC:
            live.expect_errno(errno.EBADF, file.map, 1)
        else:
            file.map(1).expect_filled(flags)
    live.expect_pool(nr=4, free=2)


@MEMFD.case(
    "a name of up to 249 bytes is what its mappings show; a longer one, one that cannot be read and flags that nobody"
    " knows are refused",
    f"{CREATE}: EINVAL, EFAULT",
)
def names(live: Live) -> None:
    actor, flags = live.actor(), os.MFD_HUGETLB | live.size_flag
    for length in (0, 1, _LONGEST_NAME):
        name = "n" * length
        file = HugeFile(live, actor, actor.call("memfd_create", name, flags))
        live.expect("path in smaps", f"/memfd:{name} (deleted)", file.map(1, noreserve=True).smaps().path)
    live.expect_errno(errno.EINVAL, actor.call, "memfd_create", "n" * (_LONGEST_NAME + 1), flags)
    live.expect_errno(errno.EINVAL, actor.call, "memfd_create", "n", flags | _UNKNOWN_FLAG)
    live.expect_errno(errno.EFAULT, actor.call, "memfd_create", 0, flags)
    live.expect_pool(nr=0, free=0)


@MEMFD.case("F_SEAL_SHRINK keeps every page", SEALS, pages=2)
def sealed_against_shrinking(live: Live) -> None:
    file = sealable(live)
    memory = file.map(2)
    memory.touch(1, 5)
    file.seal(fcntl.F_SEAL_SHRINK)
    live.expect_errno(errno.EPERM, file.truncate, 1)
    live.expect_pool(nr=2, free=1, resv=1)
    live.expect("what the page holds", 5, memory.read(1))
    file.truncate(3)
    live.expect("the size of the file", 3 * live.size, file.size)


@MEMFD.case("F_SEAL_GROW keeps the file from growing", SEALS, pages=2)
def sealed_against_growing(live: Live) -> None:
    file = sealable(live)
    file.truncate(1)
    file.seal(fcntl.F_SEAL_GROW)
    live.expect_errno(errno.EPERM, file.truncate, 2)
    live.expect_errno(errno.EPERM, file.allocate, 2)
    live.expect("the size of the file", live.size, file.size)
    live.expect_pool(nr=2, free=2)
    file.map(1).touch()
    live.expect_pool(nr=2, free=1)


@MEMFD.case("F_SEAL_GROW keeps the file from growing with its mappings, too", SEALS, pages=2)
def sealed_against_growing_mappings(live: Live) -> None:
    expect_no_growth(live, shared=True)


@MEMFD.case("F_SEAL_GROW keeps the file from growing with private mappings, which cannot write to it", SEALS, pages=2)
def sealed_against_growing_private_mappings(live: Live) -> None:
    expect_no_growth(live, shared=False)


def expect_no_growth(live: Live, *, shared: bool) -> None:
    """Expect a sealed file to stay as it is when more of it is mapped. Raises KnownBug."""
    file = sealable(live)
    file.truncate(1)
    file.seal(fcntl.F_SEAL_GROW)
    try:
        file.map(2, shared=shared)
    except OSError:
        live.expect_pool(nr=2, free=2)
    live.expect("the size of the file", live.size, file.size, {Quirk.SEAL_GROW_PASSED_OVER: 2 * live.size})


@MEMFD.case("F_SEAL_WRITE waits until no mapping writes, then there is none", SEALS, pages=1)
def sealed_against_writing(live: Live) -> None:
    file = sealable(live)
    memory = file.map(1)
    memory.touch(value=5)
    live.expect_errno(errno.EBUSY, file.seal, fcntl.F_SEAL_WRITE)
    memory.unmap()
    file.seal(fcntl.F_SEAL_WRITE)
    live.expect_errno(errno.EPERM, file.map, 1)
    live.expect_errno(errno.EPERM, file.punch, 1)
    live.expect("what a reader sees", 5, file.map(1, shared=False, prot=mmap.PROT_READ, noreserve=True).read())
    live.expect_pool(nr=1, free=0)


@MEMFD.case(
    "F_SEAL_WRITE is refused while a pipe has one of the pages, EBUSY, and given when it has none",
    f"{SEALS}; mm/memfd.c memfd_wait_for_pins()",
    pages=1,
)
def sealed_against_writing_of_others(live: Live) -> None:
    file = sealable(live)
    memory = file.map(1)
    memory.touch(value=5)
    reader = pipe_with(live, memory)
    memory.unmap()
    live.expect_errno(errno.EBUSY, file.seal, fcntl.F_SEAL_WRITE)
    live.expect("what came out of the pipe", 5, word_from(live, file.actor, reader))
    file.seal(fcntl.F_SEAL_WRITE)
    live.expect_errno(errno.EPERM, file.map, 1)
    live.expect_pool(nr=1, free=0)


@MEMFD.case(
    "F_SEAL_FUTURE_WRITE refuses mappings that write, and holes, and leaves those that write already alone",
    f"{SEALS}; hugetlbfs_file_mmap(): commit 22247efd822e",
    since="5.13",
    pages=1,
)
def sealed_against_future_writing(live: Live) -> None:
    file = sealable(live)
    memory = file.map(1)
    memory.touch(value=5)
    file.seal(F_SEAL_FUTURE_WRITE)
    live.expect_errno(errno.EPERM, file.map, 1)
    live.expect_errno(errno.EPERM, file.punch, 1)
    reader = file.map(1, prot=mmap.PROT_READ)
    live.expect_errno(errno.EACCES, reader.protect, READ_WRITE)
    memory.touch(value=6)
    live.expect("what a reader sees", 6, reader.read())
    live.expect_pool(nr=1, free=0)


@MEMFD.case("F_SEAL_SEAL is the last seal", SEALS, pages=1)
def sealed_against_more_seals(live: Live) -> None:
    file = sealable(live)
    file.seal(fcntl.F_SEAL_SEAL)
    live.expect_errno(errno.EPERM, file.seal, fcntl.F_SEAL_GROW)
    file.truncate(2)
    live.expect("the size of the file", 2 * live.size, file.size)


@MEMFD.case(
    "F_SEAL_EXEC keeps the x bits of the file's mode and no others, and with x bits seals what the file holds, too",
    "fcntl(2) F_SEAL_EXEC; mm/memfd.c memfd_add_seals() (6fd7353829ca)",
    since="6.3",
)
def sealed_against_executing(live: Live) -> None:
    need_no_other_seals(live)
    file = sealable(live)
    change_mode(file, 0o755)
    file.seal(F_SEAL_EXEC)
    whole = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_WRITE | F_SEAL_FUTURE_WRITE | F_SEAL_EXEC
    live.expect("seals of a file with x bits", hex(whole), hex(file.seals))
    live.expect_errno(errno.EPERM, file.truncate, 1)
    for before, after in ((0o644, 0o755), (0o644, 0o640), (0o755, 0o644), (0o755, 0o711), (0o755, 0o555)):
        file = sealable(live)
        change_mode(file, before)
        file.seal(F_SEAL_EXEC)
        with suppress(Refused):
            change_mode(file, after)
        if (before ^ after) & _X_BITS:
            live.expect("the mode", oct(before), oct(file.mode), {Quirk.SEAL_EXEC_PASSED_OVER: oct(after)})
        else:
            live.expect("the mode", oct(after), oct(file.mode))


def change_mode(file: HugeFile, mode: int) -> None:
    """Change the mode of a file (fchmod(2)). Raises Refused."""
    file.actor.call("fchmod", file.descriptor, mode)


@MEMFD.case(
    "seals are of the file: each process and each descriptor has all that any of them added, and is refused the same",
    SEALS,
    pages=2,
)
def sealed_by_others(live: Live) -> None:
    need_no_other_seals(live)
    file = sealable(live)
    file.truncate(2)
    again = HugeFile(live, file.actor, file.actor.call("dup", file.descriptor))
    child = HugeFile(live, file.actor.fork(), file.descriptor)
    other = open_again(live, file)
    memory = child.map(1)
    memory.touch()
    everybody = (file, again, child, other)
    expected = 0
    for one, added in zip(everybody, (0, fcntl.F_SEAL_GROW, fcntl.F_SEAL_SHRINK, F_SEAL_FUTURE_WRITE), strict=True):
        live.expect_errno(errno.EBUSY, one.seal, fcntl.F_SEAL_WRITE)
        one.seal(added)
        expected |= added
        live.expect("seals", len(everybody) * [expected], [each.seals for each in everybody])
    reader = open_again(live, file, flags=os.O_RDONLY)
    live.expect_errno(errno.EPERM, reader.seal, fcntl.F_SEAL_GROW)
    live.expect("seals, seen by who may only read", expected, reader.seals)
    for each in everybody:
        live.expect_errno(errno.EPERM, each.truncate, 1)
        live.expect_errno(errno.EPERM, each.truncate, 3)
        live.expect_errno(errno.EPERM, each.map, 1)
    memory.unmap()
    other.seal(fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL)
    for each in everybody:
        live.expect_errno(errno.EPERM, each.punch, 1)
        live.expect_errno(errno.EPERM, each.seal, fcntl.F_SEAL_GROW)
    live.expect("what a reader sees", 1, again.map(1, shared=False, prot=mmap.PROT_READ, noreserve=True).read())
    live.expect_pool(nr=2, free=1)


class Memfd(LiveTest):
    def test_memfd(self) -> None:
        self.run_area(MEMFD)
