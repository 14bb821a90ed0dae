"""Memory control groups that have huge pages and files: processes in them, what they use, and their events."""

import mmap
import os
from collections.abc import Callable

from hugepage_qa.cases.control_group import CHARGED_AHEAD, ControlGroup, Version, new_group
from hugepage_qa.cases.group_statistics import read_statistics
from hugepage_qa.cases.hugetlb_files import HugeFile, open_file
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.memory_policy import keep_to_one_cpu
from hugepage_qa.cases.pages_in_memory import base_pages_in_memory
from hugepage_qa.cases.swapped import parts_out
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.cases.thp_policy import advised, fill_in_huge_pages
from hugepage_qa.kernel.smaps import read_smaps
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.process.actor import Actor
from hugepage_qa.process.actor_link import ActorGone

USED, IN_SWAP = "memory.current", "memory.swap.current"
#: what is given back in the background may take so long
_SECONDS = 120.0


def actor_in(live: Live, group: ControlGroup) -> Actor:
    """Return a process in ``group`` that keeps to one CPU."""
    actor = live.actor()
    keep_to_one_cpu(live, actor)
    group.add(actor)
    return actor


def swapping_groups(live: Live) -> tuple[ControlGroup, ControlGroup]:
    """Return a group that is charged for swap, and the one above it. Raises CannotRun where none is."""
    above = new_group(live, "memory", Version.TWO)
    group = above.child("below")
    if group.read(IN_SWAP) is None:
        raise CannotRun(f"groups have no {IN_SWAP}: this kernel has no CONFIG_SWAP, or swapaccount=0")
    return group, above


def file_on_a_disk(live: Live, length: int) -> HugeFile:
    """Return a file of words, 1 and 8 more from word to word, that is in no memory: who reads it is charged for it.

    Nobody's group had to look up its blocks. What a file system keeps of its disk in memory outlives the file, and
    would hold the group that it is charged to.
    """
    actor = live.actor()
    file = open_file(live, live.host.disk("ext4"), actor, live.host.uapi.o_tmpfile | os.O_RDWR)
    words = actor.mmap(length, READ_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    actor.fill(words, length, WORD, 1)
    live.expect("bytes written", length, actor.call("pwrite64", file.descriptor, words, length, 0))
    actor.call("munmap", words, length)
    actor.call("fsync", file.descriptor)
    actor.call("fadvise64", file.descriptor, 0, length, live.host.uapi.posix_fadv_dontneed)
    return file


def huge_pages_in(live: Live, group: ControlGroup, pages: int) -> Memory:
    """Return huge pages that a process in ``group`` has filled.

    Raises CannotRun where memory is too fragmented for them.
    """
    memory = advised(live, pages, actor=actor_in(live, group))
    fill_in_huge_pages(live, memory)
    memory.expect_huge()
    return memory


def events(group: ControlGroup, name: str) -> dict[str, int]:
    """Return the counts of a file of events, or of cgroup.stat, by name."""
    words = (line.split() for line in (group.read(name) or "").splitlines())
    return {event: int(count) for event, count in words}


def swap_of(live: Live, actor: Actor) -> int:
    """Return the bytes of a process that are in swap: others may have had more of it go there than was asked for."""
    return sum(mapping.fields.get("Swap", 0) for mapping in read_smaps(ObservedTree(live.host), actor.pid) or ())


def expect_killed(live: Live, group: ControlGroup, act: Callable[[], object], actor: Actor) -> None:
    """Have ``actor`` act in a group that must not use any memory, which is its end. Raises Failed where it is not."""
    before = events(group, "memory.events")["oom_kill"]
    group.add(actor)
    try:
        act()
    except ActorGone:
        live.expect("processes killed", before + 1, events(group, "memory.events")["oom_kill"])
    else:
        live.fail("what became of who asked", "killed", "it has what it asked for")


def give_what_is_in_swap(group: ControlGroup) -> None:
    """Have ``group``, of version 2, give what was written to swap: it lies in memory still until that is needed."""
    for limit in ("0", "max"):
        group.write("memory.high", limit)


def leave_memory(live: Live, memory: Memory, group: ControlGroup) -> None:
    """Have all of ``memory``, and what else ``group`` had written to swap, be in swap alone.

    Raises CannotRun where some of it stays.
    """
    pages = range(memory.length // live.base_page)

    def is_out() -> bool:
        mapped = sum(found.rss for found in memory.all_mappings())
        cached = read_statistics(group).get("swapcached")
        if cached is None:
            # before Linux 5.12 (b6038942480e); not for all: a process that is asked brings its own pages, and more
            cached = len(base_pages_in_memory(live, memory.actor, memory.address, pages))
        return mapped == 0 == cached

    def left() -> bool:
        parts_out(live, memory, [(0, memory.length)], is_out)
        give_what_is_in_swap(group)
        return is_out()

    if not live.host.last_look(left, bool):
        raise CannotRun("what was swapped out stays in memory")


def expect_all_there(live: Live, memory: Memory) -> None:
    """Expect all of ``memory`` to be mapped or in swap."""
    found = sum(mapping.rss + mapping.fields["Swap"] for mapping in memory.all_mappings())
    live.expect("bytes that are mapped or in swap", memory.length, found)


def has_exact_charges(live: Live) -> bool:
    """Tell whether no CPU may be charged for base pages that nobody has yet, as many as half a huge page."""
    return CHARGED_AHEAD * live.base_page < pmd_size(live) // 2


def need_exact_charges(live: Live) -> None:
    """Raise CannotRun where ``has_exact_charges`` says no."""
    if not has_exact_charges(live):
        raise CannotRun(f"a CPU may be charged for {CHARGED_AHEAD} base pages that nobody has: half a huge page")


def expect_about(live: Live, group: ControlGroup, name: str, pages: int) -> None:
    """Expect so many huge pages, as ``look_for_about`` counts them."""
    live.expect(f"huge pages in {name}", pages, look_for_about(live, group, name, pages))


def look_for_about(live: Live, group: ControlGroup, name: str, pages: int, seconds: float = _SECONDS) -> int:
    """Look until there are so many huge pages, and less than half of one besides, or not yet added up; return how many.

    A process has some other memory, and each CPU may keep some entries of swap that are free (mm/swap_slots.c).
    """

    def found() -> int:
        return (group.read_number(name) + pmd_size(live) // 2) // pmd_size(live)

    return live.host.last_look(found, lambda now: now == pages, seconds)


def wait_until_written(live: Live, group: ControlGroup) -> None:
    """Wait until nothing of a group is being written to swap: that is given back later, when somebody wants memory."""
    live.host.wait_until(lambda: not read_statistics(group).get("file_writeback"))
