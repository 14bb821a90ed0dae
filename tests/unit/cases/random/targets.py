"""Machines for the tests of random programs: a model of their own stands for the kernel, right or wrong."""

from collections.abc import Callable, Iterable, Iterator

from tests.unit.oracle.right_machine import right_observations

from hugepage_qa.cases.random.random_drawing import FIRST_PROCESS, Scale
from hugepage_qa.cases.random.random_search import Program, draw_and_run
from hugepage_qa.cases.random.random_step import PoolRun
from hugepage_qa.oracle.compare import Observations
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.oracle.pool.pool_counters import PageSize
from hugepage_qa.oracle.pool.pool_expectations import expectations
from hugepage_qa.oracle.pool.pool_kernel import PoolKernel
from hugepage_qa.oracle.pool.pool_machine import PoolMachine
from hugepage_qa.oracle.pool.pool_operation import Operation, Outcome, carry_out
from hugepage_qa.oracle.prediction import Prediction
from hugepage_qa.sizes import GIB, MIB
from hugepage_qa.version import KernelVersion

SMALL, LARGE = 2 * MIB, GIB
Falsify = Callable[["ModelTarget", dict[str, int | str]], None]
Watch = Callable[[Operation, Outcome], object]
Act = Callable[[Operation, PoolMachine], Outcome]


class ModelTarget:
    """A kernel that does what its model says; ``falsify`` changes what it shows, ``watch`` is told what it did.

    ``act`` is how it carries out an operation.
    """

    def __init__(self, machine: PoolMachine, falsify: Falsify | None, watch: Watch | None, act: Act) -> None:
        self.machine = machine
        self._act = act
        self._watch = watch
        self.program: list[Operation] = []
        self.log: list[str] = []
        self.is_closed = False
        self._falsify = falsify

    def perform(self, operation: Operation) -> Outcome:
        assert not self.is_closed
        self.program.append(operation)
        outcome = self._act(operation, self.machine)
        if self._watch:
            self._watch(operation, outcome)
        return outcome

    def observe(self, machine: PoolMachine) -> Observations:
        assert list(machine.processes) == list(self.machine.processes)
        found = right_observations(Prediction("", tuple(expectations(self.machine, ()))))
        if self._falsify:
            self._falsify(self, found)
        return found

    def new_kernel_log(self) -> list[str]:
        lines, self.log = self.log, []
        return lines

    def close(self) -> None:
        self.is_closed = True


def machine(version: str = "7.2", follow: Iterable[Quirk] = (), supposed: Iterable[Quirk] = ()) -> PoolMachine:
    """Return an idle machine whose kernel follows the quirks named; those ``supposed`` show wherever they may."""
    kernel = PoolKernel(KernelVersion.parse(version), follow)
    kernel.suppose(supposed)
    found = PoolMachine(kernel, (PageSize(SMALL, False, False, 1 << 30), PageSize(LARGE, True, True, 1 << 39)))
    found.start_process(FIRST_PROCESS)
    return found


class Starts:
    """Starts runs of a model against a kernel, and keeps their targets."""

    def __init__(
        self,
        kernel: Callable[[], PoolMachine] = machine,
        model: Callable[[], PoolMachine] = machine,
        falsify: Falsify | None = None,
        watch: Watch | None = None,
        act: Act = carry_out,
    ) -> None:
        self._act = act
        self._kernel = kernel
        self._watch = watch
        self._model = model
        self._falsify = falsify
        self.targets: list[ModelTarget] = []

    def __call__(self) -> PoolRun:
        target = ModelTarget(self._kernel(), self._falsify, self._watch, self._act)
        self.targets.append(target)
        model = self._model()
        before = {size: pool.counters() for size, pool in model.pools.items()}
        return PoolRun([model], target, (), None, before)

    @property
    def operations(self) -> list[Operation]:
        """All that the kernels were asked to do."""
        return [operation for target in self.targets for operation in target.program]


SMALL_SCALE = Scale(SMALL, pool=6, pages=3, steps=25)
LARGE_SCALE = Scale(LARGE, pool=3, pages=2, steps=25)
#: what a machine with memory for two gigantic pages has
SMALLEST_SCALE = Scale(LARGE, pool=2, pages=2, steps=25)


def programs(starts: Starts, name: str, count: int, scale: Scale = SMALL_SCALE) -> Iterator[Program]:
    """Draw and run programs."""
    return (draw_and_run(scale, starts, f"{name}/{number}") for number in range(count))


def first_failed(starts: Starts, name: str, count: int = 1000) -> tuple[str, Program]:
    """Return the name of the first program that fails, and how it does."""
    numbered = enumerate(programs(starts, name, count))
    return next((f"{name}/{number}", program) for number, program in numbered if program.differences)
