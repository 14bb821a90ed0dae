"""Machines that nobody boots, whose kernels take as many instructions as they are told to."""

import errno
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from hugepage_qa.bench import counted_kernels
from hugepage_qa.qemu.lost_machine import MachineLost
from hugepage_qa.qemu.virtual_machine import VirtualMachine

#: what a page of it costs, whatever is done to it; noise is in the rounds
USUAL = 1000
FILES = {
    "/sys/kernel/mm/transparent_hugepage/hpage_pmd_size": b"2097152\n",
    "/sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled": b"always inherit [madvise] never\n",
}
POOLS = ("hugepages-1048576kB", "hugepages-2048kB")

#: metric -> instructions for a page, or the errno with which it ends
Lengths = Mapping[str, int | OSError]


class CountedMachine:
    """A machine, its line to the agent, and the program in it; what is not in ``lengths`` is as long as usual."""

    def __init__(self, machine: VirtualMachine, lengths: Lengths, files: Mapping[str, bytes]) -> None:
        self.machine = machine
        self.channel = self
        self.base_page = 4096
        self.written: dict[str, bytes] = {}
        self.requests: list[str] = []
        self._lengths = lengths
        self._files = files

    def await_agent(self) -> None:
        """Be there."""

    def kill(self) -> None:
        """Be gone."""

    def ask(self, letter: str, *fields: str | bytes | int) -> list[bytes]:
        """Answer as the agent does."""
        match letter, fields:
            case "r", (str() as path,):
                if path not in self._files:
                    raise FileNotFoundError(errno.ENOENT, path)
                return [self._files[path]]
            case "n", _:
                return [name.encode() for name in POOLS]
            case "w", (str() as path, bytes() as text):
                self.written[path] = text
            case "a", ("/actor",):
                return [b"0", b"77"]
        return []

    def ask_actor(
        self, _letter: str, _number: int, request: bytes, *, waiting: Callable[[list[bytes]], None]
    ) -> list[bytes]:
        """Answer as path_length.c does, which is waited for once."""
        waiting([])
        self.requests.append(request.decode())
        if request.startswith(b"rest "):
            return [b"ok"]
        operation, kind, size, count, _pool, rounds = request.decode().split()
        length = self._lengths.get(f"{operation} {kind} {size}", USUAL)
        if isinstance(length, OSError):
            return [f"errno {length.errno}".encode()]
        if length < 0:
            raise BrokenPipeError(errno.EPIPE, "the program ended")
        seed = self.machine.instructions_seed or 0
        times = [length * int(count) + (seed + turn) % 7 for turn in range(int(rounds))]
        return [f"ok {' '.join(map(str, times))}".encode()]


class CountedMachines:
    """All that were started; ``lengths`` are of the kernel of a release, or how its machine is lost."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started: list[CountedMachine] = []
        self.lengths: dict[str, Lengths | MachineLost] = {}
        self.files: Mapping[str, bytes] = FILES
        monkeypatch.setattr(counted_kernels, "start_agent_machine", self._start)

    @contextmanager
    def _start(self, machine: VirtualMachine, _cache: Path, acting: Path) -> Iterator[CountedMachine]:
        assert acting.name == "path_length.c"
        lengths = self.lengths.get(machine.kernel.release, {})
        if isinstance(lengths, MachineLost):
            raise lengths
        self.started.append(CountedMachine(machine, lengths, self.files))
        yield self.started[-1]
