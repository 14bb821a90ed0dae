"""Samples for tests: small documents, and measurements whose blocks are drawn from a seed."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from hugepage_gate.sample_format import parse_samples
from hugepage_gate.samples import SampleSet

START = datetime(2026, 1, 1, tzinfo=UTC)
MACHINE: dict[str, Any] = {"arch": "x86_64", "cpu_model": "Xeon 8275CL", "cores": 8}
LEVEL = 100.0


def document(*series: dict[str, Any], **facts: Any) -> dict[str, Any]:
    """Return a document in the neutral format."""
    head = {"format": "hugepage-qa samples", "version": 1, "suite": "memory", "environment": MACHINE}
    return {**head, **facts, "series": list(series) or [series_of([[1.0, 1.1, 0.9]])]}


def series_of(
    rows: Sequence[Sequence[float]],
    metric: str = "walk",
    day: int = 0,
    block: dict[str, Any] | None = None,
    **facts: Any,
) -> dict[str, Any]:
    """Return a series with a block per row, one a day from ``day`` on; ``block`` holds further facts of all blocks."""
    blocks = [
        {
            "started": (START + timedelta(days=day + place)).isoformat(),
            "order": 0,
            "boot": f"boot{day + place}",
            "samples": list(row),
            **(block or {}),
        }
        for place, row in enumerate(rows)
    ]
    return {"metric": metric, "unit": "s", "direction": "lower", "blocks": blocks, **facts}


def rows_of(levels: Sequence[float], seed: int = 1, samples: int = 20, within: float = 0.003) -> list[list[float]]:
    """Return samples around each of ``levels``."""
    random = np.random.default_rng(seed)
    return [list(map(float, level * np.exp(random.normal(0, within, samples)))) for level in levels]


def levels_of(count: int, change: float = 0.0, seed: int = 1, between: float = 0.002) -> list[float]:
    """Return block levels around 100, changed by ``change``."""
    random = np.random.default_rng(seed)
    return list(map(float, LEVEL * (1 + change) * np.exp(random.normal(0, between, count))))


def measured(
    blocks: int, change: float = 0.0, seed: int = 1, day: int = 0, samples: int = 20, **facts: Any
) -> dict[str, Any]:
    """Return a series of a quiet machine whose level is ``change`` off."""
    return series_of(rows_of(levels_of(blocks, change, seed), seed, samples), day=day, **facts)


def sample_set(*series: dict[str, Any], source: str = "samples", **facts: Any) -> SampleSet:
    """Return parsed samples."""
    return parse_samples(document(*series, **facts), source)
