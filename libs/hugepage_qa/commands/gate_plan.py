"""``hugepage-qa gate plan``: how many blocks and runs a change of a given size needs."""

from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from hugepage_qa.commands.gate_options import Share
from hugepage_qa.errors import InputError
from hugepage_qa.gate.block_summary import summarise_set
from hugepage_qa.gate.plan import (
    Pilot,
    independent_samples,
    pilot_from,
    plan_layout,
    runs_per_block,
    samples_for_margin,
    smallest_change,
    useful_runs,
)
from hugepage_qa.gate.policy import DEFAULT_MARGIN
from hugepage_qa.gate.sample_files import read_one_machine
from hugepage_qa.report.boot_table import open_console

_LAYOUTS = ((1, 10), (3, 10), (5, 10), (10, 10), (20, 10), (1, 6000))
_FEWEST_BLOCKS = 3


@click.command(name="plan", epilog="Example: hugepage-qa gate plan --between 0.18% --within 1.2% --change 1%")
@click.argument("pilots", nargs=-1, type=click.Path(path_type=Path))
@click.option("--between", type=Share(), help="How much blocks vary: their standard deviation.")
@click.option("--within", type=Share(), help="How much runs of a block vary.")
@click.option(
    "--block-cost", type=click.FloatRange(0), default=0.0, help="Of starting a block, such as seconds for a boot."
)
@click.option("--run-cost", type=click.FloatRange(0, min_open=True), default=1.0, help="Of a run, in the same unit.")
@click.option(
    "--change", type=Share(), default="1%", show_default=True, help="The smallest change that has to be found."
)
@click.option("--runs", type=click.IntRange(1), help="Runs of each block; default: what their cost is worth.")
@click.option(
    "--study", "deviation", type=Share(), metavar="1%", help="Deviation of independent samples: the study's way."
)
@click.option("--confidence", type=Share(), default="99.99%", show_default=True, help="With --study.")
@click.option("--power", type=Share(), default="90%", show_default=True, help="With --study.")
def command(
    pilots: tuple[Path, ...],
    between: float | None,
    within: float | None,
    block_cost: float,
    run_cost: float,
    change: float,
    runs: int | None,
    deviation: float | None,
    confidence: float,
    power: float,
) -> None:
    """Print how many blocks and runs find a change, from PILOTS (samples of some blocks) or from given deviations.

    With --study, how many independent samples find it: THP against 1 GiB pages at 5 % deviation, 0.4 % change, 99.99 %
    confidence needs 8360 on either side.
    """
    console = open_console()
    if deviation is not None:
        _print_study(console, deviation, change, confidence, power)
        return
    for name, pilot in _pilots(pilots, between, within, block_cost, run_cost).items():
        _print_plan(console, name, pilot, change, runs)


def _pilots(
    files: tuple[Path, ...], between: float | None, within: float | None, block_cost: float, run_cost: float
) -> dict[str, Pilot]:
    if not files:
        if between is None or within is None:
            raise InputError("expected a pilot, or --between and --within, or --study")
        return {"given": Pilot(between, within, block_cost, run_cost)}
    samples = read_one_machine(files)
    series = summarise_set(samples, {one.metric: DEFAULT_MARGIN for one in samples}).values()
    found = {one.name: pilot_from(one, block_cost, run_cost) for one in series if len(one.blocks) >= _FEWEST_BLOCKS}
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


def _print_study(console: Console, deviation: float, change: float, confidence: float, power: float) -> None:
    needed = independent_samples(deviation, change, confidence, power)
    for line in (
        f"{needed} independent samples on either side find a change of {change:.2%} at a deviation of {deviation:.2%} "
        f"({confidence:.2%} confidence, {power:.0%} power)",
        f"{samples_for_margin(deviation, change / 2, confidence)} make the margin of error of a mean half of it",
        "samples that hang together count less: ESS in the table of gate compare tells how many they are worth",
    ):
        console.print(line, highlight=False, soft_wrap=True)
