"""PostgreSQL of this machine in a guest: packed with an empty cluster, started on pages of a kind, and its counters."""

import io
import re
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hugepage_qa.bench.guest_archive import program_archive
from hugepage_qa.bench.guest_machine import RunningGuest
from hugepage_qa.bench.postgresql import Cluster, Installation
from hugepage_qa.bench.server import NOBODY
from hugepage_qa.errors import InputError
from hugepage_qa.sizes import KIB, format_size

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


def pack(installation: Installation, directory: Path) -> bytes:
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
    installation: Installation

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
