"""A workload that starts nothing, and a machine that is not changed."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import pytest

from hugepage_qa.bench import measure
from hugepage_qa.bench.backing import Backing, Kind
from hugepage_qa.bench.measure import Measurer, Place
from hugepage_qa.bench.measurement import Measurement, Plan
from hugepage_qa.bench.workload import Cell, Fact, Figures, Metric, Prepared, Program, Workload
from hugepage_qa.sizes import MIB

BASE = Backing(Kind.BASE, 4096)
THP = Backing(Kind.TRANSPARENT, 2 * MIB, is_default=True)
SHP = Backing(Kind.STATIC, 2 * MIB, is_default=True)
BACKINGS = (BASE, THP, SHP)

ENVIRONMENT: dict[str, Fact] = {"arch": "x86_64", "cpu_model": "made up", "hostname": "h", "load": 0.5}


class MadeUp(Workload):
    """Calls ``act`` for each block; its samples are numbers that never repeat."""

    name = "made-up"
    metrics: tuple[Metric, ...] = (
        Metric("made-up-time", "s", "lower"),
        Metric("made-up-faults", "faults", "lower", "count"),
    )
    programs: tuple[Program, ...] = ()
    profiles: Mapping[str, Mapping[str, Fact]] = {"quick": {"size": 1}, "reference": {"size": 9}}

    def __init__(self, act: Callable[[Backing], None] = lambda _backing: None) -> None:
        self.act = act
        self.ran: list[str] = []
        self.version = "1"

    @contextmanager
    def prepare(self, profile: str, scratch: Path, disk: Path) -> Iterator[Prepared]:  # noqa: ARG002
        def block(backing: Backing) -> Figures:
            self.act(backing)
            self.ran.append(backing.name)
            return {"made-up-time": [1 + len(self.ran) / 7], "made-up-faults": [5.0]}

        yield Prepared(block, MIB, {"version": self.version}, {"database": "3"})


class NoSurroundings:
    """Changes nothing."""

    @contextmanager
    def of(self, backing: Backing, huge_bytes: int) -> Iterator[None]:  # noqa: ARG002
        yield


def make_plan(**changes: object) -> Plan:
    """Return a plan of two sessions."""
    plan: dict[str, object] = {
        "profile": "quick",
        "configurations": {"made-up": tuple(one.name for one in BACKINGS)},
        "sessions": 2,
        "seed": 7,
        "stand_ins": {},
        "environment": ENVIRONMENT,
        "subject": {"kernel": "6.12.1"},
    }
    return Plan(**(plan | changes))  # type: ignore[arg-type]


def run(
    directory: Path,
    workload: MadeUp,
    plan: Plan,
    monkeypatch: pytest.MonkeyPatch,
    boot: str = "boot-1",
    beside: Callable[[Cell], AbstractContextManager[object]] = lambda _cell: nullcontext(),
    sentinel: Callable[[], float] = lambda: 0.5,
) -> tuple[Measurement, Plan]:
    """Measure ``plan`` into ``directory``."""
    monkeypatch.setattr(measure, "Surroundings", NoSurroundings)
    monkeypatch.setattr(measure, "boot_id", lambda tree: boot)  # noqa: ARG005
    monkeypatch.setattr(Measurer, "_sentinel", lambda self: sentinel)  # noqa: ARG005
    measurement = Measurement(directory)
    plan = measurement.begin(plan)
    place = Place(directory, directory)
    known = {one.name: one for one in BACKINGS}
    measurer = Measurer(measurement, [workload], known, place, lambda _progress: None, beside)
    return measurement, measurer.measure(plan)
