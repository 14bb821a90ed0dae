"""How fast the gate is, and how much memory it takes: a large comparison, and a search of many stored blocks."""

import json
import resource
import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from hugepage_gate.accept import Request, accept, write
from hugepage_gate.baseline_store import BaselineStore
from hugepage_gate.gate_policy import Policy
from hugepage_gate.sample_format import format_samples
from hugepage_gate.samples import (
    Block,
    Direction,
    Kind,
    SampleSet,
    Series,
)
from hugepage_qa.sizes import KIB, MIB

METRICS = 100
SAMPLES = 37_000
BLOCKS = 20
NEW_BLOCKS = 5
STORED_BLOCKS = 100_000

START = datetime(2026, 1, 1, tzinfo=UTC)
REQUEST = Request("bench", "bench", "bench", date(2026, 1, 1))


def main() -> int:
    """Run both and print their figures."""
    with TemporaryDirectory() as directory:
        print_comparison(Path(directory))
        print_search(Path(directory))
    return 0


def print_comparison(directory: Path) -> None:
    """Compare 100 metrics of 37,000 samples with a baseline of 20 blocks, as a command: start of Python included."""
    random = np.random.default_rng(1)
    store = BaselineStore(directory / "baselines")
    baseline = sample_set(random, METRICS, BLOCKS, 100, START)
    list(write(store, accept(store, baseline, REQUEST, Policy()), baseline, REQUEST, None))
    new = sample_set(random, METRICS, NEW_BLOCKS, SAMPLES // NEW_BLOCKS, START + timedelta(days=BLOCKS))
    samples = directory / "new.json"
    samples.write_text(format_samples(new), encoding="utf-8")
    program = str(Path(sys.executable).with_name("hugepage-qa"))
    command = [program, "gate", "compare", str(samples), "--baselines", str(directory / "baselines"), "--json"]
    # machines are shared: how long the same CPU takes to read the file alone, between the two
    plain, output = cpu_seconds(command)
    started = time.process_time()
    json.loads(samples.read_text(encoding="utf-8"))
    reading = time.process_time() - started
    with_html, _ = cpu_seconds([*command, "--html", str(directory / "report.html")])
    judged = len(json.loads(output)["results"])
    # the larger of both; on Linux ru_maxrss is in KiB
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * KIB
    print(
        f"compare {METRICS} metrics x {SAMPLES} samples ({samples.stat().st_size / MIB:.0f} MiB) with {BLOCKS} blocks: "
        f"{plain:.1f} s of CPU (target: 4), {plain / reading:.1f} times reading the file; with --html "
        f"{with_html:.1f} s (target: 10), {with_html / reading:.1f} times; {peak / MIB:.0f} MiB (target: 500), "
        f"{judged} results"
    )


def cpu_seconds(command: list[str]) -> tuple[float, str]:
    """Return the seconds of CPU that a command takes, the start of Python included, and what it prints."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    output = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, output


def print_search(directory: Path) -> None:
    """Search 100,000 stored blocks for one metric."""
    random = np.random.default_rng(2)
    store = BaselineStore(directory / "many")
    for machine in range(STORED_BLOCKS // (METRICS * BLOCKS)):
        samples = sample_set(random, METRICS, BLOCKS, 10, START)
        samples = replace(samples, environment={**samples.environment, "cores": machine})
        list(write(store, accept(store, samples, REQUEST, Policy()), samples, REQUEST, None))
    started = time.monotonic()
    found = sum(len(one.series.blocks) for _, one in store.search("metric007"))
    seconds = time.monotonic() - started
    started = time.monotonic()
    everything = sum(len(one.series.blocks) for _, one in store.search(""))
    print(
        f"search {everything} stored blocks: {seconds:.2f} s for one metric ({found} blocks), "
        f"{time.monotonic() - started:.2f} s to read and check all (target: under 2 s)"
    )


def sample_set(random: np.random.Generator, metrics: int, blocks: int, samples: int, start: datetime) -> SampleSet:
    """Return noise around 100 s, a block per day."""
    series = []
    for number in range(metrics):
        values = random.normal(100, 1, (blocks, samples))
        days = tuple(Block(row, 0, start + timedelta(days=day), f"{start}{day}") for day, row in enumerate(values))
        series.append(Series(f"metric{number:03}", "s", Direction.LOWER, Kind.MEASURED, "", days))
    return SampleSet("bench", "bench", {"arch": "x86_64", "cpu_model": "bench"}, {}, tuple(series))


if __name__ == "__main__":
    sys.exit(main())
