"""The console of a guest through aexpect: commands that succeed and fail, and a guest that says nothing."""

import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hugepage_qa.plugins import vt_test
from hugepage_qa.plugins.vt_test import console_shell
from hugepage_qa.qemu.guest.driver import GuestError

pytestmark = pytest.mark.skipif(shutil.which("nc") is None, reason="nc is not installed")

#: as the guest's own (guest/image.py)
SHELL = "set -f; while read -r line; do eval $line; done"


@pytest.fixture(autouse=True)
def helper_in_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


@contextmanager
def guest(path: Path, script: str) -> Iterator[None]:
    """Serve the shell ``script`` on the socket ``path``."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(path))
        server.listen()

        def serve() -> None:
            console, _address = server.accept()
            with console:
                number = console.fileno()
                subprocess.run(["/bin/sh", "-c", script], stdin=number, stdout=number, stderr=number, check=False)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            thread.join()


def test_commands(tmp_path: Path) -> None:
    with guest(tmp_path / "console", SHELL), console_shell(str(tmp_path / "console")) as run:
        assert run("echo one; echo two") == "one\ntwo\n"
        assert run("x=kept") == ""
        assert run("echo $x") == "kept\n"
        with pytest.raises(GuestError, match=r"'false'.*status: 1"):
            run("false")
        assert run("echo on") == "on\n"


def test_a_guest_that_ends(tmp_path: Path) -> None:
    with guest(tmp_path / "console", SHELL), console_shell(str(tmp_path / "console")) as run, pytest.raises(GuestError):
        run("exit 1")


def test_a_guest_that_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vt_test, "_SECONDS", 0.2)
    with (
        guest(tmp_path / "console", "cat >/dev/null"),
        pytest.raises(GuestError, match="console of the guest: "),
        console_shell(str(tmp_path / "console")),
    ):
        pass


def test_no_console(tmp_path: Path) -> None:
    with pytest.raises(GuestError, match="console of the guest: "), console_shell(str(tmp_path / "none")):
        pass
