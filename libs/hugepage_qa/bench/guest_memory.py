"""Workload ``guest-memory``: sysbench memory in a guest whose memory is on pages of each kind, one guest at a time.

Guests and command are those of the study that ``guest_memory_pair`` repeats with two guests at the same time.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from hugepage_qa.bench.backing import Backing
from hugepage_qa.bench.guest_archive import program_archive
from hugepage_qa.bench.guest_machine import GuestHost, GuestProfile, RunningGuest, emulator
from hugepage_qa.bench.process_pages import page_tables_of
from hugepage_qa.bench.program import find_program, sha256
from hugepage_qa.bench.sysbench_memory import parse_sysbench
from hugepage_qa.bench.workload import Fact, Figures, Metric, Prepared, Program
from hugepage_qa.sizes import KIB, parse_size

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


class GuestMemory:
    """Write memory in a guest."""

    name = "guest-memory"
    metrics = metrics_of(name)
    programs = PROGRAMS
    profiles: Mapping[str, Mapping[str, Fact]] = {
        profile: {**sizes, "guests": "alternating"} for profile, sizes in SIZES.items()
    }

    def backings(self, there: Sequence[Backing]) -> tuple[Backing, ...]:
        """All."""
        return tuple(there)

    @contextmanager
    def prepare(self, profile: str, scratch: Path, disk: Path) -> Iterator[Prepared]:  # noqa: ARG002 - needs the disk
        """Pack sysbench for the guest."""
        writing = Writing(find_program("sysbench", "sysbench"), self.profiles[profile])
        with closing(GuestHost(disk / self.name, program_archive([writing.sysbench]))) as host:

            def block(backing: Backing) -> Figures:
                with host.running(backing, writing.guest) as guest:
                    return writing.figures(guest, self.name)

            identity = {"binary": sha256(writing.sysbench), **host.facts}
            yield Prepared(block, writing.guest.memory, identity, {"qemu": host.version})
