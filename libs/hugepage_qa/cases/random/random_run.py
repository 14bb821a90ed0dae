"""Random programs with pages of one size, up to the first that fails, and what came of them."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from hugepage_qa.cases.judge import NOTHING_LEFT, checked_end, evidence, run_judged
from hugepage_qa.cases.kernel_trouble import KERNEL_CONTENT
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.random.random_search import Program, draw_and_run, run_again, shrink
from hugepage_qa.cases.random.random_surroundings import AS_MODELLED, CannotReplay, PoolsChanged, PoolSurroundings
from hugepage_qa.cases.result import BAD, Result, Verdict, because
from hugepage_qa.cases.verdicts import decide
from hugepage_qa.machine.host import Host
from hugepage_qa.oracle.compare import Difference
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.oracle.pool.pool_operation import Operation
from hugepage_qa.process.actor_link import ActorGone
from hugepage_qa.sizes import format_size

#: is told how many operations were done so far
Tell = Callable[[int], None]


@dataclass
class RandomOutcome:
    """What came of programs; ``operations`` were drawn and done, ``failed`` is the smallest program that fails."""

    operations: int = 0
    programs: int = 0
    avoided: int = 0
    shortages: int = 0
    most_pages: int = 0
    known: set[Quirk] = field(default_factory=set)
    drawn: Program | None = None
    failed: Program | None = None
    differences: list[Difference] = field(default_factory=list)

    def add(self, program: Program) -> None:
        """Count a program in; one with differences is the one that failed."""
        self.programs += 1
        self.operations += program.drawn
        self.avoided += program.avoided
        self.shortages += program.shortages
        self.known |= program.known
        if program.differences:
            self.drawn = self.failed = program
            self.differences += program.differences

    def __str__(self) -> str:
        parts = [f"{self.operations} operations in {self.programs} programs, pools of up to {self.most_pages} pages"]
        if self.shortages:
            parts.append(f"memory gave fewer gigantic pages than asked for {self.shortages} times")
        if self.avoided:
            parts.append(
                f"{self.avoided} operations not done: bugs of this kernel would leave traces until a reboot, or hang"
            )
        return "; ".join(parts)


@dataclass(frozen=True, kw_only=True)
class RandomResult(Result):
    """The verdict on one page size, and what it is based on."""

    outcome: RandomOutcome = field(default_factory=RandomOutcome)


def run_random_programs(host: Host, size: int, seed: int, operations: int, tell: Tell | None = None) -> RandomResult:
    """Draw and run programs until ``operations`` are done or one fails, which is then made small.

    The same seed draws the same programs on a machine that answers the same.
    """

    def run(surroundings: PoolSurroundings, outcome: RandomOutcome) -> None:
        while outcome.operations < operations:
            name = f"{seed}/{outcome.programs + 1}"
            program = draw_and_run(surroundings.scale, surroundings.start, name)
            outcome.add(program)
            if tell:
                tell(outcome.operations)
            if program.differences:
                outcome.failed = _smallest(surroundings, name, program)
                return

    return _judge(host, size, f"seed {seed}", run)


def run_saved_program(host: Host, size: int, operations: Sequence[Operation]) -> RandomResult:
    """Run a program again. Raises CannotReplay when this machine cannot run it, or it uses what it has not made."""

    def run(surroundings: PoolSurroundings, outcome: RandomOutcome) -> None:
        surroundings.require_room_for(operations)
        try:
            outcome.add(run_again(surroundings.start, operations))
        except (KeyError, ValueError) as error:
            raise CannotReplay(f"the program uses {error}, which there is not at that point") from error

    return _judge(host, size, "replay", run)


def _judge(host: Host, size: int, what: str, run: Callable[[PoolSurroundings, RandomOutcome], None]) -> RandomResult:
    began = time.monotonic()
    outcome = RandomOutcome()
    with ExitStack() as stack:
        live = Live(host, size, AS_MODELLED, stack)
        live.differences = outcome.differences

        def act() -> None:
            with checked_end(live, host, stack):
                surroundings = PoolSurroundings(live, stack)
                outcome.most_pages = surroundings.scale.pool
                run(surroundings, outcome)

        # killed, or blocked in the kernel; what it refuses is compared
        end = run_judged(live, act, (ActorGone,), passed_on=(CannotReplay,))
    verdict, reason = _verdict(live, outcome, what, end)
    found = f"{_programs(outcome)}\n{live.traceback}{evidence(host)}" if verdict in BAD else ""
    name, seconds = f"/random/{format_size(size)}", time.monotonic() - began
    return RandomResult(name, verdict, because(reason), seconds, found, outcome=outcome)


def _verdict(live: Live, outcome: RandomOutcome, what: str, end: Exception | None) -> tuple[Verdict, str]:
    done = "; ".join([f"{what}: {outcome}", *live.problems, *([str(end)] if end else [])])
    # what stays behind a program that the suite broke off is no finding
    excused = (NOTHING_LEFT, KERNEL_CONTENT) if live.traceback else ()
    if live.problems and all(one.rule in excused for one in live.differences):
        return Verdict.ERROR, done
    found = "; ".join(str(one) for one in live.differences)
    known = ", ".join(sorted(quirk.value for quirk in outcome.known))
    return decide(
        found=f"{found} ({done})" if found else "",
        known=f"{known} ({done})" if known and not end else "",
        lacking=str(end) if end else "",
        passed=done,
    )


def _smallest(surroundings: PoolSurroundings, name: str, program: Program) -> Program:
    """Return the smallest program that breaks the same rule; ``program`` itself when it does not fail again."""
    try:
        smallest = shrink(surroundings.scale, surroundings.start, name, program.differences[0].rule.name)
    except PoolsChanged:
        # what failed has left something behind: on such pools nothing can be compared
        return program
    return smallest if smallest.differences else program


def _programs(outcome: RandomOutcome) -> str:
    if outcome.drawn is None or outcome.failed is None:
        return ""
    return f"# as it was drawn\n{outcome.drawn}\n\n# the smallest that fails\n{outcome.failed}\n"
