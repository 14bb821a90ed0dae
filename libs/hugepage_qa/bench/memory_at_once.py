"""Workloads of memory that many want at once, or that is scarce: touched, swapped, fragmented, and waited for.

``touch-at-once``, ``swap-at-once``, ``stutter`` and ``fragmented-faults``; all of them are ``memory_at_once.c``.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

from hugepage_qa.bench.backing import Backing, Kind
from hugepage_qa.bench.benchmark_program import find_program, run_program, sha256
from hugepage_qa.bench.workload import Fact, Figures, Metric, Prepared, Program, Unavailable, Workload
from hugepage_qa.errors import InputError
from hugepage_qa.kernel.counters import read_meminfo
from hugepage_qa.kernel.thp import read_thp
from hugepage_qa.kernel.tree import DirectoryTree
from hugepage_qa.machine.swap_file import add_swap, remove_swap
from hugepage_qa.process.c_compiler import build_program
from hugepage_qa.sizes import GIB, MIB, format_size

SOURCE = Path(__file__).with_name("memory_at_once.c")

_ROOT = DirectoryTree(Path("/"))
_NS_PER_US, _NS_PER_MS = 1e3, 1e6
_DEADLINE_SECONDS = 600.0
_SLOWEST = 0.99
#: what processes have a multiple of where there are no transparent pages
_BLOCK = 2 * MIB
#: processes that the program starts, MOST_PROCESSES there
_MOST = 64

#: one repeat of the program: word -> number
Repeat = Mapping[str, int]


class MemoryAtOnce(Workload):
    """One operation of the program; ``words`` are those that each line of its figures has."""

    operation: str
    words: tuple[str, ...]
    #: whether a first repeat warms up and is left out
    warms_up = True
    programs = (Program("cc", "build-essential", "gcc"),)

    @contextmanager
    def prepare(self, profile: str, scratch: Path, disk: Path) -> Iterator[Prepared]:
        """Build the program."""
        find_program("cc", "build-essential")
        program = build_program(SOURCE, scratch)
        parameters = {name: int(value or 0) for name, value in self.profiles[profile].items()}
        thp = read_thp(_ROOT)
        block = (thp.hpage_pmd_size if thp else None) or _BLOCK
        repeats = parameters["samples"] + self.warms_up

        def run(backing: Backing) -> Figures:
            # of smaller transparent pages the memory is where one of the largest could be, too
            pages = str(backing.page_size) if backing.kind is Kind.STATIC else backing.kind.value
            size, other = self.shares(parameters)
            if size // parameters.get("processes", 1) < block:
                raise Unavailable(f"{format_size(size)} of {self.name} is less than {format_size(block)} a process")
            arguments = (self.operation, size, pages, block, repeats, other, disk / self.name)
            with self.surroundings(parameters):
                output = run_program([program, *map(str, arguments)], deadline=_DEADLINE_SECONDS)
            return backing.without_hidden(self.figures(parse_lines(output, self.words, repeats)[self.warms_up :], size))

        try:
            yield Prepared(run, parameters.get("bytes", 0), {"source": sha256(SOURCE)}, {})
        finally:
            # of another of these workloads it is the same
            program.unlink(missing_ok=True)
            (disk / self.name).unlink(missing_ok=True)

    def surroundings(self, parameters: Mapping[str, int]) -> "nullcontext[None] | SwapFile":  # noqa: ARG002
        """What the machine has to have while the program runs."""
        return nullcontext()

    def shares(self, parameters: Mapping[str, int]) -> tuple[int, int]:
        """Return the bytes that it is about, and the processes, or bytes, beside them. Raises Unavailable."""
        return parameters["bytes"], parameters["processes"]

    def figures(self, repeats: Sequence[Repeat], size: int) -> Figures:
        """Return the samples of the metrics."""
        raise NotImplementedError

    def backings(self, there: Sequence[Backing]) -> tuple[Backing, ...]:
        """Return those of which each process has some pages."""
        parameters = self.profiles["quick"]
        of_one = int(parameters["bytes"] or 0) // int(parameters["processes"] or 1)
        return tuple(one for one in there if one.page_size <= of_one)


def parse_lines(output: str, words: Sequence[str], repeats: int) -> list[Repeat]:
    """Return the numbers of each of the ``repeats`` lines of ``output``; times are above 0. Raises InputError."""
    pattern = re.compile(" ".join(f"{word} ([0-9]{{1,18}})" for word in words))
    found = [pattern.fullmatch(line) for line in output.splitlines()]
    lines: list[Repeat] = [dict(zip(words, map(int, one.groups()), strict=True)) for one in found if one]
    if len(lines) != repeats or len(found) != repeats:
        raise InputError(f"memory_at_once: expected {repeats} lines of figures, got {output[:200]!r}")
    if any(number == 0 for line in lines for word, number in line.items() if word.endswith("-ns")):
        raise InputError(f"memory_at_once: expected times above 0, got {output[:200]!r}")
    return lines


def _slowest(times: Sequence[float]) -> list[float]:
    """Return the time that one of a hundred exceeds."""
    return [sorted(times)[min(len(times) - 1, int(_SLOWEST * len(times)))]]


def _of_a_gib(repeats: Sequence[Repeat], word: str, size: int) -> list[float]:
    return [one[word] / _NS_PER_MS / (size / GIB) for one in repeats]


class TouchAtOnce(MemoryAtOnce):
    """Processes that touch their memory at the same time, and unmap it at the same time."""

    name = "touch-at-once"
    operation = "touch"
    words = ("touch-ns", "unmap-ns", "huge-kB")
    metrics = (
        Metric("touch-at-once", "ms/GiB", "lower"),
        Metric("touch-at-once-unmap", "ms/GiB", "lower"),
        Metric("touch-at-once-huge", "kB", "higher", "count"),
    )
    profiles: Mapping[str, Mapping[str, Fact]] = {
        "quick": {"bytes": GIB, "processes": 8, "samples": 8},
        "reference": {"bytes": 8 * GIB, "processes": 32, "samples": 15},
    }

    def figures(self, repeats: Sequence[Repeat], size: int) -> Figures:
        """Until the last process is done, for each GiB."""
        return {
            "touch-at-once": _of_a_gib(repeats, "touch-ns", size),
            "touch-at-once-unmap": _of_a_gib(repeats, "unmap-ns", size),
            "touch-at-once-huge": [float(one["huge-kB"]) for one in repeats],
        }


class SwapFile:
    """Swap of our own, while it is entered. Raises Unavailable where the kernel takes none."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __enter__(self) -> None:
        try:
            self._path = add_swap(self._size)
        except OSError as error:
            raise Unavailable(f"no swap file of {format_size(self._size)}: {error.strerror}") from error

    def __exit__(self, *_error: object) -> None:
        remove_swap(self._path)


class SwapAtOnce(MemoryAtOnce):
    """Processes whose memory is swapped out at the same time, and mapped again when they touch it.

    What they touch at once the swap cache still has: that no disk is read is part of what it is.
    """

    name = "swap-at-once"
    operation = "swap"
    words = ("out-ns", "in-ns", "swapped-kB", "huge-kB")
    metrics = (
        Metric("swap-at-once-out", "ms/GiB", "lower"),
        Metric("swap-at-once-in", "ms/GiB", "lower"),
        Metric("swap-at-once-huge", "kB", "higher", "count"),
    )
    profiles: Mapping[str, Mapping[str, Fact]] = {
        "quick": {"bytes": 256 * MIB, "processes": 4, "samples": 4},
        "reference": {"bytes": 4 * GIB, "processes": 16, "samples": 15},
    }
    _MOSTLY = 0.5

    def surroundings(self, parameters: Mapping[str, int]) -> SwapFile:
        """A swap file with room for two of what is swapped: pages that were read keep their place in it."""
        return SwapFile(2 * parameters["bytes"])

    def backings(self, there: Sequence[Backing]) -> tuple[Backing, ...]:
        """Static pages are never swapped."""
        return tuple(one for one in super().backings(there) if one.kind is not Kind.STATIC)

    def figures(self, repeats: Sequence[Repeat], size: int) -> Figures:
        """Each GiB that was to be swapped. Raises Unavailable where the kernel swapped little of it."""
        least = min(one["swapped-kB"] for one in repeats) * 1024
        if least < self._MOSTLY * size:
            raise Unavailable(f"the kernel swapped {format_size(least)} of {format_size(size)}")
        return {
            "swap-at-once-out": _of_a_gib(repeats, "out-ns", size),
            "swap-at-once-in": _of_a_gib(repeats, "in-ns", size),
            "swap-at-once-huge": [float(one["huge-kB"]) for one in repeats],
        }


class Stutter(MemoryAtOnce):
    """How long a little memory takes beside processes that touch and unmap much, and one that writes a file."""

    name = "stutter"
    operation = "probe"
    words = ("probe-ns",)
    metrics = (Metric("stutter", "us", "lower"), Metric("stutter-slowest", "us", "lower"))
    profiles: Mapping[str, Mapping[str, Fact]] = {
        "quick": {"bytes": GIB, "processes": min(max(1, (os.cpu_count() or 1) - 1), _MOST), "samples": 1500},
        "reference": {"bytes": 8 * GIB, "processes": min(os.cpu_count() or 1, _MOST), "samples": 30_000},
    }

    def figures(self, repeats: Sequence[Repeat], size: int) -> Figures:  # noqa: ARG002 - of a probe, whatever is beside
        """Each probe, and the one of a hundred that takes longest."""
        times = [one["probe-ns"] / _NS_PER_US for one in repeats]
        return {"stutter": times, "stutter-slowest": _slowest(times)}


class FragmentedFaults(MemoryAtOnce):
    """How long faults take where no huge page is free without compaction, and how many get one."""

    name = "fragmented-faults"
    operation = "fragmented"
    words = ("fault-ns", "huge-kB")
    warms_up = False
    metrics = (
        Metric("fragmented-faults", "us", "lower"),
        Metric("fragmented-faults-slowest", "us", "lower"),
        Metric("fragmented-faults-huge", "kB", "higher", "count"),
    )
    #: ``parts``: one of so many of the available memory is fragmented, the rest is in use
    profiles: Mapping[str, Mapping[str, Fact]] = {
        "quick": {"parts": 4, "samples": 256},
        "reference": {"parts": 4, "samples": 1024},
    }
    #: one part of so many of what is available is left to others
    _LEFT = 16

    def backings(self, there: Sequence[Backing]) -> tuple[Backing, ...]:
        """Static pages come from a pool, however memory is."""
        return tuple(one for one in there if one.kind is not Kind.STATIC)

    def shares(self, parameters: Mapping[str, int]) -> tuple[int, int]:
        """Return the bytes that are fragmented, and those in use."""
        available = read_meminfo(_ROOT).get("MemAvailable", 0)
        part = available // parameters["parts"]
        sizes = (part, available - part - available // self._LEFT)
        scattered, others = (size // _BLOCK * _BLOCK for size in sizes)
        return scattered, others

    def figures(self, repeats: Sequence[Repeat], size: int) -> Figures:  # noqa: ARG002 - of a fault, however much is free
        """Each fault, and the one of a hundred that takes longest; huge pages of all of them."""
        times = [one["fault-ns"] / _NS_PER_US for one in repeats]
        huge = sum(one["huge-kB"] for one in repeats)
        return {
            "fragmented-faults": times,
            "fragmented-faults-slowest": _slowest(times),
            "fragmented-faults-huge": [float(huge)],
        }
