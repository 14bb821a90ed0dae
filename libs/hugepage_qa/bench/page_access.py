"""Workload ``page-access``: what accesses to many pages of each kind cost."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from hugepage_qa.bench.backing import Backing
from hugepage_qa.bench.benchmark_program import files_digest, find_program, run_program
from hugepage_qa.bench.memory_program import DEADLINE_SECONDS, MEMORY, NS_PER_MS, pages_of
from hugepage_qa.bench.tlb_counters import COUNTERS, PATTERN, tlb_figures, tlb_metrics
from hugepage_qa.bench.workload import Fact, Figures, Metric, Prepared, Program, Workload
from hugepage_qa.errors import InputError
from hugepage_qa.process.c_compiler import build_program
from hugepage_qa.sizes import GIB, KIB, MIB

ACCESS_SOURCE = Path(__file__).with_name("page_access.c")

_ACCESSES = re.compile(
    r"first-touch-ns (?P<touch>[0-9]{1,18}) access-ns (?P<access>[0-9]{1,18}) unmap-ns (?P<unmap>[0-9]{1,18})"
    r" faults (?P<faults>[0-9]{1,18}) page-table-kB (?P<tables>-?[0-9]{1,18}) huge-kB (?P<huge>[0-9]{1,18}) " + PATTERN
)
_DATA_TLB = "page-access-dtlb"


class PageAccess(Workload):
    """Touch memory page by page, read it at random, and unmap it: nothing but page faults, TLB misses and freeing."""

    name = "page-access"
    metrics = (
        Metric("page-access-first-touch", "ms/GiB", "lower"),
        Metric("page-access-random", "ns", "lower"),
        Metric("page-access-unmap", "ms/GiB", "lower"),
        Metric("page-access-faults", "faults", "lower", "count"),
        Metric("page-access-page-tables", "kB", "lower", "count"),
        Metric("page-access-huge", "kB", "higher", "count"),
        # only where the CPU counts them
        *tlb_metrics(_DATA_TLB),
    )
    programs = (Program("cc", "build-essential", "gcc"),)
    profiles: Mapping[str, Mapping[str, Fact]] = {
        "quick": {"bytes": 512 * MIB, "accesses": 1_000_000, "samples": 8},
        "reference": {"bytes": 4 * GIB, "accesses": 20_000_000, "samples": 15},
    }

    @contextmanager
    def prepare(self, profile: str, scratch: Path, disk: Path) -> Iterator[Prepared]:  # noqa: ARG002 - needs no disk
        """Build the program."""
        find_program("cc", "build-essential")
        program = build_program(ACCESS_SOURCE, scratch, [MEMORY, COUNTERS])
        parameters = self.profiles[profile]
        size, accesses, samples = (int(parameters[name] or 0) for name in ("bytes", "accesses", "samples"))

        def block(backing: Backing) -> Figures:
            huge = size // 2 if backing.is_halved else size
            # the first one warms caches and clocks up
            words = [size, pages_of(backing), accesses, samples + 1, huge]
            output = run_program([program, *map(str, words)], deadline=DEADLINE_SECONDS)
            return backing.without_hidden(parse_page_access(output, size, accesses, samples + 1))

        try:
            yield Prepared(block, size, {"source": files_digest(ACCESS_SOURCE, MEMORY)}, {})
        finally:
            program.unlink()


def parse_page_access(output: str, size: int, accesses: int, repeats: int) -> Figures:
    """Return the figures in ``output`` of ``repeats`` repeats on ``size`` bytes but the first. Raises InputError."""
    lines = [_ACCESSES.fullmatch(line) for line in output.splitlines()]
    if len(lines) != repeats or not all(lines):
        raise InputError(f"page_access: expected {repeats} lines of figures, got {output[:200]!r}")
    counted = [line.groupdict() for line in lines if line][1:]
    names = ("touch", "access", "unmap", "faults", "tables", "huge")
    repeat = [{name: int(one[name]) for name in names} for one in counted]
    if any(0 in (one["touch"], one["access"], one["unmap"]) or one["tables"] < 0 for one in repeat):
        raise InputError(f"page_access: expected times above 0 and page tables that grow, got {output[:200]!r}")
    # a page of 1 GiB is cleared and freed as a whole, whatever is touched of it
    gib = [max(size, one["huge"] * KIB) / GIB for one in repeat]
    return {
        "page-access-first-touch": [one["touch"] / NS_PER_MS / had for one, had in zip(repeat, gib, strict=True)],
        "page-access-random": [one["access"] / accesses for one in repeat],
        "page-access-unmap": [one["unmap"] / NS_PER_MS / had for one, had in zip(repeat, gib, strict=True)],
        "page-access-faults": [float(one["faults"]) for one in repeat],
        "page-access-page-tables": [float(one["tables"]) for one in repeat],
        "page-access-huge": [float(one["huge"]) for one in repeat],
        **tlb_figures(_DATA_TLB, counted),
    }
