"""Workloads of ``sysbench memory``: the time in which threads write memory, as in the study of THP and 1 GiB.

The study: ``sysbench memory --memory-block-size=64M --memory-total-size=4096G --time=500 --threads=14 run``.
``sysbench-memory`` is that; ``guest-memory`` and ``guest-memory-pair`` do it in a guest, or in two, of 12 GiB and 14
CPUs on pages of each kind, in the study in a loop: 131.55 s on THP and 128.34 s on pages of 1 GiB. Each block of a pair
measures one of them, while the other one is as busy.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from hugepage_gate.importers.sysbench_report import read_run
from hugepage_qa.bench.backing import Backing, Kind
from hugepage_qa.bench.benchmark_program import expect_static, files_digest, find_program, page_tables_of, run_program
from hugepage_qa.bench.measured_guest import (
    GuestHost,
    GuestProfile,
    RunningGuest,
    emulator,
    program_archive,
)
from hugepage_qa.bench.workload import Fact, Figures, Metric, Prepared, Program, Workload
from hugepage_qa.errors import InputError
from hugepage_qa.process.process_table import cpu_seconds
from hugepage_qa.sizes import GIB, KIB, MIB, parse_size

_VERSION = re.compile(r"sysbench (?P<version>\S{1,40})")

_MIB = float(MIB)
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

        identity = {"version": version["version"] if version else "unknown", "binary": files_digest(program)}
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


PROGRAMS = (Program("sysbench", "sysbench", "sysbench"), *emulator())
SIZES: Mapping[str, Mapping[str, Fact]] = {
    "quick": {"guest": "1G", "cpus": 1, "block": "64M", "total": "8G", "time": 120, "threads": 1},
    "reference": {"guest": "12G", "cpus": 14, "block": "64M", "total": "4096G", "time": 500, "threads": 14},
}

_MORE_SECONDS_IN_A_GUEST = 120.0


@dataclass(frozen=True)
class Writing:
    """Sysbench that writes memory in a guest, as ``parameters`` say; ``sysbench`` is where it is on the host."""

    sysbench: Path
    parameters: Mapping[str, Fact]

    @property
    def guest(self) -> GuestProfile:
        """The guest that it runs in."""
        return GuestProfile(parse_size(str(self.parameters["guest"])), int(self.parameters["cpus"] or 1))

    @property
    def command(self) -> str:
        """The command for the guest's shell."""
        parameters = self.parameters
        sizes = f"--memory-block-size={parameters['block']} --memory-total-size={parameters['total']}"
        return f"{self.sysbench} memory {sizes} --time={parameters['time']} --threads={parameters['threads']} run"

    def figures(self, guest: RunningGuest, name: str) -> Figures:
        """Run it in ``guest`` and return the figures of the workload ``name``. Raises InputError."""
        output = guest.run(self.command, float(self.parameters["time"] or 0) + _MORE_SECONDS_IN_A_GUEST)
        seconds = parse_sysbench(output, parse_size(str(self.parameters["total"])))
        return {name: [seconds], f"{name}-host-page-tables": [page_tables_of(guest.pid) / KIB]}


def metrics_of(name: str) -> tuple[Metric, ...]:
    """Return the metrics of the workload ``name``."""
    return (Metric(name, "s", "lower"), Metric(f"{name}-host-page-tables", "kB", "lower"))


class GuestMemory(Workload):
    """Write memory in a guest."""

    name = "guest-memory"
    metrics = metrics_of(name)
    programs = PROGRAMS
    profiles: Mapping[str, Mapping[str, Fact]] = {
        profile: {**sizes, "guests": "alternating"} for profile, sizes in SIZES.items()
    }

    @contextmanager
    def prepare(self, profile: str, scratch: Path, disk: Path) -> Iterator[Prepared]:  # noqa: ARG002 - needs the disk
        """Pack sysbench for the guest."""
        writing = Writing(find_program("sysbench", "sysbench"), self.profiles[profile])
        with closing(GuestHost(disk / self.name, program_archive([writing.sysbench]))) as host:

            def block(backing: Backing) -> Figures:
                return self._figures(host, writing, backing)

            identity = {"binary": files_digest(writing.sysbench), **host.facts}
            yield Prepared(block, writing.guest.memory, identity, {"qemu": host.version})

    def _figures(self, host: GuestHost, writing: Writing, backing: Backing) -> Figures:
        with host.running(backing, writing.guest) as guest:
            return writing.figures(guest, self.name)


_COMMAND_SECONDS = 60.0
#: part of the CPU time of one guest that the other one has at least had while both were busy
_AS_BUSY = 0.5


class GuestMemoryPair(GuestMemory):
    """Write memory in one guest, and in two."""

    name = "guest-memory-pair"
    metrics = metrics_of(name)
    profiles: Mapping[str, Mapping[str, Fact]] = {
        profile: {**sizes, "guests": "alone, and two at the same time"} for profile, sizes in SIZES.items()
    }

    def backings(self, there: Sequence[Backing]) -> tuple[Backing, ...]:
        """THP and the largest static pages up to 1 GiB, each alone and beside the other."""
        thp = next((one for one in there if one.kind is Kind.TRANSPARENT), None)
        static = [one for one in there if one.kind is Kind.STATIC and one.page_size <= GIB]
        if thp is None or not static:
            return ()
        shp = max(static, key=lambda one: one.page_size)
        return thp, shp, replace(thp, beside=shp), replace(shp, beside=thp)

    def _figures(self, host: GuestHost, writing: Writing, backing: Backing) -> Figures:
        if backing.beside is None:
            return super()._figures(host, writing, backing)
        with host.running(backing.beside, writing.guest, "beside") as other:
            other.run(f"{{ while :; do {writing.command}; done >/dev/null 2>&1 & }}", _COMMAND_SECONDS)
            with host.running(replace(backing, beside=None), writing.guest) as guest:
                begin, begin_beside = cpu_seconds(guest.pid), cpu_seconds(other.pid)
                figures = writing.figures(guest, self.name)
                expect_as_busy(cpu_seconds(other.pid) - begin_beside, cpu_seconds(guest.pid) - begin)
        return figures


def expect_as_busy(beside: float, measured: float) -> None:
    """Expect that the guest beside had seconds of CPU time like the measured one. Raises InputError."""
    if beside < _AS_BUSY * measured or measured <= 0:
        raise InputError(
            f"guests: the one beside had {beside:.1f} s of CPU time and the measured one {measured:.1f} s,"
            " expected both to be busy"
        )
