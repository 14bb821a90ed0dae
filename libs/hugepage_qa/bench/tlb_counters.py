"""TLB misses around what a workload measures, as ``tlb_counters.c`` counts them.

Virtual machines mostly count none: then there are no such figures, and a configuration or machine without them is no
other than one with.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from hugepage_qa.bench.workload import Figures, Metric

COUNTERS = Path(__file__).with_name("tlb_counters.c")

_NOT_COUNTED = "n/a"
#: what ends a line of the program
PATTERN = " ".join(
    rf"{word} (?P<{word}>[0-9]{{1,18}}|{_NOT_COUNTED})" for word in ("misses", "accesses", "instructions")
)
_PER_THOUSAND, _PER_CENT = 1000, 100


def tlb_metrics(name: str) -> tuple[Metric, Metric]:
    """Return the metrics of the TLB called ``name``, such as ``text-access-itlb``."""
    return (
        Metric(f"{name}-mpki", "misses per 1000 instructions", "lower"),
        Metric(f"{name}-miss-rate", "%", "lower"),
    )


def tlb_figures(name: str, repeats: Sequence[Mapping[str, str]]) -> Figures:
    """Return the samples of ``tlb_metrics``; none of what was not counted in each of the ``repeats``."""
    mpki, rate = tlb_metrics(name)
    found = {
        mpki.name: _ratios(repeats, "instructions", _PER_THOUSAND),
        rate.name: _ratios(repeats, "accesses", _PER_CENT),
    }
    return {metric: values for metric, values in found.items() if values}


def _ratios(repeats: Sequence[Mapping[str, str]], of: str, unit: int) -> list[float]:
    pairs = [(one["misses"], one[of]) for one in repeats]
    if any(_NOT_COUNTED in pair or int(pair[1]) == 0 for pair in pairs):
        return []
    return [unit * int(misses) / int(number) for misses, number in pairs]
