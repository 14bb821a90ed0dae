"""The machine that a case runs on: its page sizes, nodes and memory, as they were when the case began."""

from hugepage_qa.cases.expectations import Expectations
from hugepage_qa.cases.pool_view import PoolView, read_pool_view
from hugepage_qa.errors import InputError
from hugepage_qa.kernel.counters import read_meminfo
from hugepage_qa.kernel.cpu import read_cpu
from hugepage_qa.kernel.facts import read_kernel_version
from hugepage_qa.kernel.memory_layout import read_free_blocks, read_zones
from hugepage_qa.kernel.nodes import node_directories
from hugepage_qa.kernel.page_blocks import ATOMIC, CONTIGUOUS, ISOLATED, read_page_blocks
from hugepage_qa.kernel.process_status import read_process_status
from hugepage_qa.machine.host import CannotRun, Host
from hugepage_qa.oracle.architecture import Mmu, find_mmu
from hugepage_qa.oracle.rules import Rule


class MachineUnderTest(Expectations):
    """What the machine is like, seen by pages of ``size`` bytes: without one of the default size, 0 without hugetlb."""

    def __init__(self, host: Host, size: int | None, rule: Rule) -> None:
        super().__init__(rule, read_kernel_version(host), host.architecture)
        self.host = host
        self.largest_block = _largest_block(host)
        """Bytes of the largest block of the buddy allocator."""
        self._before = read_pool_view(host)
        self.size = self._before.meminfo.get("Hugepagesize", 0) if size is None else size

    @property
    def before(self) -> PoolView:
        """The pools as they were when the case began."""
        return self._before

    @property
    def has_pool(self) -> bool:
        """Whether the machine has a pool of these pages."""
        return self.size in self._before.pools

    @property
    def is_default(self) -> bool:
        """Whether this is the size that /proc/meminfo counts."""
        return self._before.meminfo.get("Hugepagesize") == self.size

    @property
    def is_largest(self) -> bool:
        """Whether the machine has no larger page size."""
        return self.size == max(self.sizes)

    @property
    def is_gigantic(self) -> bool:
        """Whether the buddy allocator has no block of this size."""
        return self.size > self.largest_block

    @property
    def mmu(self) -> Mmu:
        """What the processor can map, in the mode that the kernel runs it in."""
        return running_mmu(self.host)

    @property
    def sizes(self) -> tuple[int, ...]:
        """All page sizes of the machine in bytes, ascending."""
        return tuple(self._before.pools)

    @property
    def memory_total(self) -> int:
        """The memory of the machine in bytes."""
        return self._before.meminfo.get("MemTotal", 0)

    @property
    def base_page(self) -> int:
        """The size of a base page in bytes."""
        return self.host.base_page

    @property
    def nodes(self) -> tuple[int, ...]:
        """The NUMA nodes that have memory which the suite may use; empty for a kernel without CONFIG_NUMA."""
        usable = (node for node in self._before.nodes if node not in self.nodes_of_others)
        return tuple(node for node in usable if self.node_meminfo(node).get("MemTotal", 0))

    @property
    def nodes_of_others(self) -> frozenset[int]:
        """The nodes whose memory the suite may not use: a cpuset that it runs in keeps pools from them, too."""
        status = read_process_status(self.host) if self.host.has_others else None
        return frozenset(self._before.nodes).difference(status.nodes) if status and status.nodes else frozenset()

    def need_nodes(self) -> None:
        """Raise CannotRun on a kernel without CONFIG_NUMA, which has neither nodes nor their interfaces."""
        if not self._before.nodes:
            raise CannotRun("this kernel has no NUMA nodes")

    @property
    def has_several_nodes(self) -> bool:
        """Whether pages may lie on different NUMA nodes."""
        return len(self._before.nodes) > 1

    def node_meminfo(self, node: int) -> dict[str, int]:
        """Return the meminfo of a node: bytes, or pages for HugePages_*."""
        return read_meminfo(self.host, f"{node_directories(self.host)[node]}/meminfo")

    def free_blocks(self, node: int | None, size: int, *, movable: bool = True) -> int:
        """Return how many pages of ``size`` bytes who asks for them gets from the free blocks of a node, or of all.

        Some are free that nobody gets: those that a zone keeps, for those who can have no other memory most of all (the
        more, the more memory is above it: of 16 GiB there 64 MiB), and those for who cannot wait. What is not
        ``movable`` gets none of the zone and of the areas of memory that moves.
        """
        order = (size // self.base_page).bit_length() - 1
        zones = {(zone.node, zone.name): zone for zone in read_zones(self.host)}
        kinds = {(blocks.node, blocks.zone): blocks for blocks in read_page_blocks(self.host)}
        pages = 0
        for blocks in read_free_blocks(self.host):
            place = blocks.node, blocks.zone
            if node not in (None, blocks.node) or (blocks.zone == "Movable" and not movable):
                continue
            found = sum(count << at for at, count in enumerate(blocks.counts) if at >= order)
            atomic = 0
            if of_kinds := kinds.get(place):
                others = (ATOMIC, ISOLATED) if movable else (ATOMIC, ISOLATED, CONTIGUOUS)
                found -= sum(of_kinds.free_in_ranges(kind, order) for kind in others)
                # all that there are before 6.12, those of them that are free since (__zone_watermark_unusable_free())
                atomic = of_kinds.blocks.get(ATOMIC, 0) * of_kinds.pages
            if zone := zones.get(place):
                found = min(found, zone.free - zone.kept - atomic)
            pages += max(0, found) >> order
        return pages

    def make_room(self) -> None:
        """Drop clean caches and compact, as an administrator would (Documentation/admin-guide/sysctl/vm.rst)."""
        self.host.write("proc/sys/vm/drop_caches", "3")
        self.compact()

    def compact(self, node: int | None = None) -> None:
        """Compact all memory, or that of a node, for which each CPU puts what it has not yet on the lists there."""
        of_node = None if node is None else f"{node_directories(self.host)[node]}/compact"
        self.host.write(of_node or "proc/sys/vm/compact_memory", "1")


def running_mmu(host: Host) -> Mmu:
    """Return what the processor can map, in the mode that the kernel runs it in.

    Raises InputError for an architecture that nobody has told us of.
    """
    kind = read_cpu(host).mmu
    return find_mmu(host.architecture, host.base_page, kind.lower() if kind else None)


def _largest_block(host: Host) -> int:
    """Return the bytes of the largest block of the buddy allocator: /proc/buddyinfo has a column for each order."""
    zones = read_free_blocks(host)
    if not zones:
        raise InputError("/proc/buddyinfo: expected a line for each zone, found none")
    return host.base_page << (len(zones[0].counts) - 1)
