"""What a run of the plan ``gate`` left, on one screen: its comparisons are read again, their reports put in one place.

It needs numpy, as the gate does; whoever runs other plans does not import it.
"""

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from hugepage_gate.comparison import read_comparison
from hugepage_qa.cases.result import Result
from hugepage_qa.report.comparison_screen import print_screen
from hugepage_qa.report.next_step import Ways, next_step
from hugepage_qa.report.terminal import height_of, skip_lines

_DOCUMENT = ".json"
_REPORTS = frozenset({_DOCUMENT, ".html", ".md"})
_SAMPLES = "samples"
#: of a check that accepted a baseline of the first samples: those that it compares with that
AGAIN = "again"


@dataclass(frozen=True)
class GateUser:
    """What a user is told of a run: where it is ``kept``, and what to do next.

    ``accept``, ``look`` and ``baselines`` are as in ``Ways``.
    """

    kept: Path
    accept: str
    look: str
    baselines: str = ""


def samples_in(check: Path) -> Path:
    """Return where the check in the directory ``check`` has what it compares."""
    again = check / AGAIN
    return again if again.exists() else check / _SAMPLES


def print_gate_run(console: Console, results: Sequence[Result], user: GateUser, spare: int) -> Sequence[Result]:
    """Print the comparisons among ``results`` and the next step, gather their files, and return all other results.

    ``spare`` lines of the screen are left, besides those on what was skipped. Where there is no comparison, nothing is
    printed. Raises InputError for one that cannot be read, OSError where a file cannot be copied.
    """
    suites = [(one, log) for one in results for log in one.logs if log.suffix == _DOCUMENT]
    if not suites:
        return results
    comparisons = [read_comparison(log) for _, log in suites]
    for comparison, (suite, _) in zip(comparisons, suites, strict=True):
        for log in (log for log in suite.logs if log.suffix in _REPORTS):
            shutil.copyfile(log, user.kept / f"{comparison.suite}{log.suffix}")
    samples = _gather_samples(suites[0][1], user.kept)
    place = Path(os.path.relpath(user.kept)) if user.kept.is_relative_to(Path.cwd()) else user.kept
    step = next_step(comparisons, Ways(user.accept, user.look, str(place / samples), user.baselines))
    told = tuple(f"{suite.name}/" for suite, _ in suites)
    others = [one for one in results if not f"{one.name}/".startswith(told)]
    spare += sum(height_of(line, console.width) for line in skip_lines(others))
    print_screen(console, comparisons, f"{place}/*.html", step, spare)
    return others


def _gather_samples(log: Path, kept: Path) -> str:
    """Have a link in ``kept`` to the samples of the check that left ``log`` in its data/logs; return its name."""
    link = kept / _SAMPLES
    link.unlink(missing_ok=True)
    # relative: who keeps a run moves it as a whole
    link.symlink_to(os.path.relpath(samples_in(log.parent.parent), kept))
    return link.name
