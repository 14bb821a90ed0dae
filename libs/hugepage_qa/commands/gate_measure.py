"""``hugepage-qa gate measure``: take samples of workloads on pages of each kind."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import click
from rich.console import Console
from rich.progress import Progress as Bar
from rich.progress import TextColumn

from hugepage_qa.bench.backing import Backing, choose_backings, find_backings, halved_backings
from hugepage_qa.bench.measure import Measurer, Place, Progress
from hugepage_qa.bench.measured_environment import read_environment, read_subject
from hugepage_qa.bench.measurement import Measurement, Plan, sample_document
from hugepage_qa.bench.workload import Cell, Workload
from hugepage_qa.bench.workloads import PROFILES, USUAL, WORKLOADS, choose_workloads
from hugepage_qa.cases.result import ExitCode, one_line
from hugepage_qa.cases.run_settings import draw_seed
from hugepage_qa.errors import InputError
from hugepage_qa.kernel.tree import DirectoryTree
from hugepage_qa.machine.kept_file import Repair
from hugepage_qa.machine.protection import protected_machine, require_root
from hugepage_qa.report.terminal import progress_bar

#: databases are too large for memory, and a user without rights has to come there: /tmp may be a private one of root
_DISK = Path("/var/tmp")  # noqa: S108 - a private directory is made there
_MAY_PASS = 0o711


@click.command(name="measure", epilog="Example: hugepage-qa gate measure --blocks 5 --output monday")
@click.option("--profile", type=click.Choice(PROFILES), default="quick", show_default=True, help="Size of workloads.")
@click.option(
    "--workload",
    "workload_names",
    multiple=True,
    metavar="NAME",
    help=f"{', '.join(WORKLOADS)}; default: the first {len(USUAL)}.",
)
@click.option(
    "--configuration",
    "configuration_names",
    multiple=True,
    metavar="NAME",
    help="4k, thp, thp-64K, thp-defrag-defer, shp-2M or what this machine has, hugetext-1 or what else text can be;"
    " default: 4k, thp, the default size, 1G, and text in every way.",
)
@click.option(
    "--blocks",
    "sessions",
    type=click.IntRange(1),
    default=5,
    show_default=True,
    help="Sessions; each takes every configuration twice, in the order ABC...CBA.",
)
@click.option(
    "--output",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory for the samples; what is finished there is not measured again.",
)
@click.option("--seed", type=click.IntRange(0), help="Draws the order again; it is kept in the directory.")
@click.option(
    "--stand-in",
    "stand_ins",
    multiple=True,
    metavar="NAME=OTHER",
    help="Measure NAME on the pages of OTHER (shp-2M/2: with half of its pages): a slow-down on purpose.",
)
def command(
    profile: str,
    workload_names: tuple[str, ...],
    configuration_names: tuple[str, ...],
    sessions: int,
    output: Path,
    seed: int | None,
    stand_ins: tuple[str, ...],
) -> None:
    """Measure workloads on base pages, THP and static huge pages of this machine; a file of samples for each workload.

    Needs root, sets pools and THP for each block, drops caches and compacts memory, and puts the machine back. A
    measurement that was killed goes on with the same command. docs/gate.md tells what is measured.

    Exit code: 0 measured, 2 nothing could be measured, 3 a program failed or the input is wrong.
    """
    measured = take_samples(
        MeasureOptions(profile, workload_names, configuration_names, sessions, output, seed, stand_ins)
    )
    for path in measured.files:
        click.echo(path)
    sys.exit(measured.exit_code)


@dataclass(frozen=True)
class MeasureOptions:
    """What to measure, and where to."""

    profile: str
    workloads: tuple[str, ...]
    configurations: tuple[str, ...]
    sessions: int
    output: Path
    seed: int | None = None
    stand_ins: tuple[str, ...] = ()


@dataclass(frozen=True)
class Measured:
    """The files of samples, what could not be measured and why, and what of the machine could not be put back."""

    files: tuple[Path, ...]
    skipped: Mapping[str, str]
    unrestored: tuple[Repair, ...]

    @property
    def exit_code(self) -> ExitCode:
        """0 measured, 2 nothing was, 3 the machine is not as it was."""
        if self.unrestored:
            return ExitCode.BROKEN
        return ExitCode.GOOD if self.files else ExitCode.UNDECIDED


def take_samples(
    options: MeasureOptions, beside: Callable[[Cell], AbstractContextManager[object]] = lambda _cell: nullcontext()
) -> Measured:
    """Measure on this machine, which is put back, and write the samples; progress goes to standard error.

    ``beside`` goes on while the programs of a block run.

    Raises InputError when something is asked for that there is not, or a program fails.
    """
    require_root("gate measure")
    tree = DirectoryTree(Path("/"))
    workloads = choose_workloads(options.workloads)
    there = find_backings(tree)
    backings = choose_backings(there, options.configurations)
    measured = {workload.name: workload.configurations(backings) for workload in workloads}
    for name, own in measured.items():
        if not own:
            raise InputError(f"--workload {name}: does not run on {', '.join(one.name for one in backings)} alone")
    known = {one.name: one for one in chain(there, halved_backings(there), *measured.values())}
    measurement = Measurement(options.output)
    plan = Plan(
        profile=options.profile,
        configurations={name: tuple(one.name for one in own) for name, own in measured.items()},
        sessions=options.sessions,
        seed=_seed(options.seed, measurement.seed()),
        stand_ins=_parse_stand_ins(options.stand_ins, measured, known),
        environment={},
        subject=read_subject(tree),
    )
    with protected_machine("hugepage-qa gate measure") as protection:
        # the machine as it is before any configuration, and after what a killed run has left was put back
        plan = measurement.begin(replace(plan, environment=read_environment(tree)))
        disk = protection.journal.make_scratch(_DISK)
        disk.chmod(_MAY_PASS)
        console = Console(stderr=True)
        with progress_bar(console, TextColumn("{task.fields[left]}")) as bar:
            place, tell = Place(protection.scratch, disk), _Tell(bar, console)
            plan = Measurer(measurement, workloads, known, place, tell, beside).measure(plan)
    for name, reason in plan.skipped.items():
        click.echo(one_line(f"skipped {name}: {reason}"), err=True)
    return Measured(tuple(_write(measurement, plan, workloads)), plan.skipped, protection.unrestored)


def _write(measurement: Measurement, plan: Plan, workloads: tuple[Workload, ...]) -> Iterator[Path]:
    blocks = measurement.blocks()
    for workload in workloads:
        document = sample_document(plan, workload, blocks.values())
        if document is not None:
            yield measurement.write_samples(workload.name, document)


def _seed(asked: int | None, earlier: int | None) -> int:
    if asked is not None and earlier not in (None, asked):
        raise InputError(f"--seed {asked}: the measurement was begun with {earlier}; leave it out")
    return asked if asked is not None else draw_seed() if earlier is None else earlier


def _parse_stand_ins(
    texts: tuple[str, ...], measured: Mapping[str, tuple[Backing, ...]], known: Mapping[str, Backing]
) -> dict[str, str]:
    names = {one.name for own in measured.values() for one in own}
    pairs = {}
    for text in texts:
        name, _, other = text.partition("=")
        if name not in names or other not in known:
            raise InputError(
                f"--stand-in {text}: expected NAME=OTHER, of {', '.join(sorted(names))}, and of {', '.join(known)}"
            )
        pairs[name] = other
    return pairs


class _Tell:
    """Shows how far a measurement is: a bar on a terminal, elsewhere a line for each session and workload."""

    def __init__(self, bar: Bar, console: Console) -> None:
        self._bar = bar
        self._console = console
        self._task = bar.add_task("", total=1, left="")
        self._said = ""

    def __call__(self, progress: Progress) -> None:
        left = "" if progress.seconds_left is None else f"{progress.seconds_left / 60:.1f} min left"
        self._bar.update(
            self._task, total=progress.total, completed=progress.done, description=progress.doing, left=left
        )
        stage = progress.doing.partition(" on ")[0]
        if not self._console.is_interactive and stage != self._said:
            self._said = stage
            self._console.print(
                f"{stage} ({progress.done} of {progress.total} blocks) {left}".rstrip(), highlight=False
            )
