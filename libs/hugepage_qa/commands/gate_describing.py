"""``hugepage-qa gate history``, ``table``, ``error-rates`` and ``plan``: what samples say beside a verdict."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from hugepage_gate.baseline_file import Baseline, block_id
from hugepage_gate.baseline_store import BaselineStore
from hugepage_gate.block_summary import summarise_set
from hugepage_gate.change_points import find_change_points, is_available
from hugepage_gate.classic_table import classic_table
from hugepage_gate.error_rates import Plan, Rates, measure_rates
from hugepage_gate.gate_policy import DEFAULT_MARGIN
from hugepage_gate.run_history import DIRECTORY, KeptBlock, history_file, read_runs
from hugepage_gate.sample_files import read_one_machine, read_samples
from hugepage_gate.samples import Kind
from hugepage_gate.study_plan import (
    Pilot,
    pilot_from,
    plan_layout,
    runs_per_block,
    smallest_change,
    useful_runs,
)
from hugepage_qa.commands.gate_options import Cost, Share, baselines_option
from hugepage_qa.errors import InputError
from hugepage_qa.report.gate_tables import print_classic_table, print_rates
from hugepage_qa.report.open_console import open_console


@click.command(name="history", epilog="Example: hugepage-qa gate history pgbench --baselines baselines")
@click.argument("metric", default="")
@baselines_option
@click.option(
    "--history",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where compare keeps runs. Default: history below the baselines.",
)
@click.option("--changes/--no-changes", default=True, help="Look for change points (apache-otava, if installed).")
def history_command(metric: str, baselines: Path, history: Path | None, changes: bool) -> None:
    """Print the blocks of every metric whose name contains METRIC, oldest first, those that were accepted and those
    that were only compared, and where their level changed.

    A change point is a hint where to look, never a verdict.
    """
    if not baselines.is_dir():
        raise InputError(f"--baselines {baselines}: no such directory; accept a first baseline with gate accept")
    console = open_console()
    looks_for_changes = changes and is_available()
    runs: dict[Path, dict[tuple[str, str], list[KeptBlock]]] = {}
    found = 0
    for path, baseline in BaselineStore(baselines).search(metric):
        found += 1
        kept = history_file(history or baselines / DIRECTORY, baseline.environment, baseline.suite)
        if kept not in runs:
            runs[kept] = read_runs(kept)
        console.print(Text(str(path.relative_to(baselines))), soft_wrap=True)
        _print_blocks(
            console,
            baseline.series.unit,
            _all_blocks(baseline, runs[kept].get(baseline.series.key, [])),
            looks_for_changes=looks_for_changes,
        )
    if not found:
        raise InputError(f"metric {metric!r}: no baseline in {baselines} has such a metric")
    if changes and not looks_for_changes:
        console.print("no change points: install hugepage-qa[history]", style="dim", markup=False)


def _all_blocks(baseline: Baseline, kept: Sequence[KeptBlock]) -> list[KeptBlock]:
    """Return the blocks of ``baseline`` and those that were only compared, oldest first."""
    accepted = [
        KeptBlock(
            block_id(block),
            block.started.isoformat() if block.started else "",
            block.host or "",
            block.location,
            block.subject,
            "accepted",
        )
        for block in baseline.series.blocks
    ]
    names = {one.name for one in accepted}
    others = [one for one in kept if one.name.rpartition("/")[2] not in names]
    return sorted([*accepted, *others], key=lambda one: one.started)


def _print_blocks(console: Console, unit: str, blocks: Sequence[KeptBlock], *, looks_for_changes: bool) -> None:
    points = find_change_points([block.location for block in blocks]) if looks_for_changes else []
    changes = {point.place: point for point in points}
    table = Table("started", "host", Column(Text(unit), justify="right"), "verdict", "subject", "change")
    for place, block in enumerate(blocks):
        change = f"{changes[place].change:+.1%}" if place in changes else ""
        subject = ", ".join(f"{key} {value}" for key, value in sorted(block.subject.items()))
        words = block.started, block.host, f"{block.location:.6g}", block.verdict, subject, change
        table.add_row(*map(Text, words))
    console.print(table)


@click.command(name="table", epilog="Example: hugepage-qa gate table thp-and-shp.json")
@click.argument("samples", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--json", "is_json", is_flag=True, help="Print one JSON object, with histograms.")
def table_command(samples: tuple[Path, ...], is_json: bool) -> None:
    """Print mean, samples, deviation, extremes, margin of error at 99.99 %, and samples beyond 3 and 6 sigma of
    SAMPLES.

    These describe samples. They decide nothing: that is gate compare's.
    """
    tables = {
        one.name: classic_table([block.samples for block in one.blocks if not block.warmup] or [one.blocks[0].samples])
        for one in read_samples(samples)
    }
    if is_json:
        click.echo(json.dumps({name: asdict(table) for name, table in tables.items()}, indent=2))
        return
    print_classic_table(open_console(), tables)


@click.command(name="error-rates", epilog="Example: hugepage-qa gate error-rates history.json --baseline 10 --new 3")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--baseline", type=click.IntRange(2), default=10, show_default=True, help="Blocks in each baseline.")
@click.option("--new", type=click.IntRange(1, 5), default=3, show_default=True, help="New blocks in each comparison.")
@click.option("--splits", type=click.IntRange(1), default=20, show_default=True, help="Splits of each series.")
@click.option("--margin", type=Share(), default="1%", show_default=True)
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True)
def error_rates_command(
    files: tuple[Path, ...], baseline: int, new: int, splits: int, margin: float, seed: int
) -> None:
    """Split FILES, samples in which nothing changed, again and again, and print how often each rule is wrong.

    All metrics of a file are one run, in which one after the other is changed: false alarms, found slow-downs of 1, 2
    and 5 % and slow runs, slow-downs as large as the margin that pass, and what is left undecided or blind, beside
    Mann-Whitney, Welch and a fixed 5 %.
    """
    plan = Plan(baseline, new, splits, margin, seed)
    found: dict[str, Rates] = {}
    for file in files:
        found[file.stem] = measure_rates(read_one_machine([file]), plan)
    print_rates(open_console(), found)


_LAYOUTS = ((3, 10), (5, 10), (10, 10), (20, 10), (5, 1000))
_FEWEST_BLOCKS = 3


@click.command(name="plan", epilog="Example: hugepage-qa gate plan --between 0.18% --within 1.2% --change 1%")
@click.argument("pilots", nargs=-1, type=click.Path(path_type=Path))
@click.option("--between", type=Share(), help="How much blocks vary: their standard deviation.")
@click.option("--within", type=Share(), help="How much runs of a block vary.")
@click.option("--block-cost", type=Cost(0, 1e9), default=0.0, help="Of starting a block, such as seconds for a boot.")
@click.option("--run-cost", type=Cost(1e-9, 1e9), default=1.0, help="Of a run, in the same unit.")
@click.option(
    "--change", type=Share(), default="1%", show_default=True, help="The smallest change that has to be found."
)
@click.option("--runs", type=click.IntRange(1, 10**9), help="Runs of each block; default: what their cost is worth.")
def plan_command(
    pilots: tuple[Path, ...],
    between: float | None,
    within: float | None,
    block_cost: float,
    run_cost: float,
    change: float,
    runs: int | None,
) -> None:
    """Print how many blocks and runs find a change, from PILOTS (samples of some blocks) or from given deviations."""
    console = open_console()
    for name, pilot in _pilots(pilots, between, within, block_cost, run_cost).items():
        _print_plan(console, name, pilot, change, runs)


def _pilots(
    files: tuple[Path, ...], between: float | None, within: float | None, block_cost: float, run_cost: float
) -> dict[str, Pilot]:
    if not files:
        if between is None or within is None:
            raise InputError("expected a pilot, or --between and --within")
        return {"given": Pilot(between, within, block_cost, run_cost)}
    samples = read_one_machine(files)
    series = summarise_set(samples, {one.metric: DEFAULT_MARGIN for one in samples}).values()
    found = {
        one.name: pilot_from(one, block_cost, run_cost)
        for one in series
        if one.kind is Kind.MEASURED and len(one.blocks) >= _FEWEST_BLOCKS
    }
    if not found:
        raise InputError(f"{samples.source}: expected a metric with at least {_FEWEST_BLOCKS} blocks; 5 are better")
    return found


def _print_plan(console: Console, name: str, pilot: Pilot, change: float, runs: int | None) -> None:
    console.print(
        f"{name}: blocks vary by {pilot.between:.2%}, runs by {pilot.within:.2%}; "
        f"beyond {useful_runs(pilot)} runs a block more is worth more than a run more",
        markup=False,
        highlight=False,
    )
    layout = plan_layout(pilot, change, runs)
    if layout is None:
        console.print(f"a change of {change:.2%} is out of reach", highlight=False)
    else:
        console.print(
            f"a change of {change:.2%} needs {layout.blocks} blocks of {layout.runs} runs on either side "
            f"(cost {layout.cost:g} each)",
            highlight=False,
        )
    table = Table("blocks", "runs of each", "smallest change")
    for blocks, each in dict.fromkeys((*_LAYOUTS, (5, runs or runs_per_block(pilot)))):
        table.add_row(str(blocks), str(each), f"{smallest_change(pilot, blocks, each):.2%}")
    console.print(table)
