"""Operations on the pools, their mounts, groups and files."""

import errno
from dataclasses import dataclass

from hugepage_qa.oracle.pool.pool_charges import ControlGroup, Subpool
from hugepage_qa.oracle.pool.pool_fault import allocate_page
from hugepage_qa.oracle.pool.pool_files import HugeFile, Mount
from hugepage_qa.oracle.pool.pool_machine import PoolMachine
from hugepage_qa.oracle.pool.pool_mappings import punch_hole, reserve_file, truncate
from hugepage_qa.oracle.pool.pool_operation import Operation


@dataclass(frozen=True)
class SetCount(Operation):
    """Write nr_hugepages, of the machine or of ``node``."""

    page_size: int
    count: int
    node: int | None = None

    def apply(self, machine: PoolMachine) -> None:
        if self.node is not None and self.node != machine.home:
            raise ValueError(f"pages of node {self.node}: only those of node {machine.home} change")
        machine.pools[self.page_size].set_count(self.count)


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
        smaller = max(size for size in machine.pools if size < self.page_size)
        machine.pools[self.page_size].demote(self.count, machine.pools[smaller])


@dataclass(frozen=True)
class MountPool(Operation):
    """Mount hugetlbfs with pagesize=, min_size=, size= and nr_inodes=, at least one: hugetlbfs_fill_super()."""

    mount: str
    page_size: int
    least: int | None = None
    most: int | None = None
    inodes: int | None = None

    def apply(self, machine: PoolMachine) -> None:
        least = None if self.least is None else self.least // self.page_size
        most = None if self.most is None else self.most // self.page_size
        if most is not None and (least or 0) > most:
            raise OSError(errno.EINVAL, "min_size is above size")
        pool = machine.pools[self.page_size]
        subpool = None
        if least is not None or most is not None:
            if least and not pool.reserve(least):
                raise OSError(errno.ENOMEM, "not enough pages for min_size")
            subpool = Subpool(pool, least, most)
        # the root directory takes one
        machine.mounts[self.mount] = Mount(pool, subpool, self.inodes, 0 if self.inodes is None else self.inodes - 1)


@dataclass(frozen=True)
class Unmount(Operation):
    """Unmount a hugetlbfs: its files are gone."""

    mount: str

    def apply(self, machine: PoolMachine) -> None:
        mount = machine.mounts[self.mount]
        if any(file.descriptors or file.mappings for file in mount.files):
            raise OSError(errno.EBUSY, "a file is in use")
        for file in list(mount.files):
            file.is_linked = False
            machine.evict_unused([file])
        if mount.subpool is not None:
            mount.subpool.unmount()
        del machine.mounts[self.mount]


@dataclass(frozen=True)
class MakeGroup(Operation):
    """Make a control group of the hugetlb controller."""

    group: str

    def apply(self, machine: PoolMachine) -> None:
        machine.groups[self.group] = ControlGroup(self.group)


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
        mount = machine.mounts[self.mount]
        if mount.inodes is not None:
            if mount.free_inodes == 0:
                raise OSError(errno.ENOSPC, "no inode is left")
            mount.free_inodes -= 1
        machine.open_file(self.process, self.file, HugeFile(mount))


@dataclass(frozen=True)
class MakeMemfd(Operation):
    """memfd_create(MFD_HUGETLB)."""

    process: str
    file: str
    page_size: int

    def apply(self, machine: PoolMachine) -> None:
        machine.open_file(self.process, self.file, HugeFile(machine.internal[self.page_size], is_linked=False))


@dataclass(frozen=True)
class MakeSegment(Operation):
    """shmget(SHM_HUGETLB), which reserves the whole segment: newseg(), hugetlb_file_setup()."""

    process: str
    file: str
    page_size: int
    pages: int

    def apply(self, machine: PoolMachine) -> None:
        file = HugeFile(machine.internal[self.page_size], length=self.pages, is_segment=True)
        reserve_file(file, machine.processes[self.process].group, 0, self.pages)
        file.mount.files.append(file)
        machine.files[self.file] = file


@dataclass(frozen=True)
class Unlink(Operation):
    """Remove the name of a file, or mark a segment for removal."""

    process: str
    file: str

    def apply(self, machine: PoolMachine) -> None:
        file = machine.files[self.file]
        file.is_linked = False
        machine.evict_unused([file])


@dataclass(frozen=True)
class Close(Operation):
    """Close a file."""

    process: str
    file: str

    def apply(self, machine: PoolMachine) -> None:
        file = machine.files[self.file]
        machine.processes[self.process].open_files.remove(file)
        file.descriptors -= 1
        machine.evict_unused([file])


@dataclass(frozen=True)
class Truncate(Operation):
    """ftruncate()."""

    process: str
    file: str
    page_size: int
    pages: int

    def apply(self, machine: PoolMachine) -> None:
        truncate(machine.files[self.file], self.pages)


@dataclass(frozen=True)
class Allocate(Operation):
    """fallocate(), with ``keep_size`` FALLOC_FL_KEEP_SIZE: hugetlbfs_fallocate().

    What was allocated before an error stays.
    """

    process: str
    file: str
    page_size: int
    first: int
    pages: int
    keep_size: bool

    def apply(self, machine: PoolMachine) -> None:
        file, group = machine.files[self.file], machine.processes[self.process].group
        end = self.first + self.pages
        for index in range(self.first, end):
            if index in file.pages:
                continue
            page = allocate_page(file, index, None, group)
            if page is None:
                raise OSError(errno.ENOSPC, "no page can be had")
            page.restores_reservation = False
            page.is_cached = True
            file.pages[index] = page
        if not self.keep_size:
            file.length = max(file.length, end)


@dataclass(frozen=True)
class PunchHole(Operation):
    """fallocate(FALLOC_FL_PUNCH_HOLE)."""

    process: str
    file: str
    page_size: int
    first: int
    pages: int

    def apply(self, machine: PoolMachine) -> None:
        punch_hole(machine.files[self.file], self.first, self.pages)
