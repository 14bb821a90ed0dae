"""The study's table for people: a column per series."""

from collections.abc import Mapping

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from hugepage_qa.gate.classic_table import ClassicTable

_BARS = " ▁▂▃▄▅▆▇█"


def print_classic_table(console: Console, tables: Mapping[str, ClassicTable]) -> None:
    """Print ``tables`` side by side, and the histogram of each as a line of bars."""
    table = Table(Column("", no_wrap=True))
    for name in tables:
        table.add_column(Text(name), justify="right", no_wrap=True)
    for title, row in _rows(tables):
        table.add_row(title, *row)
    console.print(table)


def _rows(tables: Mapping[str, ClassicTable]) -> list[tuple[str, list[str]]]:
    columns = list(tables.values())
    return [
        ("mean", [f"{one.mean:.6g}" for one in columns]),
        ("samples", [str(one.samples) for one in columns]),
        ("independent samples", [f"{one.effective:.0f}" for one in columns]),
        ("standard deviation", [f"{one.deviation:.4g}" for one in columns]),
        ("min", [f"{one.lowest:.6g}" for one in columns]),
        ("max", [f"{one.highest:.6g}" for one in columns]),
        ("margin of error, 99.99 %", [f"{one.margin:.3g}" for one in columns]),
        ("the same, independent only", [f"{one.honest_margin:.3g}" for one in columns]),
        ("beyond 3 sigma", [str(one.beyond_3_sigma) for one in columns]),
        ("beyond 6 sigma", [str(one.beyond_6_sigma) for one in columns]),
        ("histogram", [_bars(one.histogram) for one in columns]),
    ]


def _bars(counts: tuple[int, ...]) -> str:
    most = max(counts)
    return "".join(_BARS[-(-count * (len(_BARS) - 1) // most)] for count in counts)
