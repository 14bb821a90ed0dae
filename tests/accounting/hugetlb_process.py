"""What a process is told to have of hugetlb pages: smaps, smaps_rollup and status."""

import errno
import mmap
from collections.abc import Callable
from functools import partial

from hugepage_qa.cases.address_space import expect_as_mapped
from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.hugetlb_files import new_memfd
from hugepage_qa.cases.hugetlb_of_a_process import expect_hugetlb, expect_private_and_shared, forked
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.places import memory_of_one_table, ordinary_memory
from hugepage_qa.cases.process_counters import process_status
from hugepage_qa.cases.userfaultfd import Feature, Mode, Userfault
from hugepage_qa.kernel.smaps import read_smaps_rollup
from hugepage_qa.kernel.uapi import MADV_DONTNEED, MAP_FIXED, MREMAP_FIXED, MREMAP_MAYMOVE
from hugepage_qa.machine.host import ObservedTree
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
    "a page of a private mapping, anonymous or of a file, is Shared_Hugetlb for a parent and its child until one of"
    " them writes it, or has gone, and then Private_Hugetlb for each",
    f"{PROC_DOC} smaps: Shared_Hugetlb; fork(2); fs/proc/task_mmu.c smaps_hugetlb_range()",
    pages=3,
)
def smaps_of_a_forked_mapping(live: Live) -> None:
    for of_a_file in (False, True):
        ours = new_memfd(live, pages=2).map(2, shared=False) if of_a_file else live.map(2)
        for page in range(2):
            ours.touch(page)
        theirs = forked(live, ours, 2)
        with live.about(f"of a file {of_a_file}"):
            for memory in (ours, theirs):
                expect_hugetlb(live, memory, shared=2)
            ours.touch(1, 7)
            for memory in (ours, theirs):
                expect_hugetlb(live, memory, private=1, shared=1)
            theirs.unmap()
            expect_hugetlb(live, ours, private=2)
        for memory in (theirs, ours):
            memory.actor.end()


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
    # of libraries and the stack, too, which is reclaimed and comes back
    more = after["Rss"] - before["Rss"]
    live.expect(f"Rss rose by {more}, less than half a huge page", True, more < live.size // 2)
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


def _rollup(live: Live, actor: Actor) -> dict[str, int]:
    rollup = read_smaps_rollup(ObservedTree(live.host), actor.pid)
    return rollup or live.fail(f"/proc/{actor.pid}/smaps_rollup", "a process", "none")


class ProcessAccounting(LiveTest):
    def test_process(self) -> None:
        self.run_area(ACCOUNTING)
