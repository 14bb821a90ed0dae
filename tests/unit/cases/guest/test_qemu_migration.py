"""A migration of QEMU that fails, or is over too soon, is told as such; the two QEMUs are fakes."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import pytest

from hugepage_qa.errors import InputError
from hugepage_qa.qemu.guest import qemu_migration
from hugepage_qa.qemu.guest.driver import GuestError
from hugepage_qa.qemu.guest.qemu_process import QemuProcess


class Qemu:
    """Goes through the ``statuses`` of a migration, and refuses what ``refused`` names."""

    said = "what it wrote"

    def __init__(self, statuses: Sequence[str] = (), refused: str = "") -> None:
        self._statuses: Iterator[str] = iter(statuses)
        self._refused = refused
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def ask(self, command: str, **arguments: Any) -> Any:
        self.asked.append((command, arguments))
        if command == self._refused:
            raise GuestError(f"{command}: no")
        return {"status": next(self._statuses), "error-desc": "why"} if command == "query-migrate" else {}

    def await_condition(self, is_so: Callable[[], bool], _otherwise: str) -> None:
        while not is_so():
            pass


def await_status(wanted: str, *statuses: str) -> None:
    qemu_migration.await_status(cast(QemuProcess, Qemu(statuses)), wanted)


def test_what_comes_is_waited_for() -> None:
    await_status(qemu_migration.ACTIVE, "setup", "active")
    await_status(qemu_migration.COMPLETED, "active", "device", "completed")
    await_status(qemu_migration.CANCELLED, "active", "cancelling", "cancelled")


@pytest.mark.parametrize("status", ["failed", "postcopy-paused"])
def test_one_that_fails_is_judged(status: str) -> None:
    with pytest.raises(GuestError, match=f"migration {status}: why what it wrote"):
        await_status(qemu_migration.COMPLETED, "active", status)


@pytest.mark.parametrize("wanted", [qemu_migration.ACTIVE, qemu_migration.POSTCOPY, qemu_migration.CANCELLED])
def test_one_that_is_over_too_soon_tells_nothing_of_the_kernel(wanted: str) -> None:
    with pytest.raises(InputError, match=f"completed before it could be {wanted}"):
        await_status(wanted, "setup", "completed")


def test_a_target_that_may_not_do_post_copy_says_why() -> None:
    """Before QEMU 8.1 on standard error alone."""
    target = Qemu(refused="migrate-set-capabilities")
    with pytest.raises(GuestError, match="no what it wrote"):
        qemu_migration.receive(cast(QemuProcess, target), "unix:/socket", True)
    assert [command for command, _arguments in target.asked] == ["migrate-set-capabilities"]


def test_both_sides_are_told_of_post_copy_and_the_source_of_its_pace() -> None:
    source, target = Qemu(["active"]), Qemu()
    qemu_migration.receive(cast(QemuProcess, target), "unix:/socket", True)
    qemu_migration.send_slowly(cast(QemuProcess, source), "unix:/socket", True)
    capability = {"capabilities": [{"capability": "postcopy-ram", "state": True}]}
    assert target.asked == [("migrate-set-capabilities", capability), ("migrate-incoming", {"uri": "unix:/socket"})]
    pace = {
        "max_bandwidth": qemu_migration.UNTIL_POSTCOPY,
        "max_postcopy_bandwidth": qemu_migration.SLOW_POSTCOPY,
        "downtime_limit": qemu_migration.NO_DOWNTIME,
    }
    assert source.asked[:3] == [
        ("migrate-set-capabilities", capability),
        ("migrate-set-parameters", pace),
        ("migrate", {"uri": "unix:/socket"}),
    ]
