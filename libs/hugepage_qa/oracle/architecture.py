"""What a prediction depends on: the page sizes of every architecture, and the machine under test.

The table holds only what differs. Sources: Documentation/arch/arm64/hugetlbpage.rst; arch_hugetlb_valid_size() and
hugetlbpage_init() in arch/{x86,arm64,powerpc,s390}/mm/hugetlbpage.c; ARCH_FORCE_MAX_ORDER in arch/*/Kconfig. What the
huge page files of the machine show is never part of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from hugepage_qa.errors import InputError
from hugepage_qa.sizes import GIB, KIB, MIB, Span, format_size
from hugepage_qa.version import KernelVersion

#: bytes of a page table entry
_ENTRY = 8
#: bytes of a struct page; the vmemmap of a kernel with larger ones is never optimised
_STRUCT_PAGE = 64
#: where processes share page tables of the PMD level: ARCH_WANT_HUGE_PMD_SHARE in arch/*/Kconfig
_SHARES_TABLES = ("x86_64", "aarch64")
_NO_SHARED_TABLES = 64 * KIB


@dataclass(frozen=True)
class Mmu:
    """What an architecture's memory management offers; all sizes in bytes."""

    architecture: str
    base_page: int
    #: size of a PMD entry: the largest anonymous transparent huge page
    pmd: int
    #: default hugetlb page size (HPAGE_SIZE)
    default: int
    #: every hugetlb page size, and the CPU feature that it needs (None: always there)
    hugetlb: Mapping[int, str | None]
    #: largest block of the buddy allocator; a larger huge page is "gigantic" and comes from memblock at boot
    largest_block: int
    #: HUGE_MAX_HSTATE: how many hugetlb sizes the kernel has room for
    slots: int
    #: feature without which the kernel has neither hugetlb nor THP (None: none needed)
    needs: str | None = None
    #: size of the pages that a hugetlb_cma= area serves (arch_hugetlb_cma_order()), None where unsupported
    cma_page: int | None = None
    #: hugetlb_node_alloc_supported(): whether hugepages=<node>:<count> is taken
    node_form: bool = True
    #: ``radix`` or ``hash`` on POWER
    kind: str = ""
    #: whether the PMD is a size that THP can use (hash__has_transparent_hugepage())
    has_thp: bool = True
    #: of a page table of the PMD level or above; 0: as many as a base page has room for
    entries_above_ptes: int = 0
    #: whether a range of addresses has pages of one size alone, a "slice" (arch/powerpc/mm/book3s64/slice.c)
    has_slices: bool = False

    @property
    def name(self) -> str:
        """The entry's name, such as ``aarch64 4K`` or ``ppc64le 64K hash``."""
        return " ".join(filter(None, (self.architecture, format_size(self.base_page), self.kind)))

    def freeable_struct_pages(self, size: int) -> int:
        """Return how much of the struct pages of a page of ``size`` can be freed: all but one base page of them."""
        return max(size // self.base_page * _STRUCT_PAGE - self.base_page, 0)

    def sizes(self, features: frozenset[str]) -> tuple[int, ...]:
        """Return the hugetlb page sizes of a CPU with ``features``, ascending."""
        if self.needs is not None and self.needs not in features:
            return ()
        return tuple(sorted(size for size, feature in self.hugetlb.items() if feature is None or feature in features))

    def is_gigantic(self, size: int) -> bool:
        """Tell whether pages of ``size`` cannot come from the buddy allocator."""
        return size > self.largest_block

    def has_pmd_entries(self, size: int) -> bool:
        """Tell whether page tables of the PMD level hold the entries of huge pages of ``size``."""
        return self.pmd <= size < self.pmd * self._entries_of_a_table

    def has_pud_entries(self, size: int) -> bool:
        """Tell whether page tables of the PUD level, the next one, hold the entries of huge pages of ``size``."""
        return size >= self.pmd * self._entries_of_a_table

    def may_seem_shared(self, size: int) -> bool:
        """Tell whether the page table of huge pages of ``size`` may be taken for one that processes share.

        Where tables of the PMD level can be shared, kernels ask that of every level.
        """
        return self._shares_tables and not self.has_pmd_entries(size)

    def may_be_shared(self, size: int) -> bool:
        """Tell whether processes may share the page table of huge pages of ``size``: not of several entries a page.

        arch/arm64/mm/hugetlbpage.c huge_pte_alloc(): CONT_PMD_SIZE gets a table of its own.
        """
        return self._shares_tables and size == self.pmd

    @property
    def _shares_tables(self) -> bool:
        """Tell whether the kernel has tables shared (ARCH_WANT_HUGE_PMD_SHARE): arm64 none with base pages of 64K."""
        return self.architecture in _SHARES_TABLES and self.base_page < _NO_SHARED_TABLES

    def table(self, size: int) -> int:
        """Return the bytes that one page table with entries of huge pages of ``size`` covers."""
        covered = self.pmd
        while covered <= size:
            covered *= self._entries_of_a_table
        return covered

    @property
    def _entries_of_a_table(self) -> int:
        return self.entries_above_ptes or self.base_page // _ENTRY

    def anonymous_thp_sizes(self) -> tuple[int, ...]:
        """Return the sizes of anonymous THP (THP_ORDERS_ALL_ANON): four base pages up to the PMD."""
        return _powers(self.base_page * 4, self.pmd)

    def shmem_thp_sizes(self) -> tuple[int, ...]:
        """Return the sizes of shmem THP (THP_ORDERS_ALL_FILE_DEFAULT): two base pages up to the PMD or order 11."""
        return _powers(self.base_page * 2, min(self.pmd, self.base_page << 11))


_RADIX = Mmu(
    architecture="ppc64le",
    node_form=False,
    kind="radix",
    base_page=64 * KIB,
    pmd=2 * MIB,
    default=2 * MIB,
    hugetlb={2 * MIB: None, GIB: None},
    largest_block=16 * MIB,
    slots=15,
    cma_page=GIB,
    # arch/powerpc/include/asm/book3s/64/radix-64k.h, hash-64k.h
    entries_above_ptes=512,
)
# 16 GiB pages of the hash MMU come from the firmware's ibm,expected#pages, never from the kernel's own memory
_HASH = replace(
    _RADIX,
    kind="hash",
    pmd=16 * MIB,
    default=16 * MIB,
    hugetlb={16 * MIB: None, 16 * GIB: "16g-pages"},
    cma_page=None,
    entries_above_ptes=1024,
    has_slices=True,
)

MMUS: Mapping[str, Mmu] = {
    mmu.name: mmu
    for mmu in (
        Mmu(
            architecture="x86_64",
            base_page=4 * KIB,
            pmd=2 * MIB,
            default=2 * MIB,
            hugetlb={2 * MIB: None, GIB: "pdpe1gb"},
            largest_block=4 * MIB,
            slots=2,
            needs="pse",
            cma_page=GIB,
        ),
        Mmu(
            architecture="aarch64",
            base_page=4 * KIB,
            pmd=2 * MIB,
            default=2 * MIB,
            hugetlb={64 * KIB: None, 2 * MIB: None, 32 * MIB: None, GIB: None},
            largest_block=4 * MIB,
            slots=4,
            cma_page=GIB,
        ),
        Mmu(
            architecture="aarch64",
            base_page=16 * KIB,
            pmd=32 * MIB,
            default=32 * MIB,
            hugetlb={2 * MIB: None, 32 * MIB: None, GIB: None},
            largest_block=32 * MIB,
            slots=4,
            cma_page=GIB,
        ),
        Mmu(
            architecture="aarch64",
            base_page=64 * KIB,
            pmd=512 * MIB,
            default=512 * MIB,
            hugetlb={2 * MIB: None, 512 * MIB: None, 16 * GIB: None},
            largest_block=512 * MIB,
            slots=4,
            cma_page=16 * GIB,
        ),
        _RADIX,
        _HASH,
        replace(_RADIX, base_page=4 * KIB),
        # H_PMD_INDEX_SIZE of hash-4k.h; a table of the level above has 512
        replace(_HASH, base_page=4 * KIB, pmd=2 * MIB, has_thp=False, entries_above_ptes=128),
        Mmu(
            architecture="s390x",
            base_page=4 * KIB,
            pmd=MIB,
            default=MIB,
            hugetlb={MIB: "edat1", 2 * GIB: "edat2"},
            largest_block=MIB,
            slots=2,
            needs="edat1",
            cma_page=2 * GIB,
            # _CRST_ENTRIES in arch/s390/include/asm/pgtable.h
            entries_above_ptes=2048,
        ),
    )
}


def find_mmu(architecture: str, base_page: int, kind: str | None = None) -> Mmu:
    """Return the table entry for a machine: ``uname -m``, base page in bytes, ``radix`` or ``hash`` on POWER.

    Raises InputError for a machine that the table does not hold.
    """
    for entry in MMUS.values():
        if (entry.architecture, entry.base_page) == (architecture, base_page) and entry.kind in ("", kind):
            return entry
    raise InputError(
        f"machine {architecture!r} with base pages of {base_page} bytes{f' and MMU {kind!r}' if kind else ''}:"
        f" expected one of {', '.join(MMUS)}"
    )


def hugetlb_sizes(architecture: str) -> list[int]:
    """Return the sizes in bytes that huge pages of a machine of ``architecture`` may have, whatever its base pages."""
    return sorted({size for entry in MMUS.values() if entry.architecture == architecture for size in entry.hugetlb})


def _powers(low: int, high: int) -> tuple[int, ...]:
    sizes = []
    while low <= high:
        sizes.append(low)
        low *= 2
    return tuple(sizes)


@dataclass(frozen=True)
class Node:
    """An online NUMA node: where its memory lies, how much of it there is, and how much the kernel manages (bytes)."""

    number: int
    spans: tuple[Span, ...]
    present: int
    managed: int

    @property
    def has_memory(self) -> bool:
        """Whether any memory lies on it."""
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
    #: "kvm": its module is loaded; "hugetext_pad_threshold": there is this file, which tells what hugetext= can be;
    #: all others: there are such files, asked only where config is None
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
