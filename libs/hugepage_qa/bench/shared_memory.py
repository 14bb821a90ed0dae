"""Workload ``shared-memory``: the page tables that processes need for the same memory, by how many they are."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from hugepage_qa.bench.backing import Backing
from hugepage_qa.bench.memory_at_once import SOURCE
from hugepage_qa.bench.memory_program import MemoryProgram, Repeat, of_a_gib
from hugepage_qa.bench.workload import Fact, Figures, Metric
from hugepage_qa.sizes import GIB, MIB

PROCESSES = (1, 4, 16, 64)


class SharedMemory(MemoryProgram):
    """Processes that touch all of the memory that they share, as the sessions of a database do."""

    name = "shared-memory"
    source = SOURCE
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
