"""What a process and its mappings show of hugetlb pages: smaps, smaps_rollup, status and numa_maps."""

import errno
import mmap
from collections.abc import Callable
from functools import partial

from hugepage_qa.cases.address_space import expect_as_mapped
from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.clear_refs import clear_refs, need_soft_dirty
from hugepage_qa.cases.file_status import FileStatus
from hugepage_qa.cases.frames import COMPOUND_HEAD, COMPOUND_TAIL, HUGE, kpageflags
from hugepage_qa.cases.hugetlb_files import HugeFile, new_memfd, open_again, open_file
from hugepage_qa.cases.hugetlb_of_a_process import expect_hugetlb, expect_private_and_shared, forked
from hugepage_qa.cases.hugetlb_segments import IPC_CREAT, SHM_NORESERVE, get_segment
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import EXCLUSIVE, FRAME, OF_A_FILE, PRESENT, SOFT_DIRTY, Memory
from hugepage_qa.cases.places import memory_of_one_table, ordinary_memory
from hugepage_qa.cases.process_counters import process_status
from hugepage_qa.cases.userfaultfd import Feature, Mode, Userfault
from hugepage_qa.kernel.smaps import read_smaps_rollup
from hugepage_qa.kernel.uapi import MADV_DONTNEED, MAP_FIXED, MREMAP_FIXED, MREMAP_MAYMOVE
from hugepage_qa.machine.host import ObservedTree
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.oracle.rules import HUGETLB_DOC
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor

ACCOUNTING = Area("accounting/hugetlb-process")

PROC_DOC = "Documentation/filesystems/proc.rst"


@ACCOUNTING.case(
    "smaps shows the page size of a hugetlb mapping, the flag ht, its touched pages and nothing as Rss",
    f"{PROC_DOC} smaps: Private_Hugetlb; fs/proc/task_mmu.c smaps_hugetlb_range(), show_smap_vma_flags()",
    pages=2,
)
def smaps_of_a_private_mapping(live: Live) -> None:
    memory = live.map(2)
    expect_hugetlb(live, memory)
    memory.touch(0)
    expect_hugetlb(live, memory, private=1)
    memory.touch(1)
    expect_hugetlb(live, memory, private=2)
    mapping = memory.smaps()
    live.expect("Size", 2 * live.size, mapping.size)
    live.expect("KernelPageSize", live.size, mapping.kernel_page_size)
    live.expect("MMUPageSize", live.size, mapping.mmu_page_size)
    live.expect("is shared", False, mapping.is_shared)
    live.expect("has the flag ht", True, "ht" in mapping.flags)
    live.expect("is eligible for THP", False, bool(mapping.thp_eligible))


@ACCOUNTING.case(
    "a page of a shared mapping is Private_Hugetlb while one process maps it and Shared_Hugetlb while several do",
    f"{PROC_DOC} smaps: Shared_Hugetlb; fs/proc/task_mmu.c smaps_hugetlb_range()",
    pages=2,
)
def smaps_of_a_shared_mapping(live: Live) -> None:
    ours = live.map(2, shared=True)
    ours.touch(0)
    expect_hugetlb(live, ours, private=1)
    theirs = ours.fork()
    live.expect("what the page holds", 1, theirs.read(0))
    theirs.touch(1)
    expect_hugetlb(live, theirs, private=1, shared=1)
    expect_hugetlb(live, ours, shared=1)
    live.expect("is shared", True, ours.smaps().is_shared)
    ours.unmap()
    live.expect("HugetlbPages without a mapping", 0, process_status(live, ours.actor).hugetlb_pages)
    expect_hugetlb(live, theirs, private=2)


@ACCOUNTING.case(
    "a page that two processes map through one page table is Shared_Hugetlb for both",
    f"{PROC_DOC} smaps: Shared_Hugetlb; mm/hugetlb.c huge_pmd_share(), hugetlb_pmd_shared() (CVE-2026-23100)",
    pages=1,
)
def smaps_of_a_shared_page_table(live: Live) -> None:
    ours = memory_of_one_table(live)
    ours.touch()
    theirs = ours.fork()
    live.expect("what the page holds", 1, theirs.read())
    for memory in (ours, theirs):
        mapping = memory.smaps()
        expect_private_and_shared(live, 0, 1, (mapping.private_hugetlb, mapping.shared_hugetlb))
    live.expect_pool(nr=1, free=0)


@ACCOUNTING.case(
    "smaps_rollup sums up the hugetlb pages of a process, and its Rss does not grow with them",
    f"{PROC_DOC} smaps_rollup; fs/proc/task_mmu.c show_smaps_rollup()",
    pages=2,
)
def rollup_of_two_mappings(live: Live) -> None:
    first = live.map(1)
    second = live.map(1, first.actor, shared=True)
    first.touch()
    before = _rollup(live, first.actor)
    expect_private_and_shared(live, 1, 0, (before["Private_Hugetlb"], before["Shared_Hugetlb"]))
    second.touch()
    after = _rollup(live, first.actor)
    expect_private_and_shared(live, 2, 0, (after["Private_Hugetlb"], after["Shared_Hugetlb"]))
    live.expect("Rss", before["Rss"], after["Rss"])
    live.expect("HugetlbPages", 2 * live.size, process_status(live, first.actor).hugetlb_pages)


@ACCOUNTING.case(
    "a process has no HugetlbPages for pages that were unmapped, and keeps those of a mapping that moved",
    f"{PROC_DOC} status: HugetlbPages; mm/hugetlb.c hugetlb_count_sub(), since 5d317b2b6536",
    pages=2,
    since="5.16",  # mremap of hugetlb memory
)
def hugetlb_pages_of_a_process(live: Live) -> None:
    memory = live.map(2)
    memory.touch(0, value=6)
    memory.touch(1)
    expect_hugetlb(live, memory, private=2)
    memory.unmap(1, 1)
    expect_hugetlb(live, memory, private=1)
    moved = live.map(1, memory.actor, noreserve=True)
    flags = MREMAP_MAYMOVE | MREMAP_FIXED
    memory.actor.call("mremap", memory.address, live.size, live.size, flags, moved.address)
    expect_hugetlb(live, moved, private=1)
    live.expect("what the page holds", 6, moved.read())
    moved.unmap()
    live.expect("HugetlbPages", 0, process_status(live, memory.actor).hugetlb_pages)


@ACCOUNTING.case(
    "VmSize, VmData and VmStk of a process are those of its mappings, whatever part of one is unmapped, protected,"
    " moved or mapped over, and when one shrinks; what is refused changes nothing",
    f"{PROC_DOC} status: VmSize, VmData; mm/mmap.c vm_stat_account(); mm/mprotect.c mprotect_fixup(); mm/mremap.c"
    " move_vma()",
    since="5.16",  # mremap of hugetlb memory
)
def address_space_of_a_process(live: Live) -> None:
    size = live.size
    for shared in (False, True):
        memory = live.map(4, shared=shared, noreserve=True)
        actor, call = memory.actor, partial(memory.actor.call, "mremap")
        before = expect_as_mapped(live, actor) - memory.length
        other = live.map(4, actor, shared=shared, noreserve=True)
        steps: tuple[tuple[str, int, Callable[[], object]], ...] = (
            ("mapped", 8, lambda: None),
            ("the second of four read-only", 8, partial(memory.protect, mmap.PROT_READ, 1, 1)),
            ("the last without access", 8, partial(memory.protect, 0, 3, 1)),
            ("all writable again", 8, partial(memory.protect, READ_WRITE)),
            ("the second unmapped", 7, partial(memory.unmap, 1, 1)),
            ("another in its place", 8, partial(live.map, 1, actor, noreserve=True, at=memory.at(1), flags=MAP_FIXED)),
            ("mapped over", 8, partial(live.map, 2, actor, noreserve=True, at=memory.at(1), flags=MAP_FIXED)),
            ("the other one shorter", 6, partial(call, other.address, 4 * size, 2 * size, 0)),
            ("moved over the first one", 4, partial(other.part(0, 2).moved_to, memory.at(0))),
            ("a hole in the first one", 3, partial(memory.unmap, 2, 1)),
            ("unmapped around the hole", 1, partial(memory.unmap, 1, 3)),
        )
        for name, pages, step in steps:
            with live.about(f"{name}, shared {shared}"):
                step()
                live.expect("VmSize", before + pages * size, expect_as_mapped(live, actor))
        with live.about(f"refused, shared {shared}"):
            live.expect_errno(errno.EINVAL, call, memory.address, size, 2 * size, MREMAP_MAYMOVE)
            live.expect_errno(errno.ENOMEM, live.map, live.pool().nr + 1, actor, shared=shared)
            live.expect("VmSize", before + size, expect_as_mapped(live, actor))
        actor.end()


@ACCOUNTING.case(
    "MADV_DONTNEED takes a page from the mapping and from HugetlbPages, and gives it back to the pool",
    "madvise(2); mm/madvise.c madvise_dontneed_single_vma(), mm/hugetlb.c __unmap_hugepage_range()",
    pages=2,
    since="5.18",
)
def a_page_given_back_is_not_counted(live: Live) -> None:
    memory = live.map(2)
    memory.touch(0)
    memory.touch(1)
    live.expect_pool(nr=2, free=0)
    memory.advise(MADV_DONTNEED, 0, 1)
    expect_hugetlb(live, memory, private=1)
    live.expect("free pages", 1, live.pool().free)


@ACCOUNTING.case(
    "a page that UFFDIO_COPY or UFFDIO_CONTINUE put there counts for its process as one that was touched does",
    f"{PROC_DOC} status: HugetlbPages; mm/hugetlb.c hugetlb_mfill_atomic_pte(), hugetlb_count_add()",
    sizes=Sizes.BUDDY,
    pages=2,
    since="5.13",  # UFFDIO_CONTINUE
)
def pages_that_a_program_fills(live: Live) -> None:
    file = new_memfd(live, pages=1)
    private, shared = live.map(1, file.actor), file.map(1)
    source = ordinary_memory(live, file.actor, live.size // live.base_page)
    copied = Userfault(private, Mode.MISSING, Feature.MISSING_HUGETLBFS)
    live.expect("bytes copied", live.size, copied.copy(source))
    live.expect("HugetlbPages after a copy", live.size, process_status(live, file.actor).hugetlb_pages)
    file.allocate(1)
    Userfault(shared, Mode.MINOR, Feature.MINOR_HUGETLBFS).go_on()
    live.expect("HugetlbPages after both", 2 * live.size, process_status(live, file.actor).hugetlb_pages)
    for memory, left in ((private, 1), (shared, 0)):
        memory.unmap()
        live.expect("HugetlbPages", left * live.size, process_status(live, file.actor).hugetlb_pages)


@ACCOUNTING.case(
    "truncating a file takes its pages out of every process that maps them, and out of what it counts",
    "mm/hugetlb.c unmap_hugepage_range(); fs/hugetlbfs/inode.c hugetlb_vmtruncate()",
    pages=2,
)
def truncated_pages_are_not_counted(live: Live) -> None:
    actor = live.actor()
    fd = live.open(actor, f"{live.mount()}/file")
    ours = live.map(2, actor, shared=True, fd=fd)
    ours.touch(0)
    ours.touch(1)
    theirs = ours.seen_by(actor.fork())
    live.expect("what the page holds", 1, theirs.read(0))
    live.expect("what the page holds", 1, theirs.read(1))
    expect_hugetlb(live, theirs, shared=2)
    actor.call("ftruncate", fd, live.size)
    for memory in (ours, theirs):
        expect_hugetlb(live, memory, shared=1)
    live.expect_pool(nr=2, free=1)


@ACCOUNTING.case(
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
    child = file.actor.fork()
    whole.protect(mmap.PROT_READ, 1)
    theirs = open_again(live, file).map(2, noreserve=True)
    for first, memory in ((0, whole), (1, second), (0, whole.seen_by(child)), (1, second.seen_by(child)), (0, theirs)):
        for page in range(memory.pages):
            mapping = memory.smaps(page)
            offset = mapping.offset + memory.at(page) - mapping.start
            expected = told.device, told.inode, (first + page) * live.size
            live.expect("device, inode and offset in smaps", expected, (mapping.device, mapping.inode, offset))


@ACCOUNTING.case(
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


@ACCOUNTING.case(
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


@ACCOUNTING.case(
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


@ACCOUNTING.case(
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


@ACCOUNTING.case(
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


@ACCOUNTING.case(
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


def _rollup(live: Live, actor: Actor) -> dict[str, int]:
    rollup = read_smaps_rollup(ObservedTree(live.host), actor.pid)
    return rollup or live.fail(f"/proc/{actor.pid}/smaps_rollup", "a process", "none")


def _free_on_nodes(live: Live) -> dict[int, int]:
    return {node: live.pool(node).free for node in live.nodes}


class ProcessAccounting(LiveTest):
    def test_process(self) -> None:
        self.run_area(ACCOUNTING)
