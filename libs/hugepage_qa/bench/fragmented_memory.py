"""Workload ``fragmented-faults``: how long faults take where no huge page is free without compaction."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from hugepage_qa.bench.backing import Backing, Kind
from hugepage_qa.bench.memory_program import BLOCK, NS_PER_US, MemoryProgram, Repeat, slowest
from hugepage_qa.bench.workload import Fact, Figures, Metric
from hugepage_qa.kernel.counters import read_meminfo
from hugepage_qa.kernel.tree import DirectoryTree

SOURCE = Path(__file__).with_name("fragmented_memory.c")

_ROOT = DirectoryTree(Path("/"))
#: one part of so many of what is available is left to others
_LEFT = 16


def fragmented_and_used(parts: int, left: int = 0) -> tuple[int, int]:
    """Return how many bytes to fragment, one of ``parts`` of the available memory, and how many to use.

    ``left`` bytes are for whoever is measured, beside what is fragmented.
    """
    available = read_meminfo(_ROOT).get("MemAvailable", 0)
    part = available // parts
    sizes = (part, max(0, available - part - left - available // _LEFT))
    scattered, others = (size // BLOCK * BLOCK for size in sizes)
    return scattered, others


class FragmentedFaults(MemoryProgram):
    """How long faults take where no huge page is free without compaction, and how many get one."""

    name = "fragmented-faults"
    source = SOURCE
    operation = "fault"
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

    def backings(self, there: Sequence[Backing]) -> tuple[Backing, ...]:
        """Static pages come from a pool, however memory is."""
        return tuple(one for one in there if one.kind is not Kind.STATIC)

    def shares(self, parameters: Mapping[str, int]) -> tuple[int, int]:
        """Return the bytes that are fragmented, and those in use."""
        return fragmented_and_used(parameters["parts"])

    def figures(self, repeats: Sequence[Repeat], size: int) -> Figures:  # noqa: ARG002 - of a fault, however much is free
        """Each fault, and the one of a hundred that takes longest; huge pages of all of them."""
        times = [one["fault-ns"] / NS_PER_US for one in repeats]
        huge = sum(one["huge-kB"] for one in repeats)
        return {
            "fragmented-faults": times,
            "fragmented-faults-slowest": slowest(times),
            "fragmented-faults-huge": [float(huge)],
        }
