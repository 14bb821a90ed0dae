"""One step of a random program: the model and the machine do the same, and must show the same afterwards."""

from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import islice

from hugepage_qa.cases.judge import NOTHING_LEFT
from hugepage_qa.cases.random.random_target import PoolTarget
from hugepage_qa.oracle.compare import Difference, compare
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.oracle.pool.pool_expectations import OUTCOME, expectations
from hugepage_qa.oracle.pool.pool_machine import PoolMachine
from hugepage_qa.oracle.pool.pool_operation import NEVER_ENDS, Operation, Outcome, carry_out
from hugepage_qa.oracle.pool.pool_use import Before, closing_operations, traces_left
from hugepage_qa.oracle.prediction import Exactly, Expectation, Prediction, pool_subject

_OUTCOME = "outcome"
_MOST_MODELS = 8


@dataclass(frozen=True)
class _Predicted:
    """What the model ``before`` says of a step.

    ``chances`` are bugs that may have shown, ``asked`` the pages that memory was to give.
    """

    before: PoolMachine
    after: PoolMachine
    outcome: Outcome
    chances: frozenset[Quirk]
    asked: int


@dataclass
class PoolRun:
    """A program in progress on ``target``.

    ``models`` are what the machine may be by now: a kernel whose version has a bug has it or has its fix, which may
    show only later. ``nodes`` are those of the machine, ``node`` is the one whose pool is resized (None: that of the
    machine), and ``before`` is what the pools were.
    """

    models: list[PoolMachine]
    target: PoolTarget
    nodes: tuple[int, ...]
    node: int | None
    before: Before
    program: list[Operation] = field(default_factory=list)
    #: operations that were not done: a bug of this kernel would keep pages or reservations until a reboot, or never
    #: come back
    avoided: int = 0
    #: how many operations of the program were drawn; those that end it come after them
    drawn: int = 0
    #: how often memory gave fewer gigantic pages than were asked for
    shortages: int = 0
    #: whether the last operation was done and went well
    succeeded: bool = False

    @property
    def machine(self) -> PoolMachine:
        """The first of the models: what programs are drawn from."""
        return self.models[0]

    @property
    def known(self) -> frozenset[Quirk]:
        """The known bugs that the kernel showed, the fewest that explain what was seen."""
        fewest = min(self.models, key=lambda model: len(model.kernel.followed))
        return frozenset(fewest.kernel.followed)

    def take(self, operation: Operation) -> list[Difference]:
        """Do one operation on both and return where they differ then; nothing is done that would do lasting harm."""
        self.succeeded = False
        predicted = self._predict(operation)
        if any(one.outcome == NEVER_ENDS or self._leaves_traces(one, operation) for one in predicted):
            self.avoided += 1
            return []
        self.drawn += 1
        return self._do(operation, predicted)

    def finish(self) -> list[Difference]:
        """End all that the program has left, step by step; what the kernel keeps all the same is a difference, too."""
        for operation in closing_operations(self.machine, self.before, self.node):
            if differences := self._do(operation, self._predict(operation)):
                return differences
        return [
            Difference(pool_subject(size, name), NOTHING_LEFT, str(self.before[size][name]), str(value))
            for size, pool in self.machine.pools.items()
            for name, value in pool.counters().items()
            if value != self.before[size][name]
        ]

    def _predict(self, operation: Operation) -> list[_Predicted]:
        return [one for model in self.models for one in _with_and_without_fixes(model, operation)]

    def _do(self, operation: Operation, predicted: Sequence[_Predicted]) -> list[Difference]:
        self.program.append(operation)
        step = _Step(self.target.perform(operation), self.target, self.nodes)
        differences = [step.differences(one) for one in predicted]
        matching = [one for one, found in zip(predicted, differences, strict=True) if not found]
        if not matching:
            guesses = (_predict(model, operation) for one in predicted for model in _by_chance(one))
            matching = list(islice((one for one in guesses if not step.differences(one)), 1))
            self.shortages += any(one.before.memory.is_limited for one in matching)
        self.models = [one.after for one in matching or predicted][:_MOST_MODELS]
        self.succeeded = step.found == "ok"
        return [] if matching else differences[0]

    def _leaves_traces(self, predicted: _Predicted, operation: Operation) -> bool:
        if not predicted.before.kernel.follow:
            return False
        possible = [predicted.after, *(_predict(model, operation).after for model in _by_chance(predicted))]
        return any(traces_left(one, self.before, self.node) for one in possible)


class _Step:
    """An operation that was done; ``found`` is what came of it."""

    def __init__(self, found: Outcome, target: PoolTarget, nodes: tuple[int, ...]) -> None:
        self.found = found
        self._target = target
        self._nodes = nodes
        self._log = target.new_kernel_log()

    def differences(self, predicted: _Predicted) -> list[Difference]:
        """Return where the machine is not as predicted."""
        outcome = Expectation(_OUTCOME, Exactly(predicted.outcome), OUTCOME)
        prediction = Prediction("", (outcome, *expectations(predicted.after, self._nodes)))
        return compare(prediction, {_OUTCOME: self.found, **self._target.observe(predicted.after)}, self._log)


def _predict(model: PoolMachine, operation: Operation) -> _Predicted:
    after = deepcopy(model)
    outcome = carry_out(operation, after)
    predicted = _Predicted(model, after, outcome, frozenset(after.kernel.open), after.memory.asked)
    after.memory.limit(None)
    after.kernel.suppose(())
    return predicted


def _with_and_without_fixes(model: PoolMachine, operation: Operation) -> Iterator[_Predicted]:
    """Yield what the model says, and what it says without the bugs that make a difference in this step."""
    tried = {model.kernel.follow}
    waiting = [model]
    while waiting:
        predicted = _predict(waiting.pop(0), operation)
        yield predicted
        for quirk in _sorted(predicted.after.kernel.followed - predicted.before.kernel.followed):
            mended = deepcopy(predicted.before)
            mended.kernel.mend(quirk)
            if mended.kernel.follow not in tried:
                tried.add(mended.kernel.follow)
                waiting.append(mended)


def _by_chance(predicted: _Predicted) -> Iterator[PoolMachine]:
    """Yield what no model can know: with a bug that may or may not show, and with fewer gigantic pages.

    These are had only where that much memory is contiguous.
    """
    for quirk in _sorted(predicted.chances):
        affected = deepcopy(predicted.before)
        affected.kernel.suppose({quirk})
        yield affected
    if any(pool.page.is_gigantic for pool in predicted.before.pools.values()):
        for pages in reversed(range(predicted.asked)):
            short = deepcopy(predicted.before)
            short.memory.limit(pages)
            yield short


def _sorted(quirks: Iterable[Quirk]) -> list[Quirk]:
    return sorted(quirks, key=lambda quirk: quirk.value)
