"""Everything that a machine shows about its huge pages, read at one moment."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hugepage_qa.errors import InputError
from hugepage_qa.kernel.counters import read_meminfo
from hugepage_qa.kernel.cpu import Cpu, read_cpu
from hugepage_qa.kernel.log import LogLine, read_log, unknown_parameters
from hugepage_qa.kernel.memory_layout import (
    FreeBlocks,
    MemoryMap,
    Zone,
    early_node_ranges,
    initrd_ranges,
    read_free_blocks,
    read_memory_map,
    read_zones,
)
from hugepage_qa.kernel.nodes import Nodes, read_nodes
from hugepage_qa.kernel.pools import Pool, read_node_pools, read_pools
from hugepage_qa.kernel.proc_tables import read_filesystems, read_tmpfs_huge
from hugepage_qa.kernel.thp import Thp, read_thp
from hugepage_qa.kernel.tree import Tree, read_numbers
from hugepage_qa.parameters import Parameter, parse_parameters
from hugepage_qa.sizes import Span
from hugepage_qa.version import KernelVersion

#: What the huge page parameters of the command line can change.
HUGE_PAGE_SYSCTLS = ("nr_hugepages", "nr_hugepages_mempolicy", "nr_overcommit_hugepages", "hugetlb_optimize_vmemmap")


def read_process_names(tree: Tree) -> frozenset[str]:
    """Return the names of all processes; empty where none was captured.

    Kernel threads are among them: ``khugepaged``, one ``kcompactd<node>`` for each node.
    """
    texts = (tree.read(f"proc/{name}/comm") for name in tree.names("proc") if name.isascii() and name.isdigit())
    # a process can end between the listing and the read
    return frozenset(text.removesuffix("\n") for text in texts if text)


# "Linux version 6.1.0-44-amd64 (...) ..."
_BANNER = re.compile(r"Linux version (?P<release>\S+)")
# lines of meminfo, of the machine and of a node, that say something about huge pages
_MEMINFO_PREFIXES = ("HugePages_", "Hugepagesize", "Hugetlb", "Cma")
_MEMINFO_NAMES = frozenset(
    {"AnonHugePages", "ShmemHugePages", "ShmemPmdMapped", "FileHugePages", "FilePmdMapped", "MemTotal", "MemFree"}
)
# module parameters of KVM on s390 that let guests use pages of 1M, and of 2G
_KVM_PARAMETERS = ("hpage", "hpage_2g")


@dataclass(frozen=True)
class Facts:
    """What one machine shows. Sizes and addresses are bytes; what the machine does not have is None or empty.

    ``banner`` is /proc/version; ``pools`` are the machine's, ``node_pools`` those of each node; ``vm`` holds the
    sysctls of hugetlb; ``kvm`` the huge page parameters of KVM; ``early_ranges`` the memory of each node as logged at
    boot.
    """

    architecture: str | None
    release: str | None
    banner: str
    command_line: str
    meminfo: Mapping[str, int]
    pools: tuple[Pool, ...]
    node_pools: Mapping[int, tuple[Pool, ...]]
    nodes: Nodes
    thp: Thp | None
    vm: Mapping[str, int]
    kvm: Mapping[str, int]
    filesystems: frozenset[str]
    tmpfs_huge: str | None
    processes: frozenset[str]
    cpu: Cpu
    memory_map: MemoryMap | None
    early_ranges: Mapping[int, tuple[Span, ...]]
    initrd: tuple[Span, ...]
    zones: tuple[Zone, ...]
    free_blocks: tuple[FreeBlocks, ...]
    log: tuple[LogLine, ...]

    @property
    def version(self) -> KernelVersion:
        """The version of the kernel; raises InputError where no release was captured or it is no version."""
        if self.release is None:
            raise InputError("/proc/sys/kernel/osrelease, /proc/version: neither was captured, the kernel is unknown")
        return KernelVersion.parse(self.release, self.banner)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The words of the command line that are for the kernel."""
        return parse_parameters(self.command_line)

    @property
    def unknown_parameters(self) -> list[str]:
        """The parameters that the kernel said it does not know."""
        return unknown_parameters(self.log, self.parameters)

    def observations(self) -> dict[str, int | str]:
        """Return the flat view that a prediction is compared with: subject -> number or word, sorted.

        A subject is the kernel's own path, shortened: ``node0/hugepages-2048kB/nr_hugepages``,
        ``meminfo/HugePages_Total``, ``vm/nr_hugepages``, ``transparent_hugepage/enabled``. Sizes are bytes.
        What the machine does not have is missing, except for ``filesystems/hugetlbfs`` and ``process/khugepaged``.
        """
        found: dict[str, int | str] = {
            **_pool_observations("", self.pools),
            **_meminfo_observations("", self.meminfo),
            **{f"vm/{name}": value for name, value in self.vm.items()},
            **{f"kvm/{name}": value for name, value in self.kvm.items()},
            **_thp_observations(self.thp),
        }
        for node, pools in self.node_pools.items():
            found.update(_pool_observations(f"node{node}/", pools))
        for number, node_facts in self.nodes.each.items():
            found.update(_meminfo_observations(f"node{number}/", node_facts.meminfo))
        found.update(_cma_observations(self.zones, self.cpu.base_page_size or 0))
        found.update(_movable_observations(self.zones, self.cpu.base_page_size or 0))
        if self.tmpfs_huge is not None:
            found["tmpfs/huge"] = self.tmpfs_huge
        if self.filesystems:
            found["filesystems/hugetlbfs"] = "registered" if "hugetlbfs" in self.filesystems else "absent"
        if self.processes:
            found["process/khugepaged"] = "running" if "khugepaged" in self.processes else "absent"
        return dict(sorted(found.items()))


def read_facts(tree: Tree, *, machine: str | None = None) -> Facts:
    """Return what ``tree`` shows.

    ``machine`` is what ``uname -m`` answers, for live kernels before 6.2, which have no /proc/sys/kernel/arch.
    Raises InputError, which names file and line, when a file is not of the form that the kernel gives it.
    """
    log = read_log(tree)
    banner = tree.read("proc/version") or ""
    return Facts(
        architecture=_word(tree, "proc/sys/kernel/arch") or machine,
        release=_word(tree, "proc/sys/kernel/osrelease") or _release_in(banner),
        banner=banner,
        command_line=(tree.read("proc/cmdline") or "").removesuffix("\n"),
        meminfo=read_meminfo(tree),
        pools=read_pools(tree),
        node_pools=read_node_pools(tree),
        nodes=read_nodes(tree),
        thp=read_thp(tree),
        vm=read_numbers(tree, "proc/sys/vm", HUGE_PAGE_SYSCTLS),
        kvm=read_numbers(tree, "sys/module/kvm/parameters", _KVM_PARAMETERS),
        filesystems=read_filesystems(tree),
        tmpfs_huge=read_tmpfs_huge(tree),
        processes=read_process_names(tree),
        cpu=read_cpu(tree),
        memory_map=read_memory_map(tree),
        early_ranges=early_node_ranges(log),
        initrd=initrd_ranges(log),
        zones=read_zones(tree),
        free_blocks=read_free_blocks(tree),
        log=log,
    )


def _word(tree: Tree, path: str) -> str | None:
    return (tree.read(path) or "").strip() or None


def _release_in(banner: str) -> str | None:
    match = _BANNER.match(banner)
    return match["release"] if match else None


def read_kernel_version(tree: Tree) -> KernelVersion:
    """Return the version of a kernel that runs. Raises InputError where it does not tell one."""
    release = tree.read("proc/sys/kernel/osrelease") or ""
    version = KernelVersion.parse(release)
    # the banner of a kernel that names a third number tells nothing more
    return version if version.patch else KernelVersion.parse(release, tree.read("proc/version") or "")


def _pool_observations(prefix: str, pools: tuple[Pool, ...]) -> dict[str, int]:
    return {f"{prefix}{pool.name}/{name}": value for pool in pools for name, value in pool.files.items()}


def _meminfo_observations(prefix: str, meminfo: Mapping[str, int]) -> dict[str, int]:
    return {
        f"{prefix}meminfo/{name}": value
        for name, value in meminfo.items()
        if name.startswith(_MEMINFO_PREFIXES) or name in _MEMINFO_NAMES
    }


def _cma_observations(zones: Iterable[Zone], page: int) -> dict[str, int]:
    """Return the bytes of the CMA areas of each node; nothing of a kernel that does not show them."""
    found: dict[str, int] = {}
    for zone in zones:
        if zone.cma is not None:
            subject = f"node{zone.node}/zoneinfo/cma"
            found[subject] = found.get(subject, 0) + zone.cma * page
    return found


def _movable_observations(zones: Iterable[Zone], page: int) -> dict[str, int]:
    """Return the bytes of memory for what can be moved alone; nothing where no zones are shown."""
    movable = [zone.present * page for zone in zones if zone.name == "Movable"]
    return {"zoneinfo/movable": sum(movable)} if movable else {}


def _thp_observations(thp: Thp | None) -> dict[str, int | str]:
    if thp is None:
        return {}
    found: dict[str, int | str] = {**thp.numbers}
    found.update({name: selection.selected for name, selection in thp.selections.items()})
    found.update({f"khugepaged/{name}": value for name, value in thp.khugepaged.items()})
    for size in thp.sizes:
        if size.enabled:
            found[f"{size.name}/enabled"] = size.enabled.selected
        if size.shmem_enabled:
            found[f"{size.name}/shmem_enabled"] = size.shmem_enabled.selected
    return {f"transparent_hugepage/{name}": value for name, value in found.items()}
