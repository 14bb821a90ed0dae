"""Workloads ``guest-memory`` and ``guest-memory-pair``: sysbench memory in a guest on pages of each kind, or in two.

The study: guests of 12 GiB and 14 CPUs on THP and on pages of 1 GiB, both in a loop of ``sysbench memory
--memory-block-size=64M --memory-total-size=4096G --time=500 --threads=14 run``; 131.55 s and 128.34 s. Each block of a
pair measures one of them, while the other one is as busy.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from hugepage_qa.bench.backing import Backing, Kind
from hugepage_qa.bench.benchmark_program import find_program, page_tables_of, sha256
from hugepage_qa.bench.measured_guest import (
    GuestHost,
    GuestProfile,
    RunningGuest,
    emulator,
    program_archive,
)
from hugepage_qa.bench.sysbench_memory import parse_sysbench
from hugepage_qa.bench.workload import Fact, Figures, Metric, Prepared, Program, Workload
from hugepage_qa.errors import InputError
from hugepage_qa.process.process_table import cpu_seconds
from hugepage_qa.sizes import GIB, KIB, parse_size

PROGRAMS = (Program("sysbench", "sysbench", "sysbench"), *emulator())
SIZES: Mapping[str, Mapping[str, Fact]] = {
    "quick": {"guest": "1G", "cpus": 1, "block": "64M", "total": "8G", "time": 120, "threads": 1},
    "reference": {"guest": "12G", "cpus": 14, "block": "64M", "total": "4096G", "time": 500, "threads": 14},
}

_MORE_SECONDS = 120.0


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
        output = guest.run(self.command, float(self.parameters["time"] or 0) + _MORE_SECONDS)
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

            identity = {"binary": sha256(writing.sysbench), **host.facts}
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
