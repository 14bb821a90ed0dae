"""What a report on a comparison shows beside the verdicts: blocks over time, samples, pairs of one session.

Where there are many metrics only those that ask for a look have pictures: nobody looks at a hundred that passed.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from hugepage_gate.block_summary import SummarySeries
from hugepage_gate.classic_table import ClassicTable, classic_table
from hugepage_gate.compare_suites import BaselineSet
from hugepage_gate.comparison import Comparison, MetricResult
from hugepage_gate.samples import SampleSet, Verdict

MOST_PICTURES = 12
_QUIET = frozenset({Verdict.PASS, Verdict.BLIND})


@dataclass(frozen=True)
class Configuration:
    """One configuration of a metric: locations of the blocks of both sides, and the new samples in the study's table.

    ``sessions`` are the names of the sessions of the new blocks, in the same order as ``new``.
    """

    name: str
    baseline: tuple[float, ...]
    new: tuple[float, ...]
    sessions: tuple[str, ...]
    table: ClassicTable


@dataclass(frozen=True)
class MetricPage:
    """One metric with all its configurations and results."""

    metric: str
    unit: str
    reference: str | None
    configurations: tuple[Configuration, ...]
    results: tuple[MetricResult, ...]


@dataclass(frozen=True)
class GatePage:
    """All that a report shows; ``metrics`` are those with pictures."""

    comparison: Comparison
    environment: Mapping[str, object]
    subject: Mapping[str, object]
    metrics: tuple[MetricPage, ...]


def make_page(
    comparison: Comparison,
    baseline: BaselineSet,
    new: SampleSet,
    numbers: Mapping[tuple[str, str], SummarySeries],
) -> GatePage:
    """Return what a report on ``comparison``, of ``new`` and its ``numbers`` with ``baseline``, shows."""
    metrics = list(dict.fromkeys(series.metric for series in new))
    if len(metrics) > MOST_PICTURES:
        asking = dict.fromkeys(one.metric for one in comparison.results if one.verdict not in _QUIET)
        metrics = list(asking)[:MOST_PICTURES]
    return GatePage(
        comparison,
        dict(new.environment),
        dict(new.subject),
        tuple(_metric(metric, comparison, baseline, new, numbers) for metric in metrics),
    )


def _metric(
    metric: str,
    comparison: Comparison,
    baseline: BaselineSet,
    new: SampleSet,
    summaries: Mapping[tuple[str, str], SummarySeries],
) -> MetricPage:
    series = [one for one in new if one.metric == metric]
    configurations = []
    for one in series:
        old, summary = baseline.series.get(one.key), summaries[one.key]
        blocks = [block.samples for block in one.blocks if not block.warmup] or [one.blocks[0].samples]
        configurations.append(
            Configuration(
                name=one.configuration,
                baseline=tuple(block.location for block in old.blocks) if old else (),
                new=tuple(block.location for block in summary.blocks),
                sessions=tuple(block.session or str(block.started) for block in summary.blocks),
                table=classic_table(blocks),
            )
        )
    return MetricPage(
        metric,
        series[0].unit,
        new.reference,
        tuple(configurations),
        tuple(one for one in comparison.results if one.metric == metric),
    )
