"""``hugepage-qa gate accept``: take samples into the baseline."""

import getpass
from datetime import UTC, datetime
from pathlib import Path

import click

from hugepage_qa.commands.gate_options import BASELINES, Share, make_policy
from hugepage_qa.gate.accept import Request, accept, write
from hugepage_qa.gate.baseline_store import BaselineStore
from hugepage_qa.gate.sample_files import read_one_machine


@click.command(
    name="accept", epilog="Example: hugepage-qa gate accept *.json --reason 'first baseline of 6.12' --release 10"
)
@click.argument("samples", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--reason", required=True, help="Why this is what performance ought to be.")
@click.option("--release", default="current", show_default=True, help="Slow creep is refused within one release.")
@click.option("--by", default=None, help="Who accepts; default: the user.")
@click.option(
    "--acknowledge", "commit", metavar="COMMIT", help="Answer for a change for the worse: the commit that causes it."
)
@click.option(
    "--raw", type=click.Path(path_type=Path, file_okay=False), help="Also keep the raw samples here, outside of git."
)
@click.option("--baselines", type=click.Path(path_type=Path, file_okay=False), default=BASELINES, show_default=True)
@click.option("--policy", "policy_file", type=click.Path(path_type=Path), help="Default: policy.yaml of the baselines.")
@click.option("--margin", type=Share(), help="Worsening that does not matter, for all metrics.")
def command(
    samples: tuple[Path, ...],
    reason: str,
    release: str,
    by: str | None,
    commit: str | None,
    raw: Path | None,
    baselines: Path,
    policy_file: Path | None,
    margin: float | None,
) -> None:
    """Take the blocks of SAMPLES into the baseline of this machine, all metrics or none.

    Blocks that pass extend the baseline, better ones start a new one. Worse ones are refused, also when they only got
    there in small steps since the oldest baseline of the release, unless somebody answers for the change.
    """
    store = BaselineStore(baselines)
    new = read_one_machine(samples)
    policy = make_policy(policy_file, baselines, margin)
    request = Request(by or getpass.getuser(), reason, release, datetime.now(UTC).date(), commit)
    accepted = accept(store, new, request, policy)
    for path in write(store, accepted, new, request, raw):
        click.echo(path)
    for one in accepted:
        kind = "starts a baseline" if one.starts else "extends the baseline"
        thin = "; still thin: at least 5 blocks on 2 boots make a verdict" if one.is_thin else ""
        click.echo(
            f"{one.baseline.series.name}: {one.blocks} blocks, {kind} of {len(one.baseline.current.blocks)}{thin}"
        )
