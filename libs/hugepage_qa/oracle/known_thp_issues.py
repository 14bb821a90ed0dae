"""Known kernel bugs in transparent huge pages, and in files in large folios, of a running machine."""

from hugepage_qa.oracle.known_issues import KnownIssue, Quirk, by_quirk
from hugepage_qa.version import KernelVersion

THP_ISSUES = by_quirk(
    KnownIssue(
        quirk=Quirk.BALANCED_PAGES_MISSED,
        summary="a huge page that NUMA balancing waits for a fault on, or that nobody may access, is missing from Rss "
        "and AnonHugePages in smaps, and move_pages() tells EFAULT instead of its node",
        example="2 huge pages on node 1, numa_balancing 1, their process computes on node 0 for 3 s without touching "
        "them: numa_huge_pte_updates rises by 2, Rss and AnonHugePages fall from 4096 kB to 0; pagemap and numa_maps "
        "show all of it",
        cause="gup_can_follow_protnone() lets only FOLL_FORCE pass such a page; smaps_pmd_entry() and move_pages(), "
        "which have never waited for that fault, come without it (474098edac26)",
        since=KernelVersion(6, 1),
        until=KernelVersion(6, 5),
        fix="d74943a2f3cd (6.5), and for smaps 8b9c1cc0418a (6.5), too; 6.1.y has neither",
        backports=(KernelVersion(6, 4, 13),),
        seen="6.1.192; right on 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.WITHIN_SIZE_PASSED,
        summary="shmem_enabled=within_size gives a memfd a PMD-sized page that reaches beyond its end",
        example="memfd of 1 MiB, mapped where a page of 2 MiB fits, shmem_enabled=within_size, only "
        "hugepages-2048kB/shmem_enabled is inherit: a touch takes 2 MiB; of a file in a tmpfs with huge=within_size "
        "not",
        cause="shmem_huge_global_enabled() returns the orders that lie within the file, which are smaller ones here; "
        "shmem_allowable_huge_orders() takes any of them for leave to give what inherits, the PMD order",
        since=KernelVersion(6, 19),
        seen="6.19.6, 7.3.4; right on 6.1.192, 6.12.107, 6.16.3, 6.18.15",
    ),
    KnownIssue(
        quirk=Quirk.SMALLER_SIZE_LETS_COLLAPSE,
        summary="khugepaged makes PMD-sized pages of shared memory that may have smaller huge pages alone",
        example="shared anonymous memory of 2 MiB, hugepages-64kB/shmem_enabled is always, that of 2048kB and of the "
        "whole never: khugepaged makes a page of 2 MiB of it",
        cause="__thp_vma_allowable_orders() returns all orders that shared memory may have, and not those among them "
        "that it was asked for (26c7d8413aaf)",
        since=KernelVersion(6, 11),
        until=KernelVersion(6, 17),
        fix="mm: huge_memory: fix the check for allowed huge orders in shmem (6.17); 6.12.y has it not",
        seen="6.12.117; right on 6.18.44, 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.COMPACTION_ENDS_AT_LARGE_FOLIO,
        summary="compaction of a zone ends at a large folio of a file that somebody holds: what lies behind it stays "
        "fragmented",
        example="1 MiB of shared memory in a folio of its own, its first byte in a pipe (vmsplice(2)), above it one of "
        "8 base pages of 480 MiB: compact_memory empties 2 % of these blocks and makes none, of 94 % and all of them "
        "without the pipe",
        cause="compaction_alloc() has free pages of smaller orders alone, migrate_pages() cannot split a folio that is "
        "held and gives -ENOMEM, which compact_zone() takes for memory that has run out; such folios were passed over "
        "before 733aea0b3a7b",
        since=KernelVersion(6, 9),
        seen="6.12.117, 7.3.4; right on 6.1.192",
    ),
    KnownIssue(
        quirk=Quirk.DIRTY_LOST_AT_UNMAP,
        summary="what was written to a huge page of shared memory that was mapped to be read first is lost when it is "
        "unmapped and its memory reclaimed",
        example="file of 2 MiB in a tmpfs with huge=always, mapped, read, filled, unmapped, mapped and read again, "
        "given MADV_PAGEOUT: all 262144 words are others",
        cause="zap_huge_pmd() does not pass the dirty bit of the PMD on to the page, as it is done with a PTE; a read "
        "maps the page clean and writable, so that nothing else knows of the writes, and reclaim drops it as clean",
        since=KernelVersion(4, 8),
        until=KernelVersion(7, 3),
        fix="mm/huge_memory: transfer the pmd dirty bit to the folio on zap (CVE-2026-89987)",
        backports=(KernelVersion(6, 1, 191), KernelVersion(6, 12, 114)),
        seen="6.12.107; right on 6.1.192, 6.12.117, 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.PIPE_SHOWS_LATER_WRITES,
        summary="a huge page, or memory in swap, that one of parent and child gave to a pipe and unmapped shows there "
        "what the other one writes later",
        example="2 MiB in a huge page that holds 1, fork(), the child gives the first word to a pipe (vmsplice(2)) and "
        "unmaps the page, the parent stores 8: 8 comes out of the pipe, and not 1",
        cause="do_huge_pmd_wp_page() and do_swap_page() ask reuse_swap_page(), which counts who maps the page or has "
        "it in swap, and not who else holds it, as do_wp_page() does since 5.9 (09854ba94c6a); then it was taken back "
        "that who takes hold of a page gets one of its own (17839856fd58)",
        since=KernelVersion(5, 9),
        until=KernelVersion(5, 18),
        fix="3bff7e3f1f16 (5.18), and for swap c145e0b47c77 (5.18) (CVE-2020-29374)",
        seen="5.10.223; right on 6.1.192, 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.MOVED_HUGE_PAGE_UNLOCKED,
        summary="a huge page of locked memory that moves to another node, and one that is made of locked shared "
        "memory, is counted as locked and unevictable no more, until reclaim comes across it",
        example="4 huge pages on node 0, mlock(2), move_pages(2) to node 1: Mlocked and Unevictable fall from 8192 kB "
        "to 0, and munlock(2) leaves them there; 2 MiB of shared memory in base pages, mlock(2), MADV_COLLAPSE: both "
        "fall by 2048 kB",
        cause="remove_migration_pmd() and set_huge_pmd() of khugepaged leave it to the reverse mapping to lock the new "
        "page, which since 1acbc3f93614 locks single base pages alone, and leaves what is larger to reclaim",
        since=KernelVersion(6, 7),
        until=KernelVersion(6, 18),
        fix="mm/rmap: improve mlock tracking for large folios (ab521b4142aa)",
        seen="6.12.117; right on 6.1.192, 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.MOVED_SHARED_PAGE_OFF_NODES,
        summary="a shared huge page that moves stays in ShmemHugePages of the node that it came from, for ever, and "
        "that of the other node falls below 0 when it is given back, and reads 0",
        example="4 huge pages of shared memory on node 0, move_pages(2) to node 1: Shmem of node 0 falls by 8192 kB "
        "and that of node 1 rises by it, ShmemHugePages of both stay as they are",
        cause="folio_migrate_mapping() moves NR_SHMEM from node to node, and not NR_SHMEM_THPS",
        since=KernelVersion(4, 14),
        until=KernelVersion(6, 5),
        fix="mm: fix shmem THP counters on migration (0b52c420350e)",
        seen="6.1.176; right on 6.12.117, 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.MOVED_POOL_PAGE_STAYS_COUNTED,
        summary="a page of a pool in a private mapping counts as a transparent huge page of its size (nr_anon) once it "
        "has moved, for ever",
        example="a page of 2M on node 0, move_pages(2) to node 1, and the process ends: nr_anon of hugepages-2048kB is "
        "1, and one more each time",
        cause="__folio_migrate_mapping() counts each large anonymous folio that moves, and what gives pages back to a "
        "pool takes none off (5d65c8d758f2)",
        since=KernelVersion(6, 12),
        until=KernelVersion(7, 3),
        fix="7.3.4 leaves pages of a pool out there",
        seen="6.12.117; right on 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.BROKEN_PART_HANDED_OUT_AGAIN,
        summary="a huge page that somebody held when a base page of it broke, so that it could not be split, is handed "
        "out again with that base page when it was given back",
        example="a huge page whose first word is in a pipe (vmsplice(2)), MADV_HWPOISON of a base page in its middle: "
        "EHWPOISON; when it was unmapped and the pipe closed, one of 64 new huge pages has that base page",
        cause="memory_failure() marks the base page and leaves the huge page as it is; __free_pages_prepare() keeps "
        "pages that broke from the free ones where they are freed alone, and who takes pages from the lists of a CPU "
        "does not look, where huge pages are since 44042b449872",
        since=KernelVersion(5, 14),
        seen="6.12.117, 7.3.4, 6.1.176 on aarch64",
    ),
    KnownIssue(
        quirk=Quirk.BROKEN_RANGE_PASSED_OVER,
        summary="MADV_SOFT_OFFLINE and MADV_HWPOISON of a range return 0, and have passed over what is behind a base "
        "page of a huge page in it, as far as the huge page is long",
        example="MADV_SOFT_OFFLINE of 16 base pages in the middle of a huge page: 1 is replaced; of its last base page "
        "and 15 base pages behind the huge page: 1; of the last base page of a page of a pool and the first one of the "
        "next: 1. Of 16 base pages that are of no huge page all are",
        cause="madvise_inject_error() goes on behind the base page by the size of the huge page, which is split then, "
        "or which the range does not begin with",
        since=KernelVersion(4, 14),
        seen="6.12.117, 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.REFUSED_OFFLINE_KEEPS_FOLIO,
        summary="a folio of a file or device with blocks longer than base pages that is to be taken out of use, which "
        "is refused, is in use for good",
        example="a loop device of 64 MiB with blocks of 16 KiB, MADV_SOFT_OFFLINE of a base page of each block: EBUSY; "
        "when the device has gone 62 MiB of memory are missing",
        cause="soft_offline_in_use_page() returns where min_order_for_split() is not 0, and keeps its reference, "
        "which try_to_split_thp_page() puts elsewhere (689b8986776c)",
        since=KernelVersion(6, 19),
        seen="7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.KEPT_PLACE_UNLOCKS_MAPPING,
        summary="a part of locked memory that is moved with MREMAP_DONTUNMAP leaves all of the old mapping unlocked, "
        "which VmLck goes on to count, also when it is unmapped",
        example="3 huge pages, mlock(2), mremap(2) of the second one with MREMAP_DONTUNMAP: VmLck is 6144 kB, as it "
        "should be, 2048 kB have lo in VmFlags, and when all is unmapped VmLck is 4096 kB; 6.18.44 shows 8192 kB, "
        "2048 kB and 6144 kB",
        cause="move_vma() clears VM_LOCKED of the mapping that the part is of, and leaves locked_vm as it was "
        "(e346b3813067); since d5c8aec0542e it adds the part besides, as where its place is unmapped",
        since=KernelVersion(5, 7),
        until=KernelVersion(7, 3),
        fix="mm/mremap: fix locked_vm leak by splitting VMA for MREMAP_DONTUNMAP (597e4b9ab48a)",
        backports=(KernelVersion(6, 1, 192), KernelVersion(6, 12, 117)),
        seen="6.1.176, 6.12.107, 6.18.44; right on 6.12.117, 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.KEPT_PLACE_COUNTS_TWICE,
        summary="locked memory that is moved as a whole with MREMAP_DONTUNMAP is counted twice in VmLck, and once when "
        "it is unmapped",
        example="a huge page, mlock(2), mremap(2) with MREMAP_DONTUNMAP: VmLck is 4096 kB, 2048 kB have lo in VmFlags, "
        "and when all is unmapped VmLck is 2048 kB",
        cause="move_vma() adds what was moved to locked_vm (d5c8aec0542e), as where its place is unmapped, which takes "
        "it from there again; dontunmap_complete() only clears VM_LOCKED of the place",
        since=KernelVersion(6, 15),
        until=KernelVersion(7, 3),
        fix="mm/mremap: fix locked_vm leak by splitting VMA for MREMAP_DONTUNMAP (597e4b9ab48a)",
        seen="6.18.44; right on 6.1.176, 6.12.117, 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.ZEROES_LOSE_MARKS,
        summary="base pages of zeroes of a huge page that is split are soft-dirty no more and not protected by a "
        "userfaultfd any more: who tracks writes misses them",
        example="a huge page of which each second base page of the second half is zero, protected, is split: 384 of "
        "512 base pages are protected, and a write to another one is told to nobody",
        cause="try_to_map_unused_to_zeropage() makes a new entry and takes no bit of that of migration with it "
        "(b1f202060afe)",
        since=KernelVersion(6, 12),
        until=KernelVersion(6, 18),
        fix="mm/rmap: fix soft-dirty and uffd-wp bit loss when remapping zero-filled mTHP subpage to shared zeropage "
        "(9658d698a8a8)",
        backports=(KernelVersion(6, 12, 55), KernelVersion(6, 17, 4)),
        seen="right on 6.12.117, 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.HUGE_ZEROES_UNTOLD,
        summary="PAGEMAP_SCAN does not tell the huge page of zeroes as PAGE_IS_PFNZERO",
        example="2 MiB of advised memory that was read alone: a scan for PAGE_IS_PFNZERO finds nothing, one for "
        "PAGE_IS_PRESENT the whole of it as present and huge",
        cause="pagemap_thp_category() asks is_zero_pfn(), which knows the zero page of base pages alone (52526ca7fdb9)",
        since=KernelVersion(6, 7),
        until=KernelVersion(6, 16),
        fix="fs/proc/task_mmu: fix PAGE_IS_PFNZERO detection for the huge zero folio (4a5e85f4eb8f)",
        backports=(KernelVersion(6, 12, 36), KernelVersion(6, 15, 5)),
        seen="right on 6.12.117, 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.HUGE_PAGE_OF_NO_FILE,
        summary="/proc/PID/pagemap shows the base pages of shared memory that is mapped by a huge page as such of "
        "anonymous memory, and not of a file",
        example="a huge page of shared memory: bit 61 is set in no entry; mapped in parts, it is set in each",
        cause="pagemap_pmd_range() does not look whether the page is an anonymous one, as pte_to_pagemap_entry() does "
        "(5c7fb56e5e3f)",
        since=KernelVersion(4, 8),
        until=KernelVersion(6, 11),
        fix="fs/proc/task_mmu: indicate PM_FILE for PMD-mapped file THP (3f9f022e975d)",
        backports=(KernelVersion(6, 1, 176),),
        seen="5.10.223; right on 6.1.176, 6.12.117, 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.EQUAL_POLICY_PASSED_OVER,
        summary="mbind(2) of shared memory does nothing where the mapping has that policy already, or none that could "
        "be taken away, although another mapping gave the memory another one",
        example="shared memory of 2 MiB bound to node 0, by another process to node 1, and again to node 0: success, "
        "and its huge page comes from node 1; MPOL_DEFAULT through a mapping without one: the memory keeps its policy",
        cause="mbind_range() passes over a VMA whose own policy is equal, and with it over set_policy(), which gives "
        "shared memory its policy; so did, where VMAs were merged, what 4e0906008cdb took out for that reason",
        since=KernelVersion(3, 2),
        seen="5.10.223, 6.1.176, 6.12.107, 6.12.117, 7.2.13, 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.MERGED_RANGE_TAKES_POLICY,
        summary="mbind(2) of a part of shared memory gives its policy also to what lies beside it, where the mapping "
        "has the same one there and another mapping gave the memory another one",
        example="the first of two huge pages of shared memory bound to node 0, then by another process to node 1, and "
        "the second one to node 0: both come from node 0",
        cause="where the VMA of the part is merged with those beside it mbind_range() has vma_replace_policy() call "
        "set_policy() for all of the merged VMA; before 4e0906008cdb the part, too, did not get the policy then",
        since=KernelVersion(5, 18),
        brought_to=(KernelVersion(5, 10, 110),),
        seen="5.10.223, 6.1.176, 6.12.107, 6.12.117, 7.2.13, 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.REMOUNT_KEEPS_POLICY,
        summary="a tmpfs that is remounted with mpol=default keeps the policy that it had",
        example="mount with mpol=bind:1, remount with mpol=default: success, /proc/mounts shows mpol=bind:1, and huge "
        "pages of new files come from node 1, whatever their process says",
        cause="mpol_parse_str() makes no policy of mpol=default, which shmem_reconfigure() takes for a remount without "
        "mpol= (5f00110f7273)",
        since=KernelVersion(3, 9),
        seen="5.10.223, 6.1.176, 6.12.107, 6.12.117, 7.2.13, 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.MOVE_OF_A_PART_NEVER_ENDS,
        summary="UFFDIO_MOVE of a part of a huge page that is pinned never ends, until a signal ends the process",
        example="a base page of a huge page that is a buffer of io_uring: the process uses a whole CPU, and is not "
        "told EBUSY",
        cause="split_folio() returns -EAGAIN for a folio that somebody else has a reference to, which move_pages() "
        "takes for a change of page tables meanwhile, and tries again (adef440691ba)",
        since=KernelVersion(6, 8),
        until=KernelVersion(7, 4),
        fix="userfaultfd: fix UFFDIO_MOVE livelock on large folio with extra references",
        backports=(KernelVersion(7, 3, 4),),
        seen="6.12.117, 7.2.13; right on 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.HOLE_STAYS_DIRTY,
        summary="a hole with all that was dirty in a large folio of an ext4 leaves the rest of it counted as dirty by "
        "cachestat(2), whatever writes the file back, though it is clean and can be dropped",
        example="12 KiB of a file in folios of 2 MiB written and punched out, fsync(): nr_dirty is 509, not 0",
        cause="no buffer of the folio is dirty any more, and the mark of the page cache that cachestat() counts is "
        "left as it was; not traced further",
        since=KernelVersion(6, 16),
        until=KernelVersion(7, 3),
        fix="not identified: 6.18.44 has the bug, 7.3.4 has not",
        seen="6.18.44; right on 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.EXCLUSIVE_BY_FIRST_PAGE,
        summary="pagemap tells of every base page of a huge page that is mapped as a whole whether this process alone "
        "has the first one mapped",
        example="2 MiB that a process and its child have, of which the child has unmapped all but the first base page: "
        "bit 56 is 0 of all 512; of the first one alone: it is 1 of all 512",
        cause="pagemap_pmd_range() asks __folio_page_mapped_exclusively() about the page that the entry begins with, "
        "where it had asked about each page before (fs/proc/task_mmu: remove per-page mapcount dependency for "
        "PM_MMAP_EXCLUSIVE)",
        since=KernelVersion(6, 15),
        seen="6.16.3, 7.3.4; right on 6.12.117",
    ),
    KnownIssue(
        quirk=Quirk.MERGING_ENDS_SOFT_DIRTY,
        summary="memory that was written since clear_refs was is soft-dirty no more where KSM has merged it: who saves "
        "what was written leaves it out",
        example="512 base pages, 4 written to clear_refs, all written, merged with equal pages: 2 are soft-dirty. "
        "Zeroes that KSM replaces by the zero page (use_zero_pages) stay so on 7.3.4",
        cause="replace_page() makes the new entry of vm_page_prot, without the bit of the old one",
        since=KernelVersion(3, 11),
        seen="6.1.176, 6.12.117, 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.CLOSED_MEMORY_STAYS_MERGED,
        summary="MADV_UNMERGEABLE succeeds, and leaves merged what nobody may access",
        example="4 MiB of base pages that KSM has merged, PROT_NONE, 5 of them written by a debugger, "
        "MADV_UNMERGEABLE: the other 1019 have the frames of another process still",
        cause="break_ksm() looks for each page by follow_page(), for which gup_can_follow_protnone() lets FOLL_FORCE "
        "alone pass what is closed (474098edac26)",
        since=KernelVersion(6, 1),
        until=KernelVersion(6, 2),
        fix="mm/ksm: convert break_ksm() to use walk_page_range_vma() (d7c0e68dab98); 6.1.y is without it",
        seen="6.1.176; right on 6.12.117, 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.MOVED_TABLES_NOT_SOFT_DIRTY,
        summary="memory that mremap() moves with its page tables is not soft-dirty at the new address: who saves what "
        "was written since is not told that something else is there",
        example="2 MiB of base pages, 4 written to clear_refs, moved to another multiple of 2 MiB: 0 of 512 base pages "
        "are soft-dirty; without the last base page 511 of 511 are. Huge pages are, but for those of a range of 1 GiB "
        "that is moved as a whole (since 5.11)",
        cause="move_normal_pmd() and move_normal_pud() move a table as it is, without what move_soft_dirty_pte() does "
        "for each entry, and the new mapping has no VM_SOFTDIRTY",
        since=KernelVersion(5, 0),
        seen="6.1.176, 6.12.117, 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.MERGED_MAPPING_NOT_SOFT_DIRTY,
        summary="a new mapping that becomes one with a mapping that is not soft-dirty is not either: who saves what "
        "was written since is not told that it is new",
        example="2 MiB, clear_refs, 2 MiB mapped behind them with another protection, mprotect(2) makes one of "
        "both: 0 of 512 new base pages are soft-dirty",
        cause="is_mergeable_vma() merges mappings of which one alone has VM_SOFTDIRTY, and the flags of that which "
        "grows stay as they are",
        since=KernelVersion(3, 14),
        until=KernelVersion(6, 19),
        fix="mm: propagate VM_SOFTDIRTY on merge (6707915e030a)",
        backports=(KernelVersion(6, 18, 37),),
        seen="6.1.176, 6.12.117; right on 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.SMALLER_COLLAPSE_MEETS_OWN_REFERENCES,
        summary="khugepaged leaves base pages that a smaller size would fit, where a page of a larger enabled size "
        "cannot be made for one behind them that has to stay",
        example="2 MiB of base pages of which a child has one, too; 1 MiB and 512 kB enabled: 1 MiB of base pages "
        "stays instead of 512 kB, at each scan",
        cause="release_pte_pages() puts the base pages that were taken from the LRU into a batch of the CPU, which has "
        "a reference to each; __collapse_huge_page_isolate() for the next smaller size finds them in use",
        since=KernelVersion(7, 3),
        seen="7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.BUFFER_NOT_CLEARED,
        summary="a buffer of /dev/udmabuf of what fallocate() allocated of shared memory shows what others had there "
        "before, and what is written to it is lost at the first access through the file",
        example="16 MiB of a memfd, fallocate(), UDMABUF_CREATE: with init_on_alloc=0 up to 16 MiB of what ended "
        "processes wrote; 3 is written to the buffer, the file is mapped and read: both have 0",
        cause="memfd_pin_folios() takes the folios that it finds, though fallocate() leaves them as they are, not "
        "uptodate, until somebody accesses them (89c1905d9c14)",
        since=KernelVersion(6, 11),
        seen="6.12.117, 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.BUFFER_TAKES_BROKEN,
        summary="a buffer of /dev/udmabuf is made of a page of a memfd that broke, shared memory or of the pool, and "
        "shows it",
        example="a base page of a memfd, or a page of 2M, MADV_HWPOISON: its mapping gets SIGBUS, read(2) EIO, and "
        "UDMABUF_CREATE makes a buffer whose mapping reads what is there",
        cause="memfd_pin_folios() takes the folios that it finds, and does not look whether they are broken "
        "(89c1905d9c14), as shmem_read_mapping_page(), which udmabuf called before, and pin_user_pages() do",
        since=KernelVersion(6, 11),
        seen="6.12.117, 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.DIRECT_WRITE_ENDS_GUARDS,
        summary="a write by O_DIRECT to a file in large folios ends the guards of all mappings of the file in each "
        "folio that it writes a part of, beside what is written, too",
        example="a file on ext4 in a huge page, MADV_GUARD_INSTALL of its first 16 base pages, O_DIRECT write of "
        "another one by any process: none has a guard, and all can be read; of base pages all have",
        cause="folio_unmap_invalidate() has unmap_mapping_folio() unmap a folio that is mapped beside what "
        "invalidate_inode_pages2_range() has unmapped, and it drops all markers in the range of the folio, guards, "
        "too (f807123d578d)",
        since=KernelVersion(6, 15),
        seen="7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.TAKEN_HUGE_PAGE_ISOLATED_ONCE,
        summary="huge pages of anonymous memory and of a tmpfs that move because their memory is taken away leave "
        "nr_isolated_anon less by all of their base pages but one; below 0 it reads 0",
        example="0 is written to online of a block of memory with one huge page of 2M: it moves, and a write to "
        "vm.stat_refresh has the kernel log nr_isolated_anon -511",
        cause="do_migrate_range() counts a page that it isolates as one, and who puts it back all of its base pages "
        "(8135d8926c08)",
        since=KernelVersion(4, 14),
        until=KernelVersion(6, 12),
        fix="mm: memory_hotplug: unify Huge/LRU/non-LRU movable folio isolation (6f1833b8208c)",
        seen="6.1.176; right on 6.12.117, 7.3.4",
    ),
)
