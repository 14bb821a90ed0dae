"""The knobs of a machine that cases may touch: found by looking, read in one form, written as they were read."""

import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum, auto
from pathlib import Path

from hugepage_qa.errors import InputError
from hugepage_qa.kernel import interleave_weights, ksm, nodes, pools, thp
from hugepage_qa.kernel.tree import DirectoryTree, Tree, parse_integer, size_directories

#: below /proc/sys; vm.nr_hugepages and vm.nr_overcommit_hugepages are second names of the default pool's files
SYSCTLS = (
    "vm/hugetlb_optimize_vmemmap",
    "vm/hugetlb_shm_group",
    "vm/hugepages_treat_as_movable",
    "vm/movable_gigantic_pages",
    "vm/enable_soft_offline",
    "vm/memory_failure_early_kill",
    "vm/memory_failure_recovery",
    "vm/overcommit_memory",
    # writing one of these two sets the other to 0 (overcommit_ratio_handler() in mm/util.c): the ratio, which is
    # in use unless somebody has chosen kbytes, comes last
    "vm/overcommit_kbytes",
    "vm/overcommit_ratio",
    "vm/legacy_va_layout",
    "vm/admin_reserve_kbytes",
    "vm/user_reserve_kbytes",
    "vm/compaction_proactiveness",
    "vm/compact_unevictable_allowed",
    "vm/extfrag_threshold",
    "vm/defrag_mode",
    "vm/watermark_boost_factor",
    "vm/watermark_scale_factor",
    "vm/dirty_writeback_centisecs",
    "vm/page-cluster",
    "vm/swappiness",
    "vm/zone_reclaim_mode",
    "vm/numa_zonelist_order",
    "vm/max_map_count",
    "vm/mmap_min_addr",
    "vm/percpu_pagelist_high_fraction",
    "vm/panic_on_oom",
    "vm/oom_kill_allocating_task",
    "vm/unprivileged_userfaultfd",
    "kernel/numa_balancing",
    "kernel/shmmax",
    "kernel/shmall",
    "kernel/shmmni",
    "kernel/shm_rmid_forced",
)
#: of KVM: whether and how it splits the pages that it maps for guests
_KVM_PARAMETERS = (
    "eager_page_split",
    "nx_huge_pages",
    "nx_huge_pages_recovery_ratio",
    "nx_huge_pages_recovery_period_ms",
)
#: of zswap: what goes to it, and how much
_ZSWAP_PARAMETERS = ("enabled", "max_pool_percent", "same_filled_pages_enabled", "non_same_filled_pages_enabled")
#: of KSM: how it scans memory, and whether an advisor sets the pages of a scan in place of people (since Linux 6.8)
_KSM_FILES = ("max_page_sharing", "merge_across_nodes", "run", "sleep_millisecs", "smart_scan", "use_zero_pages")
_SET_BY_ADVISOR, _ADVISOR, _NO_ADVISOR = "pages_to_scan", "advisor_mode", "none"
MIN_FREE = "vm/min_free_kbytes"
#: whether all memory is watched for how it is used, as some kernels do from their boot on (since Linux 6.17)
DAMON_STAT = "sys/module/damon_stat/parameters/enabled"

_NR_HUGEPAGES = "nr_hugepages"
_SYSCTL_DIRECTORY = "proc/sys"
_MEMORY_DIRECTORY = "sys/kernel/mm"


class Kind(IntEnum):
    """What a knob is, in the order in which kinds are put back (see ``restore_knobs``)."""

    OVERCOMMIT = auto()
    SYSCTL = auto()
    POOL = auto()
    DEMOTE = auto()
    THP = auto()
    MIN_FREE = auto()


@dataclass(frozen=True)
class Knob:
    """One writable file; ``path`` is relative to the root, ``size`` the bytes of a page where it belongs to a pool."""

    kind: Kind
    path: str
    size: int = 0

    @property
    def name(self) -> str:
        """What people call it: ``node0/hugepages-2048kB/nr_hugepages``, ``vm/swappiness``."""
        return knob_name(self.path)

    def read(self, tree: Tree) -> str | None:
        """Return the value, None where it cannot be read: of ``always [madvise] never`` the word in brackets.

        A pool reads as its persistent pages: ``nr_hugepages`` counts surplus pages too, but what is written to it is
        the number without them (set_max_huge_pages() in mm/hugetlb.c). Raises InputError for a count that is none.
        """
        if self.kind is Kind.POOL:
            return _persistent(tree, self.path)
        text = tree.read(self.path)
        return None if text is None else _selected(text.strip(), self.path)

    def write(self, root: Path, value: str) -> None:
        """Write ``value``. Raises OSError as the kernel refuses it."""
        DirectoryTree(root).write(self.path, value)


def knob_name(path: str) -> str:
    """Return what people call the file ``path``; a path that is no knob's stays as it is."""
    for directory in (pools.DIRECTORY, _SYSCTL_DIRECTORY, _MEMORY_DIRECTORY):
        if path.startswith(f"{directory}/"):
            return path.removeprefix(f"{directory}/")
    return path.removeprefix(f"{nodes.DIRECTORY}/").replace("/hugepages/", "/")


def find_knobs(root: Path) -> tuple[Knob, ...]:
    """Return the knobs that the machine below ``root`` has. Raises InputError for a directory of an unknown form."""
    tree = DirectoryTree(root)
    return tuple(
        knob
        for knob in (
            *_pool_knobs(tree),
            *_thp_knobs(tree),
            *_ksm_knobs(tree),
            *_interleave_knobs(tree),
            *_sysctl_knobs(),
        )
        if _is_knob(root / knob.path)
    )


def read_knobs(root: Path = Path("/")) -> Mapping[Knob, str]:
    """Return the value of each knob of the machine below ``root``; those that have none are left out."""
    tree = DirectoryTree(root)
    values = {knob: knob.read(tree) for knob in find_knobs(root)}
    return {knob: value for knob, value in values.items() if value is not None}


def _pool_knobs(tree: Tree) -> Iterator[Knob]:
    of_nodes = [f"{path}/hugepages" for path in nodes.node_directories(tree).values()]
    of_nodes = [directory for directory in of_nodes if size_directories(tree, directory)]
    # the machine's own file spreads pages over the nodes as the kernel likes; a kernel without NUMA has no other
    for directory in of_nodes or [pools.DIRECTORY]:
        for size, path in size_directories(tree, directory).items():
            yield Knob(Kind.POOL, f"{path}/{_NR_HUGEPAGES}", size)
    for size, path in size_directories(tree, pools.DIRECTORY).items():
        yield Knob(Kind.OVERCOMMIT, f"{path}/nr_overcommit_hugepages", size)
        yield Knob(Kind.DEMOTE, f"{path}/demote_size", size)


def _thp_knobs(tree: Tree) -> Iterator[Knob]:
    sizes = size_directories(tree, thp.DIRECTORY).values()
    for directory in (thp.DIRECTORY, f"{thp.DIRECTORY}/khugepaged", *sizes):
        for name in tree.names(directory):
            yield Knob(Kind.THP, f"{directory}/{name}")


def _ksm_knobs(tree: Tree) -> Iterator[Knob]:
    advisor = Knob(Kind.SYSCTL, f"{ksm.DIRECTORY}/{_ADVISOR}")
    for name in _KSM_FILES:
        yield Knob(Kind.SYSCTL, f"{ksm.DIRECTORY}/{name}")
    # an advisor changes it all the time, and nobody else may: it is put back before one is
    if advisor.read(tree) in (None, _NO_ADVISOR):
        yield Knob(Kind.SYSCTL, f"{ksm.DIRECTORY}/{_SET_BY_ADVISOR}")
    yield advisor


def _interleave_knobs(tree: Tree) -> Iterator[Knob]:
    """Yield the weights of nodes, unless the kernel chooses them: to write one ends that."""
    if (tree.read(interleave_weights.AUTOMATIC) or "").strip() != "true":
        for path in interleave_weights.weight_files(tree).values():
            yield Knob(Kind.SYSCTL, path)


def _sysctl_knobs() -> Iterator[Knob]:
    for name in SYSCTLS:
        yield Knob(Kind.SYSCTL, f"{_SYSCTL_DIRECTORY}/{name}")
    for name in _KVM_PARAMETERS:
        yield Knob(Kind.SYSCTL, f"sys/module/kvm/parameters/{name}")
    for name in _ZSWAP_PARAMETERS:
        yield Knob(Kind.SYSCTL, f"sys/module/zswap/parameters/{name}")
    yield Knob(Kind.SYSCTL, DAMON_STAT)
    yield Knob(Kind.MIN_FREE, f"{_SYSCTL_DIRECTORY}/{MIN_FREE}")


def _is_knob(path: Path) -> bool:
    """Tell a file that can be read and written from a counter and from a command such as ``demote``."""
    try:
        mode = path.lstat().st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) and bool(mode & stat.S_IRUSR) and bool(mode & stat.S_IWUSR)


def _persistent(tree: Tree, path: str) -> str | None:
    """Return the pages of a pool less its surplus pages, both counted at the same moment.

    A process that ends between the two counts takes a surplus page out of both: there would seem to be one more.
    """
    surplus_path = path.removesuffix(_NR_HUGEPAGES) + "surplus_hugepages"
    before = tree.read(surplus_path)
    while True:
        total, surplus = tree.read(path), tree.read(surplus_path)
        if surplus == before:
            break
        before = surplus
    if total is None:
        return None
    return str(max(0, parse_integer(total, path) - parse_integer(surplus or "0", surplus_path)))


def _selected(text: str, path: str) -> str:
    try:
        return thp.parse_selection(text, path).selected
    except InputError:
        return text
