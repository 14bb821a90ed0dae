"""What the kernel has for processes, mappings and files, one by one, and what is left of it when a case is over.

A structure has a hundred bytes or two: what is forgotten once is not seen in the memory that a machine has. Each kind
of these has a cache of its own, which tells how many there are.
"""

from collections.abc import Mapping

from hugepage_qa.cases.live import Live
from hugepage_qa.cases.size_counters import read_size_counters, size_counter
from hugepage_qa.kernel.counters import read_vmstat
from hugepage_qa.kernel.slab import CACHES, read_active_objects
from hugepage_qa.machine.host import ObservedTree
from hugepage_qa.oracle.compare import Difference
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.oracle.rules import THP_DOC, Rule
from hugepage_qa.version import KernelVersion

OBJECTS_FREED = Rule(
    "objects-freed",
    "when a case is over the kernel has freed the structures of its processes, mappings, files, policies and groups,"
    " and counts no transparent huge page of any size more",
    "Documentation/filesystems/proc.rst slabinfo; Documentation/ABI/testing/sysfs-kernel-slab shrink;"
    " mm/vma_init.c vm_area_free(); mm/rmap.c unlink_anon_vmas(); kernel/fork.c __mmdrop(); mm/mempolicy.c"
    " __mpol_put(); Documentation/admin-guide/cgroup-v2.rst nr_dying_descendants;"
    f" {THP_DOC} nr_anon, nr_anon_partially_mapped",
)
#: among them what the suite has stored in the root of a throwaway machine, which is a tmpfs
_OF_TMPFS = "shmem_inode_cache"
#: cache -> how many objects more the suite itself may have: its agent, and a program that it has been given
_MAY_STAY = {
    "anon_vma": 2,
    "anon_vma_chain": 2,
    "hugetlbfs_inode_cache": 0,
    # khugepaged keeps the address space that it looks at, and a processor that idles the last one that it had
    "khugepaged_mm_slot": 1,
    "kioctx": 0,
    "mem_cgroup": 0,
    "mm_struct": 4,
    "numa_policy": 0,
    "shared_policy_node": 0,
    _OF_TMPFS: 2,
    "userfaultfd_ctx_cache": 0,
    "vm_area_struct": 2,
}
#: groups of version 2 that were removed, and are held: cgroup.stat tells of all as vmstat does of pages. Before
#: 0ff67f990bd4 a CPU could keep 64 slots of swap that were given back, with the groups that they were charged to
_DYING, _DYING_SINCE = "nr_dying_descendants", KernelVersion(6, 15)
_GROUPS = "sys/fs/cgroup/cgroup.stat"
#: huge pages of each size that are anonymous memory now, since 6.12 (hugepages-*/stats)
_ANON = "nr_anon"
_OF_A_SIZE = (_ANON, f"{_ANON}_partially_mapped")


def count_objects(live: Live) -> Mapping[str, int]:
    """Return kind -> how many the kernel has now, of those above that it tells of. Raises InputError."""
    tree = ObservedTree(live.host)
    caches = _MAY_STAY.keys() & read_active_objects(tree).keys()
    for cache in sorted(caches):
        # each processor gives back the free ones that it keeps, which count as used otherwise
        live.host.write(f"{CACHES}/{cache}/shrink", "1")
    counts = {cache: count for cache, count in read_active_objects(tree).items() if cache in caches} | _of_sizes(live)
    if _OF_TMPFS in counts:
        counts[_OF_TMPFS] -= live.host.file_system("/").taken_files
    groups = read_vmstat(tree, _GROUPS).get(_DYING)
    if groups is not None and live.kernel_version >= _DYING_SINCE:
        counts[_DYING] = groups
    return counts


def _of_sizes(live: Live) -> dict[str, int]:
    """Return how many transparent pages there are of each size, without what moved pages of a pool are taken for."""
    taken = {size_counter(size, _ANON) for size in live.before.pools}
    left_out = taken if live.has_bug(Quirk.MOVED_POOL_PAGE_STAYS_COUNTED) else set()
    return {name: count for name, count in read_size_counters(live, _OF_A_SIZE).items() if name not in left_out}


def compare_objects(live: Live, before: Mapping[str, int]) -> list[Difference]:
    """Return of what there are more objects than ``before``."""
    return [
        Difference(f"count of {kind}", OBJECTS_FREED, f"at most {limit}", str(count))
        for kind, count in count_objects(live).items()
        if count > (limit := before.get(kind, 0) + _MAY_STAY.get(kind, 0))
    ]
