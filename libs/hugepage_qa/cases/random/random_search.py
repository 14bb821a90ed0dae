"""Draws random programs, runs them on machine and model, and shrinks one that shows a difference.

Every program has a seed of its own, which is its name: it is drawn again from that alone, and shrunk to the shortest
program that breaks the same rule.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace

from hypothesis import Phase, reject, seed
from hypothesis.errors import Flaky
from hypothesis.stateful import run_state_machine_as_test

from hugepage_qa.cases.hypothesis_search import nothing_stored, search_settings
from hugepage_qa.cases.random.random_drawing import Scale
from hugepage_qa.cases.random.random_program import RandomPool
from hugepage_qa.cases.random.random_step import PoolRun
from hugepage_qa.oracle.compare import Difference
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.oracle.pool.pool_operation import Operation, carry_out
from hugepage_qa.oracle.pool.pool_setup import SetCount
from hugepage_qa.oracle.pool.pool_use import Before, persistent

#: how many programs shrinking may try: one with gigantic pages takes seconds
_TRIES = 100

Start = Callable[[], PoolRun]


@dataclass(frozen=True)
class Program:
    """A program, and where machine and model differed at its last operation.

    The operations can be run on another machine: counts of pages are those above what was in the pool before.
    The first ``drawn`` were drawn, the others end the program. ``known`` are the known bugs that it showed. ``avoided``
    operations were not done: they would have left traces until a reboot, because of a bug that the kernel has.
    ``shortages`` times memory gave fewer gigantic pages than were asked for.
    """

    operations: tuple[Operation, ...] = ()
    differences: tuple[Difference, ...] = ()
    known: frozenset[Quirk] = field(default_factory=frozenset)
    drawn: int = 0
    avoided: int = 0
    shortages: int = 0

    def __str__(self) -> str:
        return "\n".join((*(str(one) for one in self.operations), *(f"-> {one}" for one in self.differences)))


def draw_and_run(scale: Scale, start: Start, name: str) -> Program:
    """Draw the program ``name`` while it runs, and what ends it; ``start`` begins a run on an idle machine."""
    return _Search(scale, start, name).explore((Phase.generate,))


def shrink(scale: Scale, start: Start, name: str, rule_name: str) -> Program:
    """Return the smallest program that can be made of the program ``name`` and breaks the rule of that name.

    It has no differences when it does not fail this time.
    """
    program = _Search(scale, start, name, rule_name).explore((Phase.generate, Phase.shrink))
    return _without_needless_operations(start, program, rule_name) if program.differences else program


def run_again(start: Start, operations: Sequence[Operation]) -> Program:
    """Run a program and what ends it, up to where machine and model differ.

    Raises KeyError, before anything is done, for a program that uses what it has not made.
    """
    run = start()
    operations = [_moved(one, run.before, 1, run.node) for one in operations]
    try:
        trial = deepcopy(run.machine)
        for operation in operations:
            carry_out(operation, trial)
        differences = next(filter(None, map(run.take, operations)), None) or run.finish()
    finally:
        run.target.close()
    return _program(run, differences)


def _program(run: PoolRun, differences: Sequence[Difference]) -> Program:
    operations = tuple(_moved(one, run.before, -1, None) for one in run.program)
    return Program(operations, tuple(differences), run.known, run.drawn, run.avoided, run.shortages)


def _moved(operation: Operation, before: Before, sign: int, node: int | None) -> Operation:
    """Return ``operation`` with what was in the pool added to its count of pages, or taken off."""
    if not isinstance(operation, SetCount):
        return operation
    return replace(operation, count=operation.count + sign * persistent(before, operation.page_size), node=node)


def _without_needless_operations(start: Start, program: Program, rule_name: str) -> Program:
    """Return ``program`` without the operations that it fails without, tried in ever smaller runs of them."""
    length = len(program.operations) // 2
    while length:
        for index in range(len(program.operations) - length, -1, -length):
            operations = program.operations[:index] + program.operations[index + length :]
            with suppress(KeyError):
                shorter = run_again(start, operations)
                if shorter.differences and shorter.differences[0].rule.name == rule_name:
                    program = shorter
        length //= 2
    return program


class _RuleBroken(AssertionError):
    """Tells Hypothesis that a program fails."""


class _Search:
    """Draws the program ``name``. ``rule_name``: only a program that breaks this rule counts as failed."""

    def __init__(self, scale: Scale, start: Start, name: str, rule_name: str | None = None) -> None:
        self.scale = scale
        self._start = start
        self._name = name
        self._rule_name = rule_name
        self._program = Program()
        self._tried = 0

    def explore(self, phases: tuple[Phase, ...]) -> Program:
        """Let Hypothesis draw the program, and shrink it if it fails and the phases say so."""

        class Drawn(RandomPool):
            search = self

        seed(self._name)(Drawn)
        # a program that fails once and not again has failed
        with nothing_stored(), suppress(_RuleBroken, Flaky):
            run_state_machine_as_test(Drawn, settings=search_settings(phases, 1, self.scale.steps))
        return self._program

    def start(self) -> PoolRun:
        """Begin a program: not the first, the simplest that there is, and none after shrinking has had its share."""
        self._tried += 1
        if self._tried == 1 or self._tried > _TRIES:
            reject()
        return self._start()

    def judge(self, run: PoolRun, differences: Sequence[Difference]) -> None:
        """Note how a program went; raise _RuleBroken if it failed. The last one that failed is the smallest."""
        failed = bool(differences) and self._rule_name in (None, differences[0].rule.name)
        if failed or not self._program.differences:
            self._program = _program(run, differences)
        if failed:
            raise _RuleBroken
