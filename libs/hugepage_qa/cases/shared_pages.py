"""Shared memory in PMD-sized pages, files of a tmpfs among it: what gives them, and that memory is in them."""

from hugepage_qa.cases.fragmentation import expect_no_node_short, tell, with_blocks
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.thp_memory import keep_min_free, map_start_of_file, pmd_size
from hugepage_qa.kernel.smaps import MemoryMapping
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.tree import size_directories, size_name
from hugepage_qa.machine.host import CannotRun


def let_only_pmd_inherit(live: Live) -> None:
    """Have shmem_enabled, "never" for now, and mounts decide for PMD-sized pages alone, until the case ends.

    Raises CannotRun on a kernel without shared memory in huge pages.
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


def expect_shared(live: Live, memory: Memory, huge: bool, where: str) -> None:
    """Expect shared ``memory`` to get PMD-sized pages when it is filled, or none of them.

    Raises CannotRun where memory is too fragmented for them.
    """
    now = with_blocks(live, memory.size, memory.pages if huge else 0)
    tell(live, now)
    memory.fill()
    mapping = expect_mapped_whole(live, memory, memory.pages if huge else 0, f"{where} ({now})")
    live.expect(f"AnonHugePages, {where}", 0, mapping.anon_huge_pages)
    memory.expect_filled()


def expect_mapped_whole(live: Live, memory: Memory, pages: int, where: str = "huge=always") -> MemoryMapping:
    """Expect ``pages`` of a shared mapping to be mapped whole, and return what smaps shows of it.

    Raises CannotRun where memory is too fragmented for them.
    """
    mapping = memory.smaps()
    if pages and mapping.shmem_pmd_mapped != pages * memory.size:
        expect_no_node_short(live, memory.size, pages)
    live.expect(f"ShmemPmdMapped, {where}", pages * memory.size, mapping.shmem_pmd_mapped)
    return mapping


def filled_file(live: Live, path: str, pages: int) -> Memory:
    """Map a new file of a tmpfs with huge=always and fill it, in huge pages. Raises CannotRun as above."""
    memory = map_start_of_file(live, path, pages)
    expect_shared(live, memory, True, "huge=always")
    return memory
