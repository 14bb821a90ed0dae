"""Runs put side by side: counts by kernel, architecture, page size and area, and what machines do not agree on.

The merged report is titles and tables before it is Markdown, one HTML file that needs nothing else, or JSON
(``schemas/merged-report``).
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hugepage_qa.cases.result import BAD, ExitCode, Verdict, exit_code, rule_of, untested_rules
from hugepage_qa.errors import InputError
from hugepage_qa.report.fill_template import fill_template
from hugepage_qa.report.run_directory import MergedCase, Run, read_run_directory

_CHUNK = 8


@dataclass(frozen=True)
class SampleSummary:
    """Samples of one machine, suite and subject. ``blocks`` is the smallest number that a series has."""

    file: str
    identity: str
    architecture: str
    cpu_model: str
    suite: str
    subject: Mapping[str, str]
    metrics: int
    blocks: int
    sessions: int
    hosts: tuple[str, ...]


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
    runs: Mapping[Verdict, tuple[str, ...]]


@dataclass(frozen=True)
class Failure:
    """A case that was bad in the same way: why, and in which runs."""

    name: str
    kernel: str
    architecture: str
    verdict: Verdict
    reason: str
    runs: tuple[str, ...]


@dataclass(frozen=True)
class MergedReport:
    """What all runs say together. ``runs`` are paths with the machine of each; ``about`` tells what it is for."""

    runs: Mapping[str, str]
    counts: Mapping[Subject, Mapping[Verdict, int]]
    failures: tuple[Failure, ...]
    disagreements: tuple[Disagreement, ...]
    skips: Mapping[str, int]
    #: rules that no run tested -> why the first one did not
    untested: Mapping[str, str]
    about: str = ""

    @property
    def totals(self) -> Mapping[Verdict, int]:
        """How many cases ended how."""
        total: Counter[Verdict] = Counter()
        for count in self.counts.values():
            total.update(count)
        return total

    @property
    def exit_code(self) -> ExitCode:
        """0 good, 1 a case failed, 2 all were skipped, 3 the suite or its surroundings broke."""
        return exit_code(self.totals)


def read_runs(paths: Sequence[Path], processes: int | None = None) -> list[Run]:
    """Return the runs in ``paths``, read by several processes. Raises InputError; for the same run twice, too."""
    places: dict[Path, Path] = {}
    for path in paths:
        if (other := places.setdefault(path.resolve(), path)) is not path:
            raise InputError(f"{path}: the same directory as {other}; expected every run once")
    if processes == 1 or len(paths) <= _CHUNK:
        runs = [read_run_directory(path) for path in paths]
    else:
        with ProcessPoolExecutor(processes) as pool:
            runs = list(pool.map(read_run_directory, paths, chunksize=_CHUNK))
    seen: dict[str, Run] = {}
    for run in runs:
        if (same := seen.setdefault(run.digest, run)) is not run:
            raise InputError(f"{run.path}: the same run as {same.path}; expected every run once")
    return runs


def merge(runs: Sequence[Run], about: str = "") -> MergedReport:
    """Return what ``runs`` say together; ``about`` is one line on what the report is for."""
    counts: dict[Subject, Counter[Verdict]] = defaultdict(Counter)
    outcomes: dict[tuple[str, str, str], dict[Verdict, list[str]]] = defaultdict(lambda: defaultdict(list))
    failures: dict[tuple[str, str, str, Verdict, str], list[str]] = defaultdict(list)
    skips: Counter[str] = Counter()
    # of every rule that was skipped anywhere, the first
    reasons: dict[str, str] = {}
    for run in runs:
        path = str(run.path)
        for case in run.cases:
            counts[Subject(case.kernel, case.architecture, case.page_size, case.area)][case.verdict] += 1
            if case.verdict is Verdict.SKIP:
                skips[_reason(case)] += 1
                reasons.setdefault(rule_of(case.case), _reason(case))
                continue
            outcomes[case.case, case.kernel, case.architecture][case.verdict].append(path)
            if case.verdict in BAD:
                failures[case.name, case.kernel, case.architecture, case.verdict, _reason(case)].append(path)
    untested = untested_rules(sorted({(case.case, case.verdict) for run in runs for case in run.cases}))
    return MergedReport(
        {str(run.path): run.machine for run in runs},
        {subject: dict(counts[subject]) for subject in sorted(counts)},
        tuple(Failure(*key, tuple(where)) for key, where in sorted(failures.items())),
        # a machine that skips a case disagrees with nobody
        tuple(
            Disagreement(*key, {outcome: tuple(where) for outcome, where in sorted(found.items())})
            for key, found in sorted(outcomes.items())
            if len(found) > 1
        ),
        dict(skips.most_common()),
        {rule: reasons[rule] for rule in untested},
        about,
    )


def _reason(case: MergedCase) -> str:
    return "; ".join(case.reasons) or "no reason given"


#: so many of what is alike are named; the JSON has all
_SHOWN_RUNS = 3
_SHOWN_SKIPS = 30

_COLUMNS = (Verdict.PASS, Verdict.KNOWN, Verdict.FAIL, Verdict.ERROR, Verdict.SKIP)


@dataclass(frozen=True)
class Table:
    """A table with what it is about; ``note`` stands instead of rows where there are none."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str


def headline(report: MergedReport) -> str:
    """Return the verdict and the counts in one line."""
    counts = ", ".join(f"{report.totals[outcome]} {outcome}" for outcome in _COLUMNS if report.totals.get(outcome))
    untested = f"; rules that no run tested: {len(report.untested)}" if report.untested else ""
    return f"{report.exit_code.word}: {len(report.runs)} runs, {counts}{untested}"


def tables(report: MergedReport, samples: Sequence[SampleSummary]) -> list[Table]:
    """Return all tables of the report, the worst first."""
    return [
        Table(
            "What failed",
            ("case", "kernel", "architecture", "outcome", "why", "runs"),
            tuple(
                (one.name, one.kernel, one.architecture, one.verdict.value, one.reason, _named(one.runs))
                for one in report.failures
            ),
            "Nothing failed.",
        ),
        Table(
            "Where machines do not agree",
            ("case", "kernel", "architecture", "outcomes"),
            tuple(
                (
                    *(one.name, one.kernel, one.architecture),
                    "; ".join(f"{outcome} in {_named(where)}" for outcome, where in one.runs.items()),
                )
                for one in report.disagreements
            ),
            "Every case ended alike on all machines with the same kernel and architecture that ran it.",
        ),
        Table(
            "Kernels, architectures, page sizes, areas",
            ("kernel", "architecture", "page size", "area", *(outcome.value for outcome in _COLUMNS)),
            tuple(
                (one.kernel, one.architecture, one.page_size, one.area, *(str(count.get(word, 0)) for word in _COLUMNS))
                for one, count in report.counts.items()
            ),
            "No case was run.",
        ),
        Table(
            "Samples, by the identity of their machine",
            ("machine", "architecture", "CPU", "suite", "under test", "metrics", "blocks", "sessions", "hosts", "file"),
            tuple(_sample_row(one) for one in samples),
            "No run has measured performance.",
        ),
        _skips(report),
        Table(
            "Rules that no run tested",
            ("case", "why"),
            tuple(report.untested.items()),
            "Every rule was tested somewhere.",
        ),
    ]


def _skips(report: MergedReport) -> Table:
    shown = list(report.skips.items())[:_SHOWN_SKIPS]
    left = len(report.skips) - len(shown)
    more = (("", f"and {left} other reasons, which report.json has"),) if left else ()
    rows = (*((str(count), reason) for reason, count in shown), *more)
    return Table("Why cases were skipped", ("cases", "reason"), rows, "None was.")


def _named(runs: Sequence[str]) -> str:
    more = len(runs) - _SHOWN_RUNS
    return ", ".join(runs[:_SHOWN_RUNS]) + (f" and {more} more" if more > 0 else "")


def _sample_row(one: SampleSummary) -> tuple[str, ...]:
    subject = ", ".join(f"{key} {value}" for key, value in sorted(one.subject.items()))
    counts = (str(one.metrics), str(one.blocks), str(one.sessions))
    names = (one.identity, one.architecture, one.cpu_model, one.suite, subject)
    return (*names, *counts, ", ".join(one.hosts), one.file)


FORMAT = "hugepage-qa merged report"
VERSION = 1


def render_markdown(report: MergedReport, samples: Sequence[SampleSummary]) -> str:
    """Return the report as Markdown: for a comment, a wiki, a summary of a CI job."""
    return _fill("merged.md.j2", report, samples)


def render_html(report: MergedReport, samples: Sequence[SampleSummary]) -> str:
    """Return the report as one HTML file that needs nothing else."""
    return _fill("merged.html.j2", report, samples)


def _fill(template: str, report: MergedReport, samples: Sequence[SampleSummary]) -> str:
    return fill_template(template, about=report.about, headline=headline(report), tables=tables(report, samples))


def as_json(report: MergedReport, samples: Sequence[SampleSummary]) -> dict[str, Any]:
    """Return the report as JSON can hold it; here every run is named, and every reason."""
    return {
        "format": FORMAT,
        "version": VERSION,
        **({"about": report.about} if report.about else {}),
        "exit_code": report.exit_code,
        "totals": _counts(report.totals),
        "runs": [{"path": path, "machine": machine} for path, machine in report.runs.items()],
        "counts": [{**vars(subject), "outcomes": _counts(count)} for subject, count in report.counts.items()],
        "failures": [_failure(one) for one in report.failures],
        "disagreements": [
            {**vars(one), "runs": {outcome.value: list(where) for outcome, where in one.runs.items()}}
            for one in report.disagreements
        ],
        "samples": [{**vars(one), "subject": dict(one.subject), "hosts": list(one.hosts)} for one in samples],
        "skips": [{"reason": reason, "cases": count} for reason, count in report.skips.items()],
        "untested": [{"rule": rule, "reason": reason} for rule, reason in report.untested.items()],
    }


def _counts(count: Any) -> dict[str, int]:
    return {outcome.value: count[outcome] for outcome in Verdict if count.get(outcome)}


def _failure(failure: Failure) -> dict[str, Any]:
    fields = {name: value for name, value in vars(failure).items() if name != "verdict"}
    return {**fields, "outcome": failure.verdict.value, "runs": list(failure.runs)}
