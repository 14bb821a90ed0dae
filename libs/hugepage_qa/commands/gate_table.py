"""``hugepage-qa gate table``: mean, deviation and margin of error of samples, as in the study."""

import json
from dataclasses import asdict
from pathlib import Path

import click

from hugepage_qa.gate.classic_table import classic_table
from hugepage_qa.gate.sample_files import read_samples
from hugepage_qa.report.boot_table import open_console
from hugepage_qa.report.classic_table import print_classic_table


@click.command(name="table", epilog="Example: hugepage-qa gate table thp-and-shp.json")
@click.argument("samples", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--json", "is_json", is_flag=True, help="Print one JSON object, with histograms.")
def command(samples: tuple[Path, ...], is_json: bool) -> None:
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
