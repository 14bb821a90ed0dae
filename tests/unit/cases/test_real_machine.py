"""The kernel log of the machine itself: what cannot be read of it is told, and never passed over."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from hugepage_qa.errors import InputError
from hugepage_qa.kernel.proc_tables import read_segments
from hugepage_qa.kernel.tree import DirectoryTree
from hugepage_qa.machine import real_machine as module
from hugepage_qa.machine.real_machine import RealMachine, real_machine


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[RealMachine]:
    with real_machine(tmp_path) as started:
        yield started


def test_a_log_that_may_not_be_read_is_told(
    machine: RealMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module._KernelLog, "_PATH", str(tmp_path / "kmsg"))
    with pytest.raises(InputError, match=r"kmsg: No such file or directory"):
        machine.perform("skip_kernel_log", [])


def test_lines_that_were_overwritten_are_told(
    machine: RealMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "kmsg"
    log.write_text("")

    def overwritten(_descriptor: int, _length: int) -> NoReturn:
        raise BrokenPipeError

    monkeypatch.setattr(module._KernelLog, "_PATH", str(log))
    monkeypatch.setattr(os, "read", overwritten)
    with pytest.raises(InputError, match="overwritten"):
        machine.perform("new_kernel_log", [])


_MAKES_A_SEGMENT = """
import os, signal, sys
from pathlib import Path
from hugepage_qa.machine.host import Host
from hugepage_qa.machine.real_machine import real_machine
with real_machine(Path(sys.argv[1])) as machine:
    print(Host(machine).start_actor().call("shmget", 0, 4096, 0o1600), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs rights")
def test_a_run_that_is_killed_leaves_no_segment(tmp_path: Path) -> None:
    before = read_segments(DirectoryTree(Path("/")))
    run = subprocess.run([sys.executable, "-c", _MAKES_A_SEGMENT, tmp_path], stdout=subprocess.PIPE, check=False)
    assert run.returncode < 0
    assert int(run.stdout) >= 0
    assert read_segments(DirectoryTree(Path("/"))) == before
