"""How often the gate is wrong on measurements in which nothing changed: the figures of docs/gate.md.

    gate_error_rates.py                made-up measurements
    gate_error_rates.py --go DIR       nightly benchmarks of Go before these; DIR is cmd/benchseries/testdata of
                                       golang.org/x/perf (BSD-3-Clause, not part of this repository)

On measurements of your own: hugepage-qa gate error-rates FILE...
"""

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from ci.gate_worlds import WORLDS
from rich.console import Console

from hugepage_gate.compare_suites import Terms, baseline_from_samples, compare
from hugepage_gate.comparison import Comparison, MetricResult
from hugepage_gate.error_rates import Plan, measure_rates
from hugepage_gate.importers.foreign_series import Origin
from hugepage_gate.importers.go_benchmark import read_go_benchmark
from hugepage_gate.sample_files import join
from hugepage_gate.samples import SampleSet, Verdict
from hugepage_qa.cases.result import ExitCode
from hugepage_qa.report.gate_tables import percent, print_rates
from hugepage_qa.report.open_console import open_console

METRICS = 100
SEED = 1
SPLITS = 10

#: the toolchain that every session of Go measured again
_UNCHANGED = "Go1.17-opt.*"
_MACHINE = {"arch": "x86_64", "cpu_model": "Xeon E5-1650 v3"}
_FEWEST_SAMPLES = 15
#: nights that are compared where there is one comparison
_BASELINE, _NEW = 5, 3
#: after so many sessions three benchmarks became slower by 2.0 to 3.5 %, one by 0.8 %, and stayed so
STEP = 9


def main(words: Sequence[str]) -> int:
    """Print a table for each number of new blocks; return 3 for wrong words."""
    console = open_console()
    match words:
        case []:
            _print_made_up(console)
        case ["--go", directory]:
            _print_nights(console, Path(directory))
            _print_made_up(console)
        case _:
            print(__doc__, file=sys.stderr)
            return ExitCode.BROKEN
    return ExitCode.GOOD


def _print_made_up(console: Console) -> None:
    for new in (3, 5):
        print(f"baseline of 10 blocks, {new} new ones, margin 1 %, {METRICS} metrics x {SPLITS} splits")
        plan = Plan(baseline=10, new=new, splits=SPLITS)
        print_rates(console, {one.name: measure_rates(one.sample_set(SEED, METRICS), plan) for one in WORLDS})


def _print_nights(console: Console, directory: Path) -> None:
    times = go_sessions(directory, "ns/op")
    for baseline, new in ((5, 2), (5, 3), (5, 4), (5, 5), (9, 5)):
        plan = Plan(baseline=baseline, new=new, splits=2 * SPLITS)
        found = measure_rates(_nights(times, STEP, None), plan)
        print_rates(console, {f"after the step, {baseline} + {new}": found})
    at_step = _compared(times, STEP).results
    slower = [f"{one.name} {percent(one.change.estimate)}" for one in _regressed(at_step) if one.change is not None]
    print("regressed at the step:", ", ".join(slower))
    counts = go_sessions(directory, "B/op", "allocs/op")
    compared = [_compared(counts, night) for night in range(_BASELINE, _sessions(counts) - _NEW + 1)]
    regressed = sum(len(_regressed(one.results)) for one in compared)
    print(f"counts: {len(counts.series)}, comparisons: {len(compared)}, regressed: {regressed}")


def _compared(samples: SampleSet, night: int) -> Comparison:
    """Return what the first nights from ``night`` on are against those before it."""
    terms = Terms(oldest=None, fewest_boots=1)
    baseline = baseline_from_samples(_nights(samples, night - _BASELINE, night), terms.policy)
    return compare(baseline, _nights(samples, night, night + _NEW), terms)


def _regressed(results: Iterable[MetricResult]) -> list[MetricResult]:
    return [one for one in results if one.verdict is Verdict.REGRESSED]


def go_sessions(directory: Path, *units: str) -> SampleSet:
    """Return the figures in ``units`` of all benchmarks of which every session in ``directory`` has enough samples."""
    files = sorted(directory.glob(f"*/{_UNCHANGED}"), key=lambda file: file.suffix)
    samples = join(_of_session(file) for file in files)
    enough = (
        one
        for one in samples
        if one.unit in units
        and len(one.blocks) == len(files)
        and min(len(block.samples) for block in one.blocks) >= _FEWEST_SAMPLES
    )
    return replace(samples, series=tuple(enough))


def _of_session(file: Path) -> SampleSet:
    samples = read_go_benchmark(file, Origin("go", _MACHINE))
    started = datetime.strptime(re.sub("T", "", file.suffix[1:]), "%Y%m%d%H%M%S").replace(tzinfo=UTC)
    series = (replace(one, blocks=tuple(replace(block, started=started) for block in one.blocks)) for one in samples)
    return replace(samples, series=tuple(series))


def _nights(samples: SampleSet, first: int, end: int | None) -> SampleSet:
    return replace(samples, series=tuple(replace(one, blocks=one.blocks[first:end]) for one in samples))


def _sessions(samples: SampleSet) -> int:
    return len(samples.series[0].blocks)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
