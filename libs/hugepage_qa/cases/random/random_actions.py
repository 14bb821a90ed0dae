"""The operations of a random program, carried out on the running machine by actors."""

import mmap
import os
from functools import singledispatchmethod

from hugepage_qa.cases.control_group import ControlGroup, Version
from hugepage_qa.cases.hugetlb_segments import IPC_PRIVATE, IPC_RMID, SHM_HUGETLB
from hugepage_qa.kernel.hugetlb_cgroup import RESERVATIONS, VERSION_1, VERSION_2, HugetlbFiles, file_prefix
from hugepage_qa.kernel.nodes import node_directories
from hugepage_qa.kernel.pools import DIRECTORY
from hugepage_qa.kernel.tree import size_name
from hugepage_qa.kernel.uapi import (
    AT_FDCWD,
    FALLOC_FL_KEEP_SIZE,
    FALLOC_FL_PUNCH_HOLE,
    HUGE_SHIFT,
    MAP_FIXED_NOREPLACE,
    MAP_HUGETLB,
    MREMAP_FIXED,
    MREMAP_MAYMOVE,
)
from hugepage_qa.machine.host import Host
from hugepage_qa.oracle.pool import pool_setup, pool_use
from hugepage_qa.oracle.pool.pool_operation import Operation, Outcome, errno_name
from hugepage_qa.process.actor import Actor, Fault, Refused

_BUSY_SECONDS = 2.0
_READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE


class PoolActions:
    """Carries out operations; what they made is known by the names that they gave it.

    ``process`` is the name of the first process of the program, which is forked from ``anchor``; groups are made below
    ``parent``.
    """

    def __init__(self, host: Host, anchor: Actor, process: str, parent: ControlGroup | None) -> None:
        self._host = host
        self._anchor = anchor
        self._parent = parent
        self._descriptors: dict[tuple[str, str], int] = {}
        self._mount_of: dict[str, str] = {}
        self.actors = {process: anchor.fork()}
        self.segments: dict[str, int] = {}
        self.points: dict[str, str] = {}
        self.groups: dict[str, ControlGroup] = {}

    def perform(self, operation: Operation) -> Outcome:
        """Carry out an operation and return what came of it: ok, an errno, a signal, or what was read.

        Raises OSError for what is no answer of the kernel.
        """
        try:
            value = self._act(operation)
        except Refused as error:
            return errno_name(error)
        except Fault as fault:
            return fault.signal.name
        return "ok" if value is None else value

    @singledispatchmethod
    def _act(self, operation: Operation) -> int | None:
        raise TypeError(f"{operation}: not known on a real machine")

    @_act.register
    def _(self, operation: pool_setup.SetCount) -> None:
        directory = DIRECTORY
        if operation.node is not None:
            directory = f"{node_directories(self._host)[operation.node]}/hugepages"
        self._host.write(f"{directory}/{size_name(operation.page_size)}/nr_hugepages", str(operation.count))

    @_act.register
    def _(self, operation: pool_setup.SetOvercommit) -> None:
        path = f"{DIRECTORY}/{size_name(operation.page_size)}/nr_overcommit_hugepages"
        self._host.write(path, str(operation.count))

    @_act.register
    def _(self, operation: pool_setup.Demote) -> None:
        self._host.write(f"{DIRECTORY}/{size_name(operation.page_size)}/demote", str(operation.count))

    @_act.register
    def _(self, operation: pool_setup.MountPool) -> None:
        words = {
            "pagesize": operation.page_size,
            "min_size": operation.least,
            "size": operation.most,
            "nr_inodes": operation.inodes,
        }
        options = ",".join(f"{name}={value}" for name, value in words.items() if value is not None)
        point = self._host.mount_point()
        try:
            # min_size= reserves at the mount, and surplus pages come from the nodes of the process that mounts
            self._anchor.call("mount", "hugepage-qa", point, "hugetlbfs", 0, options)
        except Refused:
            self._host.remove_directory(point)
            raise
        self.points[operation.mount] = point

    @_act.register
    def _(self, operation: pool_setup.Unmount) -> None:
        try:
            # it may well be in use, which must not take half a minute each time
            self._host.unmount(self.points[operation.mount], _BUSY_SECONDS)
        except OSError as error:
            raise Refused(*error.args) from error
        del self.points[operation.mount]

    @_act.register
    def _(self, operation: pool_setup.MakeGroup) -> None:
        if self._parent is None:
            raise TypeError(f"{operation}: the machine has no hierarchy for it")
        self.groups[operation.group] = self._parent.child(operation.group)

    @_act.register
    def _(self, operation: pool_setup.LimitGroup) -> None:
        group = self.groups[operation.group]
        files = hugetlb_files(group)
        kind = RESERVATIONS if operation.reserved else ""
        limit = files.unlimited if operation.limit is None else str(operation.limit)
        group.write(f"{file_prefix(operation.page_size)}{kind}{files.limit}", limit)

    @_act.register
    def _(self, operation: pool_setup.JoinGroup) -> None:
        self.groups[operation.group].add(self.actors[operation.process])

    @_act.register
    def _(self, operation: pool_setup.CreateFile) -> None:
        path = f"{self.points[operation.mount]}/{operation.file}"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
        descriptor = self.actors[operation.process].call("openat", AT_FDCWD, path, flags, 0o600)
        self._descriptors[operation.process, operation.file] = descriptor
        self._mount_of[operation.file] = operation.mount

    @_act.register
    def _(self, operation: pool_setup.MakeMemfd) -> None:
        flags = os.MFD_HUGETLB | _size_flag(operation.page_size)
        descriptor = self.actors[operation.process].call("memfd_create", operation.file, flags)
        self._descriptors[operation.process, operation.file] = descriptor

    @_act.register
    def _(self, operation: pool_setup.MakeSegment) -> None:
        flags = SHM_HUGETLB | _size_flag(operation.page_size) | 0o600
        length = operation.pages * operation.page_size
        self.segments[operation.file] = self.actors[operation.process].call("shmget", IPC_PRIVATE, length, flags)

    @_act.register
    def _(self, operation: pool_setup.Unlink) -> None:
        actor = self.actors[operation.process]
        if operation.file in self.segments:
            actor.call("shmctl", self.segments[operation.file], IPC_RMID, 0)
            del self.segments[operation.file]
            return
        actor.call("unlinkat", AT_FDCWD, f"{self.points[self._mount_of[operation.file]]}/{operation.file}", 0)

    @_act.register
    def _(self, operation: pool_setup.Close) -> None:
        self._call_with_file(operation, "close")

    @_act.register
    def _(self, operation: pool_setup.Truncate) -> None:
        self._call_with_file(operation, "ftruncate", operation.pages * operation.page_size)

    @_act.register
    def _(self, operation: pool_setup.Allocate) -> None:
        mode = FALLOC_FL_KEEP_SIZE if operation.keep_size else 0
        self._call_with_file(operation, "fallocate", mode, *_byte_range(operation))

    @_act.register
    def _(self, operation: pool_setup.PunchHole) -> None:
        mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
        self._call_with_file(operation, "fallocate", mode, *_byte_range(operation))

    def _call_with_file(
        self,
        operation: pool_setup.Close | pool_setup.Truncate | pool_setup.Allocate | pool_setup.PunchHole,
        name: str,
        *arguments: int,
    ) -> None:
        descriptor = self._descriptors[operation.process, operation.file]
        self.actors[operation.process].call(name, descriptor, *arguments)

    @_act.register
    def _(self, operation: pool_use.MapFile) -> None:
        descriptor = self._descriptors[operation.process, operation.file]
        self._map(operation, 0, descriptor, operation.first * operation.page_size)

    @_act.register
    def _(self, operation: pool_use.MapAnonymous) -> None:
        self._map(operation, mmap.MAP_ANONYMOUS | MAP_HUGETLB | _size_flag(operation.page_size), -1, 0)

    def _map(
        self, operation: pool_use.MapFile | pool_use.MapAnonymous, flags: int, descriptor: int, offset: int
    ) -> None:
        flags |= MAP_FIXED_NOREPLACE | (mmap.MAP_SHARED if operation.shared else mmap.MAP_PRIVATE)
        flags |= self._host.uapi.map_noreserve if operation.noreserve else 0
        length = operation.pages * operation.page_size
        self.actors[operation.process].mmap(length, _READ_WRITE, flags, descriptor, offset, operation.address_of(0))

    @_act.register
    def _(self, operation: pool_use.Attach) -> None:
        actor = self.actors[operation.process]
        actor.call("shmat", self.segments[operation.file], operation.address_of(0), 0)

    @_act.register
    def _(self, operation: pool_use.Read) -> int:
        return self.actors[operation.process].read(operation.address_of(operation.page))

    @_act.register
    def _(self, operation: pool_use.Write) -> None:
        self.actors[operation.process].write(operation.address_of(operation.page), operation.value)

    @_act.register
    def _(self, operation: pool_use.Unmap) -> None:
        self.actors[operation.process].call("munmap", operation.address, operation.length)

    @_act.register
    def _(self, operation: pool_use.Discard) -> None:
        self.actors[operation.process].call("madvise", operation.address, operation.length, mmap.MADV_DONTNEED)

    @_act.register
    def _(self, operation: pool_use.Move) -> None:
        flags = MREMAP_MAYMOVE | MREMAP_FIXED
        length = operation.length
        actor = self.actors[operation.process]
        actor.call("mremap", operation.address, length, length, flags, operation.target_address)

    @_act.register
    def _(self, operation: pool_use.Grow) -> None:
        longer = operation.length + operation.page_size
        self.actors[operation.process].call("mremap", operation.address, operation.length, longer, MREMAP_MAYMOVE)

    @_act.register
    def _(self, operation: pool_use.Fork) -> None:
        self.actors[operation.child] = self.actors[operation.process].fork()
        inherited = {key: number for key, number in self._descriptors.items() if key[0] == operation.process}
        self._descriptors.update({(operation.child, file): number for (_, file), number in inherited.items()})

    @_act.register
    def _(self, operation: pool_use.Exit) -> None:
        self.actors.pop(operation.process).exit()


def hugetlb_files(group: ControlGroup) -> HugetlbFiles:
    """Return how the files of the hugetlb controller are called in a group."""
    return VERSION_1 if group.version is Version.ONE else VERSION_2


def _byte_range(operation: pool_setup.Allocate | pool_setup.PunchHole) -> tuple[int, int]:
    return operation.first * operation.page_size, operation.pages * operation.page_size


def _size_flag(size: int) -> int:
    """Return the page size as MAP_HUGE_*, MFD_HUGE_* and SHM_HUGE_* encode it."""
    return (size.bit_length() - 1) << HUGE_SHIFT
