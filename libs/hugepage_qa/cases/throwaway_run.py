"""Live cases and random programs spread over throwaway machines: several at once, the longest areas first."""

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import groupby

from hugepage_qa.cases.case import Area, result_name
from hugepage_qa.cases.judge import judge, not_meant, page_sizes
from hugepage_qa.cases.live_machine import LiveMachine, MachineKind, MachinePlan, Task, Unit
from hugepage_qa.cases.pool_view import NO_HUGETLB, read_pool_view
from hugepage_qa.cases.random.soak import SOAK, soak_case
from hugepage_qa.cases.result import Result, Verdict
from hugepage_qa.cases.selection import EVERYTHING, Selection
from hugepage_qa.cases.time_limit import NO_TIME, TimeLimit, seconds_by_name, step_of
from hugepage_qa.qemu.emulator import Stopped
from hugepage_qa.qemu.fleet import Jobs, free_memory, run_workers
from hugepage_qa.sizes import GIB, MIB, format_size

#: nodes of a machine for pages that many of fit into it, and of one for gigantic pages: of node 0 one GiB lies beside
#: the hole below 4 GiB, and another one has what the kernel allocated as it booted. Cases want two pages on each
NODES = (2 * GIB, 2 * GIB)
_NODES_OF_GIGANTIC = (6 * GIB, 5 * GIB)
_GIGANTIC = 256 * MIB
#: random operations, in names of results
_RANDOM = "/random"

#: is told of a unit that is done: its name, its results, seconds
Finished = Callable[[str, Sequence[Result], float], None]
#: is told now and then how far something is that has no result for long
UnderWay = Callable[[str], None]


@dataclass(frozen=True)
class LiveWanted:
    """What is run: cases of ``areas`` that are selected, random ``operations`` on the pool of each page size, races.

    Each of the ``minutes`` of random races has a seed of its own, of which the first is ``seed``. All is run on
    machines with ``nodes`` of so many bytes, by default as it needs them, and with ``cpus``. With ``shortest_first``
    the cases of an area are split by what they take, so that those which take long are left for last.
    """

    areas: Sequence[Area] = ()
    selection: Selection = EVERYTHING
    operations: int = 0
    minutes: int = 0
    seed: int = 1
    nodes: tuple[int, ...] = ()
    cpus: int = 2
    shortest_first: bool = False

    def units(
        self,
        sizes: Sequence[int],
        pools: Collection[int],
        took: Mapping[str, float],
        under_way: UnderWay = lambda _words: None,
    ) -> Iterator[Unit]:
        """Yield what is to be run for pages of ``sizes`` bytes on a machine that has ``pools`` of such pages.

        ``took`` tells what results took the last time, by name.
        """
        seconds_of = seconds_by_name(took)

        for area in self.areas:
            for size in (None, *sizes):
                tasks = tuple(
                    Task(result_name(area, case, size), partial(judge, area, case, size=size))
                    for case in area.cases
                    if size in self.selection.sizes_of(area, case, sizes)
                )
                kind = self._kind(size if size in pools else None, cleared=not area.uncleared, words=area.words)
                # each part of an area that comes first would have a new machine
                whole = sum(seconds_of(task.name) for task in tasks) if area.first else None
                step = partial(self._step, seconds_of, whole)
                for at, of_a_step in groupby(sorted(tasks, key=step), step):
                    some = tuple(of_a_step)
                    seconds = sum(seconds_of(task.name) for task in some)
                    yield Unit(f"{area.name} {_words(size)}", kind, some, area.around, seconds, area.first, at)
        for size in pools:
            if not self.operations or (self.selection.sizes and size not in self.selection.sizes):
                continue
            # it brings Hypothesis, a quarter of what check-kernel would import
            from hugepage_qa.cases.random.random_run import run_random_programs  # noqa: PLC0415

            tell = partial(self._tell_operations, under_way, size)
            random = partial(run_random_programs, size=size, seed=self.seed, operations=self.operations, tell=tell)
            name = f"{_RANDOM}/{format_size(size)}"
            task, seconds = Task(name, random), took.get(name, Unit.seconds)
            at = step_of(seconds) if self.shortest_first else 0
            yield Unit(f"random {_words(size)}", self._kind(size), (task,), seconds=seconds, step=at)
        for minute in range(self.minutes):
            case = soak_case(self.seed + minute)
            task = Task(result_name(SOAK, case, None), partial(judge, SOAK, case, size=None))
            yield Unit(f"soak {minute + 1}", self._kind(None), (task,))

    def _step(self, seconds_of: Callable[[str], float], whole: float | None, task: Task) -> int:
        """Return the step of a unit that ``task`` is in; that of ``whole`` seconds if all of its area are."""
        return step_of(seconds_of(task.name) if whole is None else whole) if self.shortest_first else 0

    def _tell_operations(self, under_way: UnderWay, size: int, done: int) -> None:
        under_way(f"{min(done, self.operations)} of {self.operations} random operations on {format_size(size)}")

    def _kind(self, size: int | None, *, cleared: bool = True, words: str = "") -> MachineKind:
        """Return the machine for a pool of pages of ``size`` bytes, None for what needs none or one of small ones."""
        is_gigantic = size is not None and size >= _GIGANTIC
        memory = self.nodes or (_NODES_OF_GIGANTIC if is_gigantic else NODES)
        return MachineKind(memory, cleared and not is_gigantic, words)

    def untried(self, results: Collection[str], sizes: Sequence[int]) -> Iterator[Result]:
        """Yield a skip for each case that none of ``results`` is of: it is for no page size of the machine.

        So are random operations where there is no pool, or none that is selected.
        """
        for area in self.areas:
            for case in area.cases:
                tried = {result_name(area, case, size) for size in self.selection.sizes_of(area, case, sizes)}
                if self.selection.has(area, case, sizes) and tried.isdisjoint(results):
                    yield not_meant(area, case, sizes)
        if self.operations and not any(name.startswith(f"{_RANDOM}/") for name in results):
            yield Result(
                _RANDOM, Verdict.SKIP, ("for pools alone, of which the run has none" if sizes else NO_HUGETLB,)
            )


class ThrowawayRun:
    """Runs what is wanted on ``machines`` machines of ``plan`` at once, within the time of ``limit``.

    ``finished`` and ``under_way`` are told of units, by any thread.
    """

    def __init__(
        self,
        plan: MachinePlan,
        machines: int,
        finished: Finished,
        under_way: UnderWay = lambda _words: None,
        limit: TimeLimit | None = None,
    ) -> None:
        self._finished = finished
        self._under_way = under_way
        self._limit = limit or TimeLimit(None)
        self._sizes: list[int] = []
        self._machines = [LiveMachine(plan) for _ in range(machines)]
        self._lock = threading.Lock()
        self._units: Jobs[Unit] | None = None
        #: for which machines units are: that which runs when they are planned, then those of the longest ones
        self._kinds: list[MachineKind] = []
        #: how many machines have begun
        self._begun = 0
        self._free = free_memory()
        self._is_stopped = False
        #: name of a result -> what it took, in seconds
        self.seconds: dict[str, float] = {}

    def run(self, wanted: LiveWanted, took: Mapping[str, float]) -> Iterator[Result]:
        """Yield each result as it is there; what has none when the run is stopped gets none.

        ``took`` tells what results took the last time. Raises InputError for what can never boot, MachineLost where a
        machine does not come up. What no time was left for is a skip.
        """
        workers = [partial(self._work, machine, wanted, took) for machine in self._machines]
        names = set()
        with closing(run_workers(workers, self.stop)) as results:
            for result in results:
                names.add(result.name)
                yield result
        if not self._is_stopped:
            yield from wanted.untried(names, self._sizes)

    @property
    def boots(self) -> int:
        """How many machines were booted."""
        return sum(machine.boots for machine in self._machines)

    def stop(self) -> None:
        """End every machine that runs, and begin no other."""
        self._is_stopped = True
        for machine in self._machines:
            machine.stop()

    def _work(
        self, machine: LiveMachine, wanted: LiveWanted, took: Mapping[str, float], tell: Callable[[Result], None]
    ) -> None:
        """Run units until all are taken, or others need the memory; machines end with the thread that started them."""
        with closing(machine), suppress(Stopped):
            units, kind = self._begin(machine, wanted, took)
            while unit := units.take(machine, partial(_rank, kind), waits=False):
                kind = unit.kind
                self._run_unit(unit, machine, tell)

    def _run_unit(self, unit: Unit, machine: LiveMachine, tell: Callable[[Result], None]) -> None:
        began = time.monotonic()
        results = []
        for task in unit.tasks:
            if result := self._judge(task, unit, machine):
                results.append(result)
                tell(result)
        self._finished(unit.name, results, time.monotonic() - began)

    def _judge(self, task: Task, unit: Unit, machine: LiveMachine) -> Result | None:
        if self._limit.is_over:
            return Result(task.name, Verdict.SKIP, (NO_TIME,))
        result = machine.judge(task, unit)
        if result is not None and result.verdict is not Verdict.SKIP:
            # another kernel may not skip it
            self.seconds[task.name] = result.seconds
        return result

    def _begin(
        self, machine: LiveMachine, wanted: LiveWanted, took: Mapping[str, float]
    ) -> tuple[Jobs[Unit], MachineKind]:
        """Return the units, and for which kind those are that ``machine`` begins with.

        Each begins with others, in turn: what a machine has of its host's memory is dear when it is first used, and so
        is another boot for the kind that the next units need.
        """
        with self._lock:
            if self._units is None:
                self._units = self._plan(machine, wanted, took)
            kind = self._kinds[self._begun % len(self._kinds)]
            self._begun += 1
            return self._units, kind

    def _plan(self, machine: LiveMachine, wanted: LiveWanted, took: Mapping[str, float]) -> Jobs[Unit]:
        """Return the units, the longest first, planned by the page sizes of ``machine``, the first that is there."""
        kind = MachineKind(wanted.nodes or NODES)
        host = machine.host(kind)
        self._sizes = page_sizes(host)
        planned = [*wanted.units(self._sizes, read_pool_view(host).pools, took, self._under_way)]
        # of those that take as long the last ones first
        planned = sorted(planned, key=lambda unit: unit.seconds)[::-1]
        self._kinds = [*dict.fromkeys([kind, *(unit.kind for unit in planned)])]
        return Jobs(planned, lambda unit: sum(unit.kind.memory), self._free, {machine: sum(kind.memory)})


def _rank(kind: MachineKind, unit: Unit) -> tuple[int, bool]:
    """What comes first is what takes least, where that is asked for, and of it what the machine can do that runs."""
    return unit.step, unit.kind != kind


def _words(size: int | None) -> str:
    return "once" if size is None else format_size(size)
