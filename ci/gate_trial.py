"""Try the performance gate on this machine: nothing changed, and slow-downs made on purpose.

    gate_trial.py measure DIRECTORY [WORKLOAD]    measure all that is tried, where it is not in DIRECTORY yet
    gate_trial.py judge DIRECTORY [WORKLOAD]      judge it
    gate_trial.py repeats FILE...                 ten repeats of unchanged measurements, drawn from sessions in FILEs

Needs root; pools and THP of the machine are changed and put back. A measurement that was stopped goes on.
"""

import os
import random
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from hugepage_gate.baseline_file import FEWEST_BLOCKS
from hugepage_gate.compare_suites import (
    Terms,
    baseline_from_samples,
    compare,
)
from hugepage_gate.comparison import Comparison
from hugepage_gate.gate_policy import FILE_NAME, Policy, read_policy
from hugepage_gate.sample_files import read_one_machine
from hugepage_gate.samples import SampleSet, Verdict
from hugepage_qa.bench.workload import Cell
from hugepage_qa.cases.result import ExitCode
from hugepage_qa.commands.gate_measure import MeasureOptions, take_samples
from hugepage_qa.errors import InputError
from hugepage_qa.report.open_console import open_console

BASELINES = Path(__file__).resolve().parent.parent / "baselines"
CONFIGURATIONS = ("4k", "thp", "shp-2M")
#: sessions in which nothing is changed: a baseline, and three to judge
UNCHANGED = FEWEST_BLOCKS + 3
CHANGED = 3
REPEATS = 10
SEED = 1

#: what a slow-down that hits one block only may be called; never a regression
_NOT_SURE = frozenset({Verdict.DISTURBED, Verdict.UNDECIDED})
_FOUND = frozenset({Verdict.REGRESSED})


@dataclass(frozen=True)
class Trial:
    """A slow-down on purpose, and the verdicts on it that are right."""

    name: str
    what: str
    right: frozenset[Verdict]
    stand_ins: tuple[str, ...] = ()
    is_hogged: bool = False


TRIALS = (
    Trial("halved", "half of the huge pages taken away", _FOUND, ("shp-2M=shp-2M/2",)),
    Trial("base", "4K instead of huge pages", _FOUND, ("shp-2M=4k",)),
    Trial("hog", "a CPU hog beside one configuration in one block", _NOT_SURE, is_hogged=True),
)


def main(words: Sequence[str]) -> int:
    """Return 0 when all verdicts are right, 1 when one is wrong, 3 for wrong input."""
    try:
        match words:
            case ["measure", directory, *workload]:
                return _measure(Path(directory), *workload)
            case ["judge", directory, *workload]:
                return _judge(Path(directory), *workload)
            case ["repeats", *files] if files:
                return ExitCode.GOOD if _repeats(read_one_machine([Path(file) for file in files])) else ExitCode.BAD
    except (InputError, OSError, TypeError) as error:
        print(f"gate_trial: {error}", file=sys.stderr)
        return ExitCode.BROKEN
    print(__doc__, file=sys.stderr)
    return ExitCode.BROKEN


def _measure(directory: Path, workload: str = "page-access") -> int:
    unchanged = MeasureOptions("quick", (workload,), CONFIGURATIONS, UNCHANGED, directory / "unchanged")
    take_samples(unchanged)
    for trial in TRIALS:
        options = replace(unchanged, sessions=CHANGED, output=directory / trial.name, stand_ins=trial.stand_ins)
        take_samples(options, _hog if trial.is_hogged else lambda _cell: nullcontext())
    return ExitCode.GOOD


def _hog(cell: Cell) -> "nullcontext[None] | _Hog":
    """Return what runs beside a block: busy loops beside the first one on static pages, else nothing."""
    is_first = cell.session == 1 and cell.order < len(CONFIGURATIONS)
    return _Hog() if is_first and cell.configuration == CONFIGURATIONS[-1] else nullcontext()


class _Hog:
    """Twice as many busy loops as there are CPUs."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    def __enter__(self) -> None:
        for _ in range(2 * (os.cpu_count() or 1)):
            self._stack.enter_context(_busy_loop())

    def __exit__(self, *_error: object) -> None:
        self._stack.close()


@contextmanager
def _busy_loop() -> Iterator[None]:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            yield
        finally:
            process.kill()


def _judge(directory: Path, workload: str = "page-access") -> int:
    unchanged = read_one_machine([directory / "unchanged" / f"{workload}.json"])
    are_right = [_repeats(unchanged)]
    baseline = _of_sessions(unchanged, _sessions(unchanged)[:FEWEST_BLOCKS])
    table = Table("slow-down", "verdict", "rests on", "expected", "right")
    for trial in TRIALS:
        found = _verdict(baseline, read_one_machine([directory / trial.name / f"{workload}.json"]))
        is_right = found.verdict in trial.right
        are_right.append(is_right)
        expected = " or ".join(sorted(trial.right))
        table.add_row(trial.what, found.verdict, escape(found.reason), expected, "yes" if is_right else "NO")
    open_console().print(table)
    return ExitCode.GOOD if all(are_right) else ExitCode.BAD


def _repeats(samples: SampleSet) -> bool:
    """Judge ten pairs of a baseline and new sessions in which nothing changed; return whether none regressed."""
    sessions = _sessions(samples)
    if len(sessions) < UNCHANGED:
        raise InputError(f"{samples.source}: {len(sessions)} sessions, expected at least {UNCHANGED}")
    news = list(combinations(sessions[-UNCHANGED:], CHANGED))
    # the last one is in the order of time
    drawn = [*random.Random(SEED).sample(news[:-1], REPEATS - 1), news[-1]]  # noqa: S311 - a split, no secret
    table = Table("nothing changed: new sessions", "verdict", "rests on", "alarms")
    are_right = []
    for new in drawn:
        baseline = _of_sessions(samples, [one for one in sessions if one not in new])
        found = _verdict(baseline, _of_sessions(samples, new))
        alarms = [one.name for one in found.results if one.verdict is Verdict.REGRESSED]
        are_right.append(found.verdict is not Verdict.REGRESSED)
        numbers = ", ".join(str(1 + sessions.index(one)) for one in new)
        table.add_row(numbers, found.verdict, escape(found.reason), escape(", ".join(alarms) or "none"))
    open_console().print(table)
    print(f"{samples.suite}: {are_right.count(False)} of {REPEATS} repeats regressed, expected none")
    return all(are_right)


def _verdict(baseline: SampleSet, new: SampleSet) -> Comparison:
    """Return the verdict as ``gate check`` comes to it: after the first session, and after all where it is open."""
    policy = read_policy(BASELINES / FILE_NAME)
    sessions = _sessions(new)
    found = [_compare(baseline, _of_sessions(new, sessions[:look]), policy) for look in (1, len(sessions))]
    is_decided = found[0].verdict in (Verdict.PASS, Verdict.IMPROVED, Verdict.REGRESSED)
    return found[0] if is_decided else found[1]


def _compare(baseline: SampleSet, new: SampleSet, policy: Policy) -> Comparison:
    terms = Terms(policy, "kernel", frozenset({"stand_ins"}), fewest_boots=1)
    return compare(baseline_from_samples(baseline, policy), new, terms)


def _sessions(samples: SampleSet) -> list[str]:
    """Return the sessions in the order of time."""
    return list(dict.fromkeys(str(block.session) for one in samples for block in one.blocks))


def _of_sessions(samples: SampleSet, sessions: Iterable[str]) -> SampleSet:
    wanted = frozenset(sessions)
    series = (replace(one, blocks=tuple(block for block in one.blocks if block.session in wanted)) for one in samples)
    return replace(samples, series=tuple(series))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
