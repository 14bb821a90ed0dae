"""Workload ``guest-network``: iperf3 from a guest, whose memory is on pages of each kind, to its host.

The study: guests of 12 GiB and 14 CPUs on THP and on pages of 1 GiB, ``iperf3 -c`` to a server on their host, one guest
at a time, the bandwidth of the sender; 29.74 and 29.85 Gbit/s. Here the guest is in QEMU's user-mode network, which
needs no bridge: what is sent to the gateway in there arrives at the loopback address of the host.
"""

import re
import signal
import socket
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from hugepage_qa.bench.backing import Backing
from hugepage_qa.bench.benchmark_program import (
    files_digest,
    find_program,
    page_tables_of,
    private_directory,
    run_program,
    running_server,
)
from hugepage_qa.bench.measured_guest import GuestHost, GuestProfile, RunningGuest, emulator, program_archive
from hugepage_qa.bench.workload import Fact, Figures, Metric, Prepared, Program, Unavailable, Workload
from hugepage_qa.errors import InputError
from hugepage_qa.qemu.guest.console import NETWORK, load_drivers
from hugepage_qa.schema import find_violation, parse_json
from hugepage_qa.sizes import KIB, parse_size

LOOPBACK = "127.0.0.1"

_VERSION = re.compile(r"^iperf (?P<version>3[0-9.]{1,10})", re.MULTILINE)
_LISTENS = "Server listening on"
_VERSION_SECONDS = 60.0
_SHOWN = 200

#: a run that lasted less of what it was asked for was cut off
_WHOLE = 0.9
#: what was sent and had not arrived when the time was over is in buffers
_ARRIVED = 0.5


@contextmanager
def iperf3_server(iperf3: Path, directory: Path) -> Iterator[int]:
    """Run a server as nobody and yield its port, which only this machine reaches. Raises InputError."""
    with private_directory(directory):
        port = _unused_port()
        command: list[str | Path] = [iperf3, "--server", "--forceflush", "--bind", LOOPBACK, "--port", str(port)]

        def is_ready() -> bool:
            return _LISTENS in (directory / "log").read_text(encoding="utf-8", errors="replace")

        with running_server(command, directory, is_ready, signal.SIGTERM):
            yield port


def iperf3_version(iperf3: Path) -> str:
    """Return the version of the program. Raises InputError."""
    output = run_program([iperf3, "--version"], deadline=_VERSION_SECONDS)
    found = _VERSION.search(output)
    if found is None:
        raise InputError(f"iperf3 --version: expected 'iperf 3.12', got {output[:_SHOWN]!r}")
    return found["version"]


def parse_iperf3(output: str, seconds: float) -> float:
    """Return the bits per second that the client has sent within ``seconds``, as it prints them with ``--json``.

    Raises InputError when the test failed or was cut off, when what was sent has not arrived, or nobody knows.
    """
    try:
        document = parse_json(output)
    except ValueError as error:
        raise InputError(f"iperf3: expected JSON ({error}), got {output[-_SHOWN:]!r}") from error
    if isinstance(document, dict) and "error" in document:
        raise InputError(f"iperf3: {str(document['error'])[:_SHOWN]}")
    violation = find_violation(document, __package__, "iperf3")
    if violation is not None:
        raise InputError(f"iperf3: {violation[:_SHOWN]}")
    sent, received = document["end"]["sum_sent"], document["end"]["sum_received"]
    if sent["seconds"] < _WHOLE * seconds:
        raise InputError(f"iperf3: sent for {sent['seconds']:g} s, expected {seconds:g} s")
    if received["bytes"] < _ARRIVED * sent["bytes"]:
        raise InputError(f"iperf3: {received['bytes']} of {sent['bytes']} bytes arrived, expected nearly all")
    return float(sent["bits_per_second"])


def _unused_port() -> int:
    """Return a port that nobody listens on; who takes it meanwhile makes the server fail, and tell why."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as one:
        one.bind((LOOPBACK, 0))
        return int(one.getsockname()[1])


_COMMAND_SECONDS = 120.0
#: QEMU documentation, "Network emulation", user mode: the guest and the gateway
_GUEST, _GATEWAY = "10.0.2.15", "10.0.2.2"
_DEVICES = ("-netdev", "user,id=network", "-device", "virtio-net,netdev=network")


class GuestNetwork(Workload):
    """Send from a guest to its host over TCP, one run after the other."""

    name = "guest-network"
    metrics = (
        Metric("guest-network", "bit/s", "higher"),
        Metric("guest-network-host-page-tables", "kB", "lower"),
    )
    programs = (Program("iperf3", "iperf3", "iperf3"), *emulator())
    profiles: Mapping[str, Mapping[str, Fact]] = {
        "quick": {"guest": "1G", "cpus": 1, "guests": "alternating", "network": "user", "seconds": 3, "runs": 4},
        "reference": {
            "guest": "12G",
            "cpus": 14,
            "guests": "alternating",
            "network": "user",
            "seconds": 10,
            "runs": 11,
        },
    }

    @contextmanager
    def prepare(self, profile: str, scratch: Path, disk: Path) -> Iterator[Prepared]:  # noqa: ARG002 - needs the disk
        """Pack iperf3 for the guest."""
        iperf3 = find_program("iperf3", "iperf3")
        parameters = self.profiles[profile]
        memory = parse_size(str(parameters["guest"]))
        size = GuestProfile(memory, int(parameters["cpus"] or 1), devices=_DEVICES)
        with closing(GuestHost(disk / "guest-network", program_archive([iperf3]))) as host:

            def block(backing: Backing) -> Figures:
                with iperf3_server(iperf3, disk / "guest-network-server") as port, host.running(backing, size) as guest:
                    _set_up(guest)
                    command = f"{iperf3} --client {_GATEWAY} --port {port} --interval 0 --json"
                    rates = _send(guest, command, int(parameters["runs"] or 0), int(parameters["seconds"] or 0))
                    tables = page_tables_of(guest.pid) / KIB
                return {self.name: rates, "guest-network-host-page-tables": [tables]}

            identity = {"version": iperf3_version(iperf3), "binary": files_digest(iperf3), **host.facts}
            yield Prepared(block, memory, identity, {"qemu": host.version})


def _set_up(guest: RunningGuest) -> None:
    """Give the guest its address. Raises Unavailable where its kernel has no driver for the network."""
    interfaces = guest.run(f"{load_drivers(*NETWORK)}; ls /sys/class/net", _COMMAND_SECONDS).split()
    others = [name for name in interfaces if name != "lo"]
    if not others:
        raise Unavailable("the guest's kernel has no driver for virtio-net")
    guest.run(f"ifconfig {others[0]} {_GUEST} netmask 255.255.255.0 up", _COMMAND_SECONDS)


def _send(guest: RunningGuest, command: str, runs: int, seconds: int) -> list[float]:
    """Return the bits per second of each run but the first, which warms up."""
    outputs = [guest.run(f"{command} --time {seconds}", seconds + _COMMAND_SECONDS) for _ in range(runs)]
    return [parse_iperf3(output, seconds) for output in outputs][1:]
