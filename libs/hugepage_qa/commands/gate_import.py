"""``hugepage-qa gate import``: what benchmark programs print, in the neutral format."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from hugepage_gate.importers.foreign_series import CsvDefaults, Origin, name_sessions
from hugepage_gate.importers.formats import FORMATS
from hugepage_gate.input_file import check_plain, read_json
from hugepage_gate.sample_files import join
from hugepage_gate.sample_format import flatten, format_samples, parse_samples, tells_direction
from hugepage_gate.samples import Direction, SampleSet, Scalar
from hugepage_qa.commands.gate_options import OutputFile
from hugepage_qa.durable import write_durably
from hugepage_qa.errors import InputError


@click.command(
    name="import",
    epilog="Example: hugepage-qa gate import csv runs.csv --environment machine.json --output samples.json",
)
@click.argument("form", metavar="FORMAT", type=click.Choice(tuple(FORMATS)))
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--environment",
    "environment_file",
    type=click.Path(path_type=Path),
    help="JSON file with the facts of the machine.",
)
@click.option("--fact", "facts", multiple=True, metavar="KEY=VALUE", help="One fact of the machine; repeatable.")
@click.option(
    "--subject", "subjects", multiple=True, metavar="KEY=VALUE", help="One fact of what is judged; repeatable."
)
@click.option("--suite", default="default", show_default=True)
@click.option("--configuration", default="", help="Such as thp or shp, where the file does not say it.")
@click.option("--reference", help="CSV: the configuration that the others are set against.")
@click.option("--metric", default="value", show_default=True, help="CSV: where no column says it.")
@click.option("--unit", default="s", show_default=True, help="CSV: where no column says it.")
@click.option(
    "--direction", type=click.Choice(("lower", "higher")), help="CSV: likewise. Default: what the unit tells."
)
@click.option("--block-per-process", is_flag=True, help="pyperf: every process is a block, not every file.")
@click.option("--output", type=OutputFile(), help="Default: standard output.")
def command(
    form: str,
    files: tuple[Path, ...],
    environment_file: Path | None,
    facts: tuple[str, ...],
    subjects: tuple[str, ...],
    suite: str,
    configuration: str,
    reference: str | None,
    metric: str,
    unit: str,
    direction: str | None,
    block_per_process: bool,
    output: Path | None,
) -> None:
    """Turn FILES of one FORMAT into samples in the neutral format.

    A file is one session, and thus one block; one of mmtests has a block per iteration, a matrix.json of LKP a session
    per run. CSV has one sample per line; the columns are value and any of metric, configuration, unit, direction,
    kind, block, started, session, boot, host, order, sentinel, sentinel_after, warmup.
    """
    environment = {**_facts_in(environment_file), **_pairs("--fact", facts)}
    defaults = CsvDefaults(metric, unit, direction or "", reference)
    origin = Origin(
        suite,
        environment,
        _pairs("--subject", subjects),
        configuration,
        csv=defaults,
        block_per_process=block_per_process,
    )
    sessions = zip(files, name_sessions(files), strict=True)
    sets = [FORMATS[form](path, replace(origin, session=session)) for path, session in sessions]
    samples = join(sets if form == "csv" else _numbered(sets))
    for warning in _missing(samples):
        click.echo(f"note: {warning}", err=True)
    text = format_samples(samples)
    # what is written can be read again: facts that the format requires may be missing
    parse_samples(json.loads(text), ", ".join(map(str, files)))
    if output is None:
        click.echo(text, nl=False)
    else:
        write_durably(output, text)


def _missing(samples: SampleSet) -> Iterator[str]:
    """Yield what the samples do not say, and what comes of that."""
    blocks = [block for one in samples for block in one.blocks]
    if not samples.hosts:
        yield "no host: machines that differ would count as a change; say --fact hostname=NAME"
    if any(block.started is None for block in blocks):
        yield "no start time of some blocks: they are taken in the order of the files, and never become too old"
    guessed = [one.metric for one in samples if one.direction is Direction.LOWER and not tells_direction(one.unit)]
    if guessed:
        more = f" and {len(guessed) - 1} more" if len(guessed) > 1 else ""
        yield f"lower is taken as better of {guessed[0]}{more}, as the unit does not tell"


def _numbered(sets: Sequence[SampleSet]) -> Iterator[SampleSet]:
    """Yield ``sets`` with blocks in the order of their files; these programs do not say when a session began."""
    first = 0
    for samples in sets:
        series = tuple(
            replace(one, blocks=tuple(replace(block, order=first + block.order) for block in one.blocks))
            for one in samples
        )
        yield replace(samples, series=series)
        first += max(len(one.blocks) for one in samples)


def _facts_in(path: Path | None) -> dict[str, Scalar]:
    if path is None:
        return {}
    document: Any = read_json(path)
    if not isinstance(document, dict):
        raise InputError(f"{path}: expected a JSON object with facts about the machine")
    check_plain(document, path)
    return flatten(document, str(path))


def _pairs(option: str, pairs: tuple[str, ...]) -> dict[str, Scalar]:
    found: dict[str, Scalar] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise InputError(f"{option} {pair!r}: expected KEY=VALUE, such as cpu_model=z15")
        found[key] = value
    return found
