"""A private iperf3 server on the loopback address, and what its client prints."""

import re
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hugepage_qa.bench.program import run_program
from hugepage_qa.bench.server import private_directory, running_server
from hugepage_qa.errors import InputError
from hugepage_qa.schema import find_violation, parse_json

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
