"""Workload ``guest-memory``: sysbench memory in a guest whose memory is on pages of each kind.

The study: guests of 12 GiB and 14 CPUs on THP and on pages of 1 GiB, ``sysbench memory --memory-block-size=64M
--memory-total-size=4096G --time=500 --threads=14 run``; 131.55 s and 128.34 s. There both guests ran at the same time,
here they take turns.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from hugepage_qa.bench.backing import Backing
from hugepage_qa.bench.guest_archive import program_archive
from hugepage_qa.bench.guest_machine import GuestHost, GuestProfile, emulator
from hugepage_qa.bench.process_pages import expect_static, page_tables_of
from hugepage_qa.bench.program import find_program, sha256
from hugepage_qa.bench.sysbench_memory import parse_sysbench
from hugepage_qa.bench.workload import Fact, Figures, Metric, Prepared, Program
from hugepage_qa.sizes import KIB, parse_size

_MORE_SECONDS = 120.0


class GuestMemory:
    """Write memory in a guest."""

    name = "guest-memory"
    metrics = (
        Metric("guest-memory", "s", "lower"),
        Metric("guest-memory-host-page-tables", "kB", "lower"),
    )
    programs = (Program("sysbench", "sysbench", "sysbench"), *emulator())
    profiles: Mapping[str, Mapping[str, Fact]] = {
        "quick": {"guest": "1G", "cpus": 1, "block": "64M", "total": "1G", "time": 120, "threads": 1},
        "reference": {"guest": "12G", "cpus": 14, "block": "64M", "total": "4096G", "time": 500, "threads": 14},
    }

    def backings(self, there: Sequence[Backing]) -> tuple[Backing, ...]:
        """All."""
        return tuple(there)

    @contextmanager
    def prepare(self, profile: str, scratch: Path, disk: Path) -> Iterator[Prepared]:  # noqa: ARG002 - needs the disk
        """Pack sysbench for the guest."""
        sysbench = find_program("sysbench", "sysbench")
        parameters = self.profiles[profile]
        size = GuestProfile(parse_size(str(parameters["guest"])), int(parameters["cpus"] or 1))
        total = parse_size(str(parameters["total"]))
        command = (
            f"{sysbench} memory --memory-block-size={parameters['block']} --memory-total-size={parameters['total']}"
            f" --time={parameters['time']} --threads={parameters['threads']} run"
        )
        with closing(GuestHost(disk / "guest-memory", program_archive([sysbench]))) as host:

            def block(backing: Backing) -> Figures:
                with host.running(backing, size) as guest:
                    if backing.is_all_static:
                        expect_static(guest.pid, size.memory, "QEMU")
                    output = guest.run(command, float(parameters["time"] or 0) + _MORE_SECONDS)
                    tables = page_tables_of(guest.pid) / KIB
                return {self.name: [parse_sysbench(output, total)], "guest-memory-host-page-tables": [tables]}

            yield Prepared(block, size.memory, {"binary": sha256(sysbench), **host.facts}, {"qemu": host.version})
