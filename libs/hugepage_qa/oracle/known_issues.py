"""Known kernel bugs: where kernels do something other than what is documented, and what they do instead.

A kernel that follows the documentation passes. One that differs from it exactly as a known issue says, in a version
that has the issue, is judged "known"; every other difference fails.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from hugepage_qa.version import KernelVersion


class Quirk(Enum):
    """A way in which kernels deviate; the models follow it when asked to."""

    DEFAULT_SIZE_NAMED_BEFORE = "default-size-named-before"
    GIGANTIC_COUNTED_TWICE = "gigantic-counted-twice"
    GIGANTIC_NODE_FALLBACK = "gigantic-node-fallback"
    COUNT_NOT_RESERVED = "count-not-reserved"
    IMPLICIT_COUNT_KEEPS_NODES = "implicit-count-keeps-nodes"
    SHMEM_DENY_LOST = "shmem-deny-lost"
    SHMEM_FORCE_REFUSED = "shmem-force-refused"
    CMA_SHARE_UNROUNDED = "cma-share-unrounded"

    # of transparent huge pages of a running machine, recorded in known_thp_issues.py
    BALANCED_PAGES_MISSED = "balanced-pages-missed"
    WITHIN_SIZE_PASSED = "within-size-passed"
    SMALLER_SIZE_LETS_COLLAPSE = "smaller-size-lets-collapse"
    COMPACTION_ENDS_AT_LARGE_FOLIO = "compaction-ends-at-large-folio"
    DIRTY_LOST_AT_UNMAP = "dirty-lost-at-unmap"
    PIPE_SHOWS_LATER_WRITES = "pipe-shows-later-writes"
    MOVED_HUGE_PAGE_UNLOCKED = "moved-huge-page-unlocked"
    MOVED_SHARED_PAGE_OFF_NODES = "moved-shared-page-off-nodes"
    MOVED_POOL_PAGE_STAYS_COUNTED = "moved-pool-page-stays-counted"
    BROKEN_PART_HANDED_OUT_AGAIN = "broken-part-handed-out-again"
    BROKEN_RANGE_PASSED_OVER = "broken-range-passed-over"
    KEPT_PLACE_UNLOCKS_MAPPING = "kept-place-unlocks-mapping"
    KEPT_PLACE_COUNTS_TWICE = "kept-place-counts-twice"
    HUGE_PAGE_OF_NO_FILE = "huge-page-of-no-file"
    EQUAL_POLICY_PASSED_OVER = "equal-policy-passed-over"
    MERGED_RANGE_TAKES_POLICY = "merged-range-takes-policy"
    REMOUNT_KEEPS_POLICY = "remount-keeps-policy"
    HOLE_STAYS_DIRTY = "hole-stays-dirty"
    EXCLUSIVE_BY_FIRST_PAGE = "exclusive-by-first-page"
    ZEROES_LOSE_MARKS = "zeroes-lose-marks"
    HUGE_ZEROES_UNTOLD = "huge-zeroes-untold"
    MERGING_ENDS_SOFT_DIRTY = "merging-ends-soft-dirty"
    CLOSED_MEMORY_STAYS_MERGED = "closed-memory-stays-merged"
    MOVED_TABLES_NOT_SOFT_DIRTY = "moved-tables-not-soft-dirty"
    MERGED_MAPPING_NOT_SOFT_DIRTY = "merged-mapping-not-soft-dirty"
    SMALLER_COLLAPSE_MEETS_OWN_REFERENCES = "smaller-collapse-meets-own-references"
    BUFFER_NOT_CLEARED = "buffer-not-cleared"
    BUFFER_TAKES_BROKEN = "buffer-takes-broken"
    DIRECT_WRITE_ENDS_GUARDS = "direct-write-ends-guards"
    TAKEN_HUGE_PAGE_ISOLATED_ONCE = "taken-huge-page-isolated-once"
    REFUSED_OFFLINE_KEEPS_FOLIO = "refused-offline-keeps-folio"
    MOVE_OF_A_PART_NEVER_ENDS = "move-of-a-part-never-ends"

    # of memory in swap, recorded in known_swap_issues.py
    CUT_WITHIN_SWAP_NEVER_ENDS = "cut-within-swap-never-ends"
    SWAP_OF_A_PART_COUNTS_ALL = "swap-of-a-part-counts-all"
    SOFT_DIRTY_LOST_AT_SWAPOFF = "soft-dirty-lost-at-swapoff"
    REFUSALS_WITH_SWAP_UNCOUNTED = "refusals-with-swap-uncounted"
    PRIVATE_SWAP_UNTOLD = "private-swap-untold"
    ZEROED_MEMORY_COMES_BACK = "zeroed-memory-comes-back"
    BAD_BLOCK_TAKES_NEIGHBOURS = "bad-block-takes-neighbours"
    UNREADABLE_SWAP_COUNTED_TWICE = "unreadable-swap-counted-twice"
    SWAP_BY_FIRST_PAGE = "swap-by-first-page"
    LOCKED_PAGES_FROM_SWAP_UNMARKED = "locked-pages-from-swap-unmarked"

    # of memory whose faults a program handles, recorded in known_userfault_issues.py
    UFFD_COPY_EXISTS = "uffd-copy-exists"
    SEGMENT_NOT_REGISTERED = "segment-not-registered"
    FORKED_PAGE_STAYS_PROTECTED = "forked-page-stays-protected"
    MOVED_PAGE_STAYS_PROTECTED = "moved-page-stays-protected"
    UNREGISTER_ENDS_PROTECTION = "unregister-ends-protection"
    GIVEN_BACK_UNTOLD = "given-back-untold"
    SCAN_PASSES_OVER_PAGES = "scan-passes-over-pages"
    SCAN_LEAVES_UNTOUCHED = "scan-leaves-untouched"
    SCAN_PROTECTS_OTHERS = "scan-protects-others"
    PART_OF_SHARED_UNTOLD = "part-of-shared-untold"
    CLOSED_GIGANTIC_PAGE_READ = "closed-gigantic-page-read"
    CLOSED_USERFAULTFD_PROTECTS = "closed-userfaultfd-protects"
    CLOSING_UNMAPS_SHARED = "closing-unmaps-shared"
    UNMAPPING_OPENS_SHARED = "unmapping-opens-shared"
    MERGING_ENDS_PROTECTION = "merging-ends-protection"
    MOVED_SWAP_STAYS_PROTECTED = "moved-swap-stays-protected"
    GUARDING_PROTECTED_NEVER_ENDS = "guarding-protected-never-ends"
    POISON_OF_SHARED_LOST = "poison-of-shared-lost"
    COLLAPSE_MAPS_UNTOLD = "collapse-maps-untold"
    SOFT_DIRTY_LOST_AT_UNPROTECT = "soft-dirty-lost-at-unprotect"

    # of the pools of a running machine, recorded in pool/known_pool_issues.py
    DEMOTE_TAKES_RESERVED = "demote-takes-reserved"
    DEMOTE_ON_NODE_TAKES_RESERVED = "demote-on-node-takes-reserved"
    SUBPOOL_RESERVE_MADE_UP = "subpool-reserve-made-up"
    SUBPOOL_USE_LOST_AT_FAULT = "subpool-use-lost-at-fault"
    SUBPOOL_USE_LOST_AT_MMAP = "subpool-use-lost-at-mmap"
    SUBPOOL_RESERVE_DROPPED = "subpool-reserve-dropped"
    SUBPOOL_RESERVE_NOT_USED = "subpool-reserve-not-used"
    SUBPOOL_RESERVE_AVOIDED = "subpool-reserve-avoided"
    RESERVED_SURPLUS_FREED = "reserved-surplus-freed"
    SURPLUS_FREED_AS_PERSISTENT = "surplus-freed-as-persistent"
    UNMAP_RESERVES_PAGE_IN_USE = "unmap-reserves-page-in-use"
    MOVE_FORGETS_RESERVATION = "move-forgets-reservation"
    MOVE_LENGTH_TRUNCATED = "move-length-truncated"
    MOVE_WAITS_FOR_ITSELF = "move-waits-for-itself"
    FAILED_MOVE_ENDS_RESERVATION = "failed-move-ends-reservation"
    FORK_LOSES_PAGES = "fork-loses-pages"
    PINNED_PAGE_UNRESERVED = "pinned-page-unreserved"
    SUBPOOL_FREED_IN_USE = "subpool-freed-in-use"
    COPY_LOSES_RESERVATION = "copy-loses-reservation"
    BUFFER_TAKES_RESERVED = "buffer-takes-reserved"
    ATTACHMENT_RESERVES = "attachment-reserves"
    COPY_NEVER_ENDS = "copy-never-ends"
    UNMAP_PASSES_OVER_A_MOVE = "unmap-passes-over-a-move"
    BEHIND_ABSENT_TABLE = "behind-absent-table"

    # of what is told of huge pages of the pools that somebody has, recorded in known_account_issues.py
    SMAPS_SHOWS_SHARED = "smaps-shows-shared"
    SMAPS_SHOWS_BROKEN = "smaps-shows-broken"
    SHARED_TABLE_UNCOUNTED = "shared-table-uncounted"
    BUFFER_PAGE_COUNTED_AGAIN = "buffer-page-counted-again"
    REPLACED_BUFFER_NOT_COUNTED = "replaced-buffer-not-counted"
    BUFFER_PAGE_UNCHARGED = "buffer-page-uncharged"
    NR_HUGETLB_LOST = "nr-hugetlb-lost"
    NEW_GROUP_SHOWS_NUMBER = "new-group-shows-number"
    REMOVED_GROUP_OFF_NODES = "removed-group-off-nodes"
    MOVED_PAGE_OFF_NODES = "moved-page-off-nodes"
    SEGMENT_RSS_MULTIPLIED = "segment-rss-multiplied"
    MOVED_PAGE_UNCOUNTED = "moved-page-uncounted"
    SHARED_TAILS_SHOWN_AS_HEADS = "shared-tails-shown-as-heads"
    HOLES_SHOWN_AS_PAGES = "holes-shown-as-pages"
    LEFT_PAGE_UNTOLD = "left-page-untold"
    DELETED_BROKEN_PAGE_CHARGED = "deleted-broken-page-charged"
    MINCORE_COUNTS_HUGE_PAGES = "mincore-counts-huge-pages"

    # of huge pages of the pools that somebody has, recorded in known_memory_issues.py
    UNUSABLE_GIGANTIC_READ_NEVER_ENDS = "unusable-gigantic-read-never-ends"
    PROTECTED_GIGANTIC_WRITTEN = "protected-gigantic-written"
    TRUNCATION_PASSES_OVER_A_FAULT = "truncation-passes-over-a-fault"
    PRIVATE_LOCK_MISTAKEN = "private-lock-mistaken"
    PUNCHING_TAKES_COPIES = "punching-takes-copies"
    GRANDCHILD_READS_ZEROES = "grandchild-reads-zeroes"
    LAST_BYTES_TAKE_ALL_PAGES = "last-bytes-take-all-pages"
    SEAL_GROW_PASSED_OVER = "seal-grow-passed-over"
    SEAL_EXEC_PASSED_OVER = "seal-exec-passed-over"
    TRUNCATE_BY_NAME_UNMARKED = "truncate-by-name-unmarked"
    DOFORK_REFUSED = "dofork-refused"
    PRIVATE_PAGE_OF_MOUNT_STAYS = "private-page-of-mount-stays"
    MOVE_BEYOND_LENGTH = "move-beyond-length"
    MOVE_MISPLACES_PAGES = "move-misplaces-pages"
    HINT_ROUNDED_TO_ZERO = "hint-rounded-to-zero"
    LOW_HINT_ROUNDED_DOWN = "low-hint-rounded-down"
    OPTIMISED_POOL_KILLS = "optimised-pool-kills"
    DEMOTED_PARTS_LOSE_MEMORY = "demoted-parts-lose-memory"
    HELD_BROKEN_PAGE_PROMISED = "held-broken-page-promised"
    KEPT_PAGE_LEAVES_CMA = "kept-page-leaves-cma"
    BROKEN_PAGE_LOST_AT_FORK = "broken-page-lost-at-fork"
    MAPPED_BEYOND_THE_WINDOW = "mapped-beyond-the-window"
    REFUSED_CHARGE_NEVER_ENDS = "refused-charge-never-ends"


@dataclass(frozen=True, kw_only=True)
class KnownIssue:
    """A recorded kernel bug.

    ``summary`` is what kernels with it do, ``example`` what shows it, with the values, ``cause`` where the sources go
    wrong. ``fix`` is the commit, or its title, that upstream is mended by in version ``until``; without both the issue
    is open, and ``reported`` tells what upstream knows of it. ``backports`` are the first versions without it of older,
    still maintained branches; ``brought_to`` are the first versions with it of branches older than ``since``, and all
    that have it where there is no ``since``: in mainline it never was. With an ``architecture``, as ``uname -m`` prints
    it, no other one has it. ``seen`` are kernels that were run.
    """

    quirk: Quirk
    summary: str
    example: str
    cause: str
    since: KernelVersion | None
    until: KernelVersion | None = None
    fix: str | None = None
    reported: str = ""
    backports: tuple[KernelVersion, ...] = ()
    brought_to: tuple[KernelVersion, ...] = ()
    architecture: str = ""
    seen: str = ""

    @property
    def is_open(self) -> bool:
        """Tell whether no version of the kernel is known to be without it, once it came."""
        return self.until is None

    def applies_to(self, version: KernelVersion, architecture: str = "") -> bool:
        """Tell whether kernels of ``version`` have this bug; without an ``architecture``, whether all have."""
        if self.architecture not in ("", architecture):
            return False
        came = (self.since is not None and version >= self.since) or version.follows_any(self.brought_to)
        return came and (self.until is None or version < self.until) and not version.follows_any(self.backports)


def by_quirk(*issues: KnownIssue) -> Mapping[Quirk, KnownIssue]:
    """Return the table of ``issues``."""
    return {issue.quirk: issue for issue in issues}


_EARLY_PARAMETERS = KernelVersion(6, 15)

KNOWN_ISSUES = by_quirk(
    KnownIssue(
        quirk=Quirk.DEFAULT_SIZE_NAMED_BEFORE,
        summary="hugepages= after a default_hugepagesz= whose size an earlier hugepagesz= named goes to the size "
        "that was named last",
        example="`hugepagesz=1G hugepagesz=2M default_hugepagesz=1G hugepages=1` reserves 1 page of 2M and none of 1G",
        cause="hugetlb_add_hstate() returns early for a size that exists and leaves parsed_hstate at the one that "
        "was added last",
        since=KernelVersion(5, 8),
        seen="6.1.192, 6.12.107, 6.12.117, 7.2.13, 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.GIGANTIC_COUNTED_TWICE,
        summary="gigantic pages given first as hugepages=, then again after default_hugepagesz=, are reserved both "
        "times",
        example="`hugepages=1 default_hugepagesz=1G hugepages=2` reserves 3 pages of 1G, which is right in no "
        "reading; kernels since 6.15 reserve 2. Where both fall short vm.nr_hugepages can wrap below 0: "
        "`hugepages=0:18,0:24 default_hugepagesz=1G hugepages=2` on nodes of 3G and 4G made 6.1 show "
        "18446744073709551615 pages",
        cause="hugepages_setup() and default_hugepagesz_setup() both call hugetlb_hstate_alloc_pages() while the "
        "command line is parsed",
        since=KernelVersion(5, 8),
        until=_EARLY_PARAMETERS,
        fix="mm/hugetlb: convert cmdline parameters from setup to early (5b47c02967ab)",
        seen="6.1.192, 6.12.107, 6.12.117; right on 7.2.13, 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.GIGANTIC_NODE_FALLBACK,
        summary="gigantic pages asked for on a node that is short come from another node, without a warning",
        example="`hugepagesz=1G hugepages=0:6` on nodes of 4G and 12G reserves pages on node 1 as well",
        cause="__alloc_bootmem_huge_page() uses memblock_alloc_try_nid_raw(), which falls back to other nodes",
        since=KernelVersion(5, 16),
        until=KernelVersion(6, 14),
        fix="mm: hugetlb: avoid fallback for specific node allocation of 1G pages",
        seen="6.1.192, 6.12.107, 6.12.117; right on 7.2.13, 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.COUNT_NOT_RESERVED,
        summary="vm.nr_hugepages shows pages that were counted twice on the command line, the pool has fewer or more",
        example="`hugepages=0:16,0:8` reserves 8 pages, and vm.nr_hugepages reads 24",
        cause="hugepages_setup() adds the counts of a node named twice to max_huge_pages, which the sysctl shows, "
        "and keeps only the last for the reservation; gigantic pages have it since 5.8, counts of nodes came with "
        "5.16",
        since=KernelVersion(5, 8),
        seen="6.1.192, 6.12.107, 6.12.117, 7.2.13, 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.IMPLICIT_COUNT_KEEPS_NODES,
        summary="a count given first as hugepages= is cut to what a later hugepagesz= pair named for nodes",
        example="`hugepages=4 hugepagesz=2M hugepages=0:1 default_hugepagesz=2M` reserves 1 page instead of the 4 "
        "that cannot be overwritten. Where memory falls short of the node counts vm.nr_hugepages can wrap below 0: "
        "`hugepages=4 hugepagesz=1G hugepages=1:40 default_hugepagesz=1G` on nodes of 3G and 4G made 7.3.4 show "
        "18446744073709551582 pages",
        cause="default_hugepagesz_setup() copies only the node counts that are not 0, so those of the pair stay",
        since=_EARLY_PARAMETERS,
        seen="7.2.13, 7.3.4; right on 6.1.192, 6.12.107, 6.12.117",
    ),
    KnownIssue(
        quirk=Quirk.SHMEM_DENY_LOST,
        summary="transparent_hugepage_shmem=deny leaves shmem_enabled at never",
        example="`transparent_hugepage_shmem=deny`: shmem_enabled shows [never]",
        cause="shmem_init() keeps only values above SHMEM_HUGE_DENY and turns all others into never",
        since=KernelVersion(6, 13),
        seen="7.2.13, 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.SHMEM_FORCE_REFUSED,
        summary="transparent_hugepage_shmem=force has no effect: shmem_enabled is never",
        example='`transparent_hugepage_shmem=force`: "cannot parse, ignored"; '
        "`thp_shmem=2M:inherit transparent_hugepage_shmem=force`: no warning, and shmem_enabled shows [never] all "
        "the same",
        cause="shmem_parse_huge() takes force only when the PMD size inherits, which shmem_init() sets up after "
        "the command line was parsed; where thp_shmem= has set it up, shmem_init() drops the value",
        since=KernelVersion(6, 13),
        seen="7.2.13, 7.3.4",
    ),
    KnownIssue(
        quirk=Quirk.CMA_SHARE_UNROUNDED,
        summary="the log tells a share of each node in hugetlb_cma= that is not rounded up to gigantic pages as "
        "the areas are",
        example="`hugetlb_cma=1G` on two nodes: up to 512 MiB per node, and 1024 MiB are reserved on node 0",
        cause="hugetlb_cma_reserve() rounds up what it reserves on a node, and not the share that it prints",
        since=KernelVersion(5, 7),
        until=KernelVersion(7, 1),
        fix="mm/hugetlb_cma: round up per_node before logging it (8f5ce56b7630)",
        backports=(
            KernelVersion(5, 10, 259),
            KernelVersion(6, 1, 176),
            KernelVersion(6, 12, 90),
            KernelVersion(6, 18, 30),
            KernelVersion(7, 0, 7),
        ),
    ),
)
