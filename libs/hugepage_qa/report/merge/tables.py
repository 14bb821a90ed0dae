"""The merged report as titles and tables, before it is Markdown or HTML."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hugepage_qa.report.case_result import Outcome
from hugepage_qa.report.merge.merged import MergedReport
from hugepage_qa.report.merge.sample_summary import SampleSummary

#: so many of what is alike are named; the JSON has all
_SHOWN_RUNS = 3
_SHOWN_SKIPS = 30

_WORDS = {0: "good", 1: "bad", 2: "undecided", 3: "broken"}
_COLUMNS = (Outcome.PASS, Outcome.KNOWN, Outcome.WARN, Outcome.FAIL, Outcome.ERROR, Outcome.SKIP)


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
    return f"{_WORDS[report.exit_code]}: {len(report.runs)} runs, {counts}"


def tables(report: MergedReport, samples: Sequence[SampleSummary]) -> list[Table]:
    """Return all tables of the report, the gravest first."""
    return [
        Table(
            "What failed",
            ("case", "kernel", "architecture", "outcome", "why", "runs"),
            tuple(
                (one.name, one.kernel, one.architecture, one.outcome.value, one.reason, _named(one.runs))
                for one in report.failures
            ),
            "Nothing failed.",
        ),
        Table(
            "Where machines do not agree",
            ("case", "kernel", "architecture", "outcomes"),
            tuple((one.name, one.kernel, one.architecture, _outcomes(one.runs)) for one in report.disagreements),
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
    ]


def _skips(report: MergedReport) -> Table:
    shown = list(report.skips.items())[:_SHOWN_SKIPS]
    left = len(report.skips) - len(shown)
    more = (("", f"and {left} other reasons, which report.json has"),) if left else ()
    rows = (*((str(count), reason) for reason, count in shown), *more)
    return Table("Why cases were skipped", ("cases", "reason"), rows, "None was.")


def _outcomes(runs: Mapping[Outcome, Sequence[str]]) -> str:
    return "; ".join(f"{outcome} in {_named(where)}" for outcome, where in runs.items())


def _named(runs: Sequence[str]) -> str:
    more = len(runs) - _SHOWN_RUNS
    return ", ".join(runs[:_SHOWN_RUNS]) + (f" and {more} more" if more > 0 else "")


def _sample_row(one: SampleSummary) -> tuple[str, ...]:
    subject = ", ".join(f"{key} {value}" for key, value in sorted(one.subject.items()))
    counts = (str(one.metrics), str(one.blocks), str(one.sessions))
    names = (one.identity, one.architecture, one.cpu_model, one.suite, subject)
    return (*names, *counts, ", ".join(one.hosts), one.file)
