"""The lengths of the paths of several kernels side by side."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from hugepage_gate.block_summary import summarise_set
from hugepage_gate.samples import SampleSet


def path_table(kernels: Sequence[SampleSet]) -> Iterator[str]:
    """Yield the lines of a table in Markdown: a path each, and what it takes in each of ``kernels``.

    The share is the change from the last kernel, which the others are set against. A path that a kernel lacks is empty.
    """
    levels = [_levels(one) for one in kernels]
    yield f"| instructions for a page | {' | '.join(one.source for one in kernels)} |"
    yield f"|---|{'---:|' * len(kernels)}"
    for metric in dict.fromkeys(metric for one in levels for metric in one):
        usual = levels[-1].get(metric)
        cells = [_cell(one.get(metric), usual if one is not levels[-1] else None) for one in levels]
        yield f"| {metric} | {' | '.join(cells)} |"


def _levels(samples: SampleSet) -> Mapping[str, float]:
    summaries = summarise_set(samples, dict.fromkeys((one.metric for one in samples), 1.0))
    return {metric: float(np.median([one.location for one in each.blocks])) for (metric, _), each in summaries.items()}


def _cell(level: float | None, usual: float | None) -> str:
    if level is None:
        return ""
    change = f" ({level / usual - 1:+.1%})" if usual else ""
    return f"{float(f'{level:.4g}'):,.10g}{change}"
