"""Operations of the administrator and on files."""

from dataclasses import dataclass

from hugepage_qa.model.hugetlb_pool.machine import PoolMachine
from hugepage_qa.model.hugetlb_pool.operation import Operation


@dataclass(frozen=True)
class SetCount(Operation):
    """Write nr_hugepages, of the machine or of ``node``."""

    page_size: int
    count: int
    node: int | None = None

    def apply(self, machine: PoolMachine) -> None:
        machine.set_count(self.page_size, self.count, self.node)


@dataclass(frozen=True)
class SetOvercommit(Operation):
    """Write nr_overcommit_hugepages."""

    page_size: int
    count: int

    def apply(self, machine: PoolMachine) -> None:
        machine.pools[self.page_size].set_overcommit(self.count)


@dataclass(frozen=True)
class Demote(Operation):
    """Write demote: split pages into pages of the next smaller size."""

    page_size: int
    count: int

    def apply(self, machine: PoolMachine) -> None:
        machine.demote(self.page_size, self.count)


@dataclass(frozen=True)
class MountPool(Operation):
    """Mount hugetlbfs with pagesize=, min_size=, size= and nr_inodes=."""

    mount: str
    page_size: int
    least: int | None = None
    most: int | None = None
    inodes: int | None = None

    def apply(self, machine: PoolMachine) -> None:
        machine.mount(self.mount, self.page_size, self.least, self.most, self.inodes)


@dataclass(frozen=True)
class Unmount(Operation):
    """Unmount a hugetlbfs: its files are gone."""

    mount: str

    def apply(self, machine: PoolMachine) -> None:
        machine.unmount(self.mount)


@dataclass(frozen=True)
class MakeGroup(Operation):
    """Make a control group of the hugetlb controller."""

    group: str

    def apply(self, machine: PoolMachine) -> None:
        machine.make_group(self.group)


@dataclass(frozen=True)
class LimitGroup(Operation):
    """Limit what a group uses or, with ``reserved``, reserves; None is no limit."""

    group: str
    page_size: int
    limit: int | None
    reserved: bool

    def apply(self, machine: PoolMachine) -> None:
        group = machine.groups[self.group]
        counter = group.reserved if self.reserved else group.used
        counter.set_limit(self.page_size, self.limit)


@dataclass(frozen=True)
class JoinGroup(Operation):
    """Move a process into a control group; what it is charged for stays where it is."""

    process: str
    group: str

    def apply(self, machine: PoolMachine) -> None:
        machine.processes[self.process].group = machine.groups[self.group]


@dataclass(frozen=True)
class CreateFile(Operation):
    """Create a file on a mount and keep it open."""

    process: str
    file: str
    mount: str

    def apply(self, machine: PoolMachine) -> None:
        machine.create_file(self.process, self.file, self.mount)


@dataclass(frozen=True)
class MakeMemfd(Operation):
    """memfd_create(MFD_HUGETLB)."""

    process: str
    file: str
    page_size: int

    def apply(self, machine: PoolMachine) -> None:
        machine.make_memfd(self.process, self.file, self.page_size)


@dataclass(frozen=True)
class MakeSegment(Operation):
    """shmget(SHM_HUGETLB), which reserves the whole segment."""

    process: str
    file: str
    page_size: int
    pages: int

    def apply(self, machine: PoolMachine) -> None:
        machine.make_segment(self.process, self.file, self.page_size, self.pages)


@dataclass(frozen=True)
class Unlink(Operation):
    """Remove the name of a file, or mark a segment for removal."""

    process: str
    file: str

    def apply(self, machine: PoolMachine) -> None:
        machine.unlink(self.file)


@dataclass(frozen=True)
class Close(Operation):
    """Close a file."""

    process: str
    file: str

    def apply(self, machine: PoolMachine) -> None:
        machine.close(self.process, self.file)


@dataclass(frozen=True)
class Truncate(Operation):
    """ftruncate()."""

    process: str
    file: str
    page_size: int
    pages: int

    def apply(self, machine: PoolMachine) -> None:
        machine.truncate(self.file, self.pages)


@dataclass(frozen=True)
class Allocate(Operation):
    """fallocate(), with ``keep_size`` FALLOC_FL_KEEP_SIZE."""

    process: str
    file: str
    page_size: int
    first: int
    pages: int
    keep_size: bool

    def apply(self, machine: PoolMachine) -> None:
        machine.allocate(self.process, self.file, self.first, self.pages, self.keep_size)


@dataclass(frozen=True)
class PunchHole(Operation):
    """fallocate(FALLOC_FL_PUNCH_HOLE)."""

    process: str
    file: str
    page_size: int
    first: int
    pages: int

    def apply(self, machine: PoolMachine) -> None:
        machine.punch_hole(self.file, self.first, self.pages)
