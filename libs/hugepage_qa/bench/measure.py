"""Measure what a plan says, block by block, on a protected machine.

Before and after each block the sentinel is timed: a fixed program without huge pages.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from hugepage_qa.bench.backing import Backing
from hugepage_qa.bench.benchmark_program import find_program, run_program
from hugepage_qa.bench.disturbances import Surroundings
from hugepage_qa.bench.measured_environment import boot_id
from hugepage_qa.bench.measurement import FinishedBlock, Measurement, Plan, skip_name
from hugepage_qa.bench.workload import Cell, Prepared, Unavailable, Workload, draw_session
from hugepage_qa.errors import InputError
from hugepage_qa.kernel.tree import DirectoryTree
from hugepage_qa.process.c_compiler import build_program

SOURCE = Path(__file__).with_name("sentinel.c")

_NS_PER_S = 1e9
_DEADLINE_SECONDS = 120.0


def parse_sentinel(output: str) -> float:
    """Return the seconds in what the sentinel prints. Raises InputError."""
    text = output.strip()
    if not (text.isascii() and text.isdigit() and int(text)):
        raise InputError(f"sentinel: expected nanoseconds, got {text[:100]!r}")
    return int(text) / _NS_PER_S


@dataclass(frozen=True)
class Progress:
    """How far a measurement is: ``seconds_left`` is None before the first block has told how long one takes."""

    done: int
    total: int
    seconds_left: float | None
    doing: str


@dataclass(frozen=True)
class Place:
    """Where a measurement may put files: ``scratch`` in memory, ``disk`` for large ones; both are removed later."""

    scratch: Path
    disk: Path


class Measurer:
    """Takes the blocks of a plan that are not there yet."""

    def __init__(
        self,
        measurement: Measurement,
        workloads: Sequence[Workload],
        backings: Mapping[str, Backing],
        place: Place,
        tell: Callable[[Progress], None],
        beside: Callable[[Cell], AbstractContextManager[object]] = lambda _cell: nullcontext(),
    ) -> None:
        """``beside`` goes on while the programs of a block run: a disturbance on purpose."""
        self._measurement = measurement
        self._workloads = {workload.name: workload for workload in workloads}
        self._backings = backings
        self._place = place
        self._tell = tell
        self._beside = beside
        self._surroundings = Surroundings()
        self._boot = boot_id(DirectoryTree(Path("/")))

    def measure(self, plan: Plan) -> Plan:
        """Measure, and return the plan with what turned out to be impossible.

        Raises InputError when a program fails, and OSError; what is finished by then is kept.
        """
        self._forget_torn_sessions(plan)
        with ExitStack() as stack:
            prepared, plan = self._prepare(plan, stack)
            sentinel = self._sentinel()
            for session in range(1, plan.sessions + 1):
                for cell in draw_session(plan.seed, session, plan.configurations):
                    plan = self._take(plan, cell, prepared, sentinel)
        return plan

    def _forget_torn_sessions(self, plan: Plan) -> None:
        """A session that was begun in another boot and not ended is measured anew, in one boot."""
        blocks = self._measurement.blocks()
        for session in range(1, plan.sessions + 1):
            cells = draw_session(plan.seed, session, plan.configurations)
            for name in plan.configurations:
                wanted = [cell for cell in cells if cell.workload == name and not plan.is_skipped(cell)]
                there = [cell for cell in wanted if cell in blocks]
                if len(there) < len(wanted) and any(blocks[cell].boot != self._boot for cell in there):
                    self._measurement.forget(there)

    def _prepare(self, plan: Plan, stack: ExitStack) -> tuple[Mapping[str, Prepared], Plan]:
        prepared = {}
        for name, workload in self._workloads.items():
            self._tell(Progress(0, 1, None, f"prepares {name}"))
            try:
                ready = workload.prepare(plan.profile, self._place.scratch, self._place.disk)
                prepared[name] = stack.enter_context(ready)
            except Unavailable as reason:
                plan = self._skip(plan, name, reason)
        # what was missing may have been installed since
        found = {name: reason for name, reason in plan.skipped.items() if name not in prepared}
        return prepared, self._measurement.write_plan(replace(plan, skipped=found))

    def _sentinel(self) -> Callable[[], float | None]:
        try:
            find_program("cc", "build-essential")
        except Unavailable:
            return lambda: None
        program = build_program(SOURCE, self._place.scratch)
        return lambda: parse_sentinel(run_program([program], deadline=_DEADLINE_SECONDS))

    def _take(
        self, plan: Plan, cell: Cell, prepared: Mapping[str, Prepared], sentinel: Callable[[], float | None]
    ) -> Plan:
        done = self._measurement.blocks()
        if cell in done or plan.is_skipped(cell):
            return plan
        self._tell(_progress(plan, done, cell))
        backing = self._backings[plan.stand_ins.get(cell.configuration, cell.configuration)]
        ready = prepared[cell.workload]
        begin, started = time.monotonic(), datetime.now(UTC).isoformat(timespec="milliseconds")
        try:
            with self._surroundings.of(backing, ready.huge_bytes):
                before = sentinel()
                with self._beside(cell):
                    figures = ready.block(backing)
                after = sentinel()
        except Unavailable as reason:
            return self._skip(plan, skip_name(cell), reason)
        block = FinishedBlock(
            cell, started, time.monotonic() - begin, self._boot, before, after, figures, ready.identity, ready.subject
        )
        self._measurement.add(block)
        return plan

    def _skip(self, plan: Plan, name: str, reason: Unavailable) -> Plan:
        return self._measurement.write_plan(replace(plan, skipped={**plan.skipped, name: str(reason)}))


def _progress(plan: Plan, done: Mapping[Cell, FinishedBlock], cell: Cell) -> Progress:
    """Return how far it is; a block takes as long as those of its workload did."""
    cells = [
        one
        for session in range(1, plan.sessions + 1)
        for one in draw_session(plan.seed, session, plan.configurations)
        if not plan.is_skipped(one)
    ]
    took: dict[str, list[float]] = {}
    for block in done.values():
        took.setdefault(block.cell.workload, []).append(block.seconds)
    every = [seconds for of_workload in took.values() for seconds in of_workload]
    left = [one for one in cells if one not in done]
    usual = sum(every) / len(every) if every else 0.0
    seconds = sum(sum(took[one.workload]) / len(took[one.workload]) if one.workload in took else usual for one in left)
    doing = f"session {cell.session} of {plan.sessions}: {cell.workload} on {cell.configuration}"
    return Progress(len(cells) - len(left), len(cells), seconds if every else None, doing)
