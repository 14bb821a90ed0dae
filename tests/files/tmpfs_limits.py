"""What bounds a tmpfs with huge pages, and who comes up against it: its options, and programs that fill its files."""

import errno
import mmap
import os
from collections.abc import Mapping
from functools import partial
from itertools import product
from operator import eq

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.fragmentation import with_blocks
from hugepage_qa.cases.frames import UNEVICTABLE, flags_of_folios
from hugepage_qa.cases.hugetlb_files import HugeFile, open_file
from hugepage_qa.cases.khugepaged_clock import let_nobody_else_act
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.lru_batches import drain_lru_batches
from hugepage_qa.cases.mapped_memory import FRAME, PRESENT, WORD, Memory
from hugepage_qa.cases.memory_policy import node_of
from hugepage_qa.cases.pages_of_a_node import need_memory
from hugepage_qa.cases.shown_mounts import mounted_options
from hugepage_qa.cases.swapped import need_swap, swapped
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.cases.thp_policy import base_pages
from hugepage_qa.cases.thp_shared_memory import (
    expect_mapped_whole,
    expect_shared,
    let_only_pmd_inherit,
    map_file,
    map_start,
    remount_tmpfs,
)
from hugepage_qa.cases.userfaultfd import Feature, Mode, Userfault
from hugepage_qa.kernel.counters import read_meminfo
from hugepage_qa.kernel.uapi import FALLOC_FL_KEEP_SIZE, MADV_PAGEOUT
from hugepage_qa.oracle.rules import THP_DOC
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Refused
from hugepage_qa.sizes import KIB
from hugepage_qa.version import KernelVersion

LIMITS = Area("files/tmpfs-limits", sizes=Sizes.ONCE)

TMPFS_DOC = "Documentation/filesystems/tmpfs.rst"
FILL = "Documentation/admin-guide/mm/userfaultfd.rst UFFDIO_COPY; mm/shmem.c shmem_mfill_atomic_pte()"
_VALUE = 77
#: memory is asked out: once may be passed over
_TIMES = 3
#: no manual page says which: EFAULT of shmem_mfill_atomic_pte(); ENOMEM of shmem_mfill_folio_alloc(), which returns no
#: folio, and took its place some time after 7.0
_BEHIND, _EITHER_SINCE = (errno.EFAULT, errno.ENOMEM), KernelVersion(7, 1)
#: 050dcb5c85bb: before, huge pages stay that were allocated until there was no room
_UNDONE_SINCE = KernelVersion(5, 15)


@LIMITS.case(
    "size= in bytes and in percent and nr_blocks= are what a mount has room for, and what a huge page does not fit in"
    " is given as base pages",
    f"{TMPFS_DOC} size, nr_blocks; {THP_DOC} huge=; mm/shmem.c shmem_parse_one()",
)
def sizes(live: Live) -> None:
    let_only_pmd_inherit(live)
    size, page = pmd_size(live), live.base_page
    every = size // page
    for option, blocks in (
        (f"size={3 * size // 2}", 3 * every // 2),
        (f"size={3 * size // 2 - 1}", 3 * every // 2),
        (f"size={3 * size // 2 // 1024}k", 3 * every // 2),
        (f"nr_blocks={3 * every // 2}", 3 * every // 2),
        (f"nr_blocks={every + 1}", every + 1),
        (f"nr_blocks={every - 1}", every - 1),
    ):
        with live.about(option):
            point = live.mount_other(f"huge=always,{option},mode=0700", "tmpfs")
            use = live.host.file_system(point)
            live.expect("blocks, free blocks", (blocks, blocks), (use.blocks, use.free_blocks))
            with_blocks(live, size, blocks // every)
            actor = live.actor()
            memory = map_start(live, actor, live.open(actor, f"{point}/file"), 2)
            actor.fill(memory.address, blocks * page, WORD, 1)
            expect_mapped_whole(live, memory, blocks // every)
            live.expect("Rss", blocks * page, memory.smaps().rss)
            live.expect("words that changed", 0, memory.wrong(0, blocks * page))
            live.expect("free blocks of a full mount", 0, live.host.file_system(point).free_blocks)
            actor.end()
    # of the pages that the buddy allocator has (totalram_pages()), which a balloon or a pool may change meanwhile
    look = partial(_parts_of_all, live)
    quarter, half, *totals = live.host.last_attempt(look, lambda seen: seen[2] == seen[3])
    total = totals[-1] // page
    live.expect("blocks of size=50%", -(-total // 2), half)
    live.expect("blocks of size=25%", -(-total // 4), quarter)


def _parts_of_all(live: Live) -> tuple[int, int, int, int]:
    """Return the blocks of a mount of 25 % and of one of 50 %, and MemTotal before and after."""
    before = read_meminfo(live.host)["MemTotal"]
    quarter, half = (live.host.file_system(live.mount_other(f"huge=always,size={part}%", "tmpfs")) for part in (25, 50))
    return quarter.blocks, half.blocks, before, read_meminfo(live.host)["MemTotal"]


@LIMITS.case(
    "an allocation that finds no room for all leaves a file as it was, what it holds, its holes, its length and what it"
    " takes of the mount, wherever it begins within a huge page; a write tells how much of it fitted, and keeps that",
    "fallocate(2) ENOSPC; write(2) ENOSPC; mm/shmem.c shmem_fallocate(), shmem_undo_range()",
)
def no_room_for_all(live: Live) -> None:
    let_only_pmd_inherit(live)
    size, page = pmd_size(live), live.base_page
    for huge in ("always", "never") if live.kernel_version >= _UNDONE_SINCE else ("never",):
        point = live.mount_other(f"huge={huge},size={4 * size},mode=0700", "tmpfs")
        with_blocks(live, size, 3)
        actor = live.actor()
        file, other = (open_file(live, f"{point}/{name}", actor) for name in ("file", "other"))
        actor.call("fallocate", other.descriptor, 0, 0, size)
        memory = map_start(live, actor, file.descriptor, 3)
        # a hole between them
        for number in (0, 2):
            actor.fill(memory.at(number), size, WORD, 1 + number * size)
        whole = int(huge == "always")
        expect_mapped_whole(live, memory, 2 * whole, f"huge={huge}")
        for start, mode in product(
            (0, WORD, page, size // 2, size // 2 + WORD, size - page, size, 2 * size, 3 * size - page, 3 * size),
            (0, FALLOC_FL_KEEP_SIZE),
        ):
            with live.about(f"huge={huge}, mode {mode}, from {start} on"):
                # no more than the mount has, or nothing is tried
                length = 4 * size - page
                live.expect_errno(errno.ENOSPC, actor.call, "fallocate", file.descriptor, mode, start, length)
                live.expect("free blocks", size // page, live.host.file_system(point).free_blocks)
                live.expect("length, st_blocks", (3 * size, 2 * size), (file.size, file.blocks))
                hole, data = (
                    actor.call("lseek", file.descriptor, at, how)
                    for at, how in ((0, os.SEEK_HOLE), (size, os.SEEK_DATA))
                )
                live.expect("where the hole begins and ends", (size, 2 * size), (hole, data))
                live.expect("words that changed", 0, memory.wrong(0, size) + memory.wrong(2 * size, size))
        expect_mapped_whole(live, memory, 2 * whole, f"huge={huge}")
        with live.about(f"huge={huge}"):
            _expect_short_write(live, file, size)
            live.expect("words that changed", 0, memory.wrong(0, size) + memory.wrong(2 * size, size))


def _expect_short_write(live: Live, file: HugeFile, size: int) -> None:
    """Expect a write behind ``file``, of three huge pages, to write the one that there is room for, and no more."""
    actor, length = file.actor, 2 * size
    source = actor.mmap(length, READ_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    actor.fill(source, length, WORD, 1)
    live.expect("bytes written", size, actor.call("pwrite64", file.descriptor, source, length, 3 * size))
    live.expect_errno(errno.ENOSPC, actor.call, "pwrite64", file.descriptor, source, length, 4 * size)
    live.expect("length, st_blocks", (4 * size, 3 * size), (file.size, file.blocks))
    written = map_file(live, actor, file.descriptor, 4)
    live.expect("words that were written otherwise", 0, actor.check(written.at(3), size, WORD, 1))


@LIMITS.case(
    "a mount is made no smaller than what its huge pages take, by size= or by nr_blocks=, EINVAL, and stays as it was;"
    " what it may be is what it has then, and a word that is wrong changes nothing",
    f"{TMPFS_DOC} remount; mm/shmem.c shmem_reconfigure(), shmem_parse_one()",
)
def remounted(live: Live) -> None:
    let_only_pmd_inherit(live)
    size, page = pmd_size(live), live.base_page
    every = size // page
    point = live.mount_other(f"huge=always,size={4 * size},mode=0700", "tmpfs")
    with_blocks(live, size, 2)
    owner, actor = live.actor(), live.actor()
    file = open_file(live, f"{point}/file", actor)
    memory = map_start(live, actor, file.descriptor, 2)
    memory.fill()
    expect_mapped_whole(live, memory, 2)

    def remount(options: str) -> None:
        remount_tmpfs(owner, point, options)

    def found() -> tuple[int, int]:
        use = live.host.file_system(point)
        return use.blocks, use.free_blocks

    live.expect("blocks, free blocks", (4 * every, 2 * every), found())
    for options in (
        f"size={2 * size - page}",
        f"nr_blocks={2 * every - 1}",
        f"size={size},huge=never",
        "size=1x",
        "size=10%%",
        f"huge=sometimes,size={8 * size}",
        f"size={8 * size},nr_inodes=1",
    ):
        with live.about(options):
            live.expect_errno(errno.EINVAL, remount, options)
            live.expect("blocks, free blocks", (4 * every, 2 * every), found())
            memory.expect_filled()
            expect_mapped_whole(live, memory, 2)
    for options, blocks in ((f"nr_blocks={2 * every}", 2 * every), (f"size={3 * size + 1}", 3 * every + 1)):
        remount(options)
        live.expect(f"blocks, free blocks after {options}", (blocks, blocks - 2 * every), found())
    live.expect_errno(errno.ENOSPC, actor.call, "fallocate", file.descriptor, 0, 0, 4 * size)
    actor.call("fallocate", file.descriptor, 0, 0, 3 * size)
    live.expect("free blocks when all but one are taken", 1, found()[1])
    memory.expect_filled()


@LIMITS.case(
    "what a remount of a tmpfs with huge pages names is what is shown of it since, and what statfs(2) tells; what it"
    " does not name stays; mode=, uid= and gid= are those of the first mount",
    f"{TMPFS_DOC} size, nr_blocks, nr_inodes, remount, mode, uid, gid; {THP_DOC} huge=; mm/shmem.c"
    " shmem_reconfigure(), shmem_show_options()",
)
def options_of_a_remount(live: Live) -> None:
    size, owner = pmd_size(live), live.actor()
    given = {"huge": "always", "nr_inodes": "1000", "mode": "700", "uid": "1", "gid": "2"}
    expected = given | {"size": _kib(16 * size)}
    point = live.mount_other(",".join(f"{name}={value}" for name, value in expected.items()), "tmpfs")
    _expect_options(live, point, expected)
    for options, changes in (
        ("huge=within_size", {"huge": "within_size"}),
        (f"size={8 * size}", {"size": _kib(8 * size)}),
        ("nr_inodes=2000", {"nr_inodes": "2000"}),
        ("mode=0755,uid=3,gid=4", {}),
        ("huge=advise", {"huge": "advise"}),
        (f"nr_blocks={6 * size // live.base_page}", {"size": _kib(6 * size)}),
        (f"size={4 * size},nr_inodes=3k,huge=always", {"size": _kib(4 * size), "nr_inodes": "3072", "huge": "always"}),
    ):
        expected |= changes
        with live.about(options):
            remount_tmpfs(owner, point, options)
            _expect_options(live, point, expected)


def _kib(length: int) -> str:
    return f"{length // KIB}k"


def _expect_options(live: Live, point: str, expected: Mapping[str, str]) -> None:
    """Expect a tmpfs to be shown with these options, and to have room for as much."""
    shown = mounted_options(live, point)
    live.expect("options that are shown", expected, {name: shown.get(name, "") for name in expected})
    use = live.host.file_system(point)
    room = {"size": _kib(use.blocks * use.block_size), "nr_inodes": str(use.files)}
    live.expect("what statfs(2) tells", {name: expected[name] for name in room}, room)


@LIMITS.case(
    "huge pages of a mount with mpol=bind, and of one that is remounted so, come from its node, whoever touches them",
    f"{TMPFS_DOC} mpol; mm/shmem.c shmem_parse_one(), shmem_get_sbmpol()",
    nodes=2,
)
def policy_of_a_mount(live: Live) -> None:
    let_only_pmd_inherit(live)
    nodes = live.nodes[:2]
    need_memory(live, nodes, 2 * pmd_size(live))
    point = live.mount_other("huge=always,mode=0700", "tmpfs")
    owner = live.actor()
    for node in (*nodes, nodes[0]):
        remount_tmpfs(owner, point, f"mpol=bind:{node}")
        with live.about(f"mpol=bind:{node}"):
            actor = live.actor()
            # the policy is that of the mount when the file was made
            memory = map_start(live, actor, live.open(actor, f"{point}/{node}-{actor.pid}"))
            memory.fill()
            expect_mapped_whole(live, memory, 1)
            live.expect("node of the huge page", node, node_of(memory))
            memory.expect_filled()
            actor.end()


@LIMITS.case(
    "a program that fills a file of a tmpfs fills what there is room for, then it is ENOMEM, and nothing is taken;"
    " nothing is filled behind the end of the file; with room the rest is",
    f"{FILL}; mm/userfaultfd.c mfill_atomic_install_pte()",
)
def filled_by_a_program(live: Live) -> None:
    let_nobody_else_act(live)
    size, page = pmd_size(live), live.base_page
    half, room = size // 2, size // page // 2
    point = live.mount_other(f"huge=always,nr_blocks={room},mode=0700", "tmpfs")
    source = base_pages(live)
    actor = source.actor
    file = open_file(live, f"{point}/file", actor)
    actor.call("ftruncate", file.descriptor, size)
    memory = map_file(live, actor, file.descriptor, 2)
    fault = Userfault(memory, Mode.MISSING, Feature.MISSING_SHMEM)
    live.expect("bytes copied", half, fault.copy(source, length=half))
    for offset in (half, size - page):
        one = fault.handling(Memory(live, actor, memory.address + offset, 1, page))
        live.expect_errno(errno.ENOMEM, one.copy, source)
    live.expect("st_blocks", half, file.blocks)
    live.expect("free blocks", 0, live.host.file_system(point).free_blocks)
    remount_tmpfs(live.actor(), point, f"nr_blocks={2 * room}")
    live.expect("bytes copied with room", half, fault.copy(source, offset=half, length=half))
    remount_tmpfs(live.actor(), point, f"nr_blocks={3 * room}")
    for offset in (size, 2 * size - page):
        behind = fault.handling(Memory(live, actor, memory.address + offset, 1, page))
        _expect_refused(live, behind, source)
    live.expect("words that changed", 0, memory.wrong(0, size))
    live.expect("st_blocks of all", size, file.blocks)
    live.expect("ShmemPmdMapped of what came page for page", 0, memory.smaps().shmem_pmd_mapped)
    live.expect("free blocks of all", room, live.host.file_system(point).free_blocks)


@LIMITS.case(
    "a program fills pages of a tmpfs with zeroes, and from memory that nobody has touched or that lies in a file",
    f"{FILL}, UFFDIO_ZEROPAGE",
)
def filled_with_zeroes(live: Live) -> None:
    let_nobody_else_act(live)
    size = pmd_size(live)
    point = live.mount_other("huge=always,mode=0700", "tmpfs")
    actor = live.actor()
    file, other = (open_file(live, f"{point}/{name}", actor) for name in ("file", "other"))
    held = map_start(live, actor, other.descriptor)
    held.fill()
    # a new mapping has no page table: the copy finds its source missing, and goes on when it has it
    untouched = map_file(live, actor, other.descriptor, 1)
    empty = actor.mmap(size, READ_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    actor.call("ftruncate", file.descriptor, 3 * size)
    memory = map_file(live, actor, file.descriptor, 3)
    fault = Userfault(memory, Mode.MISSING, Feature.MISSING_SHMEM)
    fault.zero(0)
    live.expect("bytes copied of what nobody has touched", size, fault.copy(Memory(live, actor, empty, 1, size), 1))
    live.expect("bytes copied of a file", size, fault.copy(untouched, 2))
    memory.expect_zero(0, 2)
    live.expect("words that changed", 0, actor.check(memory.at(2), size, WORD, 1))
    live.expect("st_blocks", 3 * size, file.blocks)
    live.expect("bytes that the mount has taken", 4 * size, live.host.file_system(point).taken_bytes)
    live.expect("ShmemPmdMapped of what came page for page", 0, memory.smaps().shmem_pmd_mapped)
    for page in range(3):
        live.expect_errno(errno.EEXIST, fault.zero, page)
    memory.fill(_VALUE)
    memory.expect_filled(_VALUE)
    held.expect_filled()


@LIMITS.case(
    "what a tmpfs with noswap holds, huge or not, stays in memory when it is asked out, and counts as such; a remount"
    " with noswap leaves it, and gives none to a mount that swaps: EINVAL",
    f"{TMPFS_DOC} noswap; mm/shmem.c shmem_reconfigure(), shmem_writepage()",
    since="6.4",
)
def never_swapped(live: Live) -> None:
    let_only_pmd_inherit(live)
    size, owner = pmd_size(live), live.actor()
    need_swap(live, 2 * size)
    for huge in ("always", "never"):
        point = live.mount_other(f"huge={huge},noswap,size={4 * size},mode=0700", "tmpfs")
        actor = live.actor()
        memory = map_start(live, actor, live.open(actor, f"{point}/file"), 2)
        expect_shared(live, memory, huge == "always", f"huge={huge}")
        with live.about(f"huge={huge}"):
            live.expect("whether noswap is shown", True, "noswap" in mounted_options(live, point))
            for _time in range(_TIMES):
                memory.advise(MADV_PAGEOUT)
                drain_lru_batches(live, actor)
            live.expect("Rss, Swap", (memory.length, 0), (memory.smaps().rss, swapped(memory)))
            found = live.host.last_look(partial(_evictable, live, memory), partial(eq, 0))
            live.expect("huge pages whose first base page is not unevictable", 0, found)
            remount_tmpfs(owner, point, f"noswap,size={6 * size}")
            live.expect("bytes of the mount", 6 * size, _room(live, point))
            live.expect("whether noswap is shown", True, "noswap" in mounted_options(live, point))
            memory.expect_filled()
        actor.end()
    point = live.mount_other("huge=always,mode=0700", "tmpfs")
    live.expect_errno(errno.EINVAL, remount_tmpfs, owner, point, "noswap")
    live.expect("whether noswap is shown", False, "noswap" in mounted_options(live, point))


def _evictable(live: Live, memory: Memory) -> int:
    """Return how many pages begin with a folio that is not on the list of what nobody reclaims."""
    drain_lru_batches(live, memory.actor)
    entries = memory.pagemap(memory.at(page) for page in range(memory.pages))
    # what moves just then has no frame
    frames = {entry & FRAME for entry in entries if entry & PRESENT}
    return sum(not flags & UNEVICTABLE for flags in flags_of_folios(live, memory.actor, sorted(frames)))


def _room(live: Live, point: str) -> int:
    use = live.host.file_system(point)
    return use.blocks * use.block_size


def _expect_refused(live: Live, fault: Userfault, source: Memory) -> None:
    """Expect the page of ``fault``, which is behind the end of its file, not to be filled from ``source``."""
    allowed = _BEHIND if live.kernel_version >= _EITHER_SINCE else _BEHIND[:1]
    found: int | None = None
    try:
        fault.copy(source)
    except Refused as refusal:
        found = refusal.errno
    live.expect(f"errno behind the end is one of {allowed}, found {found}", True, found in allowed)


class ThpTmpfsLimits(LiveTest):
    def test_tmpfs_limits(self) -> None:
        self.run_area(LIMITS)
