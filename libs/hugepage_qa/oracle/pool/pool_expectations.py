"""What files, mounts, groups and processes must show of a PoolMachine, and every rule that pools are judged by."""

from collections.abc import Iterator, Mapping

from hugepage_qa.oracle.pool.pool_files import Mount, Process
from hugepage_qa.oracle.pool.pool_machine import PoolMachine
from hugepage_qa.oracle.prediction import Exactly, Expectation, SumOf, Value, pool_subject
from hugepage_qa.oracle.rules import HUGETLB_DOC, Rule
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


_COUNTER_RULES = {
    "nr_hugepages": POOL_TOTAL,
    "free_hugepages": POOL_FREE,
    "resv_hugepages": POOL_RESERVED,
    "surplus_hugepages": POOL_SURPLUS,
    "nr_overcommit_hugepages": POOL_OVERCOMMIT,
}
#: reservations and limits belong to no node
_OF_A_NODE = ("nr_hugepages", "free_hugepages", "surplus_hugepages")
#: what statfs() shows of a limit that is not there, as Python's statvfs() reads it
_UNLIMITED = -1


def mount_subject(mount: str, name: str) -> str:
    """Return the subject of a number that statfs() shows: blocks, free_blocks, files, free_files."""
    return f"mount {mount}/{name}"


def group_subject(group: str, size: int, name: str) -> str:
    """Return the subject of a group's bytes in pages of ``size``: used, reserved."""
    return f"group {group}/{size // 1024}kB/{name}"


def mapped_subject(process: str) -> str:
    """Return the subject of the bytes in huge pages that a process has mapped."""
    return f"process {process}/HugetlbPages"


def content_subject(process: str, address: int) -> str:
    """Return the subject of the 8 bytes at an address."""
    return f"process {process}/{address:#x}"


def expectations(machine: PoolMachine, nodes: tuple[int, ...]) -> list[Expectation]:
    """Return all that can be seen of the machine, whose nodes are ``nodes`` (none without CONFIG_NUMA)."""
    return [
        *_pools(machine, nodes),
        *(one for name, mount in machine.mounts.items() for one in _quota(name, mount)),
        *_groups(machine),
        *(one for name, process in machine.processes.items() for one in _memory(name, process)),
    ]


def _pools(machine: PoolMachine, nodes: tuple[int, ...]) -> Iterator[Expectation]:
    for size, pool in machine.pools.items():
        counters = pool.counters()
        elsewhere = machine.elsewhere.get(size, {})
        for name, value in counters.items():
            total = value + sum(found.get(name, 0) for found in elsewhere.values())
            yield _exactly(pool_subject(size, name), total, _COUNTER_RULES[name])
        for name in _OF_A_NODE if nodes else ():
            terms = tuple((pool_subject(size, name, node), 1) for node in nodes)
            yield Expectation(pool_subject(size, name), SumOf(terms), NODES_TOGETHER)
            if machine.home is not None:
                for node in nodes:
                    value = counters[name] if node == machine.home else elsewhere.get(node, {}).get(name, 0)
                    yield _exactly(pool_subject(size, name, node), value, NODE_POOL)


def _quota(name: str, mount: Mount) -> Iterator[Expectation]:
    blocks = free_blocks = files = free_files = 0
    if mount.subpool is not None:
        limit = mount.subpool.most
        blocks = _UNLIMITED if limit is None else limit
        free_blocks = blocks - mount.subpool.used
        files = _UNLIMITED if mount.inodes is None else mount.inodes
        free_files = _UNLIMITED if mount.inodes is None else mount.free_inodes
    shown = {"blocks": blocks, "free_blocks": free_blocks, "files": files, "free_files": free_files}
    for what, value in shown.items():
        yield _exactly(mount_subject(name, what), value, QUOTA)


def _groups(machine: PoolMachine) -> Iterator[Expectation]:
    for name, group in machine.groups.items():
        for size in machine.pools:
            yield _exactly(group_subject(name, size, "used"), group.used.usage(size), GROUP_USE)
            yield _exactly(group_subject(name, size, "reserved"), group.reserved.usage(size), GROUP_RESERVATION)


def _memory(name: str, process: Process) -> Iterator[Expectation]:
    yield _exactly(mapped_subject(name), process.mapped_bytes, MAPPED)
    for mapping in process.mappings:
        for index, page in sorted(mapping.present.items()):
            yield _exactly(content_subject(name, mapping.address_of(index)), page.value, CONTENT)


def _exactly(subject: str, value: Value, rule: Rule) -> Expectation:
    return Expectation(subject, Exactly(value), rule)
