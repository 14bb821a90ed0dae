"""Known kernel bugs in memory that is in swap, on its way there or back."""

from hugepage_qa.oracle.known_issues import KnownIssue, Quirk, by_quirk
from hugepage_qa.version import KernelVersion

SWAP_ISSUES = by_quirk(
    KnownIssue(
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
    KnownIssue(
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
    KnownIssue(
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
    KnownIssue(
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
    KnownIssue(
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
    KnownIssue(
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
    KnownIssue(
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
    KnownIssue(
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
    KnownIssue(
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
    KnownIssue(
        quirk=Quirk.LOCKED_PAGES_FROM_SWAP_UNMARKED,
        summary="base pages that come back from swap to memory that is locked are neither mlocked nor unevictable, "
        "where they come as new ones",
        example="16 MiB of base pages in swap, mlock(2): Mlocked is 0 kB, and 16384 kB before 6.11; the pages are on "
        "the lists that are reclaimed, until reclaim meets each of them and marks it",
        cause="do_swap_page() adds a page that it has read as a new one by folio_add_new_anon_rmap(), where it added "
        "it by folio_add_anon_rmap_ptes() before, which marks it; new pages are marked by folio_add_lru_vma(), and "
        "that was done without the mapping when the page was read (9ae2feacedde)",
        since=KernelVersion(6, 11),
        seen="6.12.117, 7.3.4; right on 6.1.176",
    ),
)
