"""Files of a tmpfs in huge pages that the limit of a control group refuses: what is had instead, and what it takes."""

import errno
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.changed_counters import read_counters
from hugepage_qa.cases.control_group import Version, new_group
from hugepage_qa.cases.fragmentation import expect_no_shortage, with_blocks
from hugepage_qa.cases.group_memory import need_exact_charges
from hugepage_qa.cases.hugetlb_files import HugeFile, open_file
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.madv_collapse import collapse_memory, expect_no_collapse
from hugepage_qa.cases.mapped_memory import WORD
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.cases.thp_shared_memory import (
    has_huge_pages_for_words,
    let_only_pmd_inherit,
    map_file,
    map_start,
    remount_tmpfs,
)
from hugepage_qa.oracle.rules import THP_DOC
from hugepage_qa.plugins.avocado_test import LiveTest

TMPFS_CHARGES = Area("cgroup/tmpfs-charges", sizes=Sizes.ONCE)

_ROOM = 4


@TMPFS_CHARGES.case(
    "a huge page of a tmpfs that the limit of a group refuses takes no room of its mount, whether it was to be written,"
    " allocated or touched: only what is had in its place does, until the file is gone, and then a file of others can"
    " have all of it",
    f"{THP_DOC} thp_file_fallback_charge; statfs(2); mm/shmem.c shmem_get_folio_gfp(), shmem_alloc_and_add_folio()",
    since="5.8",
)
def refused(live: Live) -> None:
    let_only_pmd_inherit(live)
    size, base = pmd_size(live), live.base_page
    point = _mount(live)
    group = new_group(live, "memory", Version.TWO)
    actor, other = group.actor(), live.actor()
    group.write("memory.max", str(size // 2))
    uses = (_write, _allocate, _touch) if has_huge_pages_for_words(live) else (_touch,)
    for use, offset in product(uses, (0, size // 2 + base, size - WORD)):
        with_blocks(live, size, 1)
        file = open_file(live, f"{point}/file", actor)
        actor.call("ftruncate", file.descriptor, size)
        before = _refusals(live)
        use(live, file, offset)
        found, refusals = file.blocks, _refusals(live) - before
        if not refusals and found < size:
            expect_no_shortage(live, size, 1)
        with live.about(f"{use.__name__[1:]} at {offset}"):
            live.expect("whether the limit has refused a huge page", True, refusals > 0)
            # smaller huge pages that the limit has room for are had since Linux 6.14
            live.expect(f"whether st_blocks, {found}, is of less", True, 0 < found < size)
            live.expect("bytes that are taken of the mount", found, _taken(live, point))
            actor.call("ftruncate", file.descriptor, 0)
            live.expect("bytes that are taken of an empty mount", 0, _taken(live, point))
        file.close()
    filling = open_file(live, f"{point}/other", other)
    live.expect_success(other.call, "fallocate", filling.descriptor, 0, 0, _ROOM * size)
    live.expect("bytes that are taken of a full mount", _ROOM * size, _taken(live, point))


@TMPFS_CHARGES.case(
    "where the limit of a group has no room for a huge page beside the base pages of a file MADV_COLLAPSE is EBUSY:"
    " they hold what they held, holes stay holes and take no room of the mount; with room the file is huge",
    "madvise(2) MADV_COLLAPSE EBUSY; mm/khugepaged.c collapse_file(), madvise_collapse_errno()",
    since="6.1",
)
def collapse_refused(live: Live) -> None:
    need_exact_charges(live)
    let_only_pmd_inherit(live)
    size, half = pmd_size(live), pmd_size(live) // 2
    point = _mount(live)
    remount_tmpfs(live.actor(), point, "huge=never")
    group = new_group(live, "memory", Version.TWO)
    actor = group.actor()
    file = open_file(live, f"{point}/file", actor)
    memory = map_start(live, actor, file.descriptor)
    # the second half is a hole
    actor.fill(memory.address, half, WORD, 1)
    if group.read("memory.swap.max") is not None:
        group.write("memory.swap.max", "0")
    group.write("memory.max", str(size))
    with_blocks(live, size, 1)
    for _time in range(2):
        expect_no_collapse(live, memory, errno.EBUSY)
        live.expect("st_blocks, what is taken of the mount", (half, half), (file.blocks, _taken(live, point)))
        live.expect("ShmemPmdMapped", 0, memory.smaps().shmem_pmd_mapped)
        live.expect("words that changed", 0, memory.wrong(0, half))
    group.write("memory.max", "max")
    collapse_memory(live, memory)
    live.expect("ShmemPmdMapped with room", size, memory.smaps().shmem_pmd_mapped)
    live.expect("st_blocks, what is taken of the mount", (size, size), (file.blocks, _taken(live, point)))
    live.expect("words that changed", 0, memory.wrong(0, half))
    live.expect("words of the hole that are not zero", 0, actor.nonzero(memory.address + half, half))
    actor.call("ftruncate", file.descriptor, 0)
    live.expect("bytes that are taken of an empty mount", 0, _taken(live, point))


def _mount(live: Live) -> str:
    return live.mount_other(f"huge=always,size={_ROOM * pmd_size(live)},mode=0700", "tmpfs")


def _refusals(live: Live) -> int:
    return read_counters(live)["thp_file_fallback_charge"]


def _taken(live: Live, point: str) -> int:
    return live.host.file_system(point).taken_bytes


def _write(_live: Live, file: HugeFile, offset: int) -> None:
    file.actor.call("pwrite64", file.descriptor, bytes(WORD), WORD, offset)


def _allocate(_live: Live, file: HugeFile, offset: int) -> None:
    file.actor.call("fallocate", file.descriptor, 0, offset, WORD)


def _touch(live: Live, file: HugeFile, offset: int) -> None:
    memory = map_file(live, file.actor, file.descriptor, 1)
    memory.actor.write(memory.address + offset, 1)
    memory.unmap()


class CgroupTmpfsCharges(LiveTest):
    def test_tmpfs_charges(self) -> None:
        self.run_area(TMPFS_CHARGES)
