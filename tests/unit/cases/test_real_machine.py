"""The kernel log of the machine itself: what cannot be read of it is told, and never passed over."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from hugepage_qa.errors import InputError
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
