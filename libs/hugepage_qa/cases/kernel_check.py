"""One kernel, judged as a whole: its boot parameters and all live cases, on throwaway machines of one architecture."""

import json
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

from hugepage_qa.cache import write_atomically
from hugepage_qa.cases.boot.boot_case import CPU_MARK, BootCase
from hugepage_qa.cases.boot.boot_matrix import Matrix, Settings
from hugepage_qa.cases.live_machine import MachinePlan, Unit
from hugepage_qa.cases.result import Result, Verdict
from hugepage_qa.cases.throwaway_run import NODES, Finished, LiveWanted, ThrowawayRun, UnderWay
from hugepage_qa.cases.time_limit import NO_TIME, TimeLimit
from hugepage_qa.cases.verdicts import lost_result
from hugepage_qa.oracle.architecture import Machine, hugetlb_sizes
from hugepage_qa.qemu.fleet import machines_at_once
from hugepage_qa.qemu.installed_emulator import NotOffered
from hugepage_qa.qemu.lost_machine import MachineLost
from hugepage_qa.qemu.nominal import nominal_machine

#: areas that depend on which page sizes a CPU has; of the others one CPU of each kind of page table tells as much
_BY_PAGE_SIZES = (
    "accounting/hugetlb-machine",
    "accounting/hugetlb-pool",
    "pool/demote",
    "pool/overcommit",
    "pool/pool",
)
#: of the time of a check: live cases find more in a second than boots, each of which is a machine of its own
_BOOTS_SHARE = 0.25
#: what the machines of a CPU take besides its cases, roughly
_BOOT_SECONDS = 20.0


class KernelCheck:
    """Judges one kernel on one architecture.

    ``groups`` are those of named boot parameters, ``random_boots`` how many random command lines are drawn for each
    CPU with the seed of ``live``, which are the live cases and random programs. ``finished`` is told of each unit of
    these that is done, ``under_way`` of how far a long one is, by any thread. With ``within`` seconds what takes least
    comes first, and what is left when they are over is a skip.
    """

    def __init__(
        self,
        architecture: str,
        settings: Settings,
        groups: Sequence[str],
        random_boots: int,
        live: LiveWanted,
        finished: Finished = lambda _name, _results, _seconds: None,
        under_way: UnderWay = lambda _words: None,
        within: float | None = None,
    ) -> None:
        """Obtain the kernel; raises InputError where there is none for ``architecture``, or nothing is selected."""
        self._settings = settings
        self._matrix = Matrix(architecture, settings)
        self._random_boots = random_boots
        self._within = within
        self._wanted = replace(live, shortest_first=within is not None)
        self._finished, self._under_way = finished, under_way
        self._boots = self._matrix.named_cases(groups)
        self._live: ThrowawayRun | None = None
        self.architecture = architecture
        self.kernel = self._matrix.kernel
        live.selection.require(live.areas, self._page_sizes())

    @property
    def expected_results(self) -> int:
        """How many results there will be, as far as that can be told before a machine runs."""
        cpus = tuple(self._matrix.board.cpus)
        live = sum(len(unit.tasks) for cpu in cpus for unit in self._nominal_units(cpu, {}))
        return len(self._boots) + self._random_boots * len(cpus) + live

    def _wanted_on(self, cpu: str) -> LiveWanted:
        """Return what is run on ``cpu``: all where its page tables are not those of the default CPU."""
        default = self._matrix.board.default_cpu
        if cpu == default or self._nominal(cpu).mmu != self._nominal(default).mmu:
            return self._wanted
        areas = tuple(area for area in self._wanted.areas if area.name in _BY_PAGE_SIZES)
        return replace(self._wanted, areas=areas, minutes=0)

    def _page_sizes(self) -> list[int]:
        """Return the page sizes of all CPUs: what one of them has not is a skip there.

        A kernel that does not tell its base pages may have those of any.
        """
        if self.kernel.config is None:
            return hugetlb_sizes(self.architecture)
        machines = [self._nominal(cpu) for cpu in self._matrix.board.cpus]
        return sorted({size for machine in machines for size in machine.mmu.hugetlb})

    def _nominal(self, cpu: str) -> Machine:
        return nominal_machine(self.kernel, cpu, NODES[:1])

    def _nominal_units(self, cpu: str, took: Mapping[str, float]) -> Iterator[Unit]:
        machine = self._nominal(cpu)
        return self._wanted_on(cpu).units(tuple(machine.mmu.hugetlb), machine.mmu.sizes(machine.features), took)

    def _expected_seconds(self, cpu: str) -> float:
        return _BOOT_SECONDS + sum(unit.seconds for unit in self._nominal_units(cpu, _recall(self._memory(cpu))))

    def _memory(self, cpu: str) -> Path:
        """Return the file that tells what live cases took on ``cpu`` the last time."""
        return self._settings.cache / "durations" / f"{self._matrix.board.architecture}-{cpu}.json"

    def run(self) -> Generator[Result, None, None]:
        """Yield each result: boots, then live cases on each CPU. Raises InputError for what can never boot."""
        limit = TimeLimit(self._within)
        cpus = [cpu for cpu in self._matrix.board.cpus if self._has_live(cpu)]
        try:
            yield from self._run_boots(limit.share(_BOOTS_SHARE if cpus else 1))
            yield from self._matrix.run_random(self._random_boots, self._wanted.seed)
            for at, cpu in enumerate(cpus):
                still = [self._expected_seconds(one) for one in cpus[at:]]
                yield from self._run_live(cpu, limit.share(still[0] / sum(still)))
        finally:
            self.stop()

    def _run_boots(self, limit: TimeLimit) -> Iterator[Result]:
        """Yield the result of each named boot; where time is short of each group the first ones come first."""
        cases = self._boots if self._within is None else _in_turn(self._boots)
        left = {case.name for case in cases}
        with closing(self._matrix.run(cases)) as results:
            for result in results:
                left.discard(result.name)
                yield result
                if limit.is_over:
                    break
        yield from (Result(case.name, Verdict.SKIP, (NO_TIME,)) for case in cases if case.name in left)

    def _has_live(self, cpu: str) -> bool:
        wanted = self._wanted_on(cpu)
        return bool(wanted.areas or wanted.operations or wanted.minutes)

    def stop(self) -> None:
        """End every machine that runs."""
        self._matrix.stop()
        if self._live is not None:
            self._live.stop()

    def _run_live(self, cpu: str, limit: TimeLimit) -> Iterator[Result]:
        """Run the live cases on ``cpu`` until ``limit`` is over; what they take is remembered for the next time.

        Where its machine does not come up, that is one result, a failure where its kernel panicked, and says nothing of
        the other CPUs; one that the emulator does not have is a skip.
        """
        settings, board = self._settings, self._matrix.board
        nodes = self._wanted.nodes
        plan = MachinePlan(self.kernel, cpu, settings.cache, settings.append, nodes, self._wanted.cpus)
        machines = settings.machines or machines_at_once(sum(nodes or NODES))
        self._live = ThrowawayRun(plan, machines, self._finished, self._under_way, limit)
        memory = self._memory(cpu)
        mark = "" if cpu == board.default_cpu else f"{CPU_MARK}{cpu}"
        took = _recall(memory)
        try:
            for result in self._live.run(self._wanted_on(cpu), took):
                yield replace(result, name=f"{result.name}{mark}")
        except MachineLost as lost:
            yield lost_result(f"/machine{mark}", lost, 0.0)
            return
        except NotOffered as error:
            yield Result(f"/machine{mark}", Verdict.SKIP, (str(error),))
            return
        if not nodes:
            # another machine tells nothing of what they take on the usual one
            write_atomically(memory, json.dumps(took | self._live.seconds, indent=1).encode())


def _in_turn(cases: Sequence[BootCase]) -> list[BootCase]:
    """Return ``cases`` with the first one of each group and CPU first, then the second ones, and so on."""
    count: Counter[str] = Counter()
    place = {}
    for case in cases:
        group = case.name.rpartition("/")[0] + case.cpu
        place[case.name] = count[group]
        count[group] += 1
    return sorted(cases, key=lambda case: place[case.name])


def _recall(file: Path) -> dict[str, float]:
    """Return name of a result -> seconds, as far as they are known: they only make a run shorter."""
    with suppress(OSError, ValueError):
        told = json.loads(file.read_text(encoding="utf-8"))
        entries = told.items() if isinstance(told, dict) else ()
        return {name: float(seconds) for name, seconds in entries if isinstance(seconds, int | float)}
    return {}
