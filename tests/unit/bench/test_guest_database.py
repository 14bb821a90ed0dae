"""The database in a guest: the four cells, and the figures of each number of users."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.unit.bench.fake_guest import FakeHost
from tests.unit.bench.test_program_output import PGBENCH

from hugepage_gate.contrasts import find_contrasts
from hugepage_qa.bench import guest_database
from hugepage_qa.bench.backing import Backing, Kind
from hugepage_qa.bench.databases import PostgresqlInstallation
from hugepage_qa.bench.guest_database import USERS, GuestDatabase
from hugepage_qa.bench.workload import Prepared
from hugepage_qa.errors import InputError
from hugepage_qa.sizes import GIB, MIB

THP, LARGE = Backing(Kind.TRANSPARENT, 2 * MIB, is_default=True), Backing(Kind.STATIC, GIB)
BASE, SHP = Backing(Kind.BASE, 4096), Backing(Kind.STATIC, 2 * MIB, is_default=True)
ON_BASE, ON_HUGE = GuestDatabase().backings([BASE])

COUNTERS = """\
PageTables:         5120 kB
HugePages_Total:       0
HugePages_Free:        0
HugePages_Rsvd:        0
Hugepagesize:       2048 kB
pgfault 1234567
"""
HUGE = COUNTERS.replace("Total:       0", "Total:     160").replace("Free:        0", "Free:       20")


@contextmanager
def prepared(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, counters: str, pgbench: str = PGBENCH, cpu: float = 4.0
) -> Iterator[Prepared]:
    """Yield the workload with a guest that shows ``counters``, and uses ``cpu`` seconds for each number of users."""
    program = tmp_path / "pgbench"
    program.touch()
    used = iter(number * cpu for number in range(99))
    monkeypatch.setattr(PostgresqlInstallation, "find", lambda: PostgresqlInstallation(program, program, program))
    monkeypatch.setattr(PostgresqlInstallation, "version", lambda _self: "postgres (PostgreSQL) 15.18")
    monkeypatch.setattr(guest_database, "pack", lambda _installation, _directory: b"")
    monkeypatch.setattr(guest_database, "GuestHost", lambda *_: FakeHost({"/proc/vmstat": counters, "--time": pgbench}))
    monkeypatch.setattr(guest_database, "cpu_seconds", lambda _pid: next(used))
    monkeypatch.setattr(guest_database, "page_tables_of", lambda _pid: 4 * MIB)
    with GuestDatabase().prepare("quick", tmp_path, tmp_path) as ready:
        yield ready


def test_two_by_two() -> None:
    names = [one.name for one in GuestDatabase().backings([BASE, THP, SHP, LARGE])]
    assert names == ["host=4k,guest=4k", "host=4k,guest=huge", "host=shp-2M,guest=4k", "host=shp-2M,guest=huge"]
    found = find_contrasts(names, names[0])
    assert [(one.name, one.estimand) for one in found] == [
        ("guest", "main effect"),
        ("host", "main effect"),
        ("guest x host", "interaction"),
    ]


def test_users_of_the_study() -> None:
    assert USERS["reference"] == (100, 250, 500)
    assert GuestDatabase.profiles["reference"]["users"] == "100, 250, 500"


@pytest.mark.parametrize(("backing", "counters"), [(ON_BASE, COUNTERS), (ON_HUGE, HUGE)])
def test_figures_of_each_number_of_users(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, backing: Backing, counters: str
) -> None:
    with prepared(monkeypatch, tmp_path, counters) as ready:
        figures = ready.block(backing)
    for users in USERS["quick"]:
        assert figures[f"guest-database-tps-{users}"] == [853.215162]
        assert figures[f"guest-database-tps-per-cpu-{users}"] == [pytest.approx(853.215162 * 5 / 4)]
        assert figures[f"guest-database-guest-page-tables-{users}"] == [5120]
    assert figures["guest-database-host-page-tables"] == [4096]
    of_quick = {name for name in figures if not name.endswith(tuple(f"-{users}" for users in USERS["reference"]))}
    assert figures.keys() == of_quick
    assert figures.keys() <= {metric.name for metric in GuestDatabase.metrics}
    typed = FakeHost.typed["bench"]
    loads = [command for command in typed if "--client" in command]
    assert [command.split("--client=")[1].split()[0] for command in loads] == ["2", "2", "5", "5", "10", "10"]


@pytest.mark.parametrize(
    ("backing", "counters", "said"),
    [
        (ON_HUGE, COUNTERS, "0 of its huge pages are in use, expected 256M"),
        (ON_BASE, HUGE, "280M of its huge pages are in use, expected none"),
        (ON_BASE, COUNTERS.replace("pgfault", "pgfree"), "expected pgfault in /proc"),
    ],
)
def test_a_guest_on_other_pages(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, backing: Backing, counters: str, said: str
) -> None:
    with prepared(monkeypatch, tmp_path, counters) as ready, pytest.raises(InputError, match=said):
        ready.block(backing)


def test_a_guest_that_used_no_cpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with prepared(monkeypatch, tmp_path, COUNTERS, cpu=0) as ready, pytest.raises(InputError, match="no CPU time"):
        ready.block(ON_BASE)


def test_transactions_that_failed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    failed = PGBENCH.replace("failed transactions: 0 ", "failed transactions: 3 ")
    with prepared(monkeypatch, tmp_path, COUNTERS, failed) as ready, pytest.raises(InputError, match="3 transactions"):
        ready.block(ON_BASE)
