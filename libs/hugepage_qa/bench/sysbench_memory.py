"""Workload ``sysbench-memory``: the time in which threads write an amount of memory, as in the study of THP and 1 GiB.

The study: ``sysbench memory --memory-block-size=64M --memory-total-size=4096G --time=500 --threads=14 run``.
"""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from hugepage_gate.importers.sysbench_report import read_run
from hugepage_qa.bench.backing import Backing, Kind
from hugepage_qa.bench.benchmark_program import expect_static, find_program, run_program, sha256
from hugepage_qa.bench.workload import Fact, Figures, Metric, Prepared, Program, Workload
from hugepage_qa.errors import InputError
from hugepage_qa.sizes import parse_size

_VERSION = re.compile(r"sysbench (?P<version>\S{1,40})")

_MIB = float(1 << 20)
_MORE_SECONDS = 60.0


class SysbenchMemory(Workload):
    """Write memory from several threads."""

    name = "sysbench-memory"
    metrics = (Metric("sysbench-memory", "s", "lower"),)
    programs = (Program("sysbench", "sysbench", "sysbench"),)
    profiles: Mapping[str, Mapping[str, Fact]] = {
        # as many threads as CPUs: more of them would measure the scheduler
        "quick": {"block": "64M", "total": "32G", "time": 60, "threads": min(14, os.cpu_count() or 1), "samples": 1},
        "reference": {"block": "64M", "total": "4096G", "time": 500, "threads": 14, "samples": 1},
    }

    @contextmanager
    def prepare(self, profile: str, scratch: Path, disk: Path) -> Iterator[Prepared]:  # noqa: ARG002 - needs no files
        """Find the program."""
        program = find_program("sysbench", "sysbench")
        version = _VERSION.search(run_program([program, "--version"], deadline=_MORE_SECONDS))
        parameters = self.profiles[profile]
        command = [
            str(program),
            "memory",
            f"--memory-block-size={parameters['block']}",
            f"--memory-total-size={parameters['total']}",
            f"--time={parameters['time']}",
            f"--threads={parameters['threads']}",
        ]
        total, block_size = parse_size(str(parameters["total"])), parse_size(str(parameters["block"]))
        deadline = float(parameters["time"] or 0) + _MORE_SECONDS

        def look(pid: int) -> None:
            expect_static(pid, block_size, "sysbench")

        def sample(backing: Backing) -> float:
            words, environment = on_pages(backing)
            output = run_program(
                [*command, *words, "run"],
                deadline=deadline,
                environment=environment,
                while_running=look if backing.is_all_static else None,
            )
            return parse_sysbench(output, total)

        def block(backing: Backing) -> Figures:
            return {self.name: [sample(backing) for _ in range(int(parameters["samples"] or 0))]}

        identity = {"version": version["version"] if version else "unknown", "binary": sha256(program)}
        # one page is left over: malloc puts its own records in front of the buffer
        yield Prepared(block, 2 * block_size, identity, {})


def on_pages(backing: Backing) -> tuple[list[str], dict[str, str]]:
    """Return options and environment that put the buffer of sysbench on pages of ``backing``.

    sysbench itself takes System V segments, which have the default page size. Other sizes come from malloc (glibc
    2.35), which maps the buffer by itself and not from its heap, where the huge pages are, unless told not to; where
    they do not suffice it falls back to base pages.
    """
    if backing.kind is not Kind.STATIC:
        return [], {}
    if backing.is_default and not backing.is_halved:
        return ["--memory-hugetlb=on"], {}
    return [], {"GLIBC_TUNABLES": f"glibc.malloc.hugetlb={backing.page_size}:glibc.malloc.mmap_max=0"}


def parse_sysbench(output: str, total: int) -> float:
    """Return the seconds that writing ``total`` bytes took. Raises InputError when it was not all, or nobody knows."""
    run = read_run(output, "sysbench")
    if run.written is None or not run.seconds:
        raise InputError(f"sysbench: expected 'MiB transferred' and 'total time', got {output[-200:]!r}")
    if run.written < total / _MIB:
        raise InputError(
            f"sysbench: wrote {run.written:g} MiB in {run.seconds:g} s, expected {total / _MIB:g} MiB: the time was too"
            " short"
        )
    return run.seconds
