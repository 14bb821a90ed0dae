"""A block of memory that a kernel does not let go is a reason not to add it again, and no reason to call it wrong."""

import errno
from contextlib import ExitStack
from typing import Any

import pytest
from tests.unit.cases.still_machine import StillMachine

from hugepage_qa.cases.live import Live
from hugepage_qa.cases.memory_blocks import take_a_block
from hugepage_qa.machine.host import CannotRun, Host
from hugepage_qa.oracle.rules import Rule
from hugepage_qa.process.actor import Refused
from hugepage_qa.process.actor_link import ActorGone
from hugepage_qa.sizes import MIB

DIRECTORY = "sys/devices/system/memory"
_TRIED_FOR_EVER = 0


class Blocks(StillMachine):
    """Two blocks of memory, each of which is refused with ``error`` when it is to go, or is never let go without one.

    ``tried`` are those that were to go, by their files.
    """

    def __init__(self, error: int) -> None:
        super().__init__({"start_actor": lambda: (0, 1), "request": self._answer, "is_thrown_away": lambda: True})
        self._error = error
        self._opened = ""
        self._has_timer = False
        self.tried: list[str] = []

    def _answer(self, _number: int, text: str) -> tuple[str, None]:
        _call, name, *arguments = text.split()
        if name == "openat":
            self._opened = bytes.fromhex(arguments[1][1:]).rstrip(b"\0").decode()
        self._has_timer |= name == "setitimer"
        if name != "write":
            return "ok 3", None
        self.tried.append(self._opened)
        if not self._error:
            assert self._has_timer
            raise ActorGone
        return f"errno {self._error}", None

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
    [
        (errno.EBUSY, "pages that cannot be moved", [1, 0]),
        (_TRIED_FOR_EVER, "pages that cannot be moved", [1, 0]),
        (errno.EPERM, "the machine was booted with", [1]),
    ],
)
def test_memory_that_is_not_let_go_is_no_failure(error: int, reason: str, tried: list[int]) -> None:
    machine = Blocks(error)
    with ExitStack() as stack:
        live = Live(Host(machine), 2 * MIB, Rule("rule", "statement", "source"), stack)
        with pytest.raises(CannotRun, match=reason):
            take_a_block(live)
    assert machine.tried == [f"/{DIRECTORY}/memory{number}/state" for number in tried]


def test_any_other_refusal_is_one_of_the_kernel() -> None:
    with ExitStack() as stack:
        live = Live(Host(Blocks(errno.EIO)), 2 * MIB, Rule("rule", "statement", "source"), stack)
        with pytest.raises(Refused):
            take_a_block(live)
