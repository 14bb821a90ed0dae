"""Where hugetlb pages of a process are told to be: maps, numa_maps, pagemap and kpageflags."""

import mmap
import os
from collections.abc import Iterator
from itertools import product

from hugepage_qa.cases.case import Area
from hugepage_qa.cases.clear_refs import clear_refs, need_soft_dirty
from hugepage_qa.cases.file_status import FileStatus
from hugepage_qa.cases.frames import COMPOUND_HEAD, COMPOUND_TAIL, HUGE, kpageflags
from hugepage_qa.cases.hugetlb_files import HugeFile, file_of_each_kind, new_memfd, open_again, open_file
from hugepage_qa.cases.hugetlb_of_a_process import forked
from hugepage_qa.cases.hugetlb_segments import IPC_CREAT, SHM_NORESERVE, get_segment
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import (
    EXCLUSIVE,
    FRAME,
    OF_A_FILE,
    PAGEMAP,
    PRESENT,
    SOFT_DIRTY,
    Memory,
    read_entries,
)
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.oracle.rules import HUGETLB_DOC
from hugepage_qa.plugins.avocado_test import LiveTest

PLACES = Area("accounting/hugetlb-places")

PROC_DOC = "Documentation/filesystems/proc.rst"
#: how many entries of pagemap are read at once
_COUNTS = (2, 3, 512, 1024, 2048)


@PLACES.case(
    "each mapping of a file shows the device and the inode number that stat(2) tells of it, and where in the file it"
    " begins: shared or private, in a child and in others that open the file, and when a part is protected; no two"
    " files of a file system have one number; that of a segment is its identifier",
    f"{PROC_DOC} /proc/PID/maps; inode(7) st_dev, st_ino; fs/proc/task_mmu.c show_map_vma(); fs/hugetlbfs/inode.c"
    " hugetlbfs_get_inode(); ipc/shm.c newseg()",
)
def inodes_of_mappings(live: Live) -> None:
    mount = live.mount()
    of_a_mount = [open_file(live, f"{mount}/{name}") for name in ("first", "second")]
    for kind, files in (("hugetlbfs", of_a_mount), ("memfd", [new_memfd(live) for _file in range(2)])):
        told = [file.status() for file in files]
        live.expect(f"inode numbers of two files, {kind}", 2, len({each.inode for each in told}))
        for file, its in zip(files, told, strict=True):
            _expect_shown_in_mappings(live, file, its)
    segments = [get_segment(live, live.size, flags=0o600 | IPC_CREAT | SHM_NORESERVE) for _segment in range(2)]
    for segment in segments:
        shown = [segment.attach(actor).smaps().inode for actor in (segment.actor, live.actor())]
        live.expect("inode of a segment", [segment.identifier] * 2, shown)
    live.expect_pool(nr=0, free=0)


def _expect_shown_in_mappings(live: Live, file: HugeFile, told: FileStatus) -> None:
    """Expect mappings of ``file`` in three processes to show what stat(2) has told, and which pages of it they are."""
    whole = file.map(2, noreserve=True)
    second = file.map(1, first=1, shared=False, noreserve=True)
    child = live.fork(file.actor)
    whole.protect(mmap.PROT_READ, 1)
    theirs = open_again(live, file).map(2, noreserve=True)
    for first, memory in ((0, whole), (1, second), (0, whole.seen_by(child)), (1, second.seen_by(child)), (0, theirs)):
        for page in range(memory.pages):
            mapping = memory.smaps(page)
            offset = mapping.offset + memory.at(page) - mapping.start
            expected = told.device, told.inode, (first + page) * live.size
            live.expect("device, inode and offset in smaps", expected, (mapping.device, mapping.inode, offset))


@PLACES.case(
    "numa_maps shows a mapping as huge with its page size, and its pages as anonymous, dirty, and on their nodes",
    "numa(7) /proc/pid/numa_maps; fs/proc/task_mmu.c show_numa_map(), gather_hugetlb_stats()",
    pages=2,
)
def numa_maps_of_a_private_mapping(live: Live) -> None:
    live.need_nodes()
    memory = live.map(2)
    untouched = memory.numa_maps()
    live.expect("is huge", True, untouched.huge)
    live.expect("pages on nodes", {}, untouched.nodes)
    live.expect("file", "/anon_hugepage (deleted)", untouched.path)
    memory.touch(0)
    memory.touch(1)
    mapping = memory.numa_maps()
    live.expect("is huge", True, mapping.huge)
    live.expect("kernelpagesize_kB", live.size, mapping.page_size)
    live.expect("pages on nodes", 2, sum(mapping.nodes.values()))
    live.expect("anonymous and dirty pages", {"anon": 2, "dirty": 2}, mapping.counts)


@PLACES.case(
    "numa_maps shows the pages of a file by its name, as not anonymous, and how often one of them is mapped",
    "numa(7) file=, mapmax=; fs/proc/task_mmu.c gather_stats()",
    pages=2,
)
def numa_maps_of_a_file(live: Live) -> None:
    live.need_nodes()
    actor = live.actor()
    path = f"{live.mount()}/file"
    ours = live.map(2, actor, shared=True, fd=live.open(actor, path))
    ours.touch(0)
    mapping = ours.numa_maps()
    live.expect("file", path, mapping.path)
    live.expect("is huge", True, mapping.huge)
    live.expect("pages on nodes", 1, sum(mapping.nodes.values()))
    live.expect("anonymous pages", 0, mapping.counts.get("anon", 0))
    live.expect("mapmax= of a page that is mapped once", None, mapping.counts.get("mapmax"))
    theirs = ours.seen_by(actor.fork())
    live.expect("what the page holds", 1, theirs.read(0))
    live.expect("mapmax=", 2, ours.numa_maps().counts.get("mapmax"))
    live.expect("pages on nodes", mapping.nodes, theirs.numa_maps().nodes)


@PLACES.case(
    "numa_maps and the free pages of the nodes tell the same of where the pages of a mapping lie",
    f"{HUGETLB_DOC} Per Node Hugepages Attributes; fs/proc/task_mmu.c show_numa_map()",
    pages=2,
)
def numa_maps_agree_with_the_nodes(live: Live) -> None:
    live.need_nodes()
    before = _free_on_nodes(live)
    memory = live.map(2)
    memory.touch(0)
    memory.touch(1)
    taken = {node: free - _free_on_nodes(live)[node] for node, free in before.items()}
    live.expect("pages on nodes", {node: pages for node, pages in taken.items() if pages}, memory.numa_maps().nodes)


@PLACES.case(
    "pagemap shows each base page of a page: where it lies, of a file or not, and mapped by one process or by several",
    "Documentation/admin-guide/mm/pagemap.rst; fs/proc/task_mmu.c pagemap_hugetlb_range()",
    pages=2,
)
def pagemap_of_pages(live: Live) -> None:
    # the file first: the other loses its page in the child on kernels with a known bug
    for is_file in (True, False):
        memory = live.map(1, shared=is_file)
        live.expect("pagemap of a page that was not touched", [0, 0, 0, 0], _pagemap(live, memory, PRESENT | FRAME))
        memory.touch()
        of_a_file = OF_A_FILE if is_file else 0
        expect_pagemap(live, memory, PRESENT | EXCLUSIVE | of_a_file)
        child = memory.fork() if is_file else forked(live, memory)
        live.expect("what the child reads", 1, child.read())
        for one in (memory, child):
            expect_pagemap(live, one, PRESENT | of_a_file)
        child.actor.end()
        expect_pagemap(live, memory, PRESENT | EXCLUSIVE | of_a_file)


@PLACES.case(
    "the frames in pagemap of the base pages of a page that several mappings share, of a file, of a segment, or of a"
    " parent and its child, follow each other in each of them, from wherever and however many are read at once",
    "Documentation/admin-guide/mm/pagemap.rst; fs/proc/task_mmu.c pagemap_hugetlb_range()",
    pages=2,
)
def frames_of_shared_pages(live: Live) -> None:
    for kind, mappings, flags in _shared_pages(live):
        with live.about(kind):
            live.expect("what the pages hold", {(1, 2)}, {(memory.read(0), memory.read(1)) for memory in mappings})
            firsts = [memory.frame(page * live.size) for memory in mappings[:1] for page in range(2)]
            aligned = [frame % (live.size // live.base_page) for frame in firsts]
            live.expect("frames at which the pages begin, beyond a multiple of their size", [0, 0], aligned)
            for number, memory in enumerate(mappings):
                wrong = _first_wrong_read(live, memory, firsts, flags)
                told = f"first wrong entry, of how many from where on, in mapping {number} of {len(mappings)}"
                live.expect(told, None, wrong)


def _shared_pages(live: Live) -> Iterator[tuple[str, list[Memory], int]]:
    """Yield mappings that share two pages which hold 1 and 2, of each kind, and the flags that pagemap has of them."""
    for file, kind in zip(file_of_each_kind(live), ("a file of a hugetlbfs", "a file without a name"), strict=True):
        file.truncate(2)
        first, second = file.map(2), file.map(2)
        private = file.map(2, shared=False, noreserve=True)
        theirs = open_again(live, file).map(2)
        yield kind, [_numbered(first), second, private, theirs], PRESENT | OF_A_FILE
        theirs.actor.end()
        file.truncate(0)
        file.actor.end()
    segment = get_segment(live, 2 * live.size)
    attached = [segment.attach(), segment.attach(live.actor())]
    segment.remove()
    yield "a segment", [_numbered(attached[0]), attached[1]], PRESENT | OF_A_FILE
    for memory in attached:
        memory.actor.end()
    shared = live.map(2, shared=True)
    yield "shared memory, after a fork", [_numbered(shared), shared.fork()], PRESENT | OF_A_FILE
    shared.actor.end()
    # the last one: the child lacks pages on kernels with a known bug
    private = live.map(2)
    yield "private memory, after a fork", [_numbered(private), forked(live, private, 2)], PRESENT


def _numbered(memory: Memory) -> Memory:
    for page in range(memory.pages):
        memory.touch(page, 1 + page)
    return memory


def _first_wrong_read(live: Live, memory: Memory, firsts: list[int], flags: int) -> tuple[int, int, int] | None:
    """Return which base page has not the frame and the ``flags`` that it must have, when how many are read from where.

    ``firsts`` are the frames at which the pages of ``memory`` begin.
    """
    every, start = memory.size // live.base_page, memory.address // live.base_page
    pagemap = live.open(memory.actor, PAGEMAP, os.O_RDONLY)
    reads = product(sorted({0, 1, every // 2 - 1, every - 2, every - 1, every}), _COUNTS)
    for first, count in ((first, count) for first, count in reads if first + count <= len(firsts) * every):
        for place, entry in enumerate(read_entries(memory.actor, pagemap, start + first, count), first):
            found = entry & (FRAME | PRESENT | EXCLUSIVE | OF_A_FILE)
            if found != flags | firsts[place // every] + place % every:
                return place, count, first
    memory.actor.call("close", pagemap)
    return None


@PLACES.case(
    "all of a new mapping is soft-dirty, of a file or not, written, read or untouched, until clear_refs is written; all"
    " else that pagemap shows of it stays",
    "Documentation/admin-guide/mm/soft-dirty.rst; fs/proc/task_mmu.c pagemap_hugetlb_range(), pagemap_pte_hole(),"
    " clear_refs_write()",
    pages=3,
)
def soft_dirty_of_a_new_mapping(live: Live) -> None:
    for is_file in (True, False):
        memory = live.map(3, shared=is_file)
        need_soft_dirty(live, memory)
        memory.touch(0)
        live.expect("what is read", 0, memory.read(1))
        places = [memory.at(page) + place * live.base_page for page in range(3) for place in _places(live, memory)]
        before = memory.pagemap(places)
        with live.about(f"of a file {is_file}"):
            live.expect("which places are soft-dirty", [True] * len(places), [bool(one & SOFT_DIRTY) for one in before])
            clear_refs(live, memory)
            expected = [hex(entry & ~SOFT_DIRTY) for entry in before]
            live.expect("pagemap after that", expected, [hex(entry) for entry in memory.pagemap(places)])
        memory.actor.end()
        live.expect_pool(nr=3, free=3)


@PLACES.case(
    "kpageflags shows each base page of a page as huge, the first one as its head and the others as its tails",
    "Documentation/admin-guide/mm/pagemap.rst HUGE; fs/proc/page.c stable_page_flags()",
    pages=1,
)
def flags_of_a_page(live: Live) -> None:
    memory = live.map(1)
    memory.touch()
    live.expect_pool(nr=1, free=0)
    frames = memory.pagemap(memory.address + place * live.base_page for place in _places(live, memory))
    found = kpageflags(live, memory.actor, (frame & FRAME for frame in frames))
    head, *tails = (flags & (HUGE | COMPOUND_HEAD | COMPOUND_TAIL) for flags in found)
    live.expect("flags of the first base page", hex(HUGE | COMPOUND_HEAD), hex(head))
    live.expect("flags of others", {hex(HUGE | COMPOUND_TAIL)}, {hex(flags) for flags in tails})


def expect_pagemap(live: Live, memory: Memory, flags: int) -> None:
    """Expect the base pages of a page at frames that follow each other from a multiple of its size on, with ``flags``.

    Raises KnownBug where the page of one process seems to be shared.
    """
    frames = _pagemap(live, memory, FRAME)
    first = frames[0] - frames[0] % (memory.size // live.base_page)
    live.expect("frames in pagemap", [first + place for place in _places(live, memory)], frames)
    found = _pagemap(live, memory, PRESENT | EXCLUSIVE | OF_A_FILE)
    expected, seems_shared = ([hex(one)] * len(found) for one in (flags, flags & ~EXCLUSIVE))
    may_seem_shared = flags & EXCLUSIVE and live.mmu.may_seem_shared(live.size)
    known = {Quirk.SMAPS_SHOWS_SHARED: seems_shared} if may_seem_shared else None
    live.expect("flags in pagemap", expected, [hex(one) for one in found], known)


def _pagemap(live: Live, memory: Memory, mask: int) -> list[int]:
    """Return what ``mask`` leaves of the pagemap of some base pages of the first page."""
    addresses = [memory.address + place * live.base_page for place in _places(live, memory)]
    return [entry & mask for entry in memory.pagemap(addresses)]


def _places(live: Live, memory: Memory) -> tuple[int, ...]:
    """Return which base pages of a page are looked at: the first two, one in the middle, the last."""
    count = memory.size // live.base_page
    return 0, 1, count // 2, count - 1


def _free_on_nodes(live: Live) -> dict[int, int]:
    return {node: live.pool(node).free for node in live.nodes}


class PlacesAccounting(LiveTest):
    def test_places(self) -> None:
        self.run_area(PLACES)
