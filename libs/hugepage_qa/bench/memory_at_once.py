"""Workloads of memory that many want at once, which are one program.

``touch-at-once`` is the memory itself, ``stutter`` how long others wait meanwhile, and ``shared-memory`` the page
tables that processes need for the same memory.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from hugepage_qa.bench.backing import Backing
from hugepage_qa.bench.memory_program import NS_PER_US, MemoryProgram, Repeat, of_a_gib, slowest
from hugepage_qa.bench.workload import Fact, Figures, Metric
from hugepage_qa.sizes import GIB, MIB

AT_ONCE = Path(__file__).with_name("memory_at_once.c")

#: processes that the program starts, MOST_PROCESSES there
_MOST = 64


class TouchAtOnce(MemoryProgram):
    """Processes that touch their memory at the same time, and unmap it at the same time."""

    name = "touch-at-once"
    source = AT_ONCE
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
            "touch-at-once": of_a_gib(repeats, "touch-ns", size),
            "touch-at-once-unmap": of_a_gib(repeats, "unmap-ns", size),
            "touch-at-once-huge": [float(one["huge-kB"]) for one in repeats],
        }


class Stutter(MemoryProgram):
    """How long a little memory takes beside processes that touch and unmap much, and one that writes a file."""

    name = "stutter"
    source = AT_ONCE
    operation = "probe"
    words = ("probe-ns",)
    metrics = (Metric("stutter", "us", "lower"), Metric("stutter-slowest", "us", "lower"))
    profiles: Mapping[str, Mapping[str, Fact]] = {
        "quick": {"bytes": GIB, "processes": min(max(1, (os.cpu_count() or 1) - 1), _MOST), "samples": 1500},
        "reference": {"bytes": 8 * GIB, "processes": min(os.cpu_count() or 1, _MOST), "samples": 30_000},
    }

    def figures(self, repeats: Sequence[Repeat], size: int) -> Figures:  # noqa: ARG002 - of a probe, whatever is beside
        """Each probe, and the one of a hundred that takes longest."""
        times = [one["probe-ns"] / NS_PER_US for one in repeats]
        return {"stutter": times, "stutter-slowest": slowest(times)}


PROCESSES = (1, 4, 16, 64)


class SharedMemory(MemoryProgram):
    """Processes that touch all of the memory that they share, as the sessions of a database do."""

    name = "shared-memory"
    source = AT_ONCE
    operation = "share"
    words = ("touch-ns", "table-kB", "huge-kB")
    metrics = (
        *(Metric(f"shared-memory-page-tables-{number}", "kB", "lower", "count") for number in PROCESSES),
        *(Metric(f"shared-memory-touch-{number}", "ms/GiB", "lower") for number in PROCESSES),
        Metric("shared-memory-huge", "kB", "higher", "count"),
    )
    profiles: Mapping[str, Mapping[str, Fact]] = {
        "quick": {"bytes": 256 * MIB, "samples": 4},
        "reference": {"bytes": 8 * GIB, "samples": 15},
    }

    def measured(self, program: Path, backing: Backing, parameters: Mapping[str, int], file: Path) -> Figures:
        """Run it with each number of processes."""
        size, found = parameters["bytes"], dict[str, list[float]]()
        for number in PROCESSES:
            repeats = self.run(program, backing, parameters, (size, number, file))
            found |= self.of_processes(repeats, number, size)
        return found

    def of_processes(self, repeats: Sequence[Repeat], number: int, size: int) -> Figures:
        """Return the samples with ``number`` processes; each has touched the memory."""
        return {
            f"shared-memory-page-tables-{number}": [float(one["table-kB"]) for one in repeats],
            f"shared-memory-touch-{number}": of_a_gib(repeats, "touch-ns", number * size),
            "shared-memory-huge": [float(one["huge-kB"]) for one in repeats],
        }
