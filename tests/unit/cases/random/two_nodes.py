"""A machine of two nodes for the tests of random programs: a kernel before 6.6, as far as they reserve pages."""

import errno
import os
from collections.abc import Callable, Sequence
from typing import Any

from tests.unit.cases.kinds import X86_64

from hugepage_qa.cases.random.random_drawing import FIRST_PROCESS
from hugepage_qa.oracle.pool.pool_operation import Operation
from hugepage_qa.oracle.pool.pool_setup import MountPool, SetCount, SetOvercommit, Unmount
from hugepage_qa.oracle.pool.pool_use import MapAnonymous
from hugepage_qa.sizes import MIB

SIZE = 2 * MIB
#: the mount needs one page more than is free
PROGRAM: tuple[Operation, ...] = (
    SetCount(SIZE, 6),
    SetOvercommit(SIZE, 1),
    MapAnonymous(FIRST_PROCESS, 1, SIZE, 5, shared=True, noreserve=False),
    MountPool("m", SIZE, least=2 * SIZE, most=3 * SIZE),
    Unmount("m"),
)

_POOL = "sys/kernel/mm/hugepages/hugepages-2048kB"
_NODE = "sys/devices/system/node/node{}"
_HARNESS = -1
_MEMORY_KIB = 4 << 20
_STATUS = (
    "Name:\tactor\nState:\tS (sleeping)\nTgid:\t1\nPid:\t1\nPPid:\t1\nUid:\t0\t0\t0\t0\nVmSize:\t8 kB\n"
    "HugetlbPages:\t0 kB\nThreads:\t1\n"
)


class TwoNodes:
    """Reserves, and takes surplus pages for that from the node of the CPU that asks: of the harness it is node 1.

    ``free``, ``used`` and ``surplus`` are pages of each node that were there before; surplus ones are in use.
    ``surplus_from`` is a node that a wrong kernel takes them from, whoever asks.
    """

    kind = X86_64

    def __init__(
        self,
        free: Sequence[int] = (0, 0),
        used: Sequence[int] = (0, 0),
        surplus: Sequence[int] = (0, 0),
        overcommit: int = 0,
        surplus_from: int | None = None,
    ) -> None:
        self.free, self.surplus, self.overcommit, self.reserved = list(free), list(surplus), overcommit, 0
        self.nr = [sum(pages) for pages in zip(free, used, surplus, strict=True)]
        self._surplus_from = surplus_from
        self._node_of = {_HARNESS: 1}
        #: what ends with an actor, or with a mount
        self._reserved_by: dict[int | str, int] = {}

    @property
    def pools(self) -> tuple[list[int], list[int], list[int], int, int]:
        """All that a program changes."""
        return list(self.nr), list(self.free), list(self.surplus), self.overcommit, self.reserved

    def perform(self, operation: str, arguments: Sequence[Any]) -> Any:
        if operation in ("exit", "end", "unmount"):
            return self._give_back(arguments[0])
        operations: dict[str, Callable[..., Any]] = {
            "read": self._files.get,
            "observe": self._files.get,
            "names": self._names,
            "write": self._write,
            "start_actor": lambda: self._fork(_HARNESS),
            "request": lambda actor, text: self._request(actor, text.split()),
            "mount_point": lambda _file_system: "/run/point",
            "mount": lambda options, _file_system: self._mount(_HARNESS, "/run/point", options),
            # size=6M, of which nothing is used
            "file_system": lambda _point: (SIZE, 3, 3, -1, -1),
            "new_kernel_log": list,
            "skip_kernel_log": lambda: None,
        }
        return operations[operation](*arguments)

    # --- what it shows ---

    @property
    def _files(self) -> dict[str, str]:
        of_nodes = {
            f"{_NODE.format(node)}/hugepages/hugepages-2048kB/{name}_hugepages": values[node]
            for node in (0, 1)
            for name, values in (("nr", self.nr), ("free", self.free), ("surplus", self.surplus))
        }
        of_machine = {
            f"{_POOL}/nr_hugepages": sum(self.nr),
            f"{_POOL}/free_hugepages": sum(self.free),
            f"{_POOL}/surplus_hugepages": sum(self.surplus),
            f"{_POOL}/resv_hugepages": self.reserved,
            f"{_POOL}/nr_overcommit_hugepages": self.overcommit,
        }
        memory = f"{_MEMORY_KIB} kB\n"
        return {
            **{path: f"{value}\n" for path, value in (of_nodes | of_machine).items()},
            **{f"{_NODE.format(node)}/cpulist": f"{node}\n" for node in (0, 1)},
            **{
                f"{_NODE.format(node)}/meminfo": f"Node {node} MemTotal: {memory}Node {node} MemFree: {memory}"
                for node in (0, 1)
            },
            **{f"proc/{100 + number}/status": _STATUS for number in self._node_of},
            "proc/sys/kernel/osrelease": "6.1.192\n",
            "proc/buddyinfo": "Node 0, zone Normal 1 1 1 1 1 1 1 1 1 1 1\n",
            "proc/cpuinfo": "processor\t: 0\nprocessor\t: 1\n",
            "proc/self/smaps": "KernelPageSize:        4 kB\n",
            "proc/meminfo": f"MemAvailable: {memory}",
        }

    def _names(self, directory: str) -> list[str]:
        prefix = f"{directory}/"
        return sorted({path[len(prefix) :].split("/")[0] for path in self._files if path.startswith(prefix)})

    # --- what it does ---

    def _write(self, path: str, text: str) -> None:
        count = int(text)
        if path == f"{_POOL}/nr_overcommit_hugepages":
            self.overcommit = count
        elif path == f"{_POOL}/nr_hugepages":
            # no more is asked of it than to take surplus pages in
            assert count == sum(self.nr)
            self.surplus = [0, 0]
        else:
            self._resize(int(path == f"{_NODE.format(1)}/hugepages/hugepages-2048kB/nr_hugepages"), count)

    def _resize(self, node: int, count: int) -> None:
        """set_max_huge_pages()."""
        persistent = self.nr[node] - self.surplus[node]
        self.surplus[node] -= min(self.surplus[node], max(0, count - persistent))
        more = max(count - (self.nr[node] - self.surplus[node]), -self.free[node])
        self.nr[node] += more
        self.free[node] += more
        self.surplus[node] += max(0, self.nr[node] - self.surplus[node] - count)

    def _fork(self, parent: int) -> tuple[int, int]:
        number = len(self._node_of)
        self._node_of[number] = self._node_of[parent]
        return number, 100 + number

    def _request(self, actor: int, words: list[str]) -> tuple[str, tuple[int, int] | None]:
        match words:
            case ["fork"]:
                child = self._fork(actor)
                return f"ok {child[1]}", child
            case ["call", "sched_setaffinity", _pid, _length, mask]:
                self._node_of[actor] = {1: 0, 2: 1}[int.from_bytes(bytes.fromhex(mask[1:]), "little")]
            case ["call", "mmap", _address, length, *_rest]:
                return self._answer(lambda: self._reserve(actor, actor, int(length) // SIZE))
            case ["call", "mount", _source, point, _type, _flags, options]:
                named, given = (bytes.fromhex(word[1:-2]).decode() for word in (point, options))
                return self._answer(lambda: self._mount(actor, named, given))
        return "ok 0", None

    @staticmethod
    def _answer(act: Callable[[], object]) -> tuple[str, None]:
        try:
            act()
        except OSError as error:
            return f"errno {error.errno}", None
        return "ok 0", None

    def _mount(self, process: int, point: str, options: str) -> str:
        words = dict(word.split("=") for word in options.split(","))
        self._reserve(point, process, int(words.get("min_size", 0)) // SIZE)
        return point

    def _reserve(self, owner: int | str, process: int, pages: int) -> None:
        """hugetlb_acct_memory()."""
        needed = max(0, self.reserved + pages - sum(self.free))
        if needed and sum(self.surplus) + needed > self.overcommit:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        node = self._node_of[process] if self._surplus_from is None else self._surplus_from
        for counters in (self.nr, self.free, self.surplus):
            counters[node] += needed
        self.reserved += pages
        self._reserved_by[owner] = self._reserved_by.get(owner, 0) + pages

    def _give_back(self, owner: int | str) -> None:
        """return_unused_surplus_pages()."""
        pages = self._reserved_by.pop(owner, 0)
        self.reserved -= pages
        for node in (0, 1):
            given = min(pages, self.surplus[node], self.free[node])
            for counters in (self.nr, self.free, self.surplus):
                counters[node] -= given
