"""``hugepage-qa gate accept`` and ``compare``: what becomes a baseline, and what samples are worth beside one."""

import getpass
import json
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from hugepage_gate.accept import Accepted, Outcome, Request, accept, write
from hugepage_gate.baseline_store import BaselineStore
from hugepage_gate.block_summary import SummarySeries, summarise_set
from hugepage_gate.compare_suites import BaselineSet, Terms, baseline_from_samples, compare, margins
from hugepage_gate.comparison import Comparison, as_json
from hugepage_gate.gate_policy import Policy
from hugepage_gate.run_history import DIRECTORY, keep_run
from hugepage_gate.sample_files import read_one_machine, read_samples
from hugepage_gate.samples import SampleSet
from hugepage_qa.cases.result import ExitCode, one_line
from hugepage_qa.commands.gate_options import (
    OutputFile,
    Share,
    baselines_option,
    html_renderer,
    make_policy,
    parse_waivers,
    terms_options,
    waive_option,
)
from hugepage_qa.durable import write_durably
from hugepage_qa.errors import InputError
from hugepage_qa.report.comparison_screen import print_comparison
from hugepage_qa.report.gate_page import make_page
from hugepage_qa.report.gate_tables import render_markdown
from hugepage_qa.report.open_console import open_console


@click.command(
    name="accept", epilog="Example: hugepage-qa gate accept *.json --reason 'first baseline of 6.12' --release 10"
)
@click.argument("samples", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--reason", required=True, help="Why this is what performance ought to be.")
@click.option("--release", default="current", show_default=True, help="Slow creep is refused within one release.")
@click.option("--by", default=None, help="Who accepts; default: the user.")
@click.option(
    "--acknowledge",
    "commit",
    metavar="COMMIT",
    help="Answer for a change for the worse of what --metric names: the commit that causes it.",
)
@click.option(
    "--metric", "metrics", multiple=True, metavar="PATTERN", help="Accept only such metrics, as 'walk*'; repeatable."
)
@waive_option
@click.option(
    "--raw", type=click.Path(path_type=Path, file_okay=False), help="Also keep the raw samples here, outside of git."
)
@baselines_option
@click.option("--policy", "policy_file", type=click.Path(path_type=Path), help="Default: policy.yaml of the baselines.")
@click.option("--margin", type=Share(), help="Worsening that does not matter, for all metrics.")
def accept_command(
    samples: tuple[Path, ...],
    reason: str,
    release: str,
    by: str | None,
    commit: str | None,
    metrics: tuple[str, ...],
    waivers: tuple[str, ...],
    raw: Path | None,
    baselines: Path,
    policy_file: Path | None,
    margin: float | None,
) -> None:
    """Take the blocks of SAMPLES into the baseline of this machine, metric by metric.

    Blocks that look no worse extend the baseline, and better ones start a new one as soon as they are of five sessions.
    Worse ones are refused, also when they only got there in small steps since the oldest baseline of the release,
    unless somebody answers for the change of just these metrics. What is accepted already is left out.

    Exit code: 0 accepted, 1 a metric was refused, 2 one waits for more sessions, 3 the input is wrong.
    """
    store = BaselineStore(baselines)
    new = read_one_machine(samples)
    policy = make_policy(policy_file, baselines, margin)
    today = datetime.now(UTC).date()
    request = Request(by or getpass.getuser(), reason, release, today, commit, metrics, parse_waivers(waivers))
    accepted = accept(store, new, request, policy)
    for path in write(store, accepted, new, request, raw):
        click.echo(path)
    for one in accepted:
        click.echo(_accepted_line(one))
    outcomes = {one.outcome for one in accepted}
    if Outcome.REFUSED in outcomes:
        sys.exit(ExitCode.BAD)
    sys.exit(ExitCode.UNDECIDED if Outcome.WAITS in outcomes else ExitCode.GOOD)


def _accepted_line(one: Accepted) -> str:
    if one.baseline is None or not one.blocks:
        return f"{one.name}: {one.outcome}: {one.reason}"
    thin = "; still thin: at least 5 sessions on 2 boots make a verdict" if one.is_thin else ""
    return f"{one.name}: {one.blocks} blocks, {one.outcome} of {len(one.baseline.current.blocks)}{thin}"


@click.command(
    name="compare", epilog="Example: hugepage-qa gate compare monday.json tuesday.json --against accepted.json"
)
@click.argument("samples", nargs=-1, required=True, type=click.Path(path_type=Path))
@baselines_option
@click.option(
    "--against", multiple=True, type=click.Path(path_type=Path), help="Compare with these samples, not with a baseline."
)
@terms_options
@click.option("--html", type=OutputFile(), help="Also write a report with pictures.")
@click.option("--markdown", type=OutputFile(), help="Also write a summary.")
@click.option(
    "--history",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where every run is kept, accepted or not. Default: history below the baselines; not with --against.",
)
@click.option("--all", "shows_all", is_flag=True, help="Show every metric, not those alone that ask for a look.")
@click.option("--json", "is_json", is_flag=True, help="Print one JSON object.")
def compare_command(
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
    waivers: tuple[str, ...],
    html: Path | None,
    markdown: Path | None,
    history: Path | None,
    shows_all: bool,
    is_json: bool,
) -> None:
    """Compare SAMPLES, all of one side, with the baseline of this machine.

    Exit code: 0 pass or improved, 1 regressed, 2 undecided or not comparable, 3 the input is wrong.
    """
    policy = make_policy(policy_file, None if against else baselines, margin)
    new = read_samples(samples)
    waived = parse_waivers(waivers)
    baseline = _baseline(against, baselines, new, policy, subject, waived)
    # whoever names the samples to compare with has chosen their age, too
    oldest = None if against else timedelta(days=max_age)
    terms = Terms(
        policy,
        subject,
        frozenset(allow),
        oldest=oldest,
        fewest_blocks=min_blocks,
        fewest_boots=min_boots,
        waivers=waived,
    )
    numbers = summarise_set(new, margins(new, policy))
    comparison = compare(baseline, new, terms, numbers)
    if history is not None or not against:
        _keep(history or baselines / DIRECTORY, new, numbers, comparison)
    if markdown is not None:
        write_durably(markdown, render_markdown(comparison))
    if html is not None:
        page = make_page(comparison, baseline, new, numbers)
        write_durably(html, html_renderer()(page))
    if is_json:
        click.echo(json.dumps(as_json(comparison), indent=2, allow_nan=False))
    else:
        print_comparison(open_console(), comparison, shows_all=shows_all)
    sys.exit(comparison.exit_code)


def _keep(
    directory: Path, new: SampleSet, numbers: Mapping[tuple[str, str], SummarySeries], comparison: Comparison
) -> None:
    """Keep the run for the history; where that cannot be written the verdict counts all the same."""
    try:
        keep_run(directory, new, numbers, comparison, datetime.now(UTC))
    except (OSError, InputError) as error:
        click.echo(one_line(f"note: the run is not kept in {directory}: {error}"), err=True)


def _baseline(
    against: tuple[Path, ...],
    baselines: Path,
    new: SampleSet,
    policy: Policy,
    subject: str | None,
    waived: Mapping[str, str],
) -> BaselineSet:
    if against:
        return baseline_from_samples(read_samples(against), policy)
    if not baselines.is_dir():
        raise InputError(f"--baselines {baselines}: no such directory; accept a first baseline with gate accept")
    return BaselineStore(baselines).baseline_for(new, subject, waived)
