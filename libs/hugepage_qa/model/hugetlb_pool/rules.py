"""Every rule that a running machine's pools are judged by; ``model.rules`` holds those of a boot."""

from collections.abc import Mapping

from hugepage_qa.model.rules import HUGETLB_DOC, Rule
from hugepage_qa.version import KernelVersion

CGROUP_DOC = "Documentation/admin-guide/cgroup-v2.rst HugeTLB; cgroup-v1/hugetlb.rst"

POOL_TOTAL = Rule(
    "live-pool-total",
    "nr_hugepages is what was asked for, and the surplus pages that are there beyond it",
    f"{HUGETLB_DOC} nr_hugepages; mm/hugetlb.c set_max_huge_pages()",
)
POOL_FREE = Rule(
    "live-pool-free",
    "a page is free from when it is allocated until it is touched, and again when nothing refers to it",
    f"{HUGETLB_DOC} HugePages_Free; mm/hugetlb.c dequeue_hugetlb_folio_vma(), free_huge_folio()",
)
POOL_RESERVED = Rule(
    "live-pool-reserved",
    "a mapping without MAP_NORESERVE, a segment and min_size= reserve pages until they are touched or given up",
    f"{HUGETLB_DOC} HugePages_Rsvd; Documentation/mm/hugetlbfs_reserv.rst; mm/hugetlb.c hugetlb_reserve_pages()",
)
POOL_SURPLUS = Rule(
    "live-pool-surplus",
    "pages beyond nr_hugepages are surplus, at most nr_overcommit_hugepages of them are taken, all go when freed",
    f"{HUGETLB_DOC} HugePages_Surp, nr_overcommit_hugepages; mm/hugetlb.c alloc_surplus_hugetlb_folio()",
)
POOL_OVERCOMMIT = Rule(
    "live-pool-overcommit",
    "nr_overcommit_hugepages reads what was written",
    f"{HUGETLB_DOC} nr_overcommit_hugepages; mm/hugetlb.c nr_overcommit_hugepages_store()",
)
NODE_POOL = Rule(
    "live-pool-node",
    "where pages are taken from one node alone, its counters change as those of the pool do, and no other's",
    f"{HUGETLB_DOC} per node hugepages attributes",
)
NODES_TOGETHER = Rule(
    "live-pool-nodes",
    "the counters of the nodes add up to those of the pool",
    f"{HUGETLB_DOC} per node hugepages attributes",
)
QUOTA = Rule(
    "live-mount-quota",
    "statfs() of a hugetlbfs shows size= and nr_inodes= and what is left of them, reserved pages taken off",
    "fs/hugetlbfs/inode.c hugetlbfs_statfs(); mm/hugetlb.c hugepage_subpool_get_pages()",
)
GROUP_USE = Rule(
    "live-cgroup-use",
    "a group is charged for the pages that its processes touched, until they are freed",
    f"{CGROUP_DOC}; mm/hugetlb_cgroup.c hugetlb_cgroup_charge_cgroup()",
)
GROUP_RESERVATION = Rule(
    "live-cgroup-reservation",
    "a group is charged for what its processes reserved, or touched without reservation, until it is given up",
    f"{CGROUP_DOC} rsvd; mm/hugetlb_cgroup.c hugetlb_cgroup_charge_cgroup_rsvd()",
    since=KernelVersion(5, 7),
)
MAPPED = Rule(
    "live-process-mapped",
    "HugetlbPages of a process counts the huge pages that its page tables point to",
    "Documentation/filesystems/proc.rst HugetlbPages; mm/hugetlb.c hugetlb_count_add()",
)
CONTENT = Rule(
    "live-page-content",
    "a page holds what was last written to it by those who share it, and zeros before",
    "mmap(2) MAP_SHARED, MAP_PRIVATE; fork(2); mm/hugetlb.c hugetlb_wp()",
)
OUTCOME = Rule(
    "live-outcome",
    "a system call fails with the documented error, an access for which no page can be had with SIGBUS, and no other",
    "mmap(2), fallocate(2), mremap(2), madvise(2), shmget(2); mm/hugetlb.c hugetlb_fault()",
)

POOL_RULES: Mapping[str, Rule] = {rule.name: rule for rule in list(globals().values()) if isinstance(rule, Rule)}
