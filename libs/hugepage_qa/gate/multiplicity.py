"""Many metrics: how often a false alarm would be among those raised."""

from collections.abc import Sequence

import numpy as np


def false_discovery_rates(p_values: Sequence[float]) -> list[float]:
    """Return for each p value the smallest rate of false discoveries at which it is one (Benjamini-Hochberg)."""
    if not p_values:
        return []
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p)
    scaled = p[order] * len(p) / np.arange(1, len(p) + 1)
    rates = np.empty(len(p))
    rates[order] = np.minimum(np.minimum.accumulate(scaled[::-1])[::-1], 1.0)
    return [float(rate) for rate in rates]
