"""Commands to QEMU over its control socket."""

import json
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from hugepage_qa.errors import InputError
from hugepage_qa.qemu.system import monitor

GREETING: dict[str, object] = {"QMP": {"version": {}, "capabilities": []}}
EVENT = {"event": "RESET", "data": {}}

Serve = Callable[..., list[object]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A socket whose path is longer than a socket address can be."""
    directory = tmp_path / ("d" * 120)
    directory.mkdir()
    return directory / "qmp.sock"


@pytest.fixture
def serve(path: Path) -> Serve:
    """Return serve(answers...): one connection gets them, one for each line that it sends; what it sent is returned."""

    def start(*answers: list[object]) -> list[object]:
        asked: list[object] = []
        listener = socket.socket(socket.AF_UNIX)
        here = os.open(path.parent, os.O_RDONLY)
        listener.bind(f"/proc/self/fd/{here}/{path.name}")
        os.close(here)
        listener.listen()

        def answer() -> None:
            connection, _ = listener.accept()
            with listener, connection, connection.makefile("rwb") as stream:
                stream.write(json.dumps(GREETING).encode() + b"\n")
                stream.flush()
                for lines in answers:
                    asked.append(json.loads(stream.readline()))
                    stream.write(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
                    stream.flush()

        threading.Thread(target=answer, daemon=True).start()
        return asked

    return start


def test_answer_comes_after_events(path: Path, serve: Serve) -> None:
    asked = serve([{"return": {}}], [EVENT, EVENT, {"return": {"running": True}}])
    assert monitor.execute(path, "query-status") == {"running": True}
    assert asked == [{"execute": "qmp_capabilities"}, {"execute": "query-status"}]


def test_refusal_is_an_error(path: Path, serve: Serve) -> None:
    serve([{"return": {}}], [{"error": {"class": "CommandNotFound", "desc": "no such command"}}])
    with pytest.raises(InputError, match="QEMU refuses jump: no such command"):
        monitor.execute(path, "jump")


def test_connection_that_closes(path: Path, serve: Serve) -> None:
    serve([{"return": {}}], [])
    with pytest.raises(InputError, match="QEMU closed its control connection"):
        monitor.execute(path, "system_reset")


def test_answer_that_is_no_object(path: Path, serve: Serve) -> None:
    serve([[1, 2]])
    with pytest.raises(InputError, match="QEMU closed its control connection"):
        monitor.execute(path, "system_reset")


def test_nobody_there(path: Path) -> None:
    with pytest.raises(InputError, match="QEMU does not answer"):
        monitor.execute(path, "system_reset")
