"""Runs put side by side: counts by kernel, architecture, page size and area, and what machines do not agree on."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from hugepage_qa.errors import InputError
from hugepage_qa.report.case_result import CaseResult, Outcome, exit_code
from hugepage_qa.report.merge.run_directory import MergedCase, Run, read_run_directory

_BAD = (Outcome.WARN, Outcome.FAIL, Outcome.ERROR)
_CHUNK = 8


@dataclass(frozen=True, order=True)
class Subject:
    """What a count is about."""

    kernel: str
    architecture: str
    page_size: str
    area: str


@dataclass(frozen=True)
class Disagreement:
    """A case that ended in several ways on the same kernel and architecture: outcome -> the runs that had it."""

    name: str
    kernel: str
    architecture: str
    runs: Mapping[Outcome, tuple[str, ...]]


@dataclass(frozen=True)
class Failure:
    """A case that was bad in the same way: why, and in which runs."""

    name: str
    kernel: str
    architecture: str
    outcome: Outcome
    reason: str
    runs: tuple[str, ...]


@dataclass(frozen=True)
class MergedReport:
    """What all runs say together. ``runs`` are paths with the machine of each; ``about`` tells what it is for."""

    runs: Mapping[str, str]
    counts: Mapping[Subject, Mapping[Outcome, int]]
    failures: tuple[Failure, ...]
    disagreements: tuple[Disagreement, ...]
    skips: Mapping[str, int]
    about: str = ""

    @property
    def totals(self) -> Mapping[Outcome, int]:
        """How many cases ended how."""
        total: Counter[Outcome] = Counter()
        for count in self.counts.values():
            total.update(count)
        return total

    @property
    def exit_code(self) -> int:
        """0 good, 1 a case failed, 2 all were skipped, 3 the suite or its surroundings broke."""
        return exit_code(CaseResult("/", outcome) for outcome in self.totals)


def read_runs(paths: Sequence[Path], processes: int | None = None) -> list[Run]:
    """Return the runs in ``paths``, read by several processes. Raises InputError; for the same run twice, too."""
    _refuse_same_paths(paths)
    if processes == 1 or len(paths) <= _CHUNK:
        runs = [read_run_directory(path) for path in paths]
    else:
        with ProcessPoolExecutor(processes) as pool:
            runs = list(pool.map(read_run_directory, paths, chunksize=_CHUNK))
    seen: dict[str, Path] = {}
    for run in runs:
        if run.digest in seen:
            raise InputError(f"{run.path}: the same run as {seen[run.digest]}; expected every run once")
        seen[run.digest] = run.path
    return runs


def _refuse_same_paths(paths: Sequence[Path]) -> None:
    seen: dict[Path, Path] = {}
    for path in paths:
        place = path.resolve()
        if place in seen:
            raise InputError(f"{path}: the same directory as {seen[place]}; expected every run once")
        seen[place] = path


def merge(runs: Sequence[Run], about: str = "") -> MergedReport:
    """Return what ``runs`` say together; ``about`` is one line on what the report is for."""
    counts: dict[Subject, Counter[Outcome]] = defaultdict(Counter)
    outcomes: dict[tuple[str, str, str], dict[Outcome, list[str]]] = defaultdict(lambda: defaultdict(list))
    failures: dict[tuple[str, str, str, Outcome, str], list[str]] = defaultdict(list)
    skips: Counter[str] = Counter()
    for run in runs:
        path = str(run.path)
        for case in run.cases:
            counts[Subject(case.kernel, case.architecture, case.page_size, case.area)][case.outcome] += 1
            if case.outcome is Outcome.SKIP:
                skips[_reason(case)] += 1
                continue
            outcomes[case.name, case.kernel, case.architecture][case.outcome].append(path)
            if case.outcome in _BAD:
                failures[case.name, case.kernel, case.architecture, case.outcome, _reason(case)].append(path)
    return MergedReport(
        {str(run.path): run.machine for run in runs},
        {subject: dict(counts[subject]) for subject in sorted(counts)},
        tuple(Failure(*key, tuple(where)) for key, where in sorted(failures.items())),
        tuple(_disagreements(outcomes)),
        dict(skips.most_common()),
        about,
    )


def _disagreements(
    outcomes: Mapping[tuple[str, str, str], Mapping[Outcome, Sequence[str]]],
) -> Iterable[Disagreement]:
    """Return the cases that did not end alike everywhere; a machine that skips one disagrees with nobody."""
    for key, found in sorted(outcomes.items()):
        if len(found) > 1:
            yield Disagreement(*key, {outcome: tuple(runs) for outcome, runs in sorted(found.items())})


def _reason(case: MergedCase) -> str:
    return "; ".join(case.reasons) or "no reason given"
