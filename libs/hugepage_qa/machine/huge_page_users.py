"""Which processes of a machine use huge pages, of which kind and how many."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce

from hugepage_qa.errors import InputError
from hugepage_qa.kernel.pools import Pool, read_pools
from hugepage_qa.kernel.process_status import ProcessStatus, read_process_status
from hugepage_qa.kernel.smaps import MemoryMapping, parse_huge_mappings, read_base_page_size, smaps_path
from hugepage_qa.kernel.tree import Tree


@dataclass(frozen=True)
class HugetlbUse:
    """hugetlb mappings with pages of one size: how many, and their bytes.

    ``mapped`` is address space, touched or not. ``private`` are pages that one process alone maps, ``shared`` those
    that several map, as the kernel counts them: whether the mapping itself is shared does not matter.
    """

    mappings: int = 0
    mapped: int = 0
    private: int = 0
    shared: int = 0

    def __add__(self, other: "HugetlbUse") -> "HugetlbUse":
        return HugetlbUse(
            self.mappings + other.mappings,
            self.mapped + other.mapped,
            self.private + other.private,
            self.shared + other.shared,
        )


@dataclass(frozen=True)
class MemoryUse:
    """Huge pages and page tables of a process, or of several: bytes.

    ``hugetlb`` is by page size, ascending. The transparent huge pages are those that are mapped as a whole, of the size
    of a PMD: smaps does not tell of smaller ones. ``page_tables`` are all of the process (VmPTE).
    """

    hugetlb: Mapping[int, HugetlbUse] = field(default_factory=dict)
    anonymous_thp: int = 0
    shmem_thp: int = 0
    file_thp: int = 0
    page_tables: int = 0

    @property
    def hugetlb_pages(self) -> int:
        """Bytes of hugetlb pages of all sizes."""
        return sum(use.private + use.shared for use in self.hugetlb.values())

    @property
    def thp(self) -> int:
        """Bytes of transparent huge pages of all kinds."""
        return self.anonymous_thp + self.shmem_thp + self.file_thp

    @property
    def huge_pages(self) -> int:
        """Bytes of huge pages of all kinds."""
        return self.hugetlb_pages + self.thp

    def __add__(self, other: "MemoryUse") -> "MemoryUse":
        none = HugetlbUse()
        sizes = sorted(self.hugetlb.keys() | other.hugetlb.keys())
        return MemoryUse(
            {size: self.hugetlb.get(size, none) + other.hugetlb.get(size, none) for size in sizes},
            self.anonymous_thp + other.anonymous_thp,
            self.shmem_thp + other.shmem_thp,
            self.file_thp + other.file_thp,
            self.page_tables + other.page_tables,
        )


@dataclass(frozen=True)
class HugePageUser:
    """One process, all its threads together. ``name`` is untrusted text; ``uid`` is the effective user."""

    pid: int
    name: str
    uid: int
    memory: MemoryUse


@dataclass(frozen=True)
class HugePageUsers:
    """The processes of a machine, by process id, and its pools by ascending page size.

    ``not_readable`` is the number of processes whose mappings the kernel refused to show.
    """

    base_page_size: int
    processes: tuple[HugePageUser, ...]
    not_readable: int
    pools: tuple[Pool, ...]

    @property
    def total(self) -> MemoryUse:
        """The sum over the processes: a page that several map is in it several times."""
        return reduce(MemoryUse.__add__, (process.memory for process in self.processes), MemoryUse())


def find_huge_page_users(tree: Tree, *, everyone: bool = False) -> HugePageUsers:
    """Return the processes that use huge pages or have mapped some; with ``everyone`` all that have memory.

    A process that ends meanwhile is left out, and so are kernel threads. Processes that share one address space, as
    after vfork(2), show the same pages, each of them. Raises InputError for a kernel without smaps and for a malformed
    file.
    """
    base_page_size = read_base_page_size(tree)
    if base_page_size is None:
        raise InputError(
            "/proc/self/smaps: expected the mappings of this process; they need /proc and CONFIG_PROC_PAGE_MONITOR"
        )
    processes = []
    unread = []
    for pid in _process_ids(tree):
        thread, text = _read_mappings(tree, pid)
        if text is None:
            unread.append(pid)
            continue
        mappings = parse_huge_mappings(text, smaps_path(thread), base_page_size)
        if mappings or (everyone and text):
            status = read_process_status(tree, thread)
            if status:
                processes.append(HugePageUser(pid, status.name, status.effective_uid, _memory_use(mappings, status)))
    return HugePageUsers(base_page_size, tuple(processes), _count_refused(tree, unread), read_pools(tree))


def _process_ids(tree: Tree) -> list[int]:
    return sorted(int(name) for name in tree.names("proc") if name.isascii() and name.isdigit())


def _read_mappings(tree: Tree, pid: int) -> tuple[str, str | None]:
    """Return the smaps of process ``pid``, and the thread that has them: empty without memory, None if unreadable."""
    thread = str(pid)
    text = tree.read(smaps_path(thread))
    if text == "":
        # either there is no memory, or the first thread has ended before the others and it alone has none any more
        for tid in tree.names(f"proc/{pid}/task"):
            if tid != str(pid) and text == "":
                thread = f"{pid}/task/{tid}"
                text = tree.read(smaps_path(thread))
    return thread, text


def _memory_use(mappings: Iterable[MemoryMapping], status: ProcessStatus) -> MemoryUse:
    return reduce(MemoryUse.__add__, map(_mapping_use, mappings), MemoryUse(page_tables=status.page_tables))


def _mapping_use(mapping: MemoryMapping) -> MemoryUse:
    hugetlb = HugetlbUse(1, mapping.size, mapping.private_hugetlb, mapping.shared_hugetlb)
    return MemoryUse(
        {mapping.kernel_page_size: hugetlb} if mapping.is_hugetlb else {},
        mapping.anon_huge_pages,
        mapping.shmem_pmd_mapped,
        mapping.file_pmd_mapped,
    )


def _count_refused(tree: Tree, unread: Iterable[int]) -> int:
    """Return how many processes have mappings that are not shown; the others are kernel threads or have ended."""
    statuses = {pid: read_process_status(tree, pid) for pid in unread}
    # a mount of /proc with hidepid=1 lists the processes of others and shows nothing of them
    hidden = {pid for pid, status in statuses.items() if status is None}
    if hidden:
        hidden &= set(_process_ids(tree))
    return len(hidden) + sum(status.has_memory for status in statuses.values() if status)
