"""The console of a guest that answers, that ends, and that says nothing."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hugepage_qa.errors import InputError
from hugepage_qa.qemu.guest.console import await_output, converse, read_console
from hugepage_qa.qemu.guest.driver import GuestError


@contextmanager
def guest(path: Path, *answer: bytes, hangs: bool = False) -> Iterator[None]:
    """Serve one line on the socket ``path`` with ``answer``, and close it unless the guest ``hangs``."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(path))
        server.listen()
        over = threading.Event()

        def serve() -> None:
            console, _address = server.accept()
            with console:
                console.recv(4096)
                for piece in answer:
                    console.sendall(piece)
                if hangs:
                    over.wait()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def test_an_answer_ends_with_the_pattern(tmp_path: Path) -> None:
    with guest(tmp_path / "console", b"uname\r\nLin", b"ux\r\n@ended 0\r\nmore", hangs=True):
        assert converse(tmp_path / "console", "uname", r"@ended \d+\n", 20) == "uname\nLinux\n@ended 0\n"


def test_what_is_typed_is_read_to_its_end(tmp_path: Path) -> None:
    with guest(tmp_path / "console", b"power", b"off", b" -f", b"\r\n", hangs=True):
        assert converse(tmp_path / "console", "poweroff -f", "poweroff", 20) == "poweroff -f\n"


def test_a_guest_that_ends_has_said_less(tmp_path: Path) -> None:
    with guest(tmp_path / "console", b"echo c"):
        assert converse(tmp_path / "console", "echo c", "never", 20) == "echo c"


def test_a_guest_that_says_nothing(tmp_path: Path) -> None:
    with guest(tmp_path / "console", hangs=True), pytest.raises(InputError, match="no 'never' within 0 s"):
        converse(tmp_path / "console", "x", "never", 0)


def test_no_console(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        converse(tmp_path / "console", "x", "y", 1)


def test_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert read_console(log) == ""
    with pytest.raises(InputError, match="no 'ready' on the console within 0 s"):
        await_output(log, "ready", 0, bool)
    log.write_bytes(b"booting\r\n@ready\r\n")
    await_output(log, "@ready\n", 0, bool)
    assert read_console(log) == "booting\n@ready\n"


def test_a_guest_that_ends_is_not_waited_for(tmp_path: Path) -> None:
    def expect_alive() -> None:
        raise GuestError("guest does not run")

    with pytest.raises(GuestError, match="does not run"):
        await_output(tmp_path / "log", "ready", 300, expect_alive)
