"""How often the gate is wrong on measurements in which nothing changed: the figures of docs/gate.md.

    gate_error_rates.py                made-up measurements
    gate_error_rates.py --go DIR       nightly benchmarks of Go; DIR is cmd/benchseries/testdata of golang.org/x/perf
                                       (BSD-3-Clause, not part of this repository)

On measurements of your own: hugepage-qa gate error-rates FILE...
"""

import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from ci.gate_worlds import WORLDS

from hugepage_gate.error_rates import Plan, measure_rates
from hugepage_gate.importers.foreign_series import Origin
from hugepage_gate.importers.go_benchmark import read_go_benchmark
from hugepage_gate.sample_files import join
from hugepage_gate.samples import SampleSet
from hugepage_qa.report.gate_tables import print_rates
from hugepage_qa.report.open_console import open_console

METRICS = 100
SEED = 1
SPLITS = 10

#: the toolchain that every session of Go measured again
_UNCHANGED = "Go1.17-opt.*"
_MACHINE = {"arch": "x86_64", "cpu_model": "Xeon E5-1650 v3"}
_FEWEST_SAMPLES = 15
#: after so many sessions three benchmarks became slower by 2 to 3 %, and stayed so
STEP = 9


def main(words: Sequence[str]) -> int:
    """Print a table for three new blocks, and one for five; return 3 for wrong words."""
    console = open_console()
    match words:
        case []:
            for new in (3, 5):
                print(f"baseline of 10 blocks, {new} new ones, margin 1 %, {METRICS} metrics x {SPLITS} splits")
                plan = Plan(baseline=10, new=new, splits=SPLITS)
                print_rates(console, {one.name: measure_rates(one.sample_set(SEED, METRICS), plan) for one in WORLDS})
        case ["--go", directory]:
            samples = go_sessions(Path(directory))
            for baseline, new in ((5, 2), (5, 3), (5, 4), (5, 5), (9, 5)):
                found = {f"after the step, {baseline} + {new}": _since(samples, STEP)}
                plan = Plan(baseline=baseline, new=new, splits=2 * SPLITS)
                print_rates(console, {name: measure_rates(one, plan) for name, one in found.items()})
        case _:
            print(__doc__, file=sys.stderr)
            return 3
    return 0


def go_sessions(directory: Path) -> SampleSet:
    """Return the times of all benchmarks of which every session in ``directory`` has enough samples."""
    files = sorted(directory.glob(f"*/{_UNCHANGED}"), key=lambda file: file.suffix)
    samples = join(_of_session(file) for file in files)
    enough = (
        one
        for one in samples
        if one.unit == "ns/op"
        and len(one.blocks) == len(files)
        and min(len(block.samples) for block in one.blocks) >= _FEWEST_SAMPLES
    )
    return replace(samples, series=tuple(enough))


def _of_session(file: Path) -> SampleSet:
    samples = read_go_benchmark(file, Origin("go", _MACHINE))
    started = datetime.strptime(re.sub("T", "", file.suffix[1:]), "%Y%m%d%H%M%S").replace(tzinfo=UTC)
    series = (replace(one, blocks=tuple(replace(block, started=started) for block in one.blocks)) for one in samples)
    return replace(samples, series=tuple(series))


def _since(samples: SampleSet, session: int) -> SampleSet:
    return replace(samples, series=tuple(replace(one, blocks=one.blocks[session:]) for one in samples))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
