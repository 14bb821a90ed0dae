"""Two guests at the same time: both are busy, and never compared with guests that take turns."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.unit.bench.fake_guest import FakeHost
from tests.unit.bench.made_up import make_plan
from tests.unit.bench.test_program_output import SYSBENCH

from hugepage_gate.contrasts import find_contrasts
from hugepage_gate.environment import env_id
from hugepage_qa.bench import sysbench_memory
from hugepage_qa.bench.backing import Backing, Kind
from hugepage_qa.bench.measurement import FinishedBlock, sample_document
from hugepage_qa.bench.sysbench_memory import GuestMemory, GuestMemoryPair, expect_as_busy
from hugepage_qa.bench.workload import Cell, Fact, Prepared, draw_session
from hugepage_qa.errors import InputError
from hugepage_qa.sizes import GIB, MIB

BASE, THP = Backing(Kind.BASE, 4096), Backing(Kind.TRANSPARENT, 2 * MIB, is_default=True)
SHP, LARGE = Backing(Kind.STATIC, 2 * MIB, is_default=True), Backing(Kind.STATIC, GIB)


@contextmanager
def prepared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, seconds_beside: float) -> Iterator[Prepared]:
    """Yield the workload with guests that write what sysbench is known to print."""
    sysbench = tmp_path / "sysbench"
    sysbench.touch()
    written = SYSBENCH.replace("4096.00 MiB transferred", "8192.00 MiB transferred")
    busy = {FakeHost.pids["bench"]: iter([10.0, 14.0]), FakeHost.pids["beside"]: iter([30.0, 30.0 + seconds_beside])}
    monkeypatch.setattr(sysbench_memory, "cpu_seconds", lambda pid: next(busy[pid]))
    monkeypatch.setattr(sysbench_memory, "find_program", lambda *_names: sysbench)
    monkeypatch.setattr(sysbench_memory, "program_archive", lambda _programs: b"")
    monkeypatch.setattr(sysbench_memory, "GuestHost", lambda *_: FakeHost({"sysbench": written}))
    monkeypatch.setattr(sysbench_memory, "page_tables_of", lambda _pid: 4 * MIB)
    with GuestMemoryPair().prepare("quick", tmp_path, tmp_path) as ready:
        yield ready


def test_one_is_measured_while_the_other_one_is_busy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _, _, thp, _ = GuestMemoryPair().backings([BASE, THP, SHP, LARGE])
    with prepared(monkeypatch, tmp_path, seconds_beside=3.9) as ready:
        assert ready.block(thp) == {"guest-memory-pair": [0.8739], "guest-memory-pair-host-page-tables": [4096]}
    assert FakeHost.started == [("beside", "shp-1G"), ("bench", "thp")]
    assert "while :;" in FakeHost.typed["beside"][0]
    assert "while :;" not in FakeHost.typed["bench"][0]


def test_the_other_one_did_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _, _, thp, _ = GuestMemoryPair().backings([THP, LARGE])
    with (
        prepared(monkeypatch, tmp_path, seconds_beside=0.1) as ready,
        pytest.raises(InputError, match="expected both to be busy"),
    ):
        ready.block(thp)


def test_one_guest_is_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with prepared(monkeypatch, tmp_path, seconds_beside=0) as ready:
        assert ready.block(THP)["guest-memory-pair"] == [0.8739]
    assert FakeHost.started == [("bench", "thp")]


@pytest.mark.parametrize(("beside", "measured"), [(0.0, 4.0), (1.9, 4.0), (0.0, 0.0)])
def test_guests_that_were_not_busy_alike(beside: float, measured: float) -> None:
    with pytest.raises(InputError, match="busy"):
        expect_as_busy(beside, measured)


def test_each_in_its_turn_beside_the_other() -> None:
    pair = GuestMemoryPair().backings([BASE, THP, SHP, LARGE])
    names = [one.name for one in pair]
    assert names == ["thp", "shp-1G", "thp-beside-shp-1G", "shp-1G-beside-thp"]
    cells = draw_session(1, 1, {"guest-memory-pair": names})
    drawn = [cell.configuration for cell in cells]
    assert sorted(drawn[:4]) == sorted(names)
    assert drawn == drawn[::-1]
    assert "thp-beside-shp-1G over thp" in [one.name for one in find_contrasts(names, names[0])]


@pytest.mark.parametrize("there", [[BASE, SHP], [BASE, THP], []])
def test_a_machine_without_one_of_both(there: list[Backing]) -> None:
    assert GuestMemoryPair().backings(there) == ()


def test_at_the_same_time_is_another_environment_than_by_turns() -> None:
    """Were all else the same, their names too, the gate would not compare them."""
    alternating, together = (_environment(one) for one in (GuestMemory(), GuestMemoryPair()))
    assert alternating.pop("benchmark.name") != together.pop("benchmark.name")
    assert alternating["benchmark.parameters.guests"] == "alternating"
    assert together["benchmark.parameters.guests"] == "alone, and two at the same time"
    assert env_id(alternating) != env_id(together)
    assert env_id(alternating) == env_id(together | {"benchmark.parameters.guests": "alternating"})


def _environment(workload: GuestMemory | GuestMemoryPair) -> dict[str, Fact]:
    plan = make_plan(configurations={workload.name: ("thp",)}, sessions=1)
    figures = {metric.name: [1.0] for metric in workload.metrics}
    blocks = [
        FinishedBlock(Cell(1, workload.name, order, "thp"), "2026-01-31", 1.0, "boot", None, None, figures, {}, {})
        for order in (0, 1)
    ]
    document = sample_document(plan, workload, blocks)
    assert document is not None
    return dict(document["environment"])
