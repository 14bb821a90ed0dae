"""Known kernel bugs in what is told of huge pages that somebody has: counters, charges, flags of frames."""

from hugepage_qa.oracle.known_issues import KnownIssue, Quirk, by_quirk
from hugepage_qa.version import KernelVersion

ACCOUNT_ISSUES = by_quirk(
    KnownIssue(
        quirk=Quirk.SMAPS_SHOWS_SHARED,
        summary="smaps may show 1G pages that one process alone maps as Shared_Hugetlb, all those of a page table",
        example="2 private pages of 1G touched: Private_Hugetlb 0 kB, Shared_Hugetlb 2097152 kB; mbind() with "
        "MPOL_MF_MOVE leaves such pages where they are",
        cause="hugetlb_pmd_shared() asks ptdesc_pmd_is_shared() about a table that holds no PMD entries, as "
        "fork-loses-pages does (the fix of CVE-2026-23100)",
        since=KernelVersion(6, 19),
        brought_to=(KernelVersion(6, 12, 74), KernelVersion(6, 18, 8)),
        seen="6.12.107, 6.18.44, 7.3.4; right on 6.1.192, on 6.12.107 of ppc64le",
    ),
    KnownIssue(
        quirk=Quirk.SMAPS_SHOWS_BROKEN,
        summary="smaps shows a page that broke as if it were still there: as Shared_Hugetlb since 6.11, as "
        "Private_Hugetlb before",
        example="3 private pages of 2M, MADV_HWPOISON of one: HugetlbPages falls to 4096 kB, and smaps shows "
        "Private_Hugetlb 4096 kB, Shared_Hugetlb 2048 kB; 6.1.192 shows Private_Hugetlb 6144 kB",
        cause="smaps_hugetlb_range() takes every is_pfn_swap_entry() for a page, which entries of pages that broke "
        "are among since 07a57a338adb; since 6.11 what is not present is shared there",
        since=KernelVersion(6, 9),
        brought_to=(KernelVersion(6, 1, 91), KernelVersion(6, 6, 29), KernelVersion(6, 8, 8)),
        seen="6.1.176, 6.1.192, 6.12.117, 7.3.4; right on 5.10.223",
    ),
    KnownIssue(
        quirk=Quirk.SHARED_TABLE_UNCOUNTED,
        summary="HugetlbPages of a process leaves out pages that it has by a page table of another one, keeps "
        "those that it touched when it has unmapped such a table, and falls below 0 in who unmaps it last",
        example="3 pages of 2M of a file that covers 1 GiB, touched, then read by a child: HugetlbPages of the "
        "child is 0 kB; both unmap it, and the parent has 6144 kB and the child 18446744073709545472 kB",
        cause="huge_pmd_share() and huge_pmd_unshare() count the table of a process and not the pages in it; "
        "__unmap_hugepage_range() takes all of them off the one that has the table last (5d317b2b6536)",
        since=KernelVersion(4, 4),
        seen="6.1.176, 6.12.117, 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.BUFFER_PAGE_COUNTED_AGAIN,
        summary="a huge page in which buffers lie that are registered at once counts again as locked and pinned "
        "for each that does not follow another one of it",
        example="buffers in two pages of 2M, in the first, in the second, in the first again: VmPin is 6144 kB, "
        "not 4096 kB, and ENOMEM where RLIMIT_MEMLOCK is less",
        cause="io_sqe_buffers_register() keeps the buffers of a call to itself until all are registered, and "
        "headpage_already_acct() looks at those of earlier calls; the last page is remembered besides",
        since=KernelVersion(6, 13),
        until=KernelVersion(7, 2),
        fix="hpage_acct_ref() of io_uring/rsrc.c, which counts who has a page (posted in May 2026)",
        seen="6.18.44; right on 6.12.117, 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.REPLACED_BUFFER_NOT_COUNTED,
        summary="a huge page counts as pinned no more when the buffer in it that was registered first is replaced, "
        "though others lie in it, or the new one does: who does so pins more than RLIMIT_MEMLOCK",
        example="a buffer in a page of 2M, IORING_REGISTER_BUFFERS_UPDATE by another part of the page: VmPin is 0 "
        "kB, not 2048 kB, and the page is pinned",
        cause="headpage_already_acct() counts a page for the first of its buffers alone, and what is released "
        "takes with it what was counted for it, whoever else has the page",
        since=KernelVersion(5, 13),
        until=KernelVersion(7, 2),
        fix="hpage_acct_ref() of io_uring/rsrc.c, which counts who has a page (posted in May 2026)",
        seen="6.1.176, 6.12.117, 6.18.44; right on 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.BUFFER_PAGE_UNCHARGED,
        summary="a page that a file gets since a buffer for a device (UDMABUF_CREATE) is made of a hole of it is "
        "charged to no group, and passes every limit",
        example="hugetlb.2MB.max is 0, and a buffer is made of a hole of a memfd: it is there, hugetlb.2MB.current "
        "is 0, and free_hugepages one less",
        cause="memfd_alloc_folio() takes the page by alloc_hugetlb_folio_reserve(), which charges nobody as "
        "alloc_hugetlb_folio() does",
        since=KernelVersion(6, 11),
        seen="6.12.117, 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.DELETED_BROKEN_PAGE_CHARGED,
        summary="a page of a file that broke stays charged to its group, and in use of its mount, when the file is "
        "removed",
        example="a hugetlbfs with one file of one page of 2M, MADV_HWPOISON of it, unlink(2): hugetlb.2MB.current is "
        "2097152, and statfs(2) of the mount has one block in use",
        cause="me_huge_page() keeps its reference of a page of a file, which stays in the file (8625147cafaa); when "
        "it is taken out there nobody puts that, and free_huge_folio() alone takes off charges",
        since=KernelVersion(6, 1),
        seen="6.12.117, 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.MINCORE_COUNTS_HUGE_PAGES,
        summary="mincore() tells of a huge page of a file that is not there that a base page of it is for each "
        "huge page of the file behind it",
        example="a file of 3 pages of 2M, mapped, of which the second was touched: of the 32 base pages of 64K of "
        "the first mincore() tells that the second is in memory",
        cause="mincore_unmapped_range() goes from base page to base page with the index of a huge page, which is "
        "what linear_page_index() makes of a hugetlb mapping, since mincore() walks page tables. It is asked where "
        "huge_pte_offset() finds nothing: on powerpc wherever no page is mapped, elsewhere where there is no page "
        "table",
        since=KernelVersion(4, 0),
        until=KernelVersion(6, 7),
        fix="mm/filemap: remove hugetlb special casing in filemap.c (a08c7193e4f1), by the way",
        seen="6.1.176 of ppc64le",
    ),
    KnownIssue(
        quirk=Quirk.NR_HUGETLB_LOST,
        summary="an mmap() that fails for want of surplus pages takes pages out of nr_hugetlb for good; below 0 it "
        "reads 0",
        example="3 pages of 2M in use, nr_overcommit_hugepages 2: after an mmap() of 3 more that fails, nr_hugetlb "
        "counts 512 base pages instead of 1536",
        cause="gather_surplus_pages() frees through free_huge_folio() what was never added (05d4532b60e3)",
        since=KernelVersion(6, 13),
        seen="6.18.44, 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.NEW_GROUP_SHOWS_NUMBER,
        summary="the limits of hugetlb of a new control group, which has none, read as 9223372036854771712, and "
        "not as max or what a limit that was taken away reads as",
        example="mkdir of a group of version 2: hugetlb.2MB.max is 9223372036854771712; max is written to it: max",
        cause="hugetlb_cgroup_init() sets what counts as no limit within VM_BUG_ON(), which is not evaluated "
        "without CONFIG_DEBUG_VM (page_counter: track failcnt only for legacy cgroups)",
        since=KernelVersion(6, 15),
        until=KernelVersion(7, 3),
        fix="not identified: 6.18.44 has the bug; the sources of 7.3.4 set it apart from the warning",
        seen="6.18.44; right on 6.1.176, 6.12.117, 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.REMOVED_GROUP_OFF_NODES,
        summary="numa_stat of a control group has no node for the pages of a removed group below it, and falls "
        "below 0 when they are freed",
        example="2 pages of 2M of a removed group: its parent shows total=0 in version 1; when they are freed and "
        "the group is forgotten, total=0 N0=2^64 - 4194304 in version 2",
        cause="hugetlb_cgroup_move_parent() leaves the counts of nodes with the removed group, freed pages are "
        "taken off those of its parent (f47761999052)",
        since=KernelVersion(5, 17),
        until=KernelVersion(7, 4),
        fix="mm/hugetlb_cgroup: move per-node usage on cgroup reparenting",
        backports=(KernelVersion(7, 3, 4), KernelVersion(6, 12, 117)),
        seen="6.1.192, 6.12.107, 6.18.44; right on 6.12.117, 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.MOVED_PAGE_OFF_NODES,
        summary="numa_stat of a control group shows a page that moved to another node on the node that it came "
        "from, and falls below 0 on the other when it is freed",
        example="a page of 2M moves from node 0 to node 1: N0=2097152 N1=0; when it is freed, N0=2097152 "
        "N1=2^64 - 2097152",
        cause="hugetlb_cgroup_migrate() moves the group to the new page, and not the count of its node (f47761999052)",
        since=KernelVersion(5, 17),
        until=KernelVersion(7, 4),
        fix="mm/hugetlb_cgroup: move per-node usage on cross node migration",
        backports=(KernelVersion(7, 3, 4), KernelVersion(6, 12, 117)),
        seen="6.1.192; right on 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.SEGMENT_RSS_MULTIPLIED,
        summary="/proc/sysvipc/shm and shmctl(2) with SHM_INFO show what segments of huge pages have in memory "
        "multiplied by the base pages of a huge page",
        example="a segment of 2 pages of 2M, one of them touched: rss 1073741824 instead of 2097152, and shm_rss "
        "262144 instead of 512",
        cause="shm_add_rss_swap(), which both ask, takes nrpages for huge pages, and since a08c7193e4f1 they are "
        "base pages",
        since=KernelVersion(6, 7),
        until=KernelVersion(7, 4),
        fix="ipc/shm: fix RSS accounting for hugetlb shared memory",
        backports=(KernelVersion(7, 3, 4), KernelVersion(6, 12, 117)),
        seen="6.18.44, 7.2.6, 7.2.9, 7.2.11, 7.2.12; right on 7.3.4, 6.12.117",
    ),
    KnownIssue(
        quirk=Quirk.MOVED_PAGE_UNCOUNTED,
        summary="a page that moves is taken out of nr_hugetlb where it was, and not added where it is; freed, it "
        "is taken out there, too",
        example="a page of 2M in use on each of two nodes, one moves to the other: nr_hugetlb of the nodes is 0 "
        "and 512 instead of 0 and 1024",
        cause="alloc_migrate_hugetlb_folio() and alloc_hugetlb_folio_nodemask() do not count the new page "
        "(05d4532b60e3)",
        since=KernelVersion(6, 13),
        until=KernelVersion(7, 4),
        fix="mm/hugetlb: account migration target folio in per-node NR_HUGETLB vmstat",
        backports=(KernelVersion(7, 3, 4),),
        seen="none with it; right on 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.SHARED_TAILS_SHOWN_AS_HEADS,
        summary="/proc/kpageflags shows a huge page that gave struct pages back as having a further head at the "
        "start of each base page of struct pages",
        example="vm.hugetlb_optimize_vmemmap=1, a page of 2M: 8 of its 512 base pages are heads instead of 1",
        cause="snapshot_page(), by which stable_page_flags() reads a page since 6.17, copies its struct page and "
        "takes it for a head if that says so, without page_fixed_fake_head(): all base pages of struct pages are "
        "the first one, with the head in it (d863a12108f2)",
        since=KernelVersion(6, 17),
        until=KernelVersion(7, 1),
        fix="mm/hugetlb: remove fake head pages",
        seen="6.18.44; right on 6.1.192, 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.HOLES_SHOWN_AS_PAGES,
        summary="/proc/kpageflags shows a frame of no memory, between blocks of memory, as a page without flags, and "
        "not as none (NOPAGE)",
        example="a machine whose memory goes on at 4 GiB after a hole from 2 GiB on: kpageflags of the frames between "
        "reads 0, not 1048576",
        cause="kpage_read(), which reads kpagecount, kpageflags and kpagecgroup alike, gives 0 where "
        "pfn_to_online_page() finds no page; kpageflags_read() had asked stable_page_flags(), which tells NOPAGE then "
        "(fs/proc/page: refactor to reduce code duplication)",
        since=KernelVersion(6, 16),
        seen="7.3.4; right on 6.1.176, 6.12.117",
    ),
    KnownIssue(
        quirk=Quirk.LEFT_PAGE_UNTOLD,
        summary="move_pages(2) tells of one page less than it has left, and of none where it is one that is held",
        example="a page of 2M in a pipe (vmsplice(2)), move_pages(2) to another node: 0 instead of 1, and the page "
        "stays where it is",
        cause="move_pages_and_store_status() adds the pages that were not tried less the one at which the call "
        "ends, and at the end of the list there is none (5984fabb6e82)",
        since=KernelVersion(5, 6),
        until=KernelVersion(6, 1),
        fix="migrate: fix syscall move_pages() return value for failure",
        seen="5.10.223; right on 6.1.176, 7.3.4",
    ),
)
