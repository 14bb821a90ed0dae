"""Workload ``guest-database``: PostgreSQL in a guest, host backing x guest pages: the 2x2 of the study on IBM z.

The study: guest of 64 GiB and 8 CPUs, buffers of 20 GiB, 100, 250 and 500 users, pages of 1 MiB; throughput alike, up
to 15 % less load of the host's CPUs, page tables of the host 7 MiB instead of 260 MiB.
"""

import io
import re
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from hugepage_qa.bench.backing import Backing, Kind
from hugepage_qa.bench.guest_archive import program_archive
from hugepage_qa.bench.guest_machine import GuestHost, GuestProfile, RunningGuest, cpu_seconds, emulator
from hugepage_qa.bench.pgbench import parse_pgbench, parse_version
from hugepage_qa.bench.postgresql import PROGRAMS, Cluster, Installation
from hugepage_qa.bench.process_pages import expect_static, page_tables_of
from hugepage_qa.bench.program import sha256
from hugepage_qa.bench.server import NOBODY
from hugepage_qa.bench.workload import Fact, Figures, Metric, Prepared
from hugepage_qa.errors import InputError
from hugepage_qa.sizes import KIB, MIB, parse_size

_DATA = "cluster.tar"
_FILL_SECONDS = 3600.0
_MORE_SECONDS = 300.0
_BOOT_SECONDS = 300.0
_TRIES = 60
#: of the guest: the kernel's own, busybox and PostgreSQL can do without the rest of /dev
_SET_UP = (
    "mount -t devtmpfs devtmpfs /dev",
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
_COUNTER = re.compile(r"^(?P<name>\w+):? +(?P<value>[0-9]{1,18})(?: kB)?$", re.MULTILINE)


class GuestDatabase:
    """TPC-B-like transactions in a guest, clients included, as in the study."""

    name = "guest-database"
    metrics = (
        Metric("guest-database-tps", "tps", "higher"),
        Metric("guest-database-host-cpu", "CPUs", "lower"),
        Metric("guest-database-tps-per-cpu", "transactions per CPU second", "higher"),
        Metric("guest-database-host-page-tables", "kB", "lower"),
        Metric("guest-database-guest-page-tables", "kB", "lower"),
        Metric("guest-database-guest-faults", "faults per transaction", "lower"),
    )
    programs = (*PROGRAMS, *emulator())
    profiles: Mapping[str, Mapping[str, Fact]] = {
        "quick": {"guest": "2G", "cpus": 1, "shared_buffers": "256MB", "scale": 2, "users": 8, "seconds": 10},
        "reference": {"guest": "64G", "cpus": 8, "shared_buffers": "20GB", "scale": 2000, "users": 500, "seconds": 600},
    }

    def backings(self, there: Sequence[Backing]) -> tuple[Backing, ...]:
        """Base and the default static pages of the host, each with base and static pages in the guest."""
        hosts = [one for one in there if one.kind is Kind.BASE or (one.kind is Kind.STATIC and one.is_default)]
        return tuple(replace(one, guest=guest) for one in hosts for guest in ("4k", "huge"))

    @contextmanager
    def prepare(self, profile: str, scratch: Path, disk: Path) -> Iterator[Prepared]:  # noqa: ARG002 - needs the disk
        """Fill a database on the host, and pack it with the programs for the guest."""
        installation = Installation.find()
        parameters = self.profiles[profile]
        archive = _pack(installation, disk / "guest-database-cluster", parameters)
        memory = parse_size(str(parameters["guest"]))
        with closing(GuestHost(disk / "guest-database", archive)) as host:

            def block(backing: Backing) -> Figures:
                words = f"hugepages={_guest_pages(parameters)}" if backing.guest == "huge" else ""
                size = GuestProfile(memory, int(parameters["cpus"] or 1))
                with host.running(backing, size, words) as guest:
                    if backing.is_all_static:
                        expect_static(guest.pid, memory, "QEMU")
                    return _measure(guest, installation, parameters, is_huge=backing.guest == "huge")

            identity = {"binary": sha256(installation.pgbench), **host.facts}
            version = parse_version(installation.version())
            yield Prepared(block, memory, identity, {"postgresql": version, "qemu": host.version})


def parse_counters(output: str) -> dict[str, int]:
    """Return the counters in files like /proc/meminfo and /proc/vmstat: kB, or numbers."""
    return {line["name"]: int(line["value"]) for line in _COUNTER.finditer(output)}


def _pack(installation: Installation, directory: Path, parameters: Mapping[str, Fact]) -> bytes:
    """Return an archive with PostgreSQL and a full database."""
    cluster = Cluster(installation, directory)
    cluster.create()
    try:
        with cluster.running({"fsync": "off", "max_wal_size": "64MB"}):
            cluster.pgbench(["--initialize", "--quiet", f"--scale={parameters['scale']}"], _FILL_SECONDS)
        # initdb has written the time zone of the host there, which the guest does not know
        (cluster.data / "postgresql.conf").write_text("", encoding="utf-8")
        data = io.BytesIO()
        with tarfile.open(fileobj=data, mode="w") as archive:
            archive.add(cluster.data, "data")
    finally:
        cluster.remove()
    programs = [installation.postgres, installation.pgbench]
    shared, modules = installation.directories()
    # the server wants to see the directory, and loads nothing from it
    files = {_DATA: data.getvalue(), str(modules / "empty").lstrip("/"): b"", **_USERS}
    return program_archive(programs, [shared], files)


def _guest_pages(parameters: Mapping[str, Fact]) -> int:
    """Return how many pages of the guest's default size, 2 MiB on most, the buffers and what is beside them need."""
    return parse_size(str(parameters["shared_buffers"]).removesuffix("B")) * 5 // 4 // (2 * MIB)


def _measure(
    guest: RunningGuest, installation: Installation, parameters: Mapping[str, Fact], *, is_huge: bool
) -> Figures:
    for command in _SET_UP:
        guest.run(f"/bin/busybox {command}", _BOOT_SECONDS)
    _start_server(guest, installation, parameters, is_huge=is_huge)
    users, seconds = int(parameters["users"] or 1), int(parameters["seconds"] or 1)
    load = f"{installation.pgbench} -h /cluster -U postgres -n -c {users} -j 1 -T"
    guest.run(f"{load} 2 postgres", _MORE_SECONDS)
    before, busy, begin = _counters(guest), cpu_seconds(guest.pid), time.monotonic()
    output = guest.run(f"{load} {seconds} postgres", seconds + _MORE_SECONDS)
    busy, took = cpu_seconds(guest.pid) - busy, time.monotonic() - begin
    after, host_tables = _counters(guest), page_tables_of(guest.pid) / KIB
    rate = parse_pgbench(output)
    if busy <= 0:
        raise InputError("guest: has used no CPU time, expected it to run")
    return {
        "guest-database-tps": [rate],
        "guest-database-host-cpu": [busy / took],
        "guest-database-tps-per-cpu": [rate * seconds / busy],
        "guest-database-host-page-tables": [host_tables],
        "guest-database-guest-page-tables": [float(after["PageTables"])],
        "guest-database-guest-faults": [(after["pgfault"] - before["pgfault"]) / (rate * seconds)],
    }


def _start_server(
    guest: RunningGuest, installation: Installation, parameters: Mapping[str, Fact], *, is_huge: bool
) -> None:
    settings = {
        "huge_pages": "on" if is_huge else "off",
        "shared_buffers": str(parameters["shared_buffers"]),
        "max_connections": str(int(parameters["users"] or 1) + 10),
        "unix_socket_directories": "/cluster",
        "listen_addresses": "",
        # there is no /dev/shm
        "dynamic_shared_memory_type": "mmap",
        "fsync": "off",
        "autovacuum": "off",
        # its library is larger than all the rest
        "jit": "off",
    }
    words = " ".join(f"-c {name}={value or chr(39) * 2}" for name, value in settings.items())
    server = f"{installation.postgres} -- -D /cluster/data {words}"
    daemon = f"/bin/busybox start-stop-daemon -S -c nobody:nogroup -x {server}"
    guest.run(f"{{ {daemon} >/log 2>&1 & }}", _BOOT_SECONDS)
    # the last line of the file tells whether it is ready
    is_ready = "/bin/busybox grep -q ^ready /cluster/data/postmaster.pid 2>/dev/null"
    tries = f"for i in $(/bin/busybox seq {_TRIES}); do {is_ready} && break; /bin/busybox sleep 1; done"
    guest.run(f"{tries}; {is_ready} || ! /bin/busybox cat /log", _BOOT_SECONDS)


def _counters(guest: RunningGuest) -> dict[str, int]:
    found = parse_counters(guest.run("/bin/busybox cat /proc/meminfo /proc/vmstat", _BOOT_SECONDS))
    if missing := {"PageTables", "pgfault"} - found.keys():
        raise InputError(f"guest: expected {', '.join(sorted(missing))} in /proc/meminfo and /proc/vmstat")
    return found
