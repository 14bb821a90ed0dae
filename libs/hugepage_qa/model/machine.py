"""What a prediction depends on: the machine as firmware, CPU and kernel build make it, never its huge page files."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from hugepage_qa.model.architecture import Mmu
from hugepage_qa.version import KernelVersion


@dataclass(frozen=True)
class Span:
    """Physical addresses ``start`` <= address < ``end``, in bytes."""

    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start

    def overlaps(self, other: "Span") -> bool:
        return self.start < other.end and other.start < self.end


@dataclass(frozen=True)
class Node:
    """An online NUMA node: where its memory lies and how much of it the kernel manages (bytes)."""

    number: int
    spans: tuple[Span, ...]
    managed: int

    @property
    def has_memory(self) -> bool:
        return bool(self.spans)


@dataclass(frozen=True)
class Machine:
    """A machine before its huge page parameters take effect."""

    architecture: str
    mmu: Mmu
    features: frozenset[str]
    version: KernelVersion
    nodes: tuple[Node, ...]
    #: memory taken before huge pages are reserved: kernel image, initramfs
    occupied: tuple[Span, ...] = ()
    cpus: int = 1
    #: RAM that the kernel counts (totalram), bytes
    total_ram: int = 0
    #: CONFIG_X -> y, m or a value; None where the kernel's configuration is not known
    config: Mapping[str, str] | None = None
    #: words that the kernel log calls unknown; None before a boot
    unknown_words: tuple[str, ...] | None = None
    #: "kvm": its module is loaded; "numa", "hugetext": there are such files, asked only where config is None;
    #: "hugetext_pad_threshold": there is this file, which tells what hugetext= can be
    interfaces: Mapping[str, bool] = field(default_factory=dict)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Hugetlb page sizes in bytes, ascending."""
        return self.mmu.sizes(self.features)

    @property
    def supports_huge_pages(self) -> bool:
        """hugepages_supported(): the CPU has what the architecture's huge pages need."""
        return bool(self.sizes)

    @property
    def memory_nodes(self) -> tuple[Node, ...]:
        """Nodes with memory (N_MEMORY), ascending."""
        return tuple(node for node in self.nodes if node.has_memory)

    def is_configured(self, option: str) -> bool | None:
        """Tell whether ``CONFIG_<option>`` is y or m; None where the configuration is not known."""
        if self.config is None:
            return None
        return self.config.get(f"CONFIG_{option}") in ("y", "m")
