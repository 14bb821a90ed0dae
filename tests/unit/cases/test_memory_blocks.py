"""A block of memory that a kernel does not let go is a reason not to add it again, and no reason to call it wrong."""

import errno
from contextlib import ExitStack
from typing import Any

import pytest
from tests.unit.cases.still_machine import StillMachine

from hugepage_qa.cases.live import Live
from hugepage_qa.cases.memory_blocks import take_a_block
from hugepage_qa.cases.struct_pages import keep_struct_pages_that_nobody_counts
from hugepage_qa.machine.host import CannotRun, Host
from hugepage_qa.oracle.rules import Rule
from hugepage_qa.process.actor import Refused
from hugepage_qa.process.actor_link import ActorGone
from hugepage_qa.sizes import GIB, MIB

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


class GoesAtTheSignal(Blocks):
    """Lets its last block go when the signal has come: what asked for that has ended, and tells nothing."""

    def __init__(self) -> None:
        super().__init__(_TRIED_FOR_EVER)
        self.added: list[str] = []

    def perform(self, operation: str, arguments: Any) -> Any:
        """Answer."""
        state = f"{DIRECTORY}/memory1/state"
        match operation, *arguments:
            case "read", str(path) if path == state and self.tried and not self.added:
                return "offline\n"
            case "read" | "observe", "proc/meminfo":
                return f"MemTotal: {(4 * GIB - (128 * MIB if self.tried else 0)) >> 10} kB\n"
            case "write", str(path), "online":
                self.added.append(path)
                return None
        return super().perform(operation, arguments)


def test_block_that_went_just_before_the_signal_is_taken_and_put_back() -> None:
    machine = GoesAtTheSignal()
    with ExitStack() as stack:
        live = Live(Host(machine), 2 * MIB, Rule("rule", "statement", "source"), stack)
        assert take_a_block(live).number == 1
        assert not machine.added
    assert not live.differences
    assert machine.added == [f"{DIRECTORY}/memory1/state"]


def test_any_other_refusal_is_one_of_the_kernel() -> None:
    with ExitStack() as stack:
        live = Live(Host(Blocks(errno.EIO)), 2 * MIB, Rule("rule", "statement", "source"), stack)
        with pytest.raises(Refused):
            take_a_block(live)


class GivesBack(StillMachine):
    """Lets its block go, while pages of a pool give ``given`` base pages of struct pages back, of which it counts some.

    Without ``counted`` it is of Linux before 6.11.
    """

    def __init__(self, given: int, counted: int | None) -> None:
        super().__init__(
            {
                "start_actor": lambda: (0, 1),
                "request": self._answer,
                "write": lambda path, text: self.written.append((path, text)),
                "is_thrown_away": lambda: True,
            }
        )
        self._given, self._counted = given, counted
        self._is_taken = False
        self.written: list[tuple[str, str]] = []

    def _answer(self, _number: int, text: str) -> tuple[str, None]:
        self._is_taken |= text.split()[1] == "write"
        return "ok 3", None

    def perform(self, operation: str, arguments: Any) -> Any:
        """Answer."""
        match operation, *arguments:
            case "names", str(path) if path == DIRECTORY:
                return ["memory0"]
            case "read" | "observe", str(path) if path.startswith(DIRECTORY):
                return "8000000\n" if path.endswith("block_size_bytes") else "online\n"
            case "read" | "observe", "proc/meminfo":
                total = 4 * GIB + (4096 * self._given - 128 * MIB if self._is_taken else 0)
                return f"MemTotal: {total >> 10} kB\n"
            case "read" | "observe", "proc/vmstat":
                less = (self._counted or 0) if self._is_taken else 0
                return "nr_free_pages 5\n" + (
                    "" if self._counted is None else f"nr_memmap_pages 0\nnr_memmap_boot_pages {16384 - less}\n"
                )
            case "read", "proc/sys/vm/hugetlb_optimize_vmemmap":
                return "1\n"
        return super().perform(operation, arguments)


@pytest.mark.parametrize(
    ("given", "counted", "is_right"),
    [(0, 0, True), (70, 70, True), (70, 63, False), (63, 70, False), (70, None, False)],
)
def test_struct_pages_that_are_given_back_are_more_memory(given: int, counted: int | None, *, is_right: bool) -> None:
    with ExitStack() as stack:
        live = Live(Host(GivesBack(given, counted)), 2 * MIB, Rule("rule", "statement", "source"), stack)
        take_a_block(live)
    assert (live.differences == []) == is_right


@pytest.mark.parametrize(("counted", "written"), [(0, []), (None, ["0", "1"])])
def test_struct_pages_stay_where_they_are_not_counted(counted: int | None, written: list[str]) -> None:
    machine = GivesBack(0, counted)
    with ExitStack() as stack:
        keep_struct_pages_that_nobody_counts(Live(Host(machine), 2 * MIB, Rule("rule", "statement", "source"), stack))
    assert [text.strip() for path, text in machine.written if path.endswith("optimize_vmemmap")] == written
