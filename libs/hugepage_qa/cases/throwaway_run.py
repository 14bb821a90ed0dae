"""Live cases spread over throwaway machines: as many at once as there is room for, the longest first."""

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hugepage_qa.cases.case import Area, Case, Sizes
from hugepage_qa.cases.judge import result_name
from hugepage_qa.cases.live_machine import LiveMachine, MachinePlan, Stopped
from hugepage_qa.cases.pool_view import NO_HUGETLB, read_pool_view
from hugepage_qa.cases.result import Result, Verdict
from hugepage_qa.machine.host import Host
from hugepage_qa.sizes import GIB, MIB

#: nodes of a machine for pages that many of fit into it, and of one for gigantic pages
_NODES = (3 * GIB, 3 * GIB)
_NODES_OF_GIGANTIC = (5 * GIB, 5 * GIB)
_GIGANTIC = 256 * MIB
#: what a unit takes that has never run
_UNKNOWN_SECONDS = 10.0

Includes = Callable[[Area, Case, int | None], bool]


@dataclass(frozen=True)
class Unit:
    """Cases of one area on pages of ``size`` bytes (None: they run once), one after the other on one machine."""

    area: Area
    size: int | None
    cases: tuple[Case, ...]

    @property
    def memory(self) -> tuple[int, ...]:
        """The memory of the nodes of a machine for it."""
        return _NODES_OF_GIGANTIC if (self.size or 0) >= _GIGANTIC else _NODES

    @property
    def name(self) -> str:
        """What its time is remembered by."""
        return f"{self.area.name}/{self.size or 'once'}"


class ThrowawayRun:
    """Runs live cases on ``machines`` machines of ``plan`` at once."""

    def __init__(self, plan: MachinePlan, machines: int) -> None:
        self._workers = [LiveMachine(plan) for _ in range(machines)]
        self._lock = threading.Lock()
        self._told: queue.SimpleQueue[Result | BaseException | None] = queue.SimpleQueue()
        self._units: list[Unit] | None = None
        #: name of a unit -> what it took, in seconds
        self.seconds: dict[str, float] = {}

    def run(self, areas: Sequence[Area], includes: Includes, took: Mapping[str, float]) -> Iterator[Result]:
        """Yield the result of each case that ``includes`` lets in, as they end.

        ``took`` tells what units took the last time: the longest begin. Raises InputError for what can never boot,
        MachineLost where a machine does not come up.
        """

        def plan_units(host: Host) -> list[Unit]:
            units, without = _units(areas, list(read_pool_view(host).pools), includes)
            for result in without:
                self._told.put(result)
            return sorted(units, key=lambda unit: took.get(unit.name, _UNKNOWN_SECONDS))

        threads = [
            threading.Thread(target=self._work, args=(worker, plan_units), daemon=True) for worker in self._workers
        ]
        for thread in threads:
            thread.start()
        try:
            yield from self._results()
        finally:
            self.stop()
            for thread in threads:
                thread.join()

    @property
    def boots(self) -> int:
        """How many machines were booted."""
        return sum(worker.boots for worker in self._workers)

    def stop(self) -> None:
        """End every machine that runs, and begin no other."""
        for worker in self._workers:
            worker.stop()

    def _results(self) -> Iterator[Result]:
        working = len(self._workers)
        while working:
            told = self._told.get()
            if isinstance(told, BaseException):
                raise told
            if told is None:
                working -= 1
            else:
                yield told

    def _work(self, machine: LiveMachine, plan_units: Callable[[Host], list[Unit]]) -> None:
        try:
            host = machine.host(_NODES)
            with self._lock:
                if self._units is None:
                    self._units = plan_units(host)
            while unit := self._next(machine.memory):
                self._run_unit(unit, machine)
        except Stopped:
            pass
        except BaseException as error:  # it is raised again by who waits
            self._told.put(error)
        finally:
            machine.close()
            self._told.put(None)

    def _next(self, memory: tuple[int, ...]) -> Unit | None:
        """Take the longest unit that a machine with ``memory`` is for, else the longest; None when all are taken."""
        with self._lock:
            if not self._units:
                return None
            fitting = [unit for unit in self._units if unit.memory == memory]
            unit = (fitting or self._units)[-1]
            self._units.remove(unit)
            return unit

    def _run_unit(self, unit: Unit, machine: LiveMachine) -> None:
        began = time.monotonic()
        for case in unit.cases:
            if result := machine.judge(unit.area, case, unit.size, unit.memory):
                self._told.put(result)
        self.seconds[unit.name] = time.monotonic() - began


def _units(
    areas: Sequence[Area], sizes: Sequence[int], includes: Includes
) -> tuple[list[Unit], list[Result]]:
    """Return what is to be run on a machine with pools of ``sizes``, and the results of what cannot be."""
    units, without = [], []
    for area in areas:
        for size in (None, *sizes):
            chosen = tuple(
                case
                for case in area.cases
                if (case.sizes is Sizes.ONCE) == (size is None) and includes(area, case, size)
            )
            if chosen:
                units.append(Unit(area, size, chosen))
        if not sizes:
            without += [
                Result(result_name(area, case, None), Verdict.SKIP, (NO_HUGETLB,))
                for case in area.cases
                if case.sizes is not Sizes.ONCE and includes(area, case, None)
            ]
    return units, without
