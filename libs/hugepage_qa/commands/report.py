"""``hugepage-qa report``: what many runs say together."""

import json
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hugepage_qa.cases.result import one_line
from hugepage_qa.durable import write_durably
from hugepage_qa.errors import InputError
from hugepage_qa.report import compared_runs
from hugepage_qa.report.fill_template import fill_template
from hugepage_qa.report.merged_runs import (
    MergedReport,
    Table,
    as_json,
    headline,
    merge,
    read_runs,
    render_html,
    render_markdown,
)
from hugepage_qa.report.run_directory import Run, find_runs

if TYPE_CHECKING:
    from hugepage_qa.report.sample_blocks import JoinedSamples

_SEARCHABLE = 0o755


@click.group(epilog="Example: hugepage-qa report merge lab1/run lab2/run --output report")
def report() -> None:
    """Reports on finished runs."""


@report.command(name="merge", epilog="Example: hugepage-qa report merge results --output report")
@click.argument("directories", nargs=-1, required=True, metavar="DIR...", type=click.Path(path_type=Path))
@click.option(
    "--output",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="A new directory for report.md, report.html, report.json, and samples joined by machine.",
)
@click.option("--about", default="", help="A line at the head of the report: what it is for, and of what.")
@click.option("--processes", type=click.IntRange(1), help="Processes that read runs.  [default: one for each CPU]")
def merge_command(directories: tuple[Path, ...], output: Path, about: str, processes: int | None) -> None:
    """Make one report of the runs in DIR..., each what "tmt run --id" or "check-kernel --output" left.

    A directory that holds such serves, too.

    Exit code: 0 good, 1 a case failed, 2 every case was skipped, 3 an error of the suite, or the input is wrong: a
    run that did not end, is of a later format, or is there twice. Then nothing is written.
    """
    _require_new(output)
    runs = _read(directories, processes)
    merged = merge(runs, one_line(about))
    samples = _joined([path for run in runs for path in run.sample_files])
    _write(output, _merged_texts(merged, samples))
    click.echo(f"{headline(merged)}\nreport: {output / 'report.html'}")
    sys.exit(merged.exit_code)


@report.command(name="compare", epilog="Example: hugepage-qa report compare build/qa/functional checks/6.18")
@click.argument("directories", nargs=-1, required=True, metavar="RUN...", type=click.Path(path_type=Path))
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="A new directory for report.md and report.html.",
)
@click.option("--about", default="", help="A line at the head of the report: what it is for, and of what.")
def compare_command(directories: tuple[Path, ...], output: Path | None, about: str) -> None:
    """Tell in which cases the runs in RUN... differ, each what "tmt run --id" or "check-kernel --output" left.

    A case is the same by its name and page size, whatever the machine and the kernel. What ended differently is told
    with the reason of each run; what not all of them ran, by cause. What ended alike is counted.

    Exit code: 0 nothing ended differently, 1 a case did, 2 no case was run twice, 3 the input is wrong, as for merge.
    """
    if output is not None:
        _require_new(output)
    runs = _read(directories)
    if len(runs) == 1:
        raise InputError(f"{runs[0].path}: expected two runs or more, found one: name another one to compare it with")
    comparison = compared_runs.compare(runs)
    line, tables = compared_runs.headline(comparison), compared_runs.tables(comparison)
    if output is not None:
        values = {"about": one_line(about), "headline": line, "tables": tables}
        names = {"report.md": "merged.md.j2", "report.html": "merged.html.j2"}
        _write(output, {name: fill_template(template, **values) for name, template in names.items()})
    click.echo("\n".join([*(_as_text(table) for table in tables), line]))
    sys.exit(comparison.exit_code)


def _as_text(table: Table) -> str:
    """Return ``table`` with a line for each cell: these are long."""
    width = max(map(len, table.head))
    rows = [
        "".join(f"  {title:{width}}  {cell}\n" for title, cell in zip(table.head, row, strict=True))
        for row in table.rows
    ]
    return f"{table.title}\n" + ("\n".join(rows) or f"  {table.note}\n")


def _read(directories: Sequence[Path], processes: int | None = None) -> list[Run]:
    return read_runs([run for directory in directories for run in find_runs(directory)], processes)


def _require_new(output: Path) -> None:
    if output.is_symlink() or output.exists():
        raise InputError(f"--output {output}: is there already; expected the name of a new directory")
    if not output.parent.is_dir():
        raise InputError(f"--output {output}: no directory {output.parent} to make it in")


def _joined(files: Sequence[Path]) -> "list[JoinedSamples]":
    if not files:
        return []
    try:
        joined: list[JoinedSamples] = import_module("hugepage_qa.report.sample_blocks").join_sample_files(files)
    except ModuleNotFoundError as error:
        raise InputError(f"{files[0]}: samples need {error.name}: install hugepage-qa[gate]") from error
    return joined


def _merged_texts(merged: MergedReport, samples: "Sequence[JoinedSamples]") -> dict[str, str]:
    summaries = [one.summary for one in samples]
    return {
        "report.md": render_markdown(merged, summaries),
        "report.html": render_html(merged, summaries),
        "report.json": json.dumps(as_json(merged, summaries), indent=1, allow_nan=False) + "\n",
        **{one.summary.file: one.text for one in samples},
    }


def _write(output: Path, texts: Mapping[str, str]) -> None:
    """Write ``texts``, by file, into a directory beside ``output`` and rename it: a reader sees all of them or none."""
    scratch = Path(tempfile.mkdtemp(prefix=f".{output.name}.", dir=output.parent))
    try:
        for name, text in texts.items():
            (scratch / name).parent.mkdir(parents=True, exist_ok=True)
            write_durably(scratch / name, text)
        scratch.chmod(_SEARCHABLE)
        scratch.rename(output)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
