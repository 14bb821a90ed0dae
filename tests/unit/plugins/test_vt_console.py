"""The console of a guest through aexpect: commands that succeed and fail, and a guest that is slow or gone."""

import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from hugepage_qa.cases.guest.guest import Guest
from hugepage_qa.errors import InputError
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


def known(path: Path, *, ended: bool = False) -> Guest:
    """Return the guest with that console as its driver knows it."""
    return cast(Guest, SimpleNamespace(name="guest", console=str(path), has_ended=lambda _seconds: ended))


def test_commands(tmp_path: Path) -> None:
    with guest(tmp_path / "console", SHELL), console_shell(known(tmp_path / "console")) as run:
        assert run("echo one; echo two") == "one\ntwo\n"
        assert run("x=kept") == ""
        assert run("echo $x") == "kept\n"
        with pytest.raises(GuestError, match=r"'false'.*status: 1"):
            run("false")
        assert run("echo on") == "on\n"


JUDGED = [(True, GuestError, "guest has ended by itself: "), (False, InputError, "console of guest: ")]


@pytest.mark.parametrize(("ended", "kind", "said"), JUDGED)
def test_a_console_that_closes(tmp_path: Path, ended: bool, kind: type[Exception], said: str) -> None:
    path = tmp_path / "console"
    with (
        guest(path, SHELL),
        console_shell(known(path, ended=ended)) as run,
        pytest.raises(kind, match=f"{said}Shell process terminated"),
    ):
        run("exit 1")


@pytest.mark.parametrize(("ended", "kind", "said"), JUDGED)
def test_a_command_that_takes_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: bool, kind: type[Exception], said: str
) -> None:
    """A slow machine is not the kernel's fault."""
    path = tmp_path / "console"
    with guest(path, SHELL), console_shell(known(path, ended=ended)) as run:
        monkeypatch.setattr(vt_test, "_SECONDS", 0.2)
        with pytest.raises(kind, match=f"{said}Timeout expired"):
            run("sleep 1")


@pytest.mark.parametrize(("ended", "kind", "said"), JUDGED)
def test_a_guest_that_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: bool, kind: type[Exception], said: str
) -> None:
    monkeypatch.setattr(vt_test, "_SECONDS", 0.2)
    path = tmp_path / "console"
    with (
        guest(path, "cat >/dev/null"),
        pytest.raises(kind, match=f"{said}Timeout expired"),
        console_shell(known(path, ended=ended)),
    ):
        pass


def test_no_console(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="console of guest: "), console_shell(known(tmp_path / "none")):
        pass
