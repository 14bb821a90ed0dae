"""Shared memory that may get transparent huge pages: anonymous, and files of a tmpfs with huge= among it."""

import mmap
import os

from hugepage_qa.cases.fragmentation import expect_no_node_short, tell, with_blocks
from hugepage_qa.cases.hugetlb_files import HugeFile, open_file
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.thp_memory import keep_min_free, map_aligned, need_folios_of, pmd_size, room_for
from hugepage_qa.kernel.smaps import MemoryMapping
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.tree import size_directories, size_name
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE, MAP_FIXED, MS_REMOUNT
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.process.actor import Actor
from hugepage_qa.version import KernelVersion

#: in do_set_pmd(): the kernels in between want it to be the first one that is touched
_FIRST_PART_SINCE, _ANY_PART_AGAIN_SINCE = KernelVersion(6, 8), KernelVersion(6, 10)
_SIZED_BY_WRITES, _SIZED_NO_MORE = KernelVersion(6, 14), KernelVersion(6, 17)


def let_only_pmd_inherit(live: Live, *, is_used: bool = True) -> None:
    """Have shmem_enabled, "never" for now, and mounts decide for PMD-sized pages alone, until the case ends.

    Raises CannotRun on a kernel without shared memory in huge pages, and where PMD-sized ones are too large for it,
    unless the case uses other sizes, or none.
    """
    keep_min_free(live)
    live.set_knob(f"{DIRECTORY}/enabled", "madvise")
    if live.host.read(f"{DIRECTORY}/shmem_enabled") is None:
        raise CannotRun("this kernel has no shared memory in huge pages")
    live.set_knob(f"{DIRECTORY}/shmem_enabled", "never")
    ours = f"{DIRECTORY}/{size_name(pmd_size(live))}"
    for path in size_directories(live.host, DIRECTORY).values():
        if live.host.read(f"{path}/shmem_enabled") is not None:  # since Linux 6.11
            live.set_knob(f"{path}/shmem_enabled", "inherit" if path == ours else "never")
    if is_used:
        need_folios_of(live, pmd_size(live))


def expect_shared(live: Live, memory: Memory, huge: bool, where: str) -> None:
    """Expect shared ``memory`` to get PMD-sized pages when it is filled, or none of them.

    Raises CannotRun where memory is too fragmented for them, or they are too large for shared memory.
    """
    now = with_blocks(live, memory.size, memory.pages if huge else 0)
    tell(live, now)
    memory.fill()
    mapping = expect_mapped_whole(live, memory, memory.pages if huge else 0, f"{where} ({now})")
    live.expect(f"AnonHugePages, {where}", 0, mapping.anon_huge_pages)
    memory.expect_filled()


def expect_mapped_whole(live: Live, memory: Memory, pages: int, where: str = "huge=always") -> MemoryMapping:
    """Expect ``pages`` of a shared mapping to be mapped whole, and return what smaps shows of it.

    Raises CannotRun where memory is too fragmented for them, or they are too large for shared memory.
    """
    mapping = memory.smaps()
    if pages and mapping.shmem_pmd_mapped != pages * memory.size:
        need_folios_of(live, memory.size)
        expect_no_node_short(live, memory.size, pages)
    live.expect(f"ShmemPmdMapped, {where}", pages * memory.size, mapping.shmem_pmd_mapped)
    return mapping


def is_whole_by_any_part(live: Live) -> bool:
    """Tell whether a huge page of shared memory is mapped whole by whichever of its base pages is touched first."""
    return not _FIRST_PART_SINCE <= live.kernel_version < _ANY_PART_AGAIN_SINCE


def need_any_part(live: Live) -> None:
    """Raise CannotRun where ``is_whole_by_any_part`` says no."""
    if not is_whole_by_any_part(live):
        raise CannotRun(
            "this kernel maps shared memory whole where the first base page of a huge page is touched alone"
        )


def expect_blocks(live: Live, file: HugeFile, expected: int, subject: str = "st_blocks") -> None:
    """Expect a file of a tmpfs, which was to get a huge page, to take so many bytes.

    Raises CannotRun where memory is too fragmented for the page, or it is too large for shared memory.
    """
    found = file.blocks
    if found != expected:
        need_folios_of(live, pmd_size(live))
        expect_no_node_short(live, pmd_size(live), 1)
    live.expect(subject, expected, found)


def map_filled_file(live: Live, point: str, huge: str, pages: int) -> tuple[HugeFile, Memory]:
    """Map a new file of the tmpfs at ``point``, which has ``huge``, and fill it. Raises as ``expect_shared`` does."""
    file = open_file(live, f"{point}/file")
    memory = map_start(live, file.actor, file.descriptor, pages)
    expect_shared(live, memory, huge == "always", f"huge={huge}")
    return file, memory


def shared_huge_pages(live: Live, pages: int = 1) -> Memory:
    """Return anonymous shared memory that was filled, and is in huge pages. Raises as ``expect_shared`` does."""
    live.set_knob(f"{DIRECTORY}/shmem_enabled", "always")
    memory = map_aligned(live, pages, pmd_size(live), shared=True)
    expect_shared(live, memory, True, "shmem_enabled=always")
    return memory


def shared_base_pages(live: Live, pages: int = 1) -> Memory:
    """Return anonymous shared memory that was filled, and has no huge pages."""
    live.set_knob(f"{DIRECTORY}/shmem_enabled", "never")
    memory = map_aligned(live, pages, pmd_size(live), shared=True)
    memory.fill()
    return memory


def advised_shared_memory(live: Live, pages: int) -> Memory:
    """Map anonymous shared memory that was advised, and gets huge pages for it alone, until the case ends.

    Raises CannotRun on a kernel without shared memory in huge pages.
    """
    let_only_pmd_inherit(live)
    live.set_knob(f"{DIRECTORY}/shmem_enabled", "advise")
    return map_aligned(live, pages, pmd_size(live), shared=True, advice=MADV_HUGEPAGE)


def mount_tmpfs(live: Live, huge: str) -> str:
    """Mount a tmpfs with option huge= until the case ends, and return where. Raises Refused."""
    return live.mount_other(f"huge={huge},mode=0700", "tmpfs")


def nameless_file(live: Live, actor: Actor, huge: str) -> int:
    """Open a file without a name on a new tmpfs with option huge=: it is gone with its actor. Raises Refused."""
    return live.open(actor, mount_tmpfs(live, huge), os.O_RDWR | live.host.uapi.o_tmpfile)


def remount_tmpfs(actor: Actor, point: str, options: str) -> None:
    """Give the tmpfs at ``point`` other options (mount(2) MS_REMOUNT). Raises Refused."""
    actor.call("mount", "none", point, "tmpfs", MS_REMOUNT, options)


def has_huge_pages_for_words(live: Live) -> bool:
    """Tell whether write(2) and fallocate(2) of a few bytes bring a huge page to a tmpfs with huge=always.

    Since acd7ccb284b8 a folio was no larger than what is written, until that was taken back.
    """
    return not _SIZED_BY_WRITES <= live.kernel_version < _SIZED_NO_MORE


def expect_huge_page_for_words(live: Live, actor: Actor, descriptor: int) -> None:
    """Expect a few bytes to have brought a huge page to a file of a tmpfs with huge=always, where the kernel does so.

    Raises as ``expect_blocks`` does.
    """
    if has_huge_pages_for_words(live):
        expect_blocks(live, HugeFile(live, actor, descriptor), pmd_size(live))


def need_huge_pages_for_words(live: Live) -> None:
    """Raise CannotRun where ``has_huge_pages_for_words`` says that there are none."""
    if not has_huge_pages_for_words(live):
        raise CannotRun("folios of a tmpfs are no larger than what is written to it, in Linux 6.14 to 6.16")


def filled_file(live: Live, path: str, pages: int) -> Memory:
    """Map a new file of a tmpfs with huge=always and fill it, in huge pages. Raises as ``expect_shared`` does."""
    memory = map_start_of_file(live, path, pages)
    expect_shared(live, memory, True, "huge=always")
    return memory


def map_start_of_file(live: Live, path: str, pages: int = 1, length: int | None = None) -> Memory:
    """Map the first PMD-sized pages of a new file where huge pages fit; it has ``length`` bytes, or what is mapped."""
    actor = live.actor()
    return map_start(live, actor, live.open(actor, path, os.O_RDWR | os.O_CREAT), pages, length)


def map_start(live: Live, actor: Actor, descriptor: int, pages: int = 1, length: int | None = None) -> Memory:
    """Map the first PMD-sized pages of an open file, as ``map_start_of_file`` does."""
    actor.call("ftruncate", descriptor, length or pages * pmd_size(live))
    return map_file(live, actor, descriptor, pages)


def map_file(live: Live, actor: Actor, descriptor: int, pages: int, *, shared: bool = True) -> Memory:
    """Map the first ``pages`` PMD-sized pages of an open file where huge pages fit, whatever its length is."""
    size = pmd_size(live)
    address = room_for(actor, pages, size)
    kind = mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE
    actor.mmap(pages * size, READ_WRITE, kind | MAP_FIXED, descriptor, address=address)
    return Memory(live, actor, address, pages, size)
