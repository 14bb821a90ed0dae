"""What of a block is compared and kept in a baseline: a few numbers for thousands of samples."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

import numpy as np

from hugepage_qa.errors import InputError
from hugepage_qa.gate.location import clip_outliers, effective_size, location, middle_and_spread, outlier_rate
from hugepage_qa.gate.sample_checks import digest
from hugepage_qa.gate.samples import Block, Direction, Kind, SampleSet, Scalar, Series, SeriesIdentity
from hugepage_qa.gate.steady_state import SteadyState, find_steady_state

#: fewer samples have no 99th percentile worth the name
FEWEST_FOR_TAIL = 100

_WORSE_PERCENT = {1: 99, -1: 1}


@dataclass(frozen=True)
class BlockSummary:
    """A block in numbers, in the unit of the metric.

    ``tail`` is the percentile that 1 % of the samples are worse than, None of fewer than 100. ``samples`` counts those
    after the warm-up, of which the first was number ``steady_from``; ``effective`` is how many of them are independent.
    """

    order: int
    started: datetime | None
    session: str | None
    boot: str | None
    host: str | None
    sentinel: float | None
    samples: int
    effective: float
    location: float
    spread: float
    tail: float | None
    outlier_rate: float | None
    steady_from: int
    is_steady: bool
    sha256: str
    subject: Mapping[str, Scalar] = field(default_factory=dict)
    sentinel_after: float | None = None


@dataclass(frozen=True)
class SummarySeries(SeriesIdentity):
    """The blocks of one metric in one configuration, in numbers."""

    blocks: tuple[BlockSummary, ...]

    @property
    def worse(self) -> int:
        """+1 where larger is worse, -1 where smaller is."""
        return -1 if self.direction is Direction.HIGHER else 1


def summarise_set(samples: SampleSet, margins: Mapping[str, float]) -> dict[tuple[str, str], SummarySeries]:
    """Return all series of ``samples`` in numbers; ``margins`` holds the margin of each metric as a share."""
    host = samples.environment.get("hostname")
    return {
        one.key: summarise(one, margins[one.metric], samples.subject, None if host is None else str(host))
        for one in samples
    }


def summarise(series: Series, margin: float, subject: Mapping[str, Scalar], host: str | None) -> SummarySeries:
    """Return ``series`` in numbers, without the blocks that warmed up; blocks that name no host ran on ``host``.

    Raises InputError for a measured block whose location is 0: it has no ratio to any other.
    """
    worse = -1 if series.direction is Direction.HIGHER else 1
    blocks = tuple(
        _summarise_block(block, series.kind, margin, worse, subject, host)
        for block in series.blocks
        if not block.warmup
    )
    if series.kind is Kind.MEASURED and any(block.location <= 0 for block in blocks):
        raise InputError(f"{series.name}: most samples of a block are 0; expected values above 0, or the kind count")
    return SummarySeries(series.metric, series.unit, series.direction, series.kind, series.configuration, blocks)


def _summarise_block(
    block: Block, kind: Kind, margin: float, worse: int, subject: Mapping[str, Scalar], host: str | None
) -> BlockSummary:
    clipped = clip_outliers(block.samples)
    steady = find_steady_state(clipped, margin) if kind is Kind.MEASURED else SteadyState()
    samples = block.samples[steady.start :]
    middle, sigma = middle_and_spread(samples)
    has_tail = len(samples) >= FEWEST_FOR_TAIL
    return BlockSummary(
        order=block.order,
        started=block.started,
        session=block.session,
        boot=block.boot,
        host=block.host or host,
        sentinel=block.sentinel,
        samples=len(samples),
        effective=effective_size(clipped[steady.start :]),
        location=middle if kind is Kind.COUNT else location(samples),
        spread=sigma,
        tail=float(np.percentile(samples, _WORSE_PERCENT[worse])) if has_tail else None,
        outlier_rate=outlier_rate(samples, middle, sigma, worse) if has_tail else None,
        steady_from=steady.start,
        is_steady=steady.is_steady,
        sha256=digest(block.samples),
        subject=subject,
        sentinel_after=block.sentinel_after,
    )
