"""Known kernel bugs in the pools of a running machine; ``model.known`` holds those of the boot parameters."""

from collections.abc import Mapping

from hugepage_qa.model.known import KnownIssue, Quirk
from hugepage_qa.version import KernelVersion

_RESERVATION_SERIES = KernelVersion(6, 14)
_SUBPOOL_FALLBACK = KernelVersion(6, 15)

POOL_ISSUES: Mapping[Quirk, KnownIssue] = {
    issue.quirk: issue
    for issue in (
        KnownIssue(
            Quirk.DEMOTE_TAKES_RESERVED,
            "demote splits pages that are reserved once there is one free page that is not",
            KernelVersion(6, 12),
            None,
            "3 free pages of 1G, 1 reserved: writing 3 to demote leaves none, resv_hugepages stays 1; demote_store() "
            "checks that a page is available, demote_pool_huge_page() takes as many free ones as were asked for "
            "(c0f398c3b2cf)",
        ),
        KnownIssue(
            Quirk.SUBPOOL_RESERVE_MADE_UP,
            "a failed fault, mmap() or fallocate() on a mount with min_size= makes reserved pages up that the pool "
            "does not have",
            KernelVersion(4, 1),
            _SUBPOOL_FALLBACK,
            "fixed by a833a693a490: hugepage_subpool_put_pages() was given back what came from the pool, not from the "
            "reserve of the mount",
        ),
        KnownIssue(
            Quirk.SUBPOOL_USE_LOST_AT_FAULT,
            "a fault or fallocate() that finds no page uses up size= of the mount for good",
            _SUBPOOL_FALLBACK,
            None,
            "alloc_hugetlb_folio() hands nothing back to the subpool when the page was not to come from its reserve: "
            "side effect of a833a693a490",
        ),
        KnownIssue(
            Quirk.SUBPOOL_USE_LOST_AT_MMAP,
            "an mmap() that the pool has no pages for uses up size= of the mount for good",
            _SUBPOOL_FALLBACK,
            KernelVersion(7, 0),
            "fixed by 1d3f9bb4c8af: side effect of a833a693a490 in hugetlb_reserve_pages()",
            # 10,000 random operations did not show it there
            (KernelVersion(6, 18, 44),),
        ),
        KnownIssue(
            Quirk.SUBPOOL_RESERVE_DROPPED,
            "an mmap() that the pool has no pages for drops the reserve of a mount with size= and min_size=, and "
            "resv_hugepages falls below 0 when it is unmounted",
            _SUBPOOL_FALLBACK,
            None,
            "size= of 8 pages, min_size= of 2, mmap() of 5 in an otherwise empty pool: hugetlb_reserve_pages() calls "
            "hugepage_subpool_put_pages() while used_hpages still counts what failed",
        ),
        KnownIssue(
            Quirk.SUBPOOL_RESERVE_NOT_USED,
            "a fault of a process that holds no reservation takes a page out of min_size= of a mount, and the pool "
            "goes on counting it as reserved",
            KernelVersion(4, 1),
            _RESERVATION_SERIES,
            "vma_has_reserves() said no for the private mapping of a forked process and for MAP_NORESERVE although "
            "the subpool had counted its reserve down",
        ),
        KnownIssue(
            Quirk.SUBPOOL_RESERVE_AVOIDED,
            "the copy that the owner of a private mapping makes takes a page out of min_size= of a mount, and the "
            "pool goes on counting it as reserved",
            KernelVersion(4, 1),
            _RESERVATION_SERIES,
            "fixed by 'mm/hugetlb: fix avoid_reserve to allow taking folio from subpool'",
            (KernelVersion(6, 1, 191), KernelVersion(6, 12, 14)),
        ),
        KnownIssue(
            Quirk.RESERVED_SURPLUS_FREED,
            "a surplus page of a mount with min_size= is given back to the system while it counts as reserved",
            KernelVersion(4, 1),
            None,
            "empty pool, nr_overcommit_hugepages 2, min_size= of two pages: a page touched and truncated leaves "
            "resv_hugepages 2 and free_hugepages 1; free_huge_folio() restores the reservation and frees the page",
        ),
        KnownIssue(
            Quirk.UNMAP_RESERVES_PAGE_IN_USE,
            "a page that the owner of a private mapping unmaps while a forked process has it is reserved for nobody",
            KernelVersion(6, 9),
            KernelVersion(7, 2),
            "fixed by 'hugetlb: only adjust reservation during unmapping if mapcount is 0'; brought by df7a6d1f6405",
            (KernelVersion(6, 12, 110),),
        ),
        KnownIssue(
            Quirk.MOVE_FORGETS_RESERVATION,
            "mremap() of a part of a private mapping leaves pages reserved that the rest had reserved, for good",
            KernelVersion(5, 16),
            None,
            "clear_vma_resv_huge_pages() takes the reservation from the whole mapping before its part is split off",
        ),
        KnownIssue(
            Quirk.MOVE_LENGTH_TRUNCATED,
            "mremap() of 4 GiB and more fails with ENOMEM, and so may that of pages as large as 1G",
            KernelVersion(5, 16),
            None,
            "4 GiB of untouched 2M pages: ENOMEM, 3 GiB: moved; one page of 1G at 64 GiB: ENOMEM, at 65 GiB: moved. "
            "move_hugetlb_page_tables() returns an int: what it moved, and what it skipped for want of page tables",
        ),
        KnownIssue(
            Quirk.FAILED_MOVE_ENDS_RESERVATION,
            "a private mapping that mremap() fails to move has no reservation any more",
            KernelVersion(6, 15),
            None,
            "resv_hugepages falls to 0 although the mapping stays: copy_vma_and_data() takes the reservation from the "
            "old mapping, and what is unmapped is the new one",
        ),
        KnownIssue(
            Quirk.FORK_LOSES_PAGES,
            "a forked process may lack all 1G pages of private mappings: it reads zeros, or dies with SIGBUS; smaps "
            "shows pages of 1G as shared that one process maps",
            KernelVersion(6, 18),
            None,
            "a third of 2000 forks lost a page of 1G: copy_hugetlb_page_range() asks ptdesc_pmd_is_shared() about "
            "tables that hold no PMD entries, where pt_share_count is what the page held before",
            brought_to=(KernelVersion(6, 1, 167), KernelVersion(6, 12, 74)),
        ),
        KnownIssue(
            Quirk.PINNED_PAGE_UNRESERVED,
            "resv_hugepages falls below 0 while a page that its owner has unmapped is held by a pipe",
            KernelVersion(6, 9),
            None,
            "vmsplice() of a private page, then munmap(): resv_hugepages reads 18446744073709551615 until the pipe is "
            "read; __unmap_hugepage_range() adds a reservation for a page that is not freed (df7a6d1f6405)",
        ),
        KnownIssue(
            Quirk.UFFD_COPY_EXISTS,
            "UFFDIO_COPY that the pool has no page for fails with EEXIST, as if the page were there",
            KernelVersion(6, 18),
            None,
            "hugetlb_mfill_atomic_pte() takes the page table entry that it has just made for one that holds a page: "
            "hugetlb_walk() returns where it is, not what is in it",
        ),
        KnownIssue(
            Quirk.SEAL_GROW_PASSED_OVER,
            "a shared writable mapping beyond the end of a file grows it, F_SEAL_GROW or not",
            KernelVersion(4, 16),
            None,
            "a sealed memfd of one page has two after mmap() of two: hugetlbfs_file_mmap() sets i_size",
        ),
        KnownIssue(
            Quirk.NR_HUGETLB_LOST,
            "an mmap() that fails for want of surplus pages takes pages out of nr_hugetlb for good; below 0 it reads 0",
            KernelVersion(6, 13),
            None,
            "mmap() of 10 pages with nr_overcommit_hugepages 3: nr_hugetlb falls by 3 x 512 base pages; "
            "gather_surplus_pages() frees through free_huge_folio() what was never added",
        ),
        KnownIssue(
            Quirk.REMOVED_GROUP_OFF_NODES,
            "numa_stat of a control group has nothing of the pages of a removed group below it",
            KernelVersion(5, 17),
            None,
            "numa_stat reads 0 while the usage of the group is right; hugetlb_cgroup_move_parent() leaves the counts "
            "of nodes with the removed group",
        ),
    )
}


def pool_issues_of(version: KernelVersion) -> tuple[KnownIssue, ...]:
    """Return the known issues that the pools of kernels of ``version`` have."""
    return tuple(issue for issue in POOL_ISSUES.values() if issue.applies_to(version))
