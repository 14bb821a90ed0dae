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
    IMPLICIT_KEEPS_NODES = "implicit-count-keeps-nodes"
    SHMEM_DENY_LOST = "shmem-deny-lost"
    SHMEM_FORCE_REFUSED = "shmem-force-refused"
    PARAMETER_LIMIT = "hugetlb-parameter-limit"

    # of the pools of a running machine, recorded in hugetlb_pool/known.py
    DEMOTE_TAKES_RESERVED = "demote-takes-reserved"
    SUBPOOL_RESERVE_MADE_UP = "subpool-reserve-made-up"
    SUBPOOL_USE_LOST_AT_FAULT = "subpool-use-lost-at-fault"
    SUBPOOL_USE_LOST_AT_MMAP = "subpool-use-lost-at-mmap"
    SUBPOOL_RESERVE_DROPPED = "subpool-reserve-dropped"
    SUBPOOL_RESERVE_NOT_USED = "subpool-reserve-not-used"
    SUBPOOL_RESERVE_AVOIDED = "subpool-reserve-avoided"
    RESERVED_SURPLUS_FREED = "reserved-surplus-freed"
    UNMAP_RESERVES_PAGE_IN_USE = "unmap-reserves-page-in-use"
    MOVE_FORGETS_RESERVATION = "move-forgets-reservation"
    MOVE_LENGTH_TRUNCATED = "move-length-truncated"
    FAILED_MOVE_ENDS_RESERVATION = "failed-move-ends-reservation"
    FORK_LOSES_PAGES = "fork-loses-pages"
    PINNED_PAGE_UNRESERVED = "pinned-page-unreserved"
    UFFD_COPY_EXISTS = "uffd-copy-exists"
    SEAL_GROW_PASSED_OVER = "seal-grow-passed-over"
    NR_HUGETLB_LOST = "nr-hugetlb-lost"
    REMOVED_GROUP_OFF_NODES = "removed-group-off-nodes"


@dataclass(frozen=True)
class KnownIssue:
    """A recorded kernel bug; ``until`` is the first version without it, None where none is known.

    ``backports`` are the first versions without it of older, still maintained branches; ``brought_to`` are the
    first versions with it of branches older than ``since``.
    """

    quirk: Quirk
    summary: str
    since: KernelVersion
    until: KernelVersion | None
    evidence: str
    backports: tuple[KernelVersion, ...] = ()
    brought_to: tuple[KernelVersion, ...] = ()

    def applies_to(self, version: KernelVersion) -> bool:
        """Tell whether kernels of ``version`` have this bug."""
        if version < self.since:
            return version.follows_any(self.brought_to)
        return (self.until is None or version < self.until) and not version.follows_any(self.backports)


_EARLY_PARAMETERS = KernelVersion(6, 15)

KNOWN_ISSUES: Mapping[Quirk, KnownIssue] = {
    issue.quirk: issue
    for issue in (
        KnownIssue(
            Quirk.DEFAULT_SIZE_NAMED_BEFORE,
            "hugepages= after a default_hugepagesz= whose size an earlier hugepagesz= named goes to another size",
            KernelVersion(5, 8),
            None,
            "hugepagesz=1G hugepagesz=2M default_hugepagesz=1G hugepages=1 reserves one page of 2M: "
            "hugetlb_add_hstate() returns early for a size that exists and leaves parsed_hstate at the one added last",
        ),
        KnownIssue(
            Quirk.GIGANTIC_COUNTED_TWICE,
            "gigantic pages given first as hugepages=, then again after default_hugepagesz=, are reserved both times",
            KernelVersion(5, 8),
            _EARLY_PARAMETERS,
            "hugepages=1 default_hugepagesz=1G hugepages=2 reserves 3 pages of 1G: both handlers call "
            "hugetlb_hstate_alloc_pages() while the command line is parsed",
        ),
        KnownIssue(
            Quirk.GIGANTIC_NODE_FALLBACK,
            "gigantic pages asked for on a node that is short come from another node, without a warning",
            KernelVersion(5, 16),
            _EARLY_PARAMETERS,
            "--memory 2G,8G with hugepagesz=1G hugepages=0:4 reserves pages on node 1: memblock_alloc_try_nid_raw() "
            "falls back to other nodes",
        ),
        KnownIssue(
            Quirk.COUNT_NOT_RESERVED,
            "vm.nr_hugepages shows pages that were counted twice on the command line, the pool has fewer or more",
            KernelVersion(5, 8),
            None,
            "hugepages=0:16,0:8 reserves 8 pages and vm.nr_hugepages reads 24: the sysctl shows max_huge_pages, which "
            "hugepages_setup() adds up, while the reservation follows the counts of the nodes",
        ),
        KnownIssue(
            Quirk.IMPLICIT_KEEPS_NODES,
            "a count given first as hugepages= is cut to what a later hugepagesz= pair named for nodes",
            _EARLY_PARAMETERS,
            None,
            "hugepages=4 hugepagesz=2M hugepages=0:1 default_hugepagesz=2M reserves 1 page: default_hugepagesz_setup() "
            "copies only the node counts that are not 0",
        ),
        KnownIssue(
            Quirk.SHMEM_DENY_LOST,
            "transparent_hugepage_shmem=deny leaves shmem_enabled at never",
            KernelVersion(6, 13),
            None,
            "shmem_init() keeps only values above SHMEM_HUGE_DENY and turns all others into never",
        ),
        KnownIssue(
            Quirk.SHMEM_FORCE_REFUSED,
            "transparent_hugepage_shmem=force is refused as if it could not be parsed",
            KernelVersion(6, 13),
            None,
            "shmem_parse_huge() takes force only when the PMD size inherits, which shmem_init() sets up later",
        ),
        KnownIssue(
            Quirk.PARAMETER_LIMIT,
            "hugetlb parameters beyond two for each page size and one more are dropped as malformed",
            _EARLY_PARAMETERS,
            None,
            "x86_64 drops the sixth of hugepagesz=1G hugepagesz=1G hugepages=1 hugepagesz=2M hugepages=8 "
            "default_hugepagesz=2M: HUGE_MAX_CMDLINE_ARGS in mm/hugetlb.c",
        ),
    )
}


def issues_of(version: KernelVersion) -> tuple[KnownIssue, ...]:
    """Return the known issues that kernels of ``version`` have."""
    return tuple(issue for issue in KNOWN_ISSUES.values() if issue.applies_to(version))
