"""Known kernel bugs in memory whose faults, or writes, a program handles or tracks by userfaultfd(2)."""

from hugepage_qa.oracle.known_issues import KnownIssue, Quirk, by_quirk
from hugepage_qa.version import KernelVersion

USERFAULT_ISSUES = by_quirk(
    KnownIssue(
        quirk=Quirk.UFFD_COPY_EXISTS,
        summary="UFFDIO_COPY that the pool has no page for fails with EEXIST, as if the page were there",
        example="every page of 2M in use or reserved: UFFDIO_COPY to a MAP_NORESERVE mapping gives EEXIST instead "
        "of ENOMEM, and mincore() shows no page there",
        cause="hugetlb_mfill_atomic_pte() takes the page table entry that it has just made for one that holds a "
        "page: hugetlb_walk() returns where it is, not what is in it",
        since=KernelVersion(6, 18),
        seen="6.18.44, 7.3.4; right on 6.1.192, 6.12.107, 6.12.117",
    ),
    KnownIssue(
        quirk=Quirk.SEGMENT_NOT_REGISTERED,
        summary="UFFDIO_REGISTER of a segment of huge pages fails with EINVAL, for faults of each kind: no program "
        "handles them",
        example="shmget(SHM_HUGETLB) of a page of 2M, attached, UFFDIO_REGISTER_MODE_MISSING, _WP or _MINOR: "
        "EINVAL; a memfd of such a page is registered. With UFFD_FEATURE_WP_ASYNC UFFDIO_REGISTER_MODE_WP succeeds",
        cause="vma_can_userfault() wants uffd_ops in vm_ops of the mapping. hugetlb_vm_ops has them, and "
        "shm_mmap() puts shm_vm_ops, which has none, in its place",
        since=KernelVersion(7, 1),
        seen="7.3.4; right on 6.1.176, 6.12.117",
    ),
    KnownIssue(
        quirk=Quirk.FORKED_PAGE_STAYS_PROTECTED,
        summary="a private page that userfaultfd protects is protected in a child, too, which nobody ends: a write "
        "of the child faults for ever",
        example="a page of 2M, written, given UFFDIO_WRITEPROTECT, fork(): pagemap of the child shows 512 base "
        "pages as protected, and its first store there takes 121 s of CPU time without an end",
        cause="copy_hugetlb_page_range() leaves the bit of a page that is present to a child that does not inherit "
        "the userfaultfd, and hugetlb_wp() copies no page that has it (60d5b473d61b, which stable has without the "
        "mend)",
        since=KernelVersion(5, 19),
        until=KernelVersion(6, 4),
        fix="5a2f8d22ace4 (6.4); 6.1.y has it not",
        seen="6.1.192; right on 6.12.117, 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.MOVED_PAGE_STAYS_PROTECTED,
        summary="a page that userfaultfd protects stays protected where mremap() has moved it, which no program "
        "was asked to be told of and nobody ends",
        example="a page of 2M, written, given UFFDIO_WRITEPROTECT, mremap(): pagemap shows 512 base pages as "
        "protected at the new address",
        cause="move_huge_pte() takes the entry with its bit to a mapping that has no userfaultfd any more; "
        "hugetlb_wp() copies no page that has it since 60d5b473d61b, and a write does not end (CVE-2025-21696)",
        since=KernelVersion(5, 19),
        until=KernelVersion(6, 13),
        fix="mm: clear uffd-wp PTE/PMD state on mremap() (0cef0bb836e3)",
        backports=(KernelVersion(6, 1, 191), KernelVersion(6, 12, 11)),
        seen="6.1.176; right on 6.1.192, 6.12.117, 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.UNREGISTER_ENDS_PROTECTION,
        summary="UFFDIO_UNREGISTER of a range that ends within a page fails with EINVAL, and the page is no longer "
        "protected",
        example="a page of 2M with UFFDIO_WRITEPROTECT, UFFDIO_UNREGISTER of its first half: EINVAL, the page is "
        "still registered, and who writes to it is no longer told of",
        cause="userfaultfd_unregister() looks at the start of the range alone, and uffd_wp_range() has taken the "
        "protection away when the mapping cannot be split; userfaultfd_register() looks at both ends",
        since=KernelVersion(5, 19),
        seen="6.1.176, 6.1.192, 6.12.117, 6.18.44, 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.GIVEN_BACK_UNTOLD,
        summary="memory of a file, and private memory of a pool, that is given back is not told as written by "
        "PAGEMAP_SCAN, though it is zero from then on",
        example="two pages of 2M of a file, written, given UFFDIO_WRITEPROTECT with UFFD_FEATURE_WP_ASYNC, "
        "MADV_REMOVE of one: a scan for PAGE_IS_WRITTEN finds nothing, also when its zeroes have been read",
        cause="what unmaps a hole leaves a marker of protection, which who waits for a write needs, also where "
        "writes are tracked; MADV_DONTNEED does so of all memory that is not of the anonymous kind, as that of a "
        "pool is not (52526ca7fdb9, d61ea1cb0095)",
        since=KernelVersion(6, 7),
        seen="6.12.117, 6.18.44, 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.SCAN_PASSES_OVER_PAGES,
        summary="PAGEMAP_SCAN that protects, and has no room for several pages of a pool, says that it goes on at "
        "the last one of them, and whoever goes on there passes over the others",
        example="three pages of 2M, written, a scan with PM_SCAN_WP_MATCHING and max_pages of 700: the first one "
        "is told, and walk_end is the start of the third",
        cause="pagemap_scan_hugetlb_entry() makes nothing of a page that does not fit, sets walk_end, and has "
        "the walk go on, which meets the next one that does not fit (52526ca7fdb9)",
        since=KernelVersion(6, 7),
        seen="6.12.117, 6.18.44, 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.SCAN_LEAVES_UNTOUCHED,
        summary="PAGEMAP_SCAN that protects all of a mapping of a pool leaves pages out that nobody has touched, where "
        "there is a page table for them: what is only read of them then is told as written",
        example="three pages of 2M, untouched, with a page table to themselves, a scan with PM_SCAN_WP_MATCHING and no "
        "masks, all are read: a scan for PAGE_IS_WRITTEN tells the second and the third; with UFFDIO_WRITEPROTECT none",
        cause="pagemap_scan_pte_hole() protects what has no page table, and makes one for the first page; "
        "pagemap_scan_hugetlb_entry() takes an entry that is not PAGE_IS_WRITTEN for a protected one, and an empty one "
        "is not (52526ca7fdb9)",
        since=KernelVersion(6, 7),
        seen="6.12.117, 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.SCAN_PROTECTS_OTHERS,
        summary="a PAGEMAP_SCAN that protects and tells nothing protects all base pages, whatever its masks "
        "choose: who looks for what was written is not told of the others",
        example="4 MiB of written anonymous memory, asked to protect what is written and of a file, without vec: "
        "none is, and all 1024 pages are protected; with vec, or of huge pages, none",
        cause="the fast path for exclusive protection in pagemap_scan_pmd_entry() looks at no mask (52526ca7fdb9)",
        since=KernelVersion(6, 7),
        seen="6.12.117, 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.PART_OF_SHARED_UNTOLD,
        summary="PAGEMAP_SCAN that protects a part of a huge page of shared memory, and asks for what is present and "
        "written, tells nothing of it, protects nothing, and unmaps all of the huge page",
        example="2 MiB of shared memory in a huge page, UFFD_FEATURE_WP_ASYNC, written, PM_SCAN_WP_MATCHING of each "
        "half, PAGE_IS_WRITTEN and PAGE_IS_PRESENT: 0 of 512 base pages are told; of shared base pages, of an "
        "anonymous huge page, or asked for PAGE_IS_WRITTEN alone, 512",
        cause="pagemap_scan_thp_entry() splits how the huge page is mapped and goes on by base pages, of which a file "
        "has none in the page table then",
        since=KernelVersion(6, 7),
        seen="6.12.117, 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.CLOSED_GIGANTIC_PAGE_READ,
        summary="process_vm_readv(2) reads a page of 1G that UFFDIO_RWPROTECT closed, and nobody is told",
        example="a page of 1G, UFFDIO_RWPROTECT with UFFD_FEATURE_SIGBUS: its process gets SIGBUS, and another one "
        "reads its words, which is EFAULT for pages of 64K, 2M and 32M",
        cause="follow_huge_pud() asks whether the entry is present alone, and not, as follow_huge_pmd() does, "
        "whether it may be followed where it has no access; such an entry of x86_64 is not pud_present()",
        since=KernelVersion(7, 3),
        architecture="aarch64",
        seen="7.3.4 on aarch64",
    ),
    KnownIssue(
        quirk=Quirk.CLOSED_USERFAULTFD_PROTECTS,
        summary="pages that userfaultfd protected stay marked as protected when it is closed, and who registers "
        "them again is told of writes to what he has not protected",
        example="a page of 2M, UFFDIO_WRITEPROTECT, close(): pagemap shows 512 base pages as protected",
        cause="userfaultfd_release() takes the flag from the mapping, and leaves the entries as they are, which "
        "userfaultfd_unregister() puts right (f369b07c8614)",
        since=KernelVersion(5, 19),
        until=KernelVersion(6, 9),
        fix="mm/userfaultfd: reset ptes when close() for wr-protected ones (c88033efe9a3)",
        backports=(KernelVersion(6, 1, 192),),
        seen="6.1.176; right on 6.1.192, 6.12.117, 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.CLOSING_UNMAPS_SHARED,
        summary="UFFDIO_RWPROTECT of shared memory in a huge page takes it out of the page table instead of "
        "closing it, and no access is told",
        example="2 MiB of shared memory in a huge page, UFFDIO_RWPROTECT: bit 57 of pagemap is set of no base "
        "page, Rss is 0, and a write goes on without a message",
        cause="change_pmd_range() splits a huge page of a file to close it, by which it is unmapped; "
        "UFFDIO_WRITEPROTECT leaves markers there, and UFFDIO_RWPROTECT has none",
        since=KernelVersion(7, 3),
        seen="7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.UNMAPPING_OPENS_SHARED,
        summary="base pages of shared memory that UFFDIO_RWPROTECT closed are open once reclaim, or a collapse of "
        "their file for another mapping, has unmapped them, and no access is told",
        example="2 MiB of shared memory in base pages, UFFDIO_RWPROTECT, MADV_PAGEOUT, or MADV_COLLAPSE by another "
        "process: bit 57 of pagemap is set of 512 base pages before it, and of none after it",
        cause="cond_install_uffd_wp_ptes(), by which try_to_unmap_one() leaves a marker in place of what has no swap "
        "entry, does so for UFFDIO_WRITEPROTECT alone",
        since=KernelVersion(7, 3),
        seen="7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.MERGING_ENDS_PROTECTION,
        summary="memory that userfaultfd protects, or that is closed, is neither any more where KSM has merged it, and "
        "no access is told",
        example="2 MiB in base pages or a huge page, UFFDIO_WRITEPROTECT, merged with equal pages: bit 57 of pagemap "
        "is set of no base page, and a write goes on without a message",
        cause="replace_page() makes the new entry of vm_page_prot, without the bit of the old one (f45ec5ff16a7)",
        since=KernelVersion(5, 7),
        seen="6.1.176, 6.12.117, 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.MOVED_SWAP_STAYS_PROTECTED,
        summary="protected memory that UFFDIO_MOVE moves is protected where it was missing, too, if it is in swap",
        example="512 base pages, UFFDIO_WRITEPROTECT, swapped out, moved to where nothing was protected: bit 57 of "
        "pagemap is set of all, and a write is told where the range is registered for that; of what is not in swap "
        "neither",
        cause="move_swap_pte() puts the entry in place as it is, where move_present_ptes() makes a new one "
        "(adef440691ba)",
        since=KernelVersion(6, 8),
        seen="6.12.117, 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.GUARDING_PROTECTED_NEVER_ENDS,
        summary="MADV_GUARD_INSTALL never returns where userfaultfd write-protects shared memory, or a file of a tmpfs",
        example="a base page of a memfd, UFFDIO_WRITEPROTECT, MADV_GUARD_INSTALL: the process uses a CPU until a "
        "signal ends it, by process_madvise(2) until SIGKILL or another one that nobody handles does; of anonymous "
        "memory it returns at once",
        cause="guard_install_pte_entry() wants zap_vma_range() to clear whatever is no guard, which leaves a marker "
        "of what userfaultfd protects, or makes one (zap_nonpresent_ptes(), zap_install_uffd_wp_if_needed()); each "
        "retry finds it (f807123d578d)",
        since=KernelVersion(6, 15),
        seen="7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.POISON_OF_SHARED_LOST,
        summary="shared memory that UFFDIO_POISON poisoned is not poisoned any more when its file was collapsed, by "
        "whichever mapping, nor in a child",
        example="2 MiB of shared memory in base pages, MADV_DONTNEED and UFFDIO_POISON of one, MADV_COLLAPSE by the "
        "process or another one: it reads what was there, and no SIGBUS; so does a child without any collapse; with "
        "anonymous memory MADV_COLLAPSE is refused, and both get SIGBUS",
        cause="file_backed_vma_is_retractable() and vma_needs_copy() know that the page tables of a file hold what "
        "cannot be had from it where it is protected by userfaultfd, or may have guards, and not where there are "
        "markers of poison",
        since=KernelVersion(6, 6),
        seen="6.12.117, 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.COLLAPSE_MAPS_UNTOLD,
        summary="MADV_COLLAPSE maps all of a huge page of shared memory whose minor faults a program handles, and no "
        "access is told any more",
        example="2 MiB of a memfd, mapped again with UFFDIO_REGISTER_MODE_MINOR, UFFDIO_CONTINUE of the first base "
        "page, MADV_COLLAPSE there: the second one is read without a message; MADV_COLLAPSE of the other mapping "
        "alone leaves all to be told",
        cause="try_collapse_pte_mapped_thp(), collapse_pte_mapped_thp() in 6.12, maps the huge page over entries "
        "that are empty, and refuses where userfaultfd protects alone",
        since=KernelVersion(6, 1),
        seen="6.1.176, 6.12.117, 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.SOFT_DIRTY_LOST_AT_UNPROTECT,
        summary="base pages of shared memory that UFFDIO_WRITEPROTECT protected, and protects no more, are written "
        "without becoming soft-dirty: who saves a process in steps, as CRIU does, leaves what was written out",
        example="2 MiB of shared memory in base pages, 4 written to clear_refs, UFFDIO_WRITEPROTECT and the same again "
        "without UFFDIO_WRITEPROTECT_MODE_WP, a write: bit 55 of pagemap is not set; it is for private memory and for "
        "a huge page",
        cause="uffd_wp_range() has change_protection() make entries of vm_get_page_prot(), which lets shared memory be "
        "written, and not of vm_page_prot, which does not while soft-dirty is tracked (b1f9e876862d)",
        since=KernelVersion(5, 19),
        until=KernelVersion(6, 3),
        fix="mm/userfaultfd: rely on vma->vm_page_prot in uffd_wp_range() (931298e103c2); 6.1.y has it not",
        seen="6.1.176; right on 6.12.117, 7.3.4",
    ),
)
