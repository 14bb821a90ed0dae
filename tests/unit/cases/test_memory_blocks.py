"""A block of memory that a kernel does not let go is a reason not to add it again, and no reason to call it wrong."""

import errno
import os
from contextlib import ExitStack
from typing import Any

import pytest
from tests.unit.cases.still_machine import StillMachine

from hugepage_qa.cases.live import Live
from hugepage_qa.cases.memory_blocks import take_a_block
from hugepage_qa.machine.host import CannotRun, Host
from hugepage_qa.oracle.rules import Rule
from hugepage_qa.process.actor import Refused
from hugepage_qa.sizes import MIB

DIRECTORY = "sys/devices/system/memory"


class Blocks(StillMachine):
    """Two blocks of memory, each of which is refused with ``error`` when it is to go."""

    def __init__(self, error: int) -> None:
        super().__init__({"write": self._write, "is_thrown_away": lambda: True})
        self._error = error
        self.tried: list[str] = []

    def _write(self, path: str, _text: str) -> None:
        self.tried.append(path)
        raise Refused(self._error, os.strerror(self._error))

    def perform(self, operation: str, arguments: Any) -> Any:
        """Answer."""
        match operation, *arguments:
            case "names", str(path) if path == DIRECTORY:
                return ["memory0", "memory1", "power"]
            case "read", str(path) if path.startswith(DIRECTORY):
                return "8000000\n" if path.endswith("block_size_bytes") else "online\n"
        return super().perform(operation, arguments)


@pytest.mark.parametrize(
    ("error", "reason", "tried"),
    [(errno.EBUSY, "pages that cannot be moved", [1, 0]), (errno.EPERM, "the machine was booted with", [1])],
)
def test_memory_that_is_not_let_go_is_no_failure(error: int, reason: str, tried: list[int]) -> None:
    machine = Blocks(error)
    with ExitStack() as stack:
        live = Live(Host(machine), 2 * MIB, Rule("rule", "statement", "source"), stack)
        with pytest.raises(CannotRun, match=reason):
            take_a_block(live)
    assert machine.tried == [f"{DIRECTORY}/memory{number}/state" for number in tried]


def test_any_other_refusal_is_one_of_the_kernel() -> None:
    with ExitStack() as stack:
        live = Live(Host(Blocks(errno.EIO)), 2 * MIB, Rule("rule", "statement", "source"), stack)
        with pytest.raises(Refused):
            take_a_block(live)
