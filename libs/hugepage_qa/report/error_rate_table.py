"""Error rates for people: a row for each rule on each set of data."""

import math
from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from hugepage_qa.gate.error_rates import UNCHANGED, Rates
from hugepage_qa.gate.usual_rules import USUAL_RULES
from hugepage_qa.gate.verdict import Verdict

_SHIFTS = ("+1%", "+2%", "+5%")
_FURTHER = ("bimodal", "tail (p99)", "passes at margin", "A/A undecided", "A/A improved", "blocks", "comparisons")


def print_rates(console: Console, found: Mapping[str, Rates]) -> None:
    """Print what share of comparisons ended how, per set of data and rule."""
    table = Table("data", "rule")
    for name in ("false alarms", *(f"finds {one}" for one in _SHIFTS), *_FURTHER):
        table.add_column(name, justify="right")
    for data, rates in found.items():
        table.add_row(data, "gate", *_gate_cells(rates))
        for rule in USUAL_RULES:
            shares = [rates.usual_share(rule, one) for one in (UNCHANGED, *_SHIFTS, "bimodal", "tail")]
            table.add_row("", rule, *map(_percent, shares))
        table.add_section()
    console.print(table)


def _gate_cells(rates: Rates) -> list[str]:
    good = Verdict.PASS, Verdict.IMPROVED
    shares = [
        *(rates.share(one, Verdict.REGRESSED) for one in (UNCHANGED, *_SHIFTS, "bimodal")),
        rates.tail_share("tail"),
        rates.share("margin", *good),
        rates.share(UNCHANGED, Verdict.UNDECIDED),
        rates.share(UNCHANGED, Verdict.IMPROVED),
    ]
    used = sum(rates.blocks_used) / len(rates.blocks_used)
    return [*map(_percent, shares), f"{used:.1f}", str(rates.verdicts[UNCHANGED].total())]


def _percent(share: float) -> str:
    return "" if math.isnan(share) else f"{share:.1%}"
