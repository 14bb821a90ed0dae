"""Operations on memory and processes, and how a program ends: what a kernel keeps all the same."""

import errno
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass

from hugepage_qa.oracle.pool.pool_fault import touch
from hugepage_qa.oracle.pool.pool_files import HugeFile
from hugepage_qa.oracle.pool.pool_files import Mapping as PageMapping
from hugepage_qa.oracle.pool.pool_machine import PoolMachine
from hugepage_qa.oracle.pool.pool_mappings import discard, fork, move
from hugepage_qa.oracle.pool.pool_operation import Operation, area_address, carry_out
from hugepage_qa.oracle.pool.pool_setup import SetCount, SetOvercommit, Unlink, Unmount


@dataclass(frozen=True)
class InArea(Operation):
    """Something in an area of a process."""

    process: str
    area: int
    page_size: int

    def address_of(self, page: int) -> int:
        """Return the address of a page of the area."""
        return area_address(self.area, self.page_size, page)


@dataclass(frozen=True)
class MapFile(InArea):
    """mmap() a file from page ``first`` on, for reading and writing."""

    file: str
    first: int
    pages: int
    shared: bool
    noreserve: bool

    def apply(self, machine: PoolMachine) -> None:
        file = machine.files[self.file]
        machine.map(
            self.process, PageMapping(file, self.address_of(0), self.first, self.pages, self.shared), self.noreserve
        )


@dataclass(frozen=True)
class MapAnonymous(InArea):
    """mmap(MAP_ANONYMOUS | MAP_HUGETLB): a file that nobody else sees."""

    pages: int
    shared: bool
    noreserve: bool

    def apply(self, machine: PoolMachine) -> None:
        file = HugeFile(machine.internal[self.page_size], length=self.pages, is_linked=False)
        machine.map(self.process, PageMapping(file, self.address_of(0), 0, self.pages, self.shared), self.noreserve)
        file.mount.files.append(file)


@dataclass(frozen=True)
class Attach(InArea):
    """shmat(): a segment has its reservation from shmget() on."""

    file: str

    def apply(self, machine: PoolMachine) -> None:
        file = machine.files[self.file]
        machine.map(self.process, PageMapping(file, self.address_of(0), 0, file.length, True), noreserve=True)


@dataclass(frozen=True)
class Read(InArea):
    """Load the first 8 bytes of a page."""

    page: int

    def apply(self, machine: PoolMachine) -> int:
        return touch(machine.processes[self.process], self.address_of(self.page), None)


@dataclass(frozen=True)
class Write(InArea):
    """Store ``value`` in the first 8 bytes of a page."""

    page: int
    value: int

    def apply(self, machine: PoolMachine) -> None:
        touch(machine.processes[self.process], self.address_of(self.page), self.value)


@dataclass(frozen=True)
class Range(InArea):
    """A system call for some pages of an area."""

    page: int
    pages: int

    @property
    def address(self) -> int:
        """Where the range begins."""
        return self.address_of(self.page)

    @property
    def length(self) -> int:
        """Bytes in the range."""
        return self.pages * self.page_size


@dataclass(frozen=True)
class Unmap(Range):
    """munmap(); what is not mapped there does not matter."""

    def apply(self, machine: PoolMachine) -> None:
        owner = machine.processes[self.process]
        machine.drop(owner, owner.cut(self.address, self.address + self.length))


@dataclass(frozen=True)
class Discard(Range):
    """madvise(MADV_DONTNEED)."""

    def apply(self, machine: PoolMachine) -> None:
        discard(machine.processes[self.process], self.address, self.address + self.length, machine.kernel)


@dataclass(frozen=True)
class Move(Range):
    """mremap() to the same pages of the area ``target``."""

    target: int

    @property
    def target_address(self) -> int:
        """Where the range goes."""
        return area_address(self.target, self.page_size, self.page)

    def apply(self, machine: PoolMachine) -> None:
        end = self.address + self.length
        move(machine.processes[self.process], self.address, end, self.target_address, machine.kernel)


@dataclass(frozen=True)
class Grow(Range):
    """mremap() to one page more, which the kernel refuses: align_hugetlb()."""

    def apply(self, machine: PoolMachine) -> None:
        if machine.processes[self.process].find(self.address) is None:
            raise OSError(errno.EFAULT, "not mapped")
        raise OSError(errno.EINVAL, "mappings of huge pages do not grow")


@dataclass(frozen=True)
class Fork(Operation):
    """fork()."""

    process: str
    child: str

    def apply(self, machine: PoolMachine) -> None:
        machine.processes[self.child] = fork(machine.processes[self.process], machine.kernel)


@dataclass(frozen=True)
class Exit(Operation):
    """End a process: exit_mmap(), then its files are closed."""

    process: str

    def apply(self, machine: PoolMachine) -> None:
        owner = machine.processes.pop(self.process)
        machine.drop(owner, list(owner.mappings))
        for file in owner.open_files:
            file.descriptors -= 1
        machine.evict_unused(owner.open_files)


Before = Mapping[int, Mapping[str, int]]


def persistent(before: Before, size: int) -> int:
    """Return the pages that were asked for as nr_hugepages and were there: size -> ``Pool.counters()``."""
    return before[size]["nr_hugepages"] - before[size]["surplus_hugepages"]


def settings_of(before: Before, node: int | None) -> list[Operation]:
    """Return the operations that make the pools what they were, as pages of ``node``."""
    return [
        operation
        for size, was in before.items()
        for operation in (
            SetOvercommit(size, was["nr_overcommit_hugepages"]),
            SetCount(size, persistent(before, size), node),
        )
    ]


def closing_operations(machine: PoolMachine, before: Before, node: int | None) -> list[Operation]:
    """Return the operations that end all that is there and make the pools what they were ``before``."""
    any_process = next(iter(machine.processes), "")
    segments = [name for name, file in machine.files.items() if file.is_segment and file.is_linked]
    return [
        *(Unlink(any_process, name) for name in segments),
        *(Exit(name) for name in machine.processes),
        *(Unmount(name) for name in machine.mounts),
        *settings_of(before, node),
    ]


def traces_left(machine: PoolMachine, before: Before, node: int | None) -> list[str]:
    """Return what a kernel with the quirks that it has would keep, if all ended now, until the machine is rebooted."""
    ended = deepcopy(machine)
    for operation in closing_operations(ended, before, node):
        carry_out(operation, ended)
    return [
        f"hugepages-{size // 1024}kB/{name} {value}"
        for size, pool in ended.pools.items()
        for name, value in pool.counters().items()
        if value != before[size][name]
    ]
