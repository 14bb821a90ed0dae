"""Workload ``guest-network``: iperf3 from a guest, whose memory is on pages of each kind, to its host.

The study: guests of 12 GiB and 14 CPUs on THP and on pages of 1 GiB, ``iperf3 -c`` to a server on their host, one guest
at a time, the bandwidth of the sender; 29.74 and 29.85 Gbit/s. Here the guest is in QEMU's user-mode network, which
needs no bridge: what is sent to the gateway in there arrives at the loopback address of the host.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from hugepage_qa.bench.backing import Backing
from hugepage_qa.bench.guest_archive import program_archive
from hugepage_qa.bench.guest_machine import GuestHost, GuestProfile, RunningGuest, emulator
from hugepage_qa.bench.iperf3 import iperf3_server, iperf3_version, parse_iperf3
from hugepage_qa.bench.process_pages import page_tables_of
from hugepage_qa.bench.program import find_program, sha256
from hugepage_qa.bench.unavailable import Unavailable
from hugepage_qa.bench.workload import Fact, Figures, Metric, Prepared, Program
from hugepage_qa.guest.virtio import NETWORK, load_drivers
from hugepage_qa.sizes import KIB, parse_size

_COMMAND_SECONDS = 120.0
#: QEMU documentation, "Network emulation", user mode: the guest and the gateway
_GUEST, _GATEWAY = "10.0.2.15", "10.0.2.2"
_DEVICES = ("-netdev", "user,id=network", "-device", "virtio-net,netdev=network")


class GuestNetwork:
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

    def backings(self, there: Sequence[Backing]) -> tuple[Backing, ...]:
        """All."""
        return tuple(there)

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

            identity = {"version": iperf3_version(iperf3), "binary": sha256(iperf3), **host.facts}
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
