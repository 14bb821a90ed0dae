"""Commands to QEMU over its control socket."""

import json
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from hugepage_qa.errors import InputError
from hugepage_qa.qemu.qmp_monitor import CommandRefused, Monitor

GREETING: dict[str, object] = {"QMP": {"version": {}, "capabilities": []}}
EVENT: dict[str, object] = {"event": "RESET", "data": {}, "timestamp": {"seconds": 1, "microseconds": 0}}

Serve = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A socket whose path is longer than a socket address can be."""
    pytest.importorskip("qemu.qmp")
    directory = tmp_path / ("d" * 120)
    directory.mkdir()
    return directory / "qmp.sock"


@pytest.fixture
def serve(path: Path) -> Serve:
    """Return serve(answers...): one connection gets them, one for each command; what it sent is returned.

    An answer has the id that was asked with. A file that is sent with a command is returned as its name.
    """

    def start(*answers: list[object]) -> list[dict[str, Any]]:
        asked: list[dict[str, Any]] = []
        listener = listen(path)

        def answer() -> None:
            connection, _ = listener.accept()
            with listener, connection:
                connection.sendall(json.dumps(GREETING).encode() + b"\r\n")
                for lines in answers:
                    question, name = _receive(connection)
                    if not question:
                        return
                    identifier = question.pop("id", None)
                    asked.append({**question, "file": name} if name else question)
                    said = [_answered(line, identifier) for line in lines]
                    connection.sendall(b"".join(json.dumps(line).encode() + b"\r\n" for line in said))
                # hangs up when the other side does, and at once where the last command has no answer
                if answers[-1]:
                    connection.recv(1)

        threading.Thread(target=answer, daemon=True).start()
        return asked

    return start


def listen(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    here = os.open(path.parent, os.O_RDONLY)
    listener.bind(f"/proc/self/fd/{here}/{path.name}")
    os.close(here)
    listener.listen()
    return listener


def _answered(line: object, identifier: object) -> object:
    return {**line, "id": identifier} if isinstance(line, dict) and "event" not in line else line


def _receive(connection: socket.socket) -> tuple[dict[str, Any], str]:
    """Return the next question and the name of the file that came with it; QEMU needs no end of a line."""
    text, name = b"", ""
    while True:
        piece, descriptors, _flags, _address = socket.recv_fds(connection, 4096, 1)
        if not piece:
            return {}, ""
        text += piece
        for descriptor in descriptors:
            name = str(Path(f"/proc/self/fd/{descriptor}").readlink())
            os.close(descriptor)
        with suppress(ValueError):
            return json.loads(text), name


def ask(path: Path, command: str, **arguments: object) -> object:
    with Monitor(path, 20) as monitor:
        return monitor.ask(command, arguments, seconds=20)


def test_answer_comes_after_events(path: Path, serve: Serve) -> None:
    asked = serve([{"return": {}}], [EVENT, EVENT, {"return": {"running": True}}])
    assert ask(path, "query-status") == {"running": True}
    assert [question["execute"] for question in asked] == ["qmp_capabilities", "query-status"]


def test_arguments_and_several_commands(path: Path, serve: Serve) -> None:
    asked = serve([{"return": {}}], [{"return": 1}], [{"return": 2}])
    with Monitor(path, 20) as monitor:
        assert monitor.ask("balloon", {"value": 5}, seconds=20) == 1
        assert monitor.ask("cont", seconds=20) == 2
    assert asked[1:] == [{"execute": "balloon", "arguments": {"value": 5}}, {"execute": "cont"}]


def test_an_open_file_comes_with_the_next_command(path: Path, serve: Serve, tmp_path: Path) -> None:
    asked = serve([{"return": {}}], [{"return": {}}])
    with Monitor(path, 20) as monitor, (tmp_path / "saved").open("wb") as file:
        monitor.give(file.fileno())
        monitor.ask("getfd", {"fdname": "saved"}, seconds=20)
    assert asked[1:] == [
        {"execute": "getfd", "arguments": {"fdname": "saved"}, "file": str(tmp_path / "saved")},
    ]


def test_refusal_is_an_error(path: Path, serve: Serve) -> None:
    serve([{"return": {}}], [{"error": {"class": "CommandNotFound", "desc": "no such command"}}])
    with pytest.raises(CommandRefused, match=r"^QEMU refuses jump: no such command$") as caught:
        ask(path, "jump")
    assert caught.value.reason == "no such command"


def test_connection_that_closes(path: Path, serve: Serve) -> None:
    serve([{"return": {}}], [])
    with pytest.raises(InputError, match="QEMU closed its control connection"):
        ask(path, "system_reset")


def test_answer_that_is_no_object(path: Path, serve: Serve) -> None:
    serve([[1, 2]])
    with pytest.raises(InputError, match="QEMU does not answer"):
        ask(path, "system_reset")


def test_nobody_there(path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match=r"qmp\.sock: QEMU does not answer \(No such file or directory\)$"):
        ask(path, "system_reset")
    # the error says it all, once
    assert logging.getLogger("qemu.qmp").handlers
    assert capsys.readouterr().err == ""
    caplog.clear()


def test_nobody_who_answers_in_time(path: Path) -> None:
    with listen(path), pytest.raises(InputError, match=r"QEMU does not answer within 0\.2 s$"):
        Monitor(path, 0.2)


def test_a_command_that_is_not_answered_in_time(path: Path, serve: Serve) -> None:
    serve([{"return": {}}], [EVENT])
    with Monitor(path, 20) as monitor, pytest.raises(InputError, match=r"does not answer system_reset within 0\.2 s"):
        monitor.ask("system_reset", seconds=0.2)


def test_without_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "qemu.qmp", None)
    with pytest.raises(InputError, match=r"qemu\.qmp is not installed: install hugepage-qa\[qemu\]$"):
        Monitor(tmp_path / "qmp.sock", 20)
