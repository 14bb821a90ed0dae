"""The process of a machine is the one that holds its pid file."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hugepage_qa.qemu.system.system_machine import kill_emulator as kill
from hugepage_qa.qemu.system.system_machine import running_pid

# as qemu_create_pidfile() does
HOLDER = """
import fcntl, os, sys, time
file = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR, 0o600)
fcntl.lockf(file, fcntl.LOCK_EX)
os.write(file, str(os.getpid()).encode())
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "qemu.pid")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_holder_is_found_and_ended(holder: subprocess.Popen[str], tmp_path: Path) -> None:
    pid_file = tmp_path / "qemu.pid"
    assert running_pid(pid_file) == holder.pid
    kill(pid_file)
    assert holder.wait(10) == -9
    assert running_pid(pid_file) is None


def test_nobody_is_ended_for_a_pid_that_was_left_in_a_file(tmp_path: Path) -> None:
    pid_file = tmp_path / "qemu.pid"
    with subprocess.Popen(["sleep", "600"]) as bystander:  # noqa: S607
        try:
            pid_file.write_text(f"{bystander.pid}\n")
            assert running_pid(pid_file) is None
            kill(pid_file)
            assert bystander.poll() is None
        finally:
            bystander.kill()


def test_machine_that_never_ran(tmp_path: Path) -> None:
    assert running_pid(tmp_path / "absent") is None
    kill(tmp_path / "absent")


def test_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").touch()
    (tmp_path / "qemu.pid").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        running_pid(tmp_path / "qemu.pid")
