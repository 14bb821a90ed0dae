"""Iperf3 from a guest to its host: what it prints, and what is no figure."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest
from tests.unit.bench.fake_guest import FakeHost

from hugepage_qa.bench import guest_network
from hugepage_qa.bench.backing import Backing, Kind
from hugepage_qa.bench.guest_network import GuestNetwork, parse_iperf3
from hugepage_qa.bench.workload import Prepared, Unavailable
from hugepage_qa.errors import InputError
from hugepage_qa.sizes import MIB

BASE = Backing(Kind.BASE, 4096)


def output(sent: float = 3.0, bits: float = 1.25e9, arrived: float = 1.0) -> str:
    """Return what the client prints after it has sent for so many seconds."""
    whole = int(sent * bits / 8)
    sums = {
        "sum_sent": {"start": 0, "end": sent, "seconds": sent, "bytes": whole, "bits_per_second": bits, "sender": True},
        "sum_received": {"seconds": sent, "bytes": int(arrived * whole), "bits_per_second": arrived * bits},
    }
    return json.dumps({"start": {"version": "iperf 3.12"}, "intervals": [], "end": sums}, indent=1)


@contextmanager
def prepared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, **answers: str) -> Iterator[Prepared]:
    """Yield the workload with a guest that gives ``answers``."""
    iperf3 = tmp_path / "iperf3"
    iperf3.touch()
    monkeypatch.setattr(guest_network, "find_program", lambda *_names: iperf3)
    monkeypatch.setattr(guest_network, "iperf3_version", lambda _program: "3.12")
    monkeypatch.setattr(guest_network, "program_archive", lambda _programs: b"")
    monkeypatch.setattr(guest_network, "iperf3_server", lambda *_: nullcontext(5201))
    monkeypatch.setattr(guest_network, "page_tables_of", lambda _pid: 4 * MIB)
    found = {"/sys/class/net": answers.get("interfaces", "eth0\nlo\n"), "--client": answers.get("said", output())}
    monkeypatch.setattr(guest_network, "GuestHost", lambda *_: FakeHost(found))
    with GuestNetwork().prepare("quick", tmp_path, tmp_path) as ready:
        yield ready


def test_bits_per_second_of_the_sender() -> None:
    assert parse_iperf3(output(), 3) == 1.25e9


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected JSON"),
        (output()[:-9], "expected JSON"),
        (output().replace("1250000000.0", "NaN"), "expected JSON"),
        (output().replace("1250000000.0", "0"), "less than or equal"),
        (output().replace("1250000000.0", '"fast"'), "not of type"),
        (output().replace("sum_received", "sum"), "'sum_received' is a required property"),
        ("[1]", "not of type 'object'"),
        ('{"start": {}, "error": "unable to connect to server: Connection refused"}', "Connection refused"),
        (output(sent=1.5), "sent for 1.5 s, expected 3 s"),
        (output(arrived=0.1), "bytes arrived, expected nearly all"),
    ],
)
def test_what_is_no_figure(text: str, said: str) -> None:
    with pytest.raises(InputError, match=f"iperf3: .*{said}"):
        parse_iperf3(text, 3)


def test_the_first_run_warms_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with prepared(monkeypatch, tmp_path) as ready:
        assert ready.block(BASE) == {"guest-network": [1.25e9] * 3, "guest-network-host-page-tables": [4096]}
    sends = [command for command in FakeHost.typed["bench"] if "--client" in command]
    assert len(sends) == 4
    assert "--client 10.0.2.2 --port 5201" in sends[0]
    assert any("ifconfig eth0 10.0.2.15" in command for command in FakeHost.typed["bench"])


def test_a_guest_without_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with (
        prepared(monkeypatch, tmp_path, interfaces="lo\n") as ready,
        pytest.raises(Unavailable, match="no driver for virtio-net"),
    ):
        ready.block(BASE)


def test_a_run_that_failed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with prepared(monkeypatch, tmp_path, said="{}") as ready, pytest.raises(InputError, match="'end' is a required"):
        ready.block(BASE)


def test_profiles() -> None:
    reference = GuestNetwork.profiles["reference"]
    assert (reference["guest"], reference["cpus"], reference["seconds"]) == ("12G", 14, 10)
    assert {profile["guests"] for profile in GuestNetwork.profiles.values()} == {"alternating"}
