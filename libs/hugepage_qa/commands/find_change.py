"""``hugepage-qa find-change``: between which of several kernels did a case change its outcome?"""

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from hugepage_qa.cases.boot.boot_matrix import Settings
from hugepage_qa.cases.outcome_change import Candidate, ChangeSearch, find_trial, kernels_in, kernels_of_suite
from hugepage_qa.cases.result import ExitCode, Result, one_line
from hugepage_qa.commands.boot_commands import ARCHITECTURES
from hugepage_qa.errors import InputError

#: a change is one between two kernels
_FEWEST = 2


@click.command(name="find-change", epilog="Example: hugepage-qa find-change smaps-shows-shared --kernels builds")
@click.argument("name")
@click.option("--kernels", type=click.Path(path_type=Path), metavar="DIR", help="Directory of images and packages.")
@click.option("--suite", help="Release of the distribution: all its kernels of the flavour that is tested.")
@click.option("--arch", "architecture", type=click.Choice(ARCHITECTURES), help="[that of the kernels, else x86_64]")
@click.option("--append", default="", metavar="WORDS", help="Further kernel arguments.")
@click.option("--all", "every", is_flag=True, help="Try every kernel: finds changes that were taken back, too.")
def find_change(
    name: str, kernels: Path | None, suite: str | None, architecture: str | None, append: str, every: bool
) -> None:
    """Tell between which of several kernels the case NAME changed its outcome.

    NAME is a live case, as --case of check-kernel takes it (/pool/pool/grow-and-shrink/2M), a boot case
    (/order/six-parameters), either perhaps on another CPU (@qemu64), or an upstream report as of reproduce. The oldest
    and the newest kernel are tried, then the one in the middle of what is left. One that cannot be decided is passed
    over. Of a suite, only kernels that are tried are downloaded.

    Exit code: 0 a change was found or there is none, 2 not even two kernels could be decided, 3 the tool or its input
    is wrong.
    """
    settings = Settings(append=append, say=lambda line: click.echo(line, err=True))
    candidates = _candidates(kernels, suite, architecture, settings)
    trial = find_trial(name, candidates[0].architecture)
    click.echo(f"{len(candidates)} kernels from {candidates[0].label} to {candidates[-1].label}")

    def attempt(place: int) -> Result:
        candidate = candidates[place]
        click.echo(f"trying {candidate.label}", err=True)
        began = time.monotonic()
        result = candidate.outcome(trial)
        click.echo(f"{candidate.label}: {_outcome(result)}, {time.monotonic() - began:.0f} s")
        return result

    search = ChangeSearch(len(candidates), attempt)
    search.run(every=every)
    click.echo(_conclusion(search, candidates))
    sys.exit(ExitCode.GOOD if len(search.decided) >= _FEWEST else ExitCode.UNDECIDED)


def _candidates(
    kernels: Path | None, suite: str | None, architecture: str | None, settings: Settings
) -> list[Candidate]:
    if kernels is not None and suite is None:
        found, place = kernels_in(kernels, architecture, settings), f"--kernels {kernels}"
    elif kernels is None and suite is not None:
        found, place = kernels_of_suite(suite, architecture or ARCHITECTURES[0], settings), f"--suite {suite}"
    else:
        raise InputError("--kernels and --suite: expected one of them")
    if len(found) < _FEWEST:
        raise InputError(f"{place}: expected two kernels or more, found {len(found)}")
    return found


def _conclusion(search: ChangeSearch, candidates: Sequence[Candidate]) -> str:
    """Return what the search has found, in a line for each change."""

    def told(place: int) -> str:
        result = search.results[place]
        # what comes after the first reason, such as a boot that was tried again, was told when it was tried
        return f"{candidates[place].label} ({_outcome(replace(result, reasons=result.reasons[:1]))})"

    decided = search.decided
    if len(decided) < _FEWEST:
        return f"nothing can be said: {len(decided)} of {len(candidates)} kernels could be decided"
    lines = []
    for older, newer in search.changes:
        between = ", ".join(candidate.label for candidate in candidates[older + 1 : newer])
        passed_over = f"; not decided between them: {between}" if between else ""
        lines.append(f"changed between {told(older)} and {told(newer)}{passed_over}")
    untried = len(candidates) - len(search.results)
    rest = f"; not tried between them: {untried} (see --all)" if untried else ""
    return "\n".join(lines) or f"no change between {told(decided[0])} and {told(decided[-1])}{rest}"


def _outcome(result: Result) -> str:
    return one_line(f"{result.verdict.value}: {result.reason}") if result.reason else result.verdict.value
