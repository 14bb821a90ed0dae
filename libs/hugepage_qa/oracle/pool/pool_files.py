"""Mounts of hugetlbfs, their files, and the processes that have mapped them: fs/hugetlbfs/inode.c."""

import signal
from dataclasses import dataclass, field

from hugepage_qa.oracle.pool.pool_charges import ControlGroup, FileReservation, PrivateReservation, Subpool
from hugepage_qa.oracle.pool.pool_counters import Page, Pool


@dataclass(eq=False)
class Mount:
    """A hugetlbfs; one without limits is also what memfd, SysV and anonymous mappings lie in.

    ``inodes`` limits the number of files, with the root directory; ``free_inodes`` is what is left of it.
    """

    pool: Pool
    subpool: Subpool | None = None
    inodes: int | None = None
    free_inodes: int = 0
    files: "list[HugeFile]" = field(default_factory=list)


@dataclass(eq=False)
class HugeFile:
    """An inode: ``length`` in pages, its pages, and who maps it in the order in which the kernel visits them."""

    mount: Mount
    length: int = 0
    pages: dict[int, Page] = field(default_factory=dict)
    reservation: FileReservation = field(default_factory=FileReservation)
    mappings: "list[Mapping]" = field(default_factory=list)
    #: has a name, or is a segment that is not marked for removal
    is_linked: bool = True
    descriptors: int = 0
    #: reserved as a whole when it was made: S_PRIVATE
    is_segment: bool = False

    @property
    def pool(self) -> Pool:
        """The pool that its pages are from."""
        return self.mount.pool

    @property
    def is_in_use(self) -> bool:
        """Tell whether anything still refers to the inode."""
        return self.is_linked or self.descriptors > 0 or bool(self.mappings)

    def insert(self, mapping: "Mapping") -> None:
        """Add a mapping: vma_interval_tree_insert() sorts by first page, equal ones as they come."""
        later = (at for at, other in enumerate(self.mappings) if other.first > mapping.first)
        self.mappings.insert(next(later, len(self.mappings)), mapping)

    def insert_after(self, mapping: "Mapping", parent: "Mapping") -> None:
        """Add the copy of ``parent`` that fork() makes: vma_interval_tree_insert_after()."""
        self.mappings.insert(self.mappings.index(parent) + 1, mapping)

    def mappings_of(self, first: int, end: int | None) -> "list[Mapping]":
        """Return the mappings of pages from ``first`` on and before ``end``: vma_interval_tree_foreach()."""
        return [one for one in self.mappings if one.end > first and (end is None or one.first < end)]


@dataclass(eq=False)
class Mapping:
    """Consecutive pages of a file at an address. ``first`` is a page of the file, ``address`` in bytes."""

    file: HugeFile
    address: int
    first: int
    count: int
    is_shared: bool
    #: only in the process that made a private mapping with reservation (HPAGE_RESV_OWNER)
    reservation: PrivateReservation | None = None
    #: a page was taken from it for its owner: faults that find no page fail (HPAGE_RESV_UNMAPPED)
    has_lost_page: bool = False
    #: it has, or may have, pages of its own (vma->anon_vma)
    is_anonymous: bool = False
    #: page of the file -> page that a page table entry points to
    present: dict[int, Page] = field(default_factory=dict)

    @property
    def end(self) -> int:
        """The page of the file after the last one."""
        return self.first + self.count

    @property
    def end_address(self) -> int:
        """The address after the last page."""
        return self.address_of(self.end)

    def index(self, address: int) -> int:
        """Return the page of the file at ``address``."""
        return self.first + (address - self.address) // self.file.pool.size

    def address_of(self, index: int) -> int:
        """Return where page ``index`` of the file is mapped."""
        return self.address + (index - self.first) * self.file.pool.size

    def part(self, first: int, end: int) -> "Mapping":
        """Return a mapping of some of the pages of this one, at the same addresses and with what is present."""
        return Mapping(
            self.file,
            self.address_of(first),
            first,
            end - first,
            self.is_shared,
            self.reservation,
            self.has_lost_page,
            self.is_anonymous,
            {index: page for index, page in self.present.items() if first <= index < end},
        )


class AccessFault(Exception):
    """An access that ends in a signal."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number.name)
        self.signal = number


class NeverEnds(Exception):
    """An access that the kernel does not come back from while other processes go on."""


@dataclass(eq=False)
class Process:
    """A process: its control group, its mappings by address, and the files that it has open."""

    group: ControlGroup
    mappings: list[Mapping] = field(default_factory=list)
    open_files: list[HugeFile] = field(default_factory=list)

    def find(self, address: int) -> Mapping | None:
        """Return the mapping that holds ``address``."""
        return next((one for one in self.mappings if one.address <= address < one.end_address), None)

    def at(self, address: int) -> Mapping:
        """Return the mapping that holds ``address``. Raises AccessFault (SIGSEGV) where there is none."""
        mapping = self.find(address)
        if mapping is None:
            raise AccessFault(signal.SIGSEGV)
        return mapping

    def add(self, mapping: Mapping) -> None:
        """Add a mapping, here and to its file."""
        mapping.file.insert(mapping)
        self.adopt(mapping)

    def adopt(self, mapping: Mapping) -> None:
        """Add a mapping that its file knows."""
        self.mappings.append(mapping)
        self.mappings.sort(key=lambda one: one.address)

    def remove(self, mapping: Mapping) -> None:
        """Forget a mapping, here and in its file."""
        mapping.file.mappings.remove(mapping)
        self.mappings.remove(mapping)

    def split(self, address: int) -> None:
        """Split the mapping that ``address`` lies inside of, so that one begins there: __split_vma()."""
        mapping = self.find(address)
        if mapping is None or mapping.address == address:
            return
        at = mapping.index(address)
        self.remove(mapping)
        self.add(mapping.part(mapping.first, at))
        self.add(mapping.part(at, mapping.end))

    def cut(self, address: int, end: int) -> list[Mapping]:
        """Return the mappings from ``address`` on and before ``end``, split so that none reaches beyond."""
        self.split(address)
        self.split(end)
        return [one for one in self.mappings if address <= one.address < end]

    @property
    def mapped_bytes(self) -> int:
        """HugetlbPages in /proc/PID/status: mm->hugetlb_usage."""
        return sum(len(mapping.present) * mapping.file.pool.size for mapping in self.mappings)
