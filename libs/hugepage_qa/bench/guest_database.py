"""Workload ``guest-database``: PostgreSQL in a guest, host backing x guest pages: the 2x2 of the study on IBM z.

The study: guest of 64 GiB and 8 CPUs, buffers of 20 GiB, 100, 250 and 500 users, pages of 1 MiB; throughput alike, up
to 15 % less load of the host's CPUs, page tables of the host 7 MiB instead of 260 MiB.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from hugepage_qa.bench.backing import Backing, Kind
from hugepage_qa.bench.guest_machine import GuestHost, GuestProfile, cpu_seconds, emulator
from hugepage_qa.bench.guest_postgresql import GuestServer, expect_buffers, pack
from hugepage_qa.bench.pgbench import parse_pgbench, parse_version
from hugepage_qa.bench.postgresql import PROGRAMS, Installation
from hugepage_qa.bench.process_pages import page_tables_of
from hugepage_qa.bench.program import sha256
from hugepage_qa.bench.workload import Fact, Figures, Metric, Prepared
from hugepage_qa.errors import InputError
from hugepage_qa.sizes import KIB, MIB, parse_size

#: of each profile: those of the study, and a fiftieth of them
USERS: Mapping[str, tuple[int, ...]] = {"quick": (2, 5, 10), "reference": (100, 250, 500)}

_WARM_UP_SECONDS = 2
_FILL_SECONDS = 3600.0
_MORE_SECONDS = 300.0


def _metrics_of(users: int) -> tuple[Metric, ...]:
    return (
        Metric(f"guest-database-tps-{users}", "tps", "higher"),
        Metric(f"guest-database-host-cpu-{users}", "CPUs", "lower"),
        Metric(f"guest-database-tps-per-cpu-{users}", "transactions per CPU second", "higher"),
        Metric(f"guest-database-guest-page-tables-{users}", "kB", "lower"),
        Metric(f"guest-database-guest-faults-{users}", "faults per transaction", "lower"),
    )


def _text(levels: tuple[int, ...]) -> str:
    return ", ".join(map(str, levels))


class GuestDatabase:
    """TPC-B-like transactions in a guest, clients included, as in the study."""

    name = "guest-database"
    metrics = (
        *(metric for levels in USERS.values() for users in levels for metric in _metrics_of(users)),
        Metric("guest-database-host-page-tables", "kB", "lower"),
    )
    programs = (*PROGRAMS, *emulator())
    profiles: Mapping[str, Mapping[str, Fact]] = {
        "quick": {
            "guest": "2G",
            "cpus": 1,
            "shared_buffers": "256MB",
            "scale": 2,
            "users": _text(USERS["quick"]),
            "seconds": 5,
        },
        "reference": {
            "guest": "64G",
            "cpus": 8,
            "shared_buffers": "20GB",
            # the whole database is in the memory of the guest, beside its buffers
            "scale": 1000,
            "users": _text(USERS["reference"]),
            "seconds": 600,
        },
    }

    def backings(self, there: Sequence[Backing]) -> tuple[Backing, ...]:
        """Base and the default static pages of the host, each with base and static pages in the guest."""
        hosts = [one for one in there if one.kind is Kind.BASE or (one.kind is Kind.STATIC and one.is_default)]
        return tuple(replace(one, guest=guest) for one in hosts for guest in ("4k", "huge"))

    @contextmanager
    def prepare(self, profile: str, scratch: Path, disk: Path) -> Iterator[Prepared]:  # noqa: ARG002 - needs the disk
        """Pack a database with its programs for the guest, which fills it."""
        installation = Installation.find()
        parameters = self.profiles[profile]
        archive = pack(installation, disk / "guest-database-cluster")
        memory = parse_size(str(parameters["guest"]))
        with closing(GuestHost(disk / "guest-database", archive)) as host:

            def block(backing: Backing) -> Figures:
                words = f"hugepages={_guest_pages(parameters)}" if backing.guest == "huge" else ""
                with host.running(backing, GuestProfile(memory, int(parameters["cpus"] or 1), words)) as guest:
                    server = GuestServer(guest, installation)
                    _fill(server, parameters, max(USERS[profile]), is_huge=backing.guest == "huge")
                    figures = [_measure(server, users, parameters) for users in USERS[profile]]
                    tables = {"guest-database-host-page-tables": [page_tables_of(guest.pid) / KIB]}
                return {name: values for one in (*figures, tables) for name, values in one.items()}

            identity = {"binary": sha256(installation.pgbench), **host.facts}
            version = parse_version(installation.version())
            yield Prepared(block, memory, identity, {"postgresql": version, "qemu": host.version})


def _buffers(parameters: Mapping[str, Fact]) -> int:
    return parse_size(str(parameters["shared_buffers"]).removesuffix("B"))


def _guest_pages(parameters: Mapping[str, Fact]) -> int:
    """Return how many pages of the guest's default size, 2 MiB on most, the buffers and what is beside them need."""
    return _buffers(parameters) * 5 // 4 // (2 * MIB)


def _fill(server: GuestServer, parameters: Mapping[str, Fact], users: int, *, is_huge: bool) -> None:
    """Start the server with its buffers on the guest's huge pages, or on none, and fill the database."""
    server.start(
        {
            "huge_pages": "on" if is_huge else "off",
            "shared_buffers": str(parameters["shared_buffers"]),
            "max_connections": str(users + 10),
        }
    )
    expect_buffers(server.counters(), _buffers(parameters), is_huge=is_huge)
    server.pgbench(f"--initialize --quiet --scale={parameters['scale']}", _FILL_SECONDS)


def _measure(server: GuestServer, users: int, parameters: Mapping[str, Fact]) -> Figures:
    """Return the figures of one number of users. Raises InputError."""
    seconds, pid = int(parameters["seconds"] or 1), server.guest.pid
    load = f"--no-vacuum --client={users} --jobs={min(users, int(parameters['cpus'] or 1))}"
    server.pgbench(f"{load} --time={_WARM_UP_SECONDS}", _MORE_SECONDS)
    before, busy, begin = server.counters(), cpu_seconds(pid), time.monotonic()
    output = server.pgbench(f"{load} --time={seconds}", seconds + _MORE_SECONDS)
    busy, took = cpu_seconds(pid) - busy, time.monotonic() - begin
    after, rate = server.counters(), parse_pgbench(output)
    if busy <= 0:
        raise InputError("guest: has used no CPU time, expected it to run")
    return {
        f"guest-database-tps-{users}": [rate],
        f"guest-database-host-cpu-{users}": [busy / took],
        f"guest-database-tps-per-cpu-{users}": [rate * seconds / busy],
        f"guest-database-guest-page-tables-{users}": [float(after["PageTables"])],
        f"guest-database-guest-faults-{users}": [(after["pgfault"] - before["pgfault"]) / (rate * seconds)],
    }
