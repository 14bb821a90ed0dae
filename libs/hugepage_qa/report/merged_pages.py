"""The merged report as Markdown, as one HTML file that needs nothing else, and as JSON (``schemas/merged-report``)."""

from collections.abc import Sequence
from typing import Any

from hugepage_qa.cases.result import Verdict
from hugepage_qa.report.fill_template import fill_template
from hugepage_qa.report.merged_runs import Failure, MergedReport, SampleSummary, headline, tables

FORMAT = "hugepage-qa merged report"
VERSION = 1


def render_markdown(report: MergedReport, samples: Sequence[SampleSummary]) -> str:
    """Return the report as Markdown: for a comment, a wiki, a summary of a CI job."""
    return _fill("merged.md.j2", report, samples)


def render_html(report: MergedReport, samples: Sequence[SampleSummary]) -> str:
    """Return the report as a text of HTML."""
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
