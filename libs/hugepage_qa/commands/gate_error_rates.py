"""``hugepage-qa gate error-rates``: how often the gate is wrong on data in which nothing changed."""

from pathlib import Path

import click

from hugepage_qa.commands.gate_options import Share
from hugepage_qa.gate.error_rates import Plan, Rates, measure_rates
from hugepage_qa.gate.sample_files import read_one_machine
from hugepage_qa.report.boot_table import open_console
from hugepage_qa.report.error_rate_table import print_rates


@click.command(name="error-rates", epilog="Example: hugepage-qa gate error-rates history.json --baseline 10 --new 3")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--baseline", type=click.IntRange(2), default=10, show_default=True, help="Blocks in each baseline.")
@click.option("--new", type=click.IntRange(1, 5), default=3, show_default=True, help="New blocks in each comparison.")
@click.option("--splits", type=click.IntRange(1), default=20, show_default=True, help="Splits of each series.")
@click.option("--margin", type=Share(), default="1%", show_default=True)
@click.option("--together", is_flag=True, help="All metrics of a file are one comparison in which one has changed.")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True)
def command(
    files: tuple[Path, ...], baseline: int, new: int, splits: int, margin: float, together: bool, seed: int
) -> None:
    """Split FILES, samples in which nothing changed, again and again, and print how often each rule is wrong.

    Per file: false alarms, found slow-downs of 1, 2 and 5 %, slow-downs as large as the margin that pass, and what is
    left undecided, beside Mann-Whitney, Welch and a fixed 5 %.
    """
    plan = Plan(baseline, new, splits, margin, seed, together)
    found: dict[str, Rates] = {}
    for file in files:
        found[file.stem] = measure_rates(read_one_machine([file]), plan)
    print_rates(open_console(), found)
