"""Files of a tmpfs in swap: all of them, and none of it in memory."""

import os
from typing import NamedTuple

from hugepage_qa.cases.control_group import ControlGroup, Version, new_group
from hugepage_qa.cases.group_memory import actor_in, leave_memory
from hugepage_qa.cases.khugepaged_clock import let_rest
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.pages_in_memory import base_pages_in_memory
from hugepage_qa.cases.swapped import SwapDevice, swap_device
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.cases.thp_shared_memory import expect_shared, let_only_pmd_inherit, map_file, map_start, mount_tmpfs
from hugepage_qa.machine.host import CannotRun


def swapping_group(live: Live, pages: int) -> tuple[ControlGroup, SwapDevice]:
    """Return a group for who fills memory, and the device of ``pages`` huge pages that the machine swaps to.

    Raises CannotRun.
    """
    let_rest(live)
    device = swap_device(live, pages * pmd_size(live))
    let_only_pmd_inherit(live)
    return new_group(live, "memory", Version.TWO), device


class FileInSwap(NamedTuple):
    """A file as a process has it mapped, the descriptor that it has of it, and where its tmpfs is mounted."""

    memory: Memory
    descriptor: int
    point: str


def file_in_swap(live: Live, group: ControlGroup, huge: str, pages: int) -> FileInSwap:
    """Return a file of a tmpfs of its own, which a process that is in no group has mapped.

    ``group`` had it swapped out. Raises CannotRun.
    """
    point = mount_tmpfs(live, huge)
    path = f"{point}/file"
    writer, reader = actor_in(live, group), live.actor()
    written = map_start(live, writer, live.open(writer, path, os.O_RDWR | os.O_CREAT), pages)
    expect_shared(live, written, huge == "always", f"huge={huge}")
    # to make a group leave memory has its processes swapped out, too, whose faults would be counted
    descriptor = live.open(reader, path, os.O_RDWR)
    memory = map_file(live, reader, descriptor, pages)

    def there() -> set[int]:
        leave_memory(live, written, group)
        return file_pages_in_memory(live, memory)

    if live.host.last_attempt(there, lambda found: not found):
        raise CannotRun("what was swapped out stays in memory")
    writer.end()
    return FileInSwap(memory, descriptor, point)


def file_pages_in_memory(live: Live, memory: Memory) -> set[int]:
    """Return which base pages of ``memory`` are in memory, mapped or not (mincore(2))."""
    return base_pages_in_memory(live, memory.actor, memory.address, range(memory.length // live.base_page))
