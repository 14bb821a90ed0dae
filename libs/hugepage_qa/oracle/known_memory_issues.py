"""Known kernel bugs in huge pages of a pool that somebody has: what is in them, and where they are.

Those that cost a pool pages or reservations are in ``pool.known_pool_issues``, wrong numbers and flags of them in
``known_account_issues``.
"""

from hugepage_qa.oracle.known_issues import KnownIssue, Quirk, by_quirk
from hugepage_qa.version import KernelVersion

#: c0b495b91a47, which "mm/hugetlb_vmemmap: fix incorrect vmemmap restore in rollback" needed there
_VMEMMAP_WALK_BACKPORTS = (KernelVersion(6, 12, 114), KernelVersion(6, 18, 51))

MEMORY_ISSUES = by_quirk(
    KnownIssue(
        quirk=Quirk.UNUSABLE_GIGANTIC_READ_NEVER_ENDS,
        summary="what reads or writes a page of 1G by /proc/PID/mem never comes back, until a signal ends it, when the "
        "process that has the page may not use it (PROT_NONE)",
        example="a private page of 1G touched, mprotect(PROT_NONE), a debugger reads 8 bytes: it uses a whole CPU; of "
        "2M it reads them",
        cause="follow_huge_pud() finds no page where pud_present() is false, as it is on x86_64 for an entry without "
        "access, and hugetlb_fault() nothing to do, again and again (follow_huge_pmd() asks pmd_present(), which is "
        "true)",
        since=KernelVersion(6, 10),
        architecture="x86_64",
        seen="6.12.117 (read), 7.3.4; right on 6.1.176",
    ),
    KnownIssue(
        quirk=Quirk.PROTECTED_GIGANTIC_WRITTEN,
        summary="a debugger writes a private page of 1G that its process may only read and that userfaultfd protects, "
        "and nobody is told",
        example="a private page of 1G touched, UFFDIO_WRITEPROTECT, mprotect(PROT_READ): pwrite(2) of 8 bytes to "
        "/proc/PID/mem succeeds, which is EIO for pages of 2M",
        cause="can_follow_write_pud() does not ask userfaultfd_wp(), as can_follow_write_pmd() and "
        "can_follow_write_pte() do",
        since=KernelVersion(6, 14),
        seen="7.3.4; right on 6.1.176, 6.12.117, where no page of a pool is written so",
    ),
    KnownIssue(
        quirk=Quirk.HELD_BROKEN_PAGE_PROMISED,
        summary="a private page that somebody held when it broke is a free page of the pool when it is let go: who "
        "reserves it gets SIGBUS, and an emptied pool gives what broke to others",
        example="2 pages of 2M, the first word of one in a pipe (vmsplice(2)), MADV_HWPOISON of its middle: EBUSY. It "
        "is unmapped and the pipe closed: free_hugepages is 2, mmap(2) of 2 succeeds, and the second to be touched "
        "gets SIGBUS. With an empty pool one of 64 new huge pages has the base page that broke",
        cause="me_huge_page() puts its reference where the page cannot be dissolved, and free_huge_folio() takes it "
        "for a good one; nobody takes what broke off the free memory that it becomes (78bb920344b8)",
        since=KernelVersion(4, 13),
        seen="6.12.117, 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.KEPT_PAGE_LEAVES_CMA,
        summary="a page of hugetlb_cma= that could not be given up for want of memory for its struct pages is no page "
        "of the area any more: given up later, it leaves the area without it for good",
        example="`hugetlb_cma=1G hugetlb_cma_only=on`, vm.hugetlb_optimize_vmemmap 1, a page of 1G; 0 in nr_hugepages "
        "leaves it while memory is short (vm.min_free_kbytes), and takes it afterwards: the next 1 in nr_hugepages "
        "gets 0 pages",
        cause="add_hugetlb_folio() takes the page back with folio_change_private(folio, NULL), which clears its CMA "
        "flag, so that it is freed to the buddy allocator and not by hugetlb_cma_free_frozen_folio() (d2d786714080)",
        since=KernelVersion(6, 15),
        seen="7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.BROKEN_PAGE_LOST_AT_FORK,
        summary="a child that is forked after a private page broke reads zeroes where its parent gets SIGBUS",
        example="2 pages of 2M, filled, MADV_HWPOISON of the first, fork(): the parent gets SIGBUS there, the "
        "child reads zeroes out of a third page of the pool",
        cause="set_huge_pte_at() of arm64 asks the page how many entries are to be written; the page that broke is "
        "base pages again, for which there are none, and the child has no entry that says so (18f3962953e4)",
        since=KernelVersion(6, 0),
        until=KernelVersion(6, 6),
        fix="6f1bace9a9fb (6.6), for entries that name no page; 6.1.y has it not",
        architecture="aarch64",
        seen="6.1.192",
    ),
    KnownIssue(
        quirk=Quirk.REFUSED_CHARGE_NEVER_ENDS,
        summary="a touch of a page that memory.max refuses, where the hierarchy is mounted with"
        " memory_hugetlb_accounting, gets no SIGBUS: the process faults for ever",
        example="2 shared pages of 2M, room for one in memory.max: the process takes a whole CPU from its touch of"
        " the second on, and the log tells again and again that VM_FAULT_OOM leaked out to the #PF handler",
        cause="alloc_hugetlb_folio() returns -ENOMEM, which vmf_error() makes VM_FAULT_OOM of, and with"
        " __GFP_RETRY_MAYFAIL nobody is killed to make room (8cba9576df60)",
        since=KernelVersion(6, 7),
        until=KernelVersion(7, 3),
        fix="mm: hugetlb: Return -ENOSPC on memcg charge failure; it names 991135774c0e (6.14) as what it mends,"
        " and 6.12.y has it not",
        seen="6.12.117, 7.2.12; right on 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.MAPPED_BEYOND_THE_WINDOW,
        summary="hugetlb pages for which no place is left are mapped at 128 TiB, where memory is for those alone "
        "who name an address there",
        example="radix page tables, all addresses below 128 TiB taken by mappings of base pages: mmap() of a page "
        "of 2M without an address returns 0x800000000000, and not ENOMEM",
        cause="hugetlb_get_unmapped_area_topdown() looks again from below, up to arch_get_mmap_end() of what the "
        "first look has returned: -ENOMEM is taken for an address beyond the window",
        since=KernelVersion(5, 19),
        until=KernelVersion(6, 13),
        fix="mm: make hugetlb mappings go through mm_get_unmapped_area_vmflags (7bd3f1e1a9ae)",
        architecture="ppc64le",
        seen="6.1.176",
    ),
    KnownIssue(
        quirk=Quirk.TRUNCATION_PASSES_OVER_A_FAULT,
        summary="a page stays mapped behind the end, and resv_hugepages mostly falls below 0, where a shared file "
        "is emptied while a thread touches a page of it",
        example="a file of 1 page of 2M, mapped: a thread touches it, ftruncate(0) meanwhile: resv_hugepages reads "
        "2^64 - 1, free_hugepages 0",
        cause="hugetlb_vmdelete_list() passes over a mapping whose lock a fault holds, and the fault, which has "
        "seen the old end, puts its page into the file when remove_inode_hugepages() has looked there and ended "
        "the reservation (40549ba8f8e0)",
        since=KernelVersion(6, 1),
        seen="6.1.192, 6.12.117, 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.PRIVATE_LOCK_MISTAKEN,
        summary="a hole that is punched in a file of huge pages while a process faults in a private mapping of it "
        "has the kernel change memory behind the lock that it means, and mostly lock up",
        example="any user: a child writes a page of a private mapping of a memfd and gives it back in a loop, its "
        "parent punches the file: `refcount_t: addition on 0; use-after-free`, after which 7.3.4 goes on no more, "
        "and 6.1.176 panics",
        cause="hugetlb_unmap_file_folio() takes vm_private_data for a hugetlb_vma_lock where it cannot get the "
        "lock of a mapping: that of a private one is its resv_map, with a flag in the lowest bit, since it has a "
        "lock, too (bf4916922c60), and kref_get() and down_write() go to other words of it",
        since=KernelVersion(6, 6),
        brought_to=(KernelVersion(6, 1, 61), KernelVersion(6, 5, 10)),
        seen="6.1.176, 6.12.117, 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.PUNCHING_TAKES_COPIES,
        summary="a hole that is punched in a file of huge pages takes the private copies of its pages from all who "
        "have one, and they read zeroes",
        example="a page of 2M of a memfd, 7 written to a private mapping of it, FALLOC_FL_PUNCH_HOLE of the page: "
        "the private mapping reads 0, and in base pages 7",
        cause="hugetlb_vmdelete_list() unmaps whatever is there, as ftruncate() is to do, where shmem and other "
        "file systems have unmap_mapping_range() pass over private copies (70c3547e36f5)",
        since=KernelVersion(4, 3),
        seen="6.1.176, 6.12.117, 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.GRANDCHILD_READS_ZEROES,
        summary="a child that lost a private page to its parent, which had no page for a copy, gets SIGBUS, but "
        "who is forked from it then reads zeroes",
        example="1 page of 2M holds 7, fork(), the parent writes 8, and a second page comes into the pool: the "
        "child gets SIGBUS, and a child of it reads 0",
        cause="hugetlb_dup_vma_private() clears all of vm_private_data at fork(), with HPAGE_RESV_UNMAPPED, by "
        "which hugetlb_no_page() tells memory that was lost from memory that nobody has touched",
        since=KernelVersion(2, 6, 27),
        seen="6.1.176, 6.12.117, 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.LAST_BYTES_TAKE_ALL_PAGES,
        summary="fallocate(2) of bytes in the last huge page that a file can have takes all pages of the pool, and "
        "fails with ENOSPC; when the file goes they are lost, and its process is killed by a BUG of the kernel",
        example="4 free pages of 2M, fallocate(0, LLONG_MAX - 4095, 4095) of a memfd as any user: free_hugepages "
        "reads 0, and close() ends in `kernel BUG at fs/inode.c`, clear_inode(). With 1 page it is ENOSPC, too, "
        "and that is lost before 6.7 alone",
        cause="hugetlbfs_fallocate() adds a huge page to the end of the range to round it up, which is more than "
        "loff_t has: the end is negative, and as pgoff_t behind all that there is. remove_inode_hugepages() looks "
        "for pages up to LLONG_MAX (70c3547e36f5)",
        since=KernelVersion(4, 3),
        seen="6.1.176, 6.12.117, 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.SEAL_GROW_PASSED_OVER,
        summary="a writable mapping beyond the end of a file, shared or private, grows it, F_SEAL_GROW or not",
        example="a memfd of 1 page with F_SEAL_GROW has 2 after mmap() of 2; with F_SEAL_WRITE, too, a private "
        "mapping grows it",
        cause="hugetlbfs_file_mmap() sets i_size and asks for no seal",
        since=KernelVersion(4, 16),
        seen="6.1.176, 6.1.192, 6.12.107, 6.18.44, 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.SEAL_EXEC_PASSED_OVER,
        summary="chmod() changes the x bits of a memfd of huge pages that is sealed with F_SEAL_EXEC",
        example="a memfd of huge pages, of mode 0644 and with F_SEAL_EXEC, has mode 0755 after fchmod(0755), where "
        "one of base pages refuses it with EPERM",
        cause="hugetlbfs_setattr() asks for the seals of size alone, shmem_setattr() for F_SEAL_EXEC, too "
        "(6fd7353829ca)",
        since=KernelVersion(6, 3),
        seen="6.12.117, 6.18.44, 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.TRUNCATE_BY_NAME_UNMARKED,
        summary="truncate(2) changes the size of a file of huge pages, and not when it was modified and changed",
        example="a file of a hugetlbfs that is empty, truncate(2) to a page: st_size is 2097152, st_mtim and "
        "st_ctim stay as they were; ftruncate(2) and O_TRUNC set both, and truncate(2) of a file in a tmpfs does",
        cause="do_truncate() has no ATTR_MTIME and ATTR_CTIME from vfs_truncate(), which leaves it to file systems "
        "whether the size is another one since 4a30131e7dbb, as shmem_setattr() does; hugetlbfs_setattr() sets "
        "neither",
        since=KernelVersion(2, 6, 16),
        seen="6.1.176, 6.12.117, 6.18.44, 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.DOFORK_REFUSED,
        summary="MADV_DOFORK of memory of a pool is EINVAL, and a child goes on to lack what MADV_DONTFORK keeps "
        "from it",
        example="a page of 2M, MADV_DONTFORK, then MADV_DOFORK: EINVAL, and a child that reads the page is killed "
        "with SIGSEGV",
        cause="madvise_vma_behavior() refuses VM_SPECIAL, which has the VM_DONTEXPAND that hugetlbfs sets, where "
        "it refused VM_IO alone before 7.0; for MADV_DODUMP memory of pools is an exception",
        since=KernelVersion(7, 0),
        seen="7.0.4, 7.1.13, 7.2.13, 7.3.4; right on 6.1.176, 6.12.117, 6.18.44, 6.19.14",
    ),
    KnownIssue(
        quirk=Quirk.PRIVATE_PAGE_OF_MOUNT_STAYS,
        summary="a private page of a hugetlbfs that was mounted with size= or min_size= never moves",
        example="a page of 2M of a file, MAP_PRIVATE, written: move_pages(2) returns 1 and leaves it, mbind(2) "
        "with MPOL_MF_MOVE and MPOL_MF_STRICT fails with EIO, MADV_SOFT_OFFLINE with EBUSY; a shared page of it "
        "moves",
        cause="unmap_and_move_hugetlb_folio() takes what has a subpool and no folio_mapping(), as anonymous memory "
        "has none, for a folio that is being freed (cb6acd01e2e4)",
        since=KernelVersion(5, 0),
        seen="6.1.176, 6.12.117, 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.MOVE_BEYOND_LENGTH,
        summary="mremap() of a length that is no multiple of the huge page moves, replaces and cuts off whole huge "
        "pages: what is mapped behind that length at the target is destroyed, and the rest of the page is gone",
        example="4096 bytes of a page of 2M that holds 3 are moved to where 2 MiB of ordinary memory hold 4: 4096 "
        "bytes further it reads 3 instead of 4, up to the end of these 2 MiB. Cut from 2 MiB + 4096 bytes to 2 MiB "
        "a mapping loses its second page, of which munmap() of 4096 bytes is refused (EINVAL). So since 6.17 also "
        "where ordinary memory before it is moved with it",
        cause="align_hugetlb(), before 6.15 mremap() itself, rounds the old and the new length up to whole huge "
        "pages, with which the target is unmapped (550a7d60bd5e)",
        since=KernelVersion(5, 16),
        seen="6.1.176, 6.12.117, 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.MOVE_MISPLACES_PAGES,
        summary="mremap() puts pages elsewhere in the new mapping, or beside it, where page tables before them "
        "were never made and the addresses differ in their place within a page table",
        example="a mapping of 1G and 2 pages of 2M, of which the last was written, moved by 512M: it reads 0 where "
        "the page should be, which is 512M before it",
        cause="move_hugetlb_page_tables() goes on at the end of a page table with both addresses, each with that "
        "of its own (e95a9851787b; CVE-2026-98373)",
        since=KernelVersion(6, 0),
        until=KernelVersion(7, 3),
        fix="mm/hugetlb: preserve mremap address delta when skipping page tables",
        backports=(KernelVersion(7, 2, 9), KernelVersion(6, 12, 112), KernelVersion(6, 1, 191)),
        seen="6.18.44; right on 6.1.192, 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.HINT_ROUNDED_TO_ZERO,
        summary="a hint for huge pages that lies within the last huge page of all addresses is rounded up to "
        "address 0, and who may use that gets his mapping there",
        example="as root on aarch64 a page of 2M with the hint 0xfffffffffffff000 is mapped at address 0",
        cause="generic_hugetlb_get_unmapped_area() aligns the hint and does not look whether it is below "
        "mmap_min_addr then; x86 has a function of its own",
        since=KernelVersion(2, 6, 30),
        until=KernelVersion(6, 11),
        fix="hugetlbfs: ensure generic_hugetlb_get_unmapped_area() returns higher address than mmap_min_addr "
        "(dffe24e95876)",
        seen="6.1.192 on aarch64",
    ),
    KnownIssue(
        quirk=Quirk.LOW_HINT_ROUNDED_DOWN,
        summary="a hint for huge pages that lies within the first huge page of all addresses is rounded down to "
        "address 0: who has CAP_SYS_RAWIO gets his mapping there, below vm.mmap_min_addr, and all others EPERM, where "
        "both should get one above",
        example="vm.mmap_min_addr 65536, an ordinary user maps a page of 2M with the hint 0xffff: EPERM",
        cause="hugetlb_get_unmapped_area() of x86 cuts a hint down to whole huge pages and takes the place if nothing "
        "is there, where others round hints up to mmap_min_addr",
        since=KernelVersion(2, 6, 0),
        until=KernelVersion(6, 13),
        fix="mm: make hugetlb mappings go through mm_get_unmapped_area_vmflags (7bd3f1e1a9ae)",
        architecture="x86_64",
        seen="6.1.176, 6.12.117; right on 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.OPTIMISED_POOL_KILLS,
        summary="a pool that takes all memory and gives struct pages back has a process killed for want of memory, "
        "and the kernel panics where none may be killed",
        example="2 GiB, vm.hugetlb_optimize_vmemmap=1, min_free_kbytes 131072, nr_hugepages 1000000: the pool gets "
        "868 pages of 2M, and a process with 64 MiB is killed",
        cause="__hugetlb_vmemmap_optimize_folio() takes a base page for each huge page with GFP_KERNEL, when the "
        "pool has all pages and none has given any back; before c0b495b91a47, which moved that, it was "
        "__GFP_NORETRY, too, and who got no page went on with the one that was there",
        since=KernelVersion(7, 1),
        brought_to=_VMEMMAP_WALK_BACKPORTS,
        seen="6.12.117, 7.3.4; right on 6.1.176",
    ),
    KnownIssue(
        quirk=Quirk.DEMOTED_PARTS_LOSE_MEMORY,
        summary="pages that demotion makes of one that gave back its struct pages keep theirs, and as many base "
        "pages are lost when they are freed",
        example="1 page of 1G with vm.hugetlb_optimize_vmemmap=1 is demoted: of 512 pages of 2M 511 keep 8 base "
        "pages of struct pages, not 1; all are freed: 3577 base pages, 14 MiB, are gone, and the log has `WARNING: "
        "CPU: 0 PID: 134 at kernel/jump_label.c:282 static_key_dec_not_one`. With init_on_alloc=1 each page of 2M "
        "that gave them back and is freed is told to be bad: `corrupted mapping in tail page`. With init_on_alloc=0"
        " others get such memory, and where a page of 1G is to be taken instead the kernel panics: `NULL pointer "
        "dereference`, `isolate_or_dissolve_huge_page+0xc8/0x2c0`",
        cause="vmemmap_restore_pte() copies the base page that is mapped there (mm/hugetlb_vmemmap: fix incorrect "
        "vmemmap restore in rollback), which is that of the head where 622026e87c40 has not given the tails one of "
        "their own: each part begins with the flag that the head had. So it passes for optimised already, and is "
        "made whole once more when it is freed, over the base pages that it has. What was no part keeps the type "
        "of a huge page there, and alloc_contig_range() takes base pages for one, which have no hstate",
        since=None,
        brought_to=_VMEMMAP_WALK_BACKPORTS,
        reported="7.1 and later have 622026e87c40, and never had it; 6.18.51 was not run",
        seen="6.12.117; right on 6.1.176, 6.12.107, 6.18.15, 7.3.4",
    ),
)
