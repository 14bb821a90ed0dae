"""How often the gate is wrong on made-up measurements in which nothing changed: the figures of docs/gate.md.

On measurements of your own: hugepage-qa gate error-rates FILE...
"""

import sys

from ci.gate_worlds import WORLDS

from hugepage_gate.error_rates import Plan, measure_rates
from hugepage_qa.report.boot_report import open_console
from hugepage_qa.report.gate_tables import print_rates

METRICS = 100
SEED = 1
SPLITS = 10


def main() -> int:
    """Print a table for three new blocks, and one for five."""
    console = open_console()
    for new in (3, 5):
        print(f"baseline of 10 blocks, {new} new ones, margin 1 %, {METRICS} metrics x {SPLITS} splits")
        plan = Plan(baseline=10, new=new, splits=SPLITS)
        print_rates(console, {world.name: measure_rates(world.sample_set(SEED, METRICS), plan) for world in WORLDS})
    return 0


if __name__ == "__main__":
    sys.exit(main())
