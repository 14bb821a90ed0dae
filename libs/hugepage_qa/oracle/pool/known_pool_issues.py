"""Known kernel bugs in the pools of a running machine: pages and reservations that are lost, made up or taken."""

from hugepage_qa.oracle.known_issues import KnownIssue, Quirk, by_quirk
from hugepage_qa.version import KernelVersion

_RESERVATION_SERIES = KernelVersion(6, 14)
#: a833a693a490, which has bugs of its own
_SUBPOOL_FALLBACK = KernelVersion(6, 15)
_SUBPOOL_FALLBACK_BACKPORT = KernelVersion(6, 14, 8)

POOL_ISSUES = by_quirk(
    KnownIssue(
        quirk=Quirk.DEMOTE_TAKES_RESERVED,
        summary="demote splits pages that are reserved once there is one free page that is not",
        example="2 free pages of 1G, 1 reserved: writing 2 to demote leaves nr 0, free 0, resv 1, and the owner of "
        "the reservation gets SIGBUS",
        cause="demote_store() checks that a page is available, demote_pool_huge_page() takes as many free ones as "
        "were asked for (c0f398c3b2cf)",
        since=KernelVersion(6, 12),
        seen="6.12.107, 6.12.117, 6.18.44, 7.3.4; right on 6.1.192",
    ),
    KnownIssue(
        quirk=Quirk.DEMOTE_ON_NODE_TAKES_RESERVED,
        summary="demote of a node splits pages that are reserved when more pages are reserved on all nodes "
        "together than are free on that one",
        example="1 page of 1G on each of two nodes, both reserved: demote of the machine splits none, writing 1 to "
        "demote of node 0 leaves nr 1, free 1, resv 2",
        cause="demote_store() takes what is reserved on all nodes off what is free on the one, and the difference "
        "is unsigned",
        since=KernelVersion(5, 16),
        seen="6.1.192, 6.12.107, 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.SUBPOOL_RESERVE_MADE_UP,
        summary="a failed fault, mmap() or fallocate() on a mount with min_size= makes reserved pages up that the "
        "pool does not have",
        example="4 pages, a mount with min_size= of 2, which a file has reserved, 2 more reserved: mmap() of 3 "
        "pages of another file fails, and then mmap() of 2 succeeds, for which there are none",
        cause="hugepage_subpool_put_pages() is given back what came from the pool, not from the reserve of the mount",
        since=KernelVersion(4, 1),
        until=_SUBPOOL_FALLBACK,
        fix="mm: hugetlb: fix incorrect fallback for subpool (a833a693a490)",
        backports=(_SUBPOOL_FALLBACK_BACKPORT,),
        seen="6.1.192, 6.12.107; right on 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.SUBPOOL_USE_LOST_AT_FAULT,
        summary="a fault or fallocate() that finds no page uses up size= of the mount for good",
        example="a mount with size= of 4 pages in an empty pool: 4 calls of fallocate() fail, and with 4 free "
        "pages the fifth fails with ENOSPC, too",
        cause="alloc_hugetlb_folio() hands nothing back to the subpool when the page was not to come from its "
        "reserve: side effect of a833a693a490",
        since=_SUBPOOL_FALLBACK,
        reported="since April 2026 four patches were sent to linux-mm, none was taken by 7.3.4",
        brought_to=(_SUBPOOL_FALLBACK_BACKPORT,),
        seen="6.18.44, 7.3.4; right on 6.1.192, on 6.12.107 of ppc64le",
    ),
    KnownIssue(
        quirk=Quirk.SUBPOOL_USE_LOST_AT_MMAP,
        summary="an mmap() that the pool has no pages for uses up size= of the mount for good",
        example="a mount with size= of 2 pages in an empty pool: mmap() of 1 fails, statfs() shows 1 free block",
        cause="hugetlb_reserve_pages() takes back what came from the reserve of the mount only: side effect of "
        "a833a693a490 (CVE-2026-43286)",
        since=_SUBPOOL_FALLBACK,
        until=KernelVersion(7, 0),
        fix="mm/hugetlb: restore failed global reservations to subpool (1d3f9bb4c8af)",
        backports=(KernelVersion(6, 18, 16), KernelVersion(6, 19, 6)),
        brought_to=(_SUBPOOL_FALLBACK_BACKPORT,),
        seen="6.16.3, 6.18.15; right on 6.18.44, 6.19.6",
    ),
    KnownIssue(
        quirk=Quirk.SUBPOOL_RESERVE_DROPPED,
        summary="an mmap() that the pool has no pages for drops the reserve of a mount with size= and min_size=, "
        "and resv_hugepages falls below 0 when it is unmounted",
        example="2 pages, a mount with size= of 8 and min_size= of 2: mmap() of 5 fails, resv_hugepages falls from "
        "2 to 0, and to 2^64 - 2 after umount",
        cause="hugetlb_reserve_pages() calls hugepage_subpool_put_pages() while used_hpages still counts what "
        "failed: side effect of a833a693a490",
        since=_SUBPOOL_FALLBACK,
        until=KernelVersion(7, 4),
        fix="mm/hugetlb: fix subpool minimum reservation rollback",
        backports=(KernelVersion(7, 3, 4),),
        brought_to=(_SUBPOOL_FALLBACK_BACKPORT,),
        seen="6.18.44; right on 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.SUBPOOL_RESERVE_NOT_USED,
        summary="a fault of a process that holds no reservation takes a page out of min_size= of a mount, and the "
        "pool goes on counting it as reserved",
        example="1 page, a mount with min_size= of 1: a page touched through a private MAP_NORESERVE mapping of a "
        "file gets SIGBUS, resv_hugepages stays 1",
        cause="vma_has_reserves() says no for the private mapping of a forked process and for MAP_NORESERVE "
        "although the subpool has counted its reserve down",
        since=KernelVersion(4, 1),
        until=_RESERVATION_SERIES,
        fix="the series that took vma_has_reserves() away",
        seen="6.1.192, 6.12.107; right on 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.SUBPOOL_RESERVE_AVOIDED,
        summary="the copy that the owner of a private mapping makes takes a page out of min_size= of a mount, and "
        "the pool goes on counting it as reserved",
        example="3 pages, a mount with min_size= of 2: after a private page of a file was written, the process "
        "forked and wrote it again, free is 1 and resv 1",
        cause="alloc_hugetlb_folio() passes by the reserve that the subpool has counted down",
        since=KernelVersion(4, 1),
        until=_RESERVATION_SERIES,
        fix="mm/hugetlb: fix avoid_reserve to allow taking folio from subpool",
        backports=(KernelVersion(6, 1, 191), KernelVersion(6, 12, 14), KernelVersion(6, 13, 3)),
        seen="6.1.176; right on 6.1.192, 6.12.117, 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.RESERVED_SURPLUS_FREED,
        summary="a surplus page of a mount with min_size= is given back to the system while it counts as reserved",
        example="empty pool, nr_overcommit_hugepages 2, min_size= of 2 pages: a page touched and truncated leaves "
        "nr 1, free 1, resv 2",
        cause="free_huge_folio() restores the reservation and frees the page all the same",
        since=KernelVersion(4, 1),
        seen="6.1.192, 6.12.107, 6.18.44, 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.SURPLUS_FREED_AS_PERSISTENT,
        summary="a pool that shrinks may free a surplus page that is reserved as if it were persistent: its node "
        "has one surplus page more than pages then, and whatever is written to nr_hugepages of that node takes all "
        "its memory",
        example="mmap() has reserved a surplus page of node 0, node 1 has 3 persistent pages, nr_hugepages is set "
        "to 0: node 0 has nr 0 and surplus 1, node 1 nr 2 and surplus 1; 1 written to nr_hugepages of node 0 then "
        "takes 2940 pages of 2M, all that 6 GiB have. Which node gives its page first goes in turns: with 2 pages "
        "on node 1, of which 1 is freed, it need not be node 0",
        cause="remove_pool_hugetlb_folio() takes any free page of a node, also when it is to take persistent ones, "
        "and set_max_huge_pages() subtracts what a node has of surplus from its pages, both unsigned and of 32 "
        "bits. mmap() reserves surplus pages since 2.6.24",
        since=KernelVersion(2, 6, 24),
        seen="6.1.176, 6.12.117, 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.UNMAP_RESERVES_PAGE_IN_USE,
        summary="a page that the owner of a private mapping unmaps while a forked process has it is reserved for "
        "nobody",
        example="2 pages, 1 written, fork(), the parent exits: free is 1 and resv 2^64 - 1",
        cause="__unmap_hugepage_range() restores the reservation of a page that stays mapped (df7a6d1f6405; "
        "CVE-2026-89593)",
        since=KernelVersion(6, 9),
        until=KernelVersion(7, 3),
        fix="hugetlb: only adjust reservation during unmapping if mapcount is 0",
        backports=(KernelVersion(7, 2, 4), KernelVersion(6, 12, 110), KernelVersion(6, 18, 50)),
        seen="6.12.107, 6.18.44; right on 6.1.192, 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.MOVE_FORGETS_RESERVATION,
        summary="mremap() of a part of a private mapping leaves pages reserved that the rest had reserved, for good",
        example="2 private pages, the first moved away, both unmapped: nr 2, free 2, resv 1; it takes no privilege",
        cause="clear_vma_resv_huge_pages() takes the reservation from the whole mapping before its part is split off",
        since=KernelVersion(5, 16),
        seen="6.1.192, 6.12.107, 6.18.44, 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.MOVE_LENGTH_TRUNCATED,
        summary="mremap() of 4 GiB and more fails with ENOMEM where the low 32 bits of the length are below 2^31, "
        "and the pages beyond these low 32 bits are gone with what was in them",
        example="4 GiB: ENOMEM, and the old mapping reads 0 where it was written; 5 GiB: ENOMEM, the last 4 GiB "
        "are lost; 3, 6 and 7 GiB are moved. Pages of 1G that were never touched count as far as their page table "
        "would reach: one at 64 GiB is not moved (ENOMEM), one at 65 GiB is",
        cause="move_hugetlb_page_tables() returns as an int how much it moved, with what it skipped for want of "
        "page tables (550a7d60bd5e); copy_vma_and_data(), before 6.16 move_vma(), moves only that much back and "
        "unmaps the rest",
        since=KernelVersion(5, 16),
        seen="6.1.176, 6.1.192, 6.12.107, 6.18.44, 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.MOVE_WAITS_FOR_ITSELF,
        summary="mremap() of shared memory to where its page table could be shared never returns, and nothing ends "
        "its process",
        example="1 GiB of shared pages of 2M at a multiple of 1 GiB, the first one touched by this process alone, "
        "moved to another such place; it takes no privilege, and who reads /proc of that process waits, too",
        cause="move_hugetlb_page_tables() holds i_mmap_rwsem to write when it has huge_pte_alloc() make a page "
        "table, and huge_pmd_share(), which looks for one to share, takes it to read since 3a47c54f09c4",
        since=KernelVersion(6, 1),
        seen="6.1.176, 6.12.117, 7.3.4; right on 6.1.176 of ppc64le",
    ),
    KnownIssue(
        quirk=Quirk.FAILED_MOVE_ENDS_RESERVATION,
        summary="a private mapping that mremap() fails to move has no reservation any more",
        example="4 pages of 1G reserved, mremap() fails with ENOMEM (move-length-truncated): resv_hugepages falls "
        "to 0 although the mapping stays",
        cause="copy_vma_and_data() takes the reservation from the old mapping, and what is unmapped is the new one",
        since=KernelVersion(6, 15),
        until=KernelVersion(7, 4),
        fix="mm/mremap: fix calling fixup_hugetlb_reservations() on the wrong VMA",
        backports=(KernelVersion(7, 3, 4),),
        seen="6.18.44; right on 6.12.117, 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.FORK_LOSES_PAGES,
        summary="a forked process may lack all 1G pages of private mappings: it reads zeros, or gets SIGBUS",
        example="1 page of 1G written, fork(): HugetlbPages of the child is 0; of 1000 children 459 died, with a "
        "pool of 2 pages 18 of 30 read zeros. Pages of any size that has no entries in a PMD table are hit",
        cause="copy_hugetlb_page_range() asks ptdesc_pmd_is_shared() about a table that holds no PMD entries, "
        "where pt_share_count is what the page held before (14967a9c7d24). Of the architectures here those that "
        "share page tables ask: x86_64, aarch64. Older branches that have it, such as 6.1.167, do not show it: "
        "before 6.10 the allocator kept the migrate type there, 0 for page tables",
        since=KernelVersion(6, 18),
        brought_to=(KernelVersion(6, 12, 74),),
        seen="6.12.107, 6.18.44, 7.3.4; right on 6.1.192, on 6.12.107 of ppc64le",
    ),
    KnownIssue(
        quirk=Quirk.PINNED_PAGE_UNRESERVED,
        summary="resv_hugepages falls below 0 while a page that its owner has unmapped is held by a pipe",
        example="vmsplice() of a private page, then munmap(): resv_hugepages reads 2^64 - 1 until the pipe is read",
        cause="__unmap_hugepage_range() adds a reservation for a page that is not freed (df7a6d1f6405)",
        since=KernelVersion(6, 9),
        seen="6.12.107, 6.18.44, 7.3.4; right on 6.1.192",
    ),
    KnownIssue(
        quirk=Quirk.SUBPOOL_FREED_IN_USE,
        summary="a mount with min_size= and without size= that uses more pages than that is forgotten when it is "
        "unmounted, although somebody holds a page of it: when that is given back, the kernel changes memory that "
        "it has freed",
        example="2 pages, a mount with min_size= of 1, a file of 2, the first of which is in a pipe (vmsplice(2)): "
        "the file is removed and the mount unmounted, and when the pipe is closed a user key that was made "
        "meanwhile holds 4 where it held 5. What else has the memory then may stop the CPU: with what counts the "
        "inodes of another mount there, hugepage_subpool_put_pages() of 7.3.4 waits for ever for a lock",
        cause="used_hpages is not counted without max_hpages, so that hugepage_subpool_put_pages() reserves each "
        "page that is given back anew, though as many as min_size= says are still in use, and subpool_is_free() "
        "takes all to be given back when as many are reserved: hugepage_put_subpool() frees the subpool that the "
        "page names (1c5ecae3a93f); before 1d88433bb008 (5.12) it did not look at that either",
        since=KernelVersion(4, 1),
        reported='"mm: hugetlb: Track used_hpages when getting/putting pages from subpool" was sent to linux-mm '
        "and stable in July 2026, for another reason, and is not in 7.3.4",
        seen="6.1.176, 6.12.117, 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.COPY_LOSES_RESERVATION,
        summary="UFFDIO_COPY from memory that is not there yet, to a private mapping that nothing is reserved for, "
        "takes a page out of min_size= of the mount that the pool reserves for ever",
        example="6 pages, a mount with min_size= of 2, a page of a private MAP_NORESERVE mapping copied from "
        "memory that was never touched, and given back, 4 times: resv_hugepages reads 2, 3, 4 and 5, and stays 5 "
        "when all is unmounted. With size= it ends when min_size= is used up, and the mount has room for less",
        cause="hugetlb_mfill_atomic_pte() frees the page that it cannot fill at once. restore_reserve_on_error() "
        "leaves hugetlb_restore_reserve set where no reserve map takes the reservation, and free_huge_folio() then "
        "gives it back to the pool, and nothing to the subpool: since the series that took vma_has_reserves() "
        "away the flag is set of such a page, too",
        since=_RESERVATION_SERIES,
        seen="7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.BUFFER_TAKES_RESERVED,
        summary="a buffer for a device (UDMABUF_CREATE) of a hole of a file that nothing is reserved for takes a "
        "reservation that others have made, although a page is free",
        example="2 pages, 1 reserved for a mapping, a buffer of a hole of a memfd: free 1, resv 0, where resv is "
        "to stay 1; where nothing is reserved resv_hugepages reads 2^64 - 1 until the file has gone, or, since "
        "c39b87456411 (6.16), it is ENOMEM however many pages are free",
        cause="memfd_alloc_folio() calls alloc_hugetlb_folio_reserve(), which takes a page off resv_huge_pages "
        "(26a8ea80929c), as if the file had a reservation: it has one only where it was mapped, or allocated",
        since=KernelVersion(6, 12),
        until=KernelVersion(6, 17),
        fix="mm/memfd: reserve hugetlb folios before allocation (717cf9357325)",
        seen="6.12.117; right on 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.ATTACHMENT_RESERVES,
        summary="shmat() reserves the pages of a segment that was made with SHM_NORESERVE, and fails where there "
        "are too few",
        example="1 page, a segment of 2 with SHM_NORESERVE: shmat() gives ENOMEM",
        cause="hugetlbfs_file_mmap() looks at the flags of the mapping, which shmat() has no such flag for",
        since=KernelVersion(2, 6, 30),
        until=KernelVersion(6, 8),
        fix="mm: hugetlb pages should not be reserved by shmat() if SHM_NORESERVE",
        backports=(KernelVersion(5, 10, 213), KernelVersion(6, 1, 79)),
        seen="none with it; right on 6.1.192, 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.COPY_NEVER_ENDS,
        summary="a process that wrote a private page, forked and has the page elsewhere by now writes it for ever "
        "when no page is free: not even SIGKILL ends it, until those that it forked are gone",
        example="1 page of 2M written, fork(), mremap(): the parent uses a whole CPU from its next write to the "
        "end of its child",
        cause="unmap_ref_private() unmaps in the child what it has at the address of the parent, and hugetlb_wp() "
        "tries again",
        since=KernelVersion(5, 16),
        until=KernelVersion(7, 4),
        fix="mm/hugetlb: unmap the page where the other VMA maps it",
        backports=(KernelVersion(7, 3, 4),),
        seen="6.1.192, 6.18.44; right on 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.UNMAP_PASSES_OVER_A_MOVE,
        summary="munmap() passes over a page that is being moved to another node: the page is in use for ever",
        example="1 private page of 2M on radix page tables, which a thread moves between two nodes by move_pages() "
        "while another one unmaps it: after at most some hundred rounds the log says `mm/pgtable-generic.c:51: bad "
        "pmd c00000007f800386`, and free_hugepages stays 1 too low when the process has ended. With pages of 16M "
        "on hash page tables a pool of 4 had lost all after 356 rounds. MADV_DONTNEED instead left the page with "
        "what was in it 342 of 3000 times",
        cause="try_to_migrate_one() has the entry empty, with the lock of the page table, until it stores that "
        "of the migration; __unmap_hugepage_range() asks huge_pte_offset() without the lock, which on powerpc is "
        "__find_linux_pte(): NULL for an entry that is empty, where others return where it is. What was moved is "
        "mapped again before the mapping is gone, and hugetlb_free_pmd_range() clears the entry and forgets its "
        "page. powerpc moves huge pages since 4.13",
        since=KernelVersion(4, 13),
        architecture="ppc64le",
        reported="looked for on 2026-11-26; 7.2.13 is the newest that was run",
        seen="6.1.176, 6.12.95, 7.2.12, 7.2.13",
    ),
    KnownIssue(
        quirk=Quirk.BEHIND_ABSENT_TABLE,
        summary="pages of 1G that stand behind a page table which is not there are passed over, up to the next 256 TiB "
        "and not to the end of that table, where kernels are built with five levels of page tables: mprotect() leaves "
        "them writable, MADV_DONTNEED leaves them mapped, munmap() and the end of the process leave them in use for "
        "ever, and by the source fork() leaves them out",
        example="1 TiB of pages of 1G is mapped with MAP_NORESERVE at an address of 1 TiB, and page 512 touched: after "
        "mprotect(PROT_READ) of all it is written, and when the process has ended free_hugepages stays 1 too low; the "
        "log says `mm/pgtable-generic.c:44: bad pud 00e8000140000c41.`",
        cause="hugetlb_mask_last_page() of arm64 has PGDIR_SIZE - PUD_SIZE for them (1bcdb769f9ca), where "
        "mm/hugetlb.c has P4D_SIZE - PUD_SIZE: since a6bbf5d4d9d1 PGDIR_SIZE is 256 TiB there with "
        "CONFIG_ARM64_VA_BITS_52 and base pages of 4K, whatever the CPU has, and one table covers 512 GiB",
        since=KernelVersion(6, 9),
        architecture="aarch64",
        seen="6.12.117, 7.3.4; right on 6.1.176, which has four levels",
    ),
)


def pool_issues_of(version: KernelVersion) -> tuple[KnownIssue, ...]:
    """Return the known issues that the pools of kernels of ``version`` have."""
    return tuple(issue for issue in POOL_ISSUES.values() if issue.applies_to(version))
