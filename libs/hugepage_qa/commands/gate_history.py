"""``hugepage-qa gate history``: the accepted blocks of metrics over time."""

from pathlib import Path

import click
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from hugepage_qa.commands.gate_options import BASELINES
from hugepage_qa.errors import InputError
from hugepage_qa.gate.baseline_store import BaselineStore
from hugepage_qa.gate.block_summary import SummarySeries
from hugepage_qa.gate.history import find_change_points, is_available
from hugepage_qa.report.boot_table import open_console


@click.command(name="history", epilog="Example: hugepage-qa gate history pgbench --baselines baselines")
@click.argument("metric", default="")
@click.option("--baselines", type=click.Path(path_type=Path, file_okay=False), default=BASELINES, show_default=True)
@click.option("--changes/--no-changes", default=True, help="Look for change points (apache-otava, if installed).")
def command(metric: str, baselines: Path, changes: bool) -> None:
    """Print the accepted blocks of every metric whose name contains METRIC, oldest first, and where their level
    changed.

    A change point is a hint where to look, never a verdict.
    """
    if not baselines.is_dir():
        raise InputError(f"--baselines {baselines}: no such directory; accept a first baseline with gate accept")
    console = open_console()
    looks_for_changes = changes and is_available()
    found = 0
    for path, baseline in BaselineStore(baselines).search(metric):
        found += 1
        _print_series(console, path.relative_to(baselines), baseline.series, looks_for_changes=looks_for_changes)
    if not found:
        raise InputError(f"metric {metric!r}: no baseline in {baselines} has such a metric")
    if changes and not looks_for_changes:
        console.print("no change points: install hugepage-qa[history]", style="dim", markup=False)


def _print_series(console: Console, path: Path, series: SummarySeries, *, looks_for_changes: bool) -> None:
    points = find_change_points([block.location for block in series.blocks]) if looks_for_changes else []
    changes = {point.place: point for point in points}
    console.print(Text(str(path)), soft_wrap=True)
    table = Table("started", "host", Column(Text(series.unit), justify="right"), "subject", "change")
    for place, block in enumerate(series.blocks):
        started = block.started.isoformat() if block.started else ""
        change = f"{changes[place].change:+.1%}" if place in changes else ""
        subject = ", ".join(f"{key} {value}" for key, value in sorted(block.subject.items()))
        table.add_row(Text(started), Text(block.host or ""), f"{block.location:.6g}", Text(subject), change)
    console.print(table)
