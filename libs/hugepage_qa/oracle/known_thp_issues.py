"""Known kernel bugs in transparent huge pages of a running machine; ``known_issues`` holds those of boot parameters."""

from collections.abc import Mapping

from hugepage_qa.oracle.known_issues import KnownIssue, Quirk
from hugepage_qa.version import KernelVersion

THP_ISSUES: Mapping[Quirk, KnownIssue] = {
    Quirk.BALANCED_PAGES_MISSED: KnownIssue(
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
    Quirk.WITHIN_SIZE_PASSED: KnownIssue(
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
    Quirk.COMPACTION_ENDS_AT_LARGE_FOLIO: KnownIssue(
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
    Quirk.DIRTY_LOST_AT_UNMAP: KnownIssue(
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
    Quirk.PIPE_SHOWS_LATER_WRITES: KnownIssue(
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
    Quirk.MOVED_HUGE_PAGE_UNLOCKED: KnownIssue(
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
    Quirk.MOVED_SHARED_PAGE_OFF_NODES: KnownIssue(
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
    Quirk.CUT_WITHIN_SWAP_NEVER_ENDS: KnownIssue(
        quirk=Quirk.CUT_WITHIN_SWAP_NEVER_ENDS,
        summary="ftruncate() of a file in a tmpfs to a size within a huge page that was swapped out as a whole never "
        "returns, and nothing ends the process",
        example="file of 4 MiB in a tmpfs with huge=always, filled, given MADV_PAGEOUT with swap on a device, cut off "
        "at 2 MiB + 4 KiB: the process uses a CPU until swapoff(2) brings the page back",
        cause="the size is set before, so that shmem_get_partial_folio() does not read the page back; "
        "shmem_undo_range() passes over the swap entry, which begins before the range, and goes through the range of a "
        "file that is cut off until it finds nothing there (8a1968bd997f; before, all of the entry was given back, "
        "what lies before the end of the file, too)",
        since=KernelVersion(6, 19),
        brought_to=(KernelVersion(6, 12, 69), KernelVersion(6, 18, 9)),
        seen="6.12.117, 7.3.4; right on 6.1.176",
    ),
    Quirk.SWAP_OF_A_PART_COUNTS_ALL: KnownIssue(
        quirk=Quirk.SWAP_OF_A_PART_COUNTS_ALL,
        summary="Swap in smaps of a mapping of a part of a file in a tmpfs counts all of each huge page that the part "
        "is of and that was swapped out as a whole",
        example="file of 2 MiB in a tmpfs with huge=always, filled, given MADV_PAGEOUT with swap on a device, two base "
        "pages of it mapped: Swap is 2048 kB, and not 8 kB",
        cause="shmem_partial_swap_usage() adds the pages of each entry that it meets, also those before the start of "
        "the mapping and behind its end",
        since=KernelVersion(6, 12),
        seen="6.12.117, 7.3.4; right on 6.1.176",
    ),
    Quirk.BROKEN_PART_HANDED_OUT_AGAIN: KnownIssue(
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
    Quirk.BROKEN_RANGE_PASSED_OVER: KnownIssue(
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
    Quirk.KEPT_PLACE_UNLOCKS_MAPPING: KnownIssue(
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
        backports=(KernelVersion(6, 12, 117),),
        seen="6.1.176, 6.12.107, 6.18.44; right on 6.12.117, 7.3.4",
    ),
    Quirk.KEPT_PLACE_COUNTS_TWICE: KnownIssue(
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
    Quirk.SOFT_DIRTY_LOST_AT_SWAPOFF: KnownIssue(
        quirk=Quirk.SOFT_DIRTY_LOST_AT_SWAPOFF,
        summary="what was written since clear_refs was, and is in swap, is no longer soft-dirty when swapoff(2) has "
        "brought it back",
        example="2 huge pages, 4 written to clear_refs, the second one written, MADV_PAGEOUT: 512 base pages are "
        "soft-dirty; swapoff(2): none is",
        cause="unuse_pte() makes a new entry and does not take the bit of that of swap with it",
        since=KernelVersion(3, 11),
        until=KernelVersion(5, 19),
        fix="mm/swapfile: fix lost swap bits in unuse_pte() (14a762dd1977)",
        seen="5.10.223; right on 6.1.176, 6.12.117, 7.3.4",
    ),
    Quirk.ZEROES_LOSE_MARKS: KnownIssue(
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
    Quirk.HUGE_ZEROES_UNTOLD: KnownIssue(
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
    Quirk.HUGE_PAGE_OF_NO_FILE: KnownIssue(
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
    Quirk.EQUAL_POLICY_PASSED_OVER: KnownIssue(
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
    Quirk.MERGED_RANGE_TAKES_POLICY: KnownIssue(
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
    Quirk.REMOUNT_KEEPS_POLICY: KnownIssue(
        quirk=Quirk.REMOUNT_KEEPS_POLICY,
        summary="a tmpfs that is remounted with mpol=default keeps the policy that it had",
        example="mount with mpol=bind:1, remount with mpol=default: success, /proc/mounts shows mpol=bind:1, and huge "
        "pages of new files come from node 1, whatever their process says",
        cause="mpol_parse_str() makes no policy of mpol=default, which shmem_reconfigure() takes for a remount without "
        "mpol= (5f00110f7273)",
        since=KernelVersion(3, 9),
        seen="5.10.223, 6.1.176, 6.12.107, 6.12.117, 7.2.13, 7.3.4",
    ),
    Quirk.MOVE_OF_A_PART_NEVER_ENDS: KnownIssue(
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
    Quirk.REFUSALS_WITH_SWAP_UNCOUNTED: KnownIssue(
        quirk=Quirk.REFUSALS_WITH_SWAP_UNCOUNTED,
        summary="memory.memsw.failcnt of a group of version 1 stays 0, whatever its limit of memory and swap refuses",
        example="limits of memory and of memory and swap of 9 MiB, 8 MiB used: a huge page more is base pages, and "
        "memory.memsw.failcnt is 0",
        cause="page_counter_try_charge() counts what is refused where track_failcnt says so, which "
        "mem_cgroup_css_alloc() sets for the counter of memory alone (page_counter: track failcnt only for legacy "
        "cgroups)",
        since=KernelVersion(6, 15),
        until=KernelVersion(7, 3),
        fix="not identified: 6.18.44 has the bug; the sources of 7.3.4 set track_failcnt for memory and swap, too",
        seen="6.18.44; right on 6.1.176, 6.12.117",
    ),
    Quirk.HOLE_STAYS_DIRTY: KnownIssue(
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
    Quirk.PRIVATE_SWAP_UNTOLD: KnownIssue(
        quirk=Quirk.PRIVATE_SWAP_UNTOLD,
        summary="smaps shows no swap of a file in a tmpfs that is mapped private and may be written",
        example="file of 4 MiB in a tmpfs that is swapped out, mapped private and writable: Swap is 0 kB, and 4096 kB "
        "where it may be read alone",
        cause="smaps_pte_hole() has shmem_partial_swap_usage() look at addresses where it takes places in the file "
        "(48131e03ca4e)",
        since=KernelVersion(4, 5),
        until=KernelVersion(5, 16),
        fix="02399c880239 (5.16)",
        seen="5.10.223; right on 6.1.192",
    ),
    Quirk.EXCLUSIVE_BY_FIRST_PAGE: KnownIssue(
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
    Quirk.CLOSING_UNMAPS_SHARED: KnownIssue(
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
    Quirk.MERGING_ENDS_PROTECTION: KnownIssue(
        quirk=Quirk.MERGING_ENDS_PROTECTION,
        summary="memory that userfaultfd protects, or that is closed, is neither any more where KSM has merged it, and "
        "no access is told",
        example="2 MiB in base pages or a huge page, UFFDIO_WRITEPROTECT, merged with equal pages: bit 57 of pagemap "
        "is set of no base page, and a write goes on without a message",
        cause="replace_page() makes the new entry of vm_page_prot, without the bit of the old one (f45ec5ff16a7)",
        since=KernelVersion(5, 7),
        seen="6.1.176, 6.12.117, 7.3.4",
    ),
    Quirk.MERGING_ENDS_SOFT_DIRTY: KnownIssue(
        quirk=Quirk.MERGING_ENDS_SOFT_DIRTY,
        summary="memory that was written since clear_refs was is soft-dirty no more where KSM has merged it: who saves "
        "what was written leaves it out",
        example="512 base pages, 4 written to clear_refs, all written, merged with equal pages: 2 are soft-dirty. "
        "Zeroes that KSM replaces by the zero page (use_zero_pages) stay so on 7.3.4",
        cause="replace_page() makes the new entry of vm_page_prot, without the bit of the old one",
        since=KernelVersion(3, 11),
        seen="6.1.176, 6.12.117, 7.3.4",
    ),
    Quirk.MOVED_SWAP_STAYS_PROTECTED: KnownIssue(
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
    Quirk.MOVED_TABLES_NOT_SOFT_DIRTY: KnownIssue(
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
    Quirk.SMALLER_COLLAPSE_MEETS_OWN_REFERENCES: KnownIssue(
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
    Quirk.UNMAPPING_OPENS_SHARED: KnownIssue(
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
    Quirk.BUFFER_NOT_CLEARED: KnownIssue(
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
    Quirk.BUFFER_TAKES_BROKEN: KnownIssue(
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
    Quirk.ZEROED_MEMORY_COMES_BACK: KnownIssue(
        quirk=Quirk.ZEROED_MEMORY_COMES_BACK,
        summary="memory that came back while zswap took it, and was zeroed and swapped out again, holds what it held "
        "before, when zswap has made room",
        example="a page of 42, read by a thread while MADV_PAGEOUT has zswap take it, zeroed, swapped out again, "
        "max_pool_percent 0: its bytes are 42",
        cause="swap_writeout() of zeroes returns before zswap_store(), which would replace or drop what zswap has of "
        "them, and zswap_writeback_entry() takes that for the latest (0ca0c24e3211)",
        since=KernelVersion(6, 12),
        seen="6.12.117, 7.3.4",
    ),
    Quirk.GUARDING_PROTECTED_NEVER_ENDS: KnownIssue(
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
    Quirk.BAD_BLOCK_TAKES_NEIGHBOURS: KnownIssue(
        quirk=Quirk.BAD_BLOCK_TAKES_NEIGHBOURS,
        summary="a block of swap that cannot be read takes what is read ahead with it: good pages beside it cannot be "
        "read, either",
        example="64 base pages in swap, of which the blocks of 40 can be read, and MADV_WILLNEED of all: 32 can be "
        "read, and the others get SIGBUS. With page-cluster 3 and 5 faults that read ahead lose some, too",
        cause="swap_add_folio() puts up to 32 folios into one bio, and swap_read_end() leaves all of them without what "
        "they held when one block fails; before, each folio had a bio of its own",
        since=KernelVersion(7, 3),
        seen="7.3.4; right on 6.12.117, 6.16.3; none between was run",
    ),
    Quirk.UNREADABLE_SWAP_COUNTED_TWICE: KnownIssue(
        quirk=Quirk.UNREADABLE_SWAP_COUNTED_TWICE,
        summary="a file of a tmpfs that cannot be read from swap cannot be emptied by ftruncate(), and what it has in "
        "swap falls below 0 where it can",
        example="2 MiB in swap on a device that fails: 512 base pages cannot be read; ftruncate(0), which leaves them "
        "there: a write of the file fails with EIO as before. With a base page that was read before, or punched out, "
        "the file is empty, and Swap in smaps is 18014398509479936 kB; when it is swapped out again swapoff(2) never "
        "returns (7.3.4)",
        cause="shmem_set_folio_swapin_error() takes what cannot be read off alloced and swapped, and leaves a marker "
        "in its place. shmem_setattr() does nothing where alloced is 0, and shmem_undo_range() counts the marker as "
        "taken from swap again",
        since=KernelVersion(5, 19),
        seen="6.12.117, 7.3.4",
    ),
    Quirk.SWAP_BY_FIRST_PAGE: KnownIssue(
        quirk=Quirk.SWAP_BY_FIRST_PAGE,
        summary="mincore(2) and MADV_WILLNEED take the first base page of shared memory that was swapped out as a "
        "whole huge page for each of them: one is brought, and all are told to be in memory",
        example="2 MiB of a tmpfs with huge=always, swapped to a device, MADV_WILLNEED of a base page in its middle: "
        "the first one comes, and mincore() tells of 512; of all: one comes, and who reads them has major faults",
        cause="mincore_page(), by filemap_get_incore_folio() in 6.12, and shmem_swapin_range() use the entry of a huge "
        "page in swap as it is, where shmem_swapin_folio() adds the number of the base page to it",
        since=KernelVersion(6, 12),
        seen="6.12.117, 7.3.4",
    ),
    Quirk.DIRECT_WRITE_ENDS_GUARDS: KnownIssue(
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
    Quirk.POISON_OF_SHARED_LOST: KnownIssue(
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
    Quirk.COLLAPSE_MAPS_UNTOLD: KnownIssue(
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
    Quirk.PART_OF_SHARED_UNTOLD: KnownIssue(
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
}
