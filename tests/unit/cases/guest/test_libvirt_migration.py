"""A migration of libvirt that fails, is cancelled, or is over too soon; the binding is a fake."""

import json
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from hugepage_qa.errors import InputError
from hugepage_qa.qemu.guest.libvirt_migration import LibvirtMigration, destination
from hugepage_qa.qemu.guest.qemu_migration import DOWNTIME, FAST, NO_DOWNTIME, UNTIL_POSTCOPY
from hugepage_qa.sizes import MIB

TO = destination("qemu:///system?socket=/there", "/there/guest.migration", "<domain/>")


class LibvirtError(Exception):
    """What the binding raises."""


def binding() -> Any:
    names = ("URI", "DEST_XML", "BANDWIDTH", "BANDWIDTH_POSTCOPY")
    return SimpleNamespace(
        libvirtError=LibvirtError,
        open=lambda uri: SimpleNamespace(uri=uri, close=lambda: None),
        VIR_MIGRATE_LIVE=1,
        VIR_MIGRATE_POSTCOPY=2,
        VIR_DOMAIN_PAUSED=3,
        VIR_DOMAIN_PAUSED_POSTCOPY=11,
        VIR_DOMAIN_JOB_OPERATION_MIGRATION_OUT=6,
        VIR_DOMAIN_MIGRATE_MAX_SPEED_POSTCOPY=1,
        **{f"VIR_MIGRATE_PARAM_{name}": name for name in names},
    )


class Domain:
    """Is sent until it ``is_over``; then ``refusal`` is raised, if there is one."""

    def __init__(self, refusal: str = "") -> None:
        self.refusal = refusal
        self.is_over = threading.Event()
        self.is_sent = threading.Event()
        self.where: dict[str, Any] = {}
        self.now = [1, 1]
        self.paces: list[tuple[int, ...]] = []

    def migrate3(self, target: Any, parameters: dict[str, Any], flags: int) -> None:
        self.where = {**parameters, "daemon": target.uri, "flags": flags}
        self.is_sent.set()
        self.is_over.wait(10)
        if self.refusal:
            raise LibvirtError(self.refusal)

    def jobStats(self) -> dict[str, int]:  # noqa: N802 - libvirt's name
        return {"operation": 6, "memory_processed": 4096} if self.is_sent.is_set() else {}

    def migrateStartPostCopy(self) -> None:  # noqa: N802 - libvirt's name
        self.now = [3, 11]

    def state(self) -> list[int]:
        return self.now

    def migrateSetMaxDowntime(self, milliseconds: int) -> None:  # noqa: N802 - libvirt's name
        self.paces.append((milliseconds,))

    def migrateSetMaxSpeed(self, *pace: int) -> None:  # noqa: N802 - libvirt's name
        self.paces.append(pace)
        if pace[0] == FAST // MIB:
            self.is_over.set()

    def abortJob(self) -> None:  # noqa: N802 - libvirt's name
        self.refusal = self.refusal or "operation aborted: migration out job: canceled by client"
        self.is_over.set()


def begun(domain: Domain, *, postcopy: bool = False) -> LibvirtMigration:
    return LibvirtMigration(binding(), domain, TO, postcopy)


def test_where_a_guest_goes_is_a_daemon_a_socket_and_a_definition() -> None:
    assert json.loads(TO)["memory"] == "unix:///there/guest.migration"
    domain = Domain()
    migration = begun(domain, postcopy=True)
    migration.await_sending()
    assert domain.where["daemon"] == "qemu:///system?socket=/there"
    assert domain.where["URI"] == "unix:///there/guest.migration"
    assert domain.where["DEST_XML"] == "<domain/>"
    assert domain.where["flags"] == 3
    assert domain.where["BANDWIDTH"] == UNTIL_POSTCOPY // MIB
    migration.start_postcopy()
    migration.finish()
    migration.end()
    # no downtime until its CPUs are moved, then one, and a pace before and after that
    assert domain.paces == [(NO_DOWNTIME,), (DOWNTIME,), (FAST // MIB,), (FAST // MIB, 1)]


@pytest.mark.parametrize("act", [LibvirtMigration.await_sending, LibvirtMigration.finish])
def test_one_that_fails_is_judged(act: Callable[[LibvirtMigration], None]) -> None:
    domain = Domain("internal error: qemu unexpectedly closed the monitor")
    domain.is_over.set()
    migration = begun(domain)
    migration._thread.shutdown()
    with pytest.raises(LibvirtError, match="closed the monitor"):
        act(migration)
    migration.end()


def test_one_that_is_over_too_soon_tells_nothing_of_the_kernel() -> None:
    domain = Domain()
    domain.is_over.set()
    migration = begun(domain)
    migration._thread.shutdown()
    with pytest.raises(InputError, match="over before memory is on the way"):
        migration.await_sending()


@pytest.mark.parametrize("message", ["", "operation failed: domain is no longer running"])
def test_one_that_is_cancelled_is_over_whoever_tells_it_first(message: str) -> None:
    migration = begun(Domain(message))
    migration.await_sending()
    migration.cancel()
    migration.end()


def test_one_that_was_over_before_it_was_cancelled() -> None:
    domain = Domain()
    migration = begun(domain)
    migration.await_sending()
    domain.is_over.set()
    migration._thread.shutdown()
    domain.abortJob = lambda: None  # type: ignore[method-assign]
    with pytest.raises(InputError, match="over before it was cancelled"):
        migration.cancel()
