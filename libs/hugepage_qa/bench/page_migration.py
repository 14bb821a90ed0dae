"""Workload ``page-migration``: how fast pages move from node to node."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from hugepage_qa.bench.backing import Backing
from hugepage_qa.bench.benchmark_program import run_program
from hugepage_qa.bench.memory_program import DEADLINE_SECONDS, MemoryProgram, Repeat, block_size, pages_of, parse_lines
from hugepage_qa.bench.workload import Fact, Figures, Metric, Unavailable
from hugepage_qa.kernel.nodes import read_nodes
from hugepage_qa.kernel.tree import DirectoryTree
from hugepage_qa.sizes import GIB, MIB

_ROOT = DirectoryTree(Path("/"))
_NS_PER_S = 1e9
#: nodes that pages move between: there and back
_SIDES = 2


class PageMigration(MemoryProgram):
    """Move memory to another node and back by move_pages(2), page by page of its own size."""

    name = "page-migration"
    source = Path(__file__).with_name("page_migration.c")
    words = ("move-ns", "huge-kB")
    metrics = (Metric("page-migration", "GiB/s", "higher"), Metric("page-migration-huge", "kB", "higher", "count"))
    profiles: Mapping[str, Mapping[str, Fact]] = {
        "quick": {"bytes": 256 * MIB, "samples": 8},
        "reference": {"bytes": 4 * GIB, "samples": 15},
    }

    def pool_bytes(self, parameters: Mapping[str, int]) -> int:
        """As much on each node: what the pool has the kernel spreads evenly."""
        return parameters["bytes"] * max(1, len(read_nodes(_ROOT).has_memory))

    def measured(self, program: Path, backing: Backing, parameters: Mapping[str, int], file: Path) -> Figures:  # noqa: ARG002 - no file
        """Move between the first two nodes."""
        nodes = read_nodes(_ROOT).has_memory
        if len(nodes) < _SIDES:
            raise Unavailable(f"{len(nodes) or 'no'} node of this machine has memory, expected two")
        repeats = parameters["samples"] + self.warms_up
        words = (parameters["bytes"], pages_of(backing), block_size(), repeats, *nodes[:_SIDES])
        output = run_program([program, *map(str, words)], deadline=DEADLINE_SECONDS)
        return self.figures(parse_lines(output, self.words, repeats)[self.warms_up :], parameters["bytes"])

    def figures(self, repeats: Sequence[Repeat], size: int) -> Figures:
        """There and back."""
        return {
            "page-migration": [_SIDES * size / GIB / (one["move-ns"] / _NS_PER_S) for one in repeats],
            "page-migration-huge": [float(one["huge-kB"]) for one in repeats],
        }
