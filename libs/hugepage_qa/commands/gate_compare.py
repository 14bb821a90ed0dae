"""``hugepage-qa gate compare``: the verdict on new samples."""

import json
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import click

from hugepage_qa.commands.gate_options import BASELINES, make_policy, make_terms, terms_options
from hugepage_qa.errors import InputError
from hugepage_qa.gate.baseline_store import BaselineStore
from hugepage_qa.gate.compare import BaselineSet, baseline_from_samples, compare
from hugepage_qa.gate.comparison import as_json
from hugepage_qa.gate.policy import Policy
from hugepage_qa.gate.sample_files import read_samples
from hugepage_qa.gate.samples import SampleSet
from hugepage_qa.machine.durable import write_durably
from hugepage_qa.report.boot_table import open_console
from hugepage_qa.report.gate_markdown import render_markdown
from hugepage_qa.report.gate_page import GatePage, make_page
from hugepage_qa.report.gate_table import print_comparison

_READABLE = 0o644


@click.command(
    name="compare", epilog="Example: hugepage-qa gate compare monday.json tuesday.json --against accepted.json"
)
@click.argument("samples", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--baselines",
    type=click.Path(path_type=Path, file_okay=False),
    default=BASELINES,
    show_default=True,
    help="Directory of accepted baselines.",
)
@click.option(
    "--against", multiple=True, type=click.Path(path_type=Path), help="Compare with these samples, not with a baseline."
)
@terms_options
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False), help="Also write a report with pictures.")
@click.option("--markdown", type=click.Path(path_type=Path, dir_okay=False), help="Also write a summary.")
@click.option("--json", "is_json", is_flag=True, help="Print one JSON object.")
def command(
    samples: tuple[Path, ...],
    baselines: Path,
    against: tuple[Path, ...],
    subject: str | None,
    allow: tuple[str, ...],
    margin: float | None,
    policy_file: Path | None,
    max_age: int,
    min_blocks: int,
    min_boots: int,
    html: Path | None,
    markdown: Path | None,
    is_json: bool,
) -> None:
    """Compare SAMPLES, all of one side, with the baseline of this machine.

    Exit code: 0 pass or improved, 1 regressed, 2 undecided or not comparable, 3 the input is wrong.
    """
    policy = make_policy(policy_file, None if against else baselines, margin)
    new = read_samples(samples)
    baseline = _baseline(against, baselines, new, policy, subject)
    # whoever names the samples to compare with has chosen their age, too
    terms = make_terms(policy, subject, allow, None if against else max_age, min_blocks, min_boots)
    comparison = compare(baseline, new, terms)
    if markdown is not None:
        write_durably(markdown, render_markdown(comparison).encode(), mode=_READABLE)
    if html is not None:
        page = make_page(comparison, baseline, new, policy)
        write_durably(html, _html_renderer()(page).encode(), mode=_READABLE)
    if is_json:
        click.echo(json.dumps(as_json(comparison), indent=2, allow_nan=False))
    else:
        print_comparison(open_console(), comparison)
    sys.exit(comparison.exit_code)


def _html_renderer() -> Callable[[GatePage], str]:
    """Return what makes the HTML; it needs matplotlib, which nothing else does. Raises InputError without."""
    try:
        renderer: Callable[[GatePage], str] = import_module("hugepage_qa.report.gate_html").render_html
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "matplotlib":
            raise
        raise InputError("--html needs matplotlib: install hugepage-qa[report]") from error
    return renderer


def _baseline(
    against: tuple[Path, ...], baselines: Path, new: SampleSet, policy: Policy, subject: str | None
) -> BaselineSet:
    if against:
        return baseline_from_samples(read_samples(against), policy)
    if not baselines.is_dir():
        raise InputError(f"--baselines {baselines}: no such directory; accept a first baseline with gate accept")
    return BaselineStore(baselines).baseline_for(new, subject)
