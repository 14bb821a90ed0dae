"""Workload ``guest-database``: PostgreSQL in a guest, host backing x guest pages: the 2x2 of the study on IBM z.

The PostgreSQL of this machine is packed with an empty cluster. The study: guest of 64 GiB and 8 CPUs, buffers of 20
GiB, 100, 250 and 500 users, pages of 1 MiB; throughput alike, up to 15 % less load of the host's CPUs, page tables of
the host 7 MiB instead of 260 MiB.
"""

import io
import re
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from hugepage_qa.bench.backing import Backing, Kind
from hugepage_qa.bench.benchmark_program import files_digest, page_tables_of
from hugepage_qa.bench.databases import PROGRAMS, Cluster, PostgresqlInstallation
from hugepage_qa.bench.measured_guest import (
    GuestHost,
    GuestProfile,
    RunningGuest,
    emulator,
    program_archive,
)
from hugepage_qa.bench.pgbench import parse_pgbench
from hugepage_qa.bench.workload import Fact, Figures, Metric, Prepared, Workload
from hugepage_qa.errors import InputError
from hugepage_qa.kernel.uapi import NOBODY
from hugepage_qa.process.process_table import cpu_seconds
from hugepage_qa.sizes import KIB, MIB, format_size, parse_size

_DATA = "cluster.tar"
_COMMAND_SECONDS = 300.0
_START_SECONDS = 300
_SET_UP = (
    "mkdir -p /cluster",
    f"tar x -p -f /{_DATA} -C /cluster",
    f"rm /{_DATA}",
    f"chown -R {NOBODY}:{NOBODY} /cluster",
)
#: PostgreSQL refuses to run as root
_USERS = {
    "etc/passwd": f"root:x:0:0::/:/bin/sh\nnobody:x:{NOBODY}:{NOBODY}::/:/bin/false\n".encode(),
    "etc/group": f"root:x:0:\nnogroup:x:{NOBODY}:\n".encode(),
}
_SETTINGS = {
    "unix_socket_directories": "/cluster",
    "listen_addresses": "",
    # there is no /dev/shm
    "dynamic_shared_memory_type": "mmap",
    "fsync": "off",
    "autovacuum": "off",
    # its library is larger than all the rest
    "jit": "off",
}
_COUNTER = re.compile(r"^(?P<name>\w+):? +(?P<value>[0-9]{1,18})(?: kB)?$", re.MULTILINE)
_NEEDED = frozenset({"PageTables", "pgfault", "HugePages_Total", "HugePages_Free", "HugePages_Rsvd", "Hugepagesize"})


def pack(installation: PostgresqlInstallation, directory: Path) -> bytes:
    """Return an archive with PostgreSQL and an empty cluster, made in ``directory``. Raises InputError, Unavailable."""
    with Cluster(directory, installation).made() as cluster:
        # initdb has written the time zone of the host there, which the guest does not know
        (cluster.data / "postgresql.conf").write_text("", encoding="utf-8")
        data = io.BytesIO()
        with tarfile.open(fileobj=data, mode="w") as archive:
            archive.add(cluster.data, "data")
    programs = [installation.postgres, installation.pgbench]
    shared, modules = installation.directories()
    # the server wants to see the directory, and loads nothing from it
    files = {_DATA: data.getvalue(), str(modules / "empty").lstrip("/"): b"", **_USERS}
    return program_archive(programs, [shared], files)


@dataclass(frozen=True)
class GuestServer:
    """A server in ``guest``, which was booted with an archive of ``pack``."""

    guest: RunningGuest
    installation: PostgresqlInstallation

    def start(self, settings: Mapping[str, str]) -> None:
        """Start it and wait until it takes connections. Raises InputError."""
        for command in _SET_UP:
            self.guest.run(f"/bin/busybox {command}", _COMMAND_SECONDS)
        words = " ".join(f"-c {name}={value or chr(39) * 2}" for name, value in {**_SETTINGS, **settings}.items())
        server = f"{self.installation.postgres} -- -D /cluster/data {words}"
        daemon = f"/bin/busybox start-stop-daemon -S -c nobody:nogroup -x {server}"
        self.guest.run(f"{{ {daemon} >/log 2>&1 & }}", _COMMAND_SECONDS)
        # the last line of the file tells whether it is ready
        is_ready = "/bin/busybox grep -q ^ready /cluster/data/postmaster.pid 2>/dev/null"
        wait = f"until {is_ready}; do /bin/busybox sleep 1; done"
        limited = f"/bin/busybox timeout {_START_SECONDS} /bin/busybox sh -c '{wait}'"
        self.guest.run(f"{limited} || ! /bin/busybox cat /log", _START_SECONDS + _COMMAND_SECONDS)

    def pgbench(self, words: str, seconds: float) -> str:
        """Return what pgbench prints within ``seconds``. Raises InputError."""
        return self.guest.run(f"{self.installation.pgbench} -h /cluster -U postgres {words} postgres", seconds)

    def counters(self) -> dict[str, int]:
        """Return the counters of the guest's kernel. Raises InputError where one is missing."""
        found = parse_counters(self.guest.run("/bin/busybox cat /proc/meminfo /proc/vmstat", _COMMAND_SECONDS))
        if missing := _NEEDED - found.keys():
            raise InputError(f"guest: expected {', '.join(sorted(missing))} in /proc/meminfo and /proc/vmstat")
        return found


def parse_counters(output: str) -> dict[str, int]:
    """Return the counters in files like /proc/meminfo and /proc/vmstat: kB, or numbers."""
    return {line["name"]: int(line["value"]) for line in _COUNTER.finditer(output)}


def expect_buffers(counters: Mapping[str, int], buffers: int, *, is_huge: bool) -> None:
    """Expect ``buffers`` bytes in the guest's huge pages if ``is_huge``, and else nothing. Raises InputError."""
    pages = counters["HugePages_Total"] - counters["HugePages_Free"] + counters["HugePages_Rsvd"]
    used = pages * counters["Hugepagesize"] * KIB
    if (used < buffers) if is_huge else used:
        wanted = format_size(buffers) if is_huge else "none"
        raise InputError(f"guest: {format_size(used)} of its huge pages are in use, expected {wanted}")


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


class GuestDatabase(Workload):
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
        installation = PostgresqlInstallation.find()
        parameters = self.profiles[profile]
        archive = pack(installation, disk / "guest-database-cluster")
        memory = parse_size(str(parameters["guest"]))
        with closing(GuestHost(disk / "guest-database", archive)) as host:

            def block(backing: Backing) -> Figures:
                # of the guest's default size, 2 MiB on most: for the buffers and what is beside them
                pages = _buffers(parameters) * 5 // 4 // (2 * MIB)
                words = f"hugepages={pages}" if backing.guest == "huge" else ""
                with host.running(backing, GuestProfile(memory, int(parameters["cpus"] or 1), words)) as guest:
                    server = GuestServer(guest, installation)
                    _fill(server, parameters, max(USERS[profile]), is_huge=backing.guest == "huge")
                    figures = [_measure(server, users, parameters) for users in USERS[profile]]
                    tables = {"guest-database-host-page-tables": [page_tables_of(guest.pid) / KIB]}
                return {name: values for one in (*figures, tables) for name, values in one.items()}

            identity = {"binary": files_digest(installation.pgbench), **host.facts}
            yield Prepared(block, memory, identity, {"postgresql": installation.version(), "qemu": host.version})


def _buffers(parameters: Mapping[str, Fact]) -> int:
    return parse_size(str(parameters["shared_buffers"]).removesuffix("B"))


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
