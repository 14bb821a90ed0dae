"""Hugetlb pages, and their places in files, that the memory controller charges: had, not had, and moved."""

import errno
import signal
import stat
from collections.abc import Mapping
from functools import partial

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.control_group import ControlGroup, Version, new_group
from hugepage_qa.cases.group_memory import expect_killed
from hugepage_qa.cases.group_statistics import ADDED_UP_SECONDS, expect_statistics, read_statistics
from hugepage_qa.cases.hugetlb_accounting import (
    ACCOUNTING,
    accounted_group,
    mount_options,
    mount_with_accounting,
    need_small_charges,
)
from hugepage_qa.cases.hugetlb_files import HugeFile, new_memfd, open_again, open_directory
from hugepage_qa.cases.hugetlb_group import V2_DOC, HugetlbGroup, charged_page_that_moved
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.memory_policy import MOVE_STRICTLY, bind, move_page
from hugepage_qa.cases.thp_memory import room_for
from hugepage_qa.kernel.tree import parse_integer
from hugepage_qa.kernel.uapi import AT_REMOVEDIR, MADV_POPULATE_WRITE, MAP_FIXED
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.plugins.avocado_test import LiveTest

BY_MEMORY = Area("cgroup/charged-by-memory")

_TWO = 2
#: more than what a group is charged for besides could hide
_MISSED = 4
#: files, and less than the bytes that the kernel has of each (struct inode), which an entry of a directory is not of
_FILES, _INODE = 256, 400
#: bytes: a page so far behind another one takes memory for its place in a file (struct xa_node)
_FAR = 1 << 50


@BY_MEMORY.case(
    "hugetlb pages count for memory.current where the hierarchy is mounted with memory_hugetlb_accounting, else not",
    f"{V2_DOC} memory_hugetlb_accounting; mm/memcontrol.c mem_cgroup_charge_hugetlb()",
    pages=2,
)
def memory_counts_hugetlb_pages_if_mounted_so(live: Live) -> None:
    _expect_accounted(live, is_accounted=any(ACCOUNTING in words for words in mount_options(live)))


@BY_MEMORY.case(
    "hugetlb pages count for memory.current after the hierarchy was mounted with memory_hugetlb_accounting",
    f"{V2_DOC} memory_hugetlb_accounting; kernel/cgroup/cgroup.c apply_cgroup_root_flags()",
    since="6.7",
    pages=2,
)
def memory_counts_hugetlb_pages_when_mounted_so(live: Live) -> None:
    mount_with_accounting(live)
    live.expect("mounts without the option", [], [words for words in mount_options(live) if ACCOUNTING not in words])
    _expect_accounted(live, is_accounted=True)


def _expect_accounted(live: Live, *, is_accounted: bool) -> None:
    need_small_charges(live)
    group = new_group(live, "memory", Version.TWO)
    actor = group.actor()
    memory = live.map(2, actor)
    before = _memory_current(group)
    memory.touch(0)
    memory.touch(1)
    # page tables and the like are charged and given back, too, but are much less than half of a page
    found = round((_memory_current(group) - before) / live.size)
    live.expect("pages in memory.current", 2 if is_accounted else 0, found)
    memory.unmap()
    live.expect("pages in memory.current", 0, round((_memory_current(group) - before) / live.size))


@BY_MEMORY.case(
    "who finds the pool empty is charged nothing in memory.current for the pages that it did not get, touched or asked"
    " for, where the hierarchy is mounted with memory_hugetlb_accounting",
    f"{V2_DOC} memory_hugetlb_accounting; mm/hugetlb.c alloc_hugetlb_folio()",
    since="6.7",
    sizes=Sizes.BUDDY,
)
def memory_counts_no_page_that_was_not_had(live: Live) -> None:
    need_small_charges(live)
    mount_with_accounting(live)
    group = new_group(live, "memory", Version.TWO)
    for shared in (False, True):
        actor = group.actor()
        memory = live.map(_MISSED, actor, noreserve=True, shared=shared)
        before = _memory_current(group)
        for page in range(_MISSED):
            live.expect_signal(signal.SIGBUS, memory.touch, page)
            live.expect_errno(errno.EFAULT, memory.advise, MADV_POPULATE_WRITE, page, 1)
        found = round((_memory_current(group) - before) / live.size)
        live.expect(f"pages in memory.current, shared {shared}", 0, found)
        actor.end()


@BY_MEMORY.case(
    "a page that moves to another node counts for memory.current as before, until it is given back, where the hierarchy"
    " is mounted with memory_hugetlb_accounting",
    f"{V2_DOC} memory_hugetlb_accounting; mm/memcontrol.c mem_cgroup_migrate(); mm/hugetlb.c move_hugetlb_state()",
    since="6.7",
)
def memory_counts_a_page_that_moves(live: Live) -> None:
    group = accounted_group(live)
    memory, _there = charged_page_that_moved(live, group)
    live.expect("pages in memory.current", 1, round(_memory_current(group.group) / live.size))
    memory.unmap()
    live.expect("pages in memory.current", 0, round(_memory_current(group.group) / live.size))


@BY_MEMORY.case(
    "hugetlb in memory.numa_stat of a group, and of the one above it, has pages that move to another node and back on"
    " the node that each is on, and none when they are given back, and memory.stat has as many as before, where the"
    " hierarchy is mounted with memory_hugetlb_accounting",
    f"{V2_DOC} memory.stat hugetlb, memory.numa_stat; mm/hugetlb.c move_hugetlb_lruvec_stat()",
    since="7.3",  # before, a page that moved was told on the node where it had been
    nodes=2,
    sizes=Sizes.BUDDY,
)
def memory_shows_pages_that_move_on_their_nodes(live: Live) -> None:
    above = accounted_group(live)
    group = above.child("below")
    for node in live.nodes:
        live.reserve(_TWO, node)
    here, there = live.nodes[:2]
    for shared in (False, True):
        with live.about(f"shared {shared}"):
            memory = live.map(_TWO, group.actor(), noreserve=True, shared=shared)
            bind(memory, [here])
            for page in range(_TWO):
                memory.touch(page)
            _expect_memory_on_nodes(live, (group, above), {here: 2, there: 0})
            live.expect("status of move_pages", there, move_page(memory, 1, there))
            _expect_memory_on_nodes(live, (group, above), {here: 1, there: 1})
            for node, other in ((there, here), (here, there)):
                bind(memory, [node], MOVE_STRICTLY)
                _expect_memory_on_nodes(live, (group, above), {node: 2, other: 0})
            memory.unmap()
            _expect_memory_on_nodes(live, (group, above), {here: 0, there: 0})


def _expect_memory_on_nodes(live: Live, groups: tuple[HugetlbGroup, ...], pages: Mapping[int, int]) -> None:
    """Expect as many hugetlb pages of each node in memory.numa_stat of ``groups``, and all of them in memory.stat."""
    for each in groups:
        on_nodes = {f"hugetlb N{node}": count * live.size for node, count in pages.items()}
        expect_statistics(live, each.group, on_nodes, "memory.numa_stat")
        expect_statistics(live, each.group, {"hugetlb": sum(pages.values()) * live.size})


@BY_MEMORY.case(
    "a page that is copied after fork() counts for memory.current beside the one that it is a copy of, whether the"
    " parent writes first, which has it reserved, or the child, and none when both are given back, where the hierarchy"
    " is mounted with memory_hugetlb_accounting",
    f"{V2_DOC} memory_hugetlb_accounting; mm/hugetlb.c hugetlb_wp(), alloc_hugetlb_folio()",
    pages=2,
    since="6.7",
)
def memory_counts_copies(live: Live) -> None:
    group = accounted_group(live)
    for is_parent in (True, False):
        with live.about(f"the {'parent' if is_parent else 'child'} writes first"):
            memory = live.map(1)
            group.group.add(memory.actor)
            memory.touch()
            child = memory.fork()
            (memory if is_parent else child).touch(value=2)
            live.expect("pages in memory.current", 2, round(_memory_current(group.group) / live.size))
            child.actor.end()
            memory.unmap()
            live.expect_pool(nr=2, free=2)
            live.expect("pages in memory.current", 0, round(_memory_current(group.group) / live.size))
            memory.actor.end()


@BY_MEMORY.case(
    "a page for whose place in a file a group has no memory is in no file, allocated or touched, reserved or not: it is"
    " free, and reserved as before, when who asked for it was killed, and can be had",
    f"{V2_DOC} memory.max; mm/hugetlb.c hugetlb_add_to_page_cache(); mm/filemap.c __filemap_add_folio()",
    pages=2,
    since="5.14",
    sizes=Sizes.BUDDY,
)
def pages_that_the_file_has_no_place_for(live: Live) -> None:
    if any(ACCOUNTING in words for words in mount_options(live)):
        raise CannotRun("the page itself is charged, and refused before it is to be put into the file")
    _need_charged_kernel_memory(live)
    # 2 would end the machine
    live.set_knob("proc/sys/vm/panic_on_oom", "0")
    group = new_group(live, "memory", Version.TWO)
    group.write("memory.max", "0")
    for touched, reserved in ((False, False), (True, False), (True, True)):
        with live.about(f"{'touched' if touched else 'allocated'}, reserved {reserved}"):
            kept = new_memfd(live, pages=_FAR // live.size + 1)
            file = open_again(live, kept, live.actor())
            first, far = _first_and_far(live, file, reserved=reserved)
            # so that all else that the second one takes is there
            _ask_for(file, first, 0, touched=touched)
            live.expect_pool(nr=2, free=1, resv=int(reserved))
            expect_killed(live, group, partial(_ask_for, file, far, _FAR // live.size, touched=touched), file.actor)
            live.expect("bytes in the file", live.size, kept.blocks)
            live.expect_pool(nr=2, free=1, resv=int(reserved))
            kept.allocate(1, _FAR // live.size)
            live.expect_pool(nr=2, free=0)
            kept.close()
            live.expect_pool(nr=2, free=2)


def _first_and_far(live: Live, file: HugeFile, *, reserved: bool) -> tuple[Memory, Memory]:
    """Map the first page of ``file`` and one far behind it, side by side, so that one page table is for both."""
    room = room_for(file.actor, 1, 2 * live.size)
    first = file.map(1, noreserve=True, flags=MAP_FIXED, at=room)
    return first, file.map(1, first=_FAR // live.size, noreserve=not reserved, flags=MAP_FIXED, at=room + live.size)


def _ask_for(file: HugeFile, memory: Memory, page: int, *, touched: bool) -> None:
    """Have ``page`` of a file, which ``memory`` maps, by a touch of the kernel or by fallocate(2). Raises Refused."""
    if touched:
        memory.advise(MADV_POPULATE_WRITE)
    else:
        file.allocate(1, page)


@BY_MEMORY.case(
    "files and directories of a hugetlbfs, as those of a tmpfs, are charged to the group of who makes them, as memory"
    " of the kernel, until they are removed",
    f"{V2_DOC} memory.stat slab_unreclaimable; fs/hugetlbfs/inode.c init_hugetlbfs_fs(); mm/shmem.c"
    " shmem_init_inodecache()",
    sizes=Sizes.ONCE,
)
def files_without_pages(live: Live) -> None:
    _need_charged_kernel_memory(live)
    above = new_group(live, "memory", Version.TWO)
    for name, point in (("hugetlbfs", live.mount()), ("tmpfs", live.mount_other("", "tmpfs"))):
        group = above.child(name)
        actor = group.actor()
        directory = open_directory(live, actor, point).descriptor
        for make, words, flags in (("mknodat", (stat.S_IFREG | 0o600, 0), 0), ("mkdirat", (0o700,), AT_REMOVEDIR)):
            with live.about(f"{name}, {make}"):
                before = _kernel_memory(group)
                for number in range(_FILES):
                    actor.call(make, directory, f"{number}", *words)
                least = before + _FILES * _INODE
                found = live.host.last_look(partial(_kernel_memory, group), least.__le__, ADDED_UP_SECONDS)
                live.expect(f"{found} bytes of the kernel, {least} at least", True, found >= least)
                for number in range(_FILES):
                    actor.call("unlinkat", directory, f"{number}", flags)
                most = before + _FILES * _INODE // 2
                found = live.host.last_look(partial(_kernel_memory, group), most.__ge__, ADDED_UP_SECONDS)
                live.expect(f"{found} bytes when all are removed, {most} at most", True, found <= most)


def _kernel_memory(group: ControlGroup) -> int:
    return read_statistics(group)["slab_unreclaimable"]


def _need_charged_kernel_memory(live: Live) -> None:
    words = (live.host.read("proc/cmdline") or "").split()
    if any(word.startswith("cgroup.memory=") and "nokmem" in word for word in words):
        raise CannotRun("what a file needs beside its pages is not charged to groups (cgroup.memory=nokmem)")


def _memory_current(group: ControlGroup) -> int:
    return parse_integer(group.read("memory.current") or "", f"{group.path}/memory.current")


class ChargedByMemory(LiveTest):
    def test_charged_by_memory(self) -> None:
        self.run_area(BY_MEMORY)
