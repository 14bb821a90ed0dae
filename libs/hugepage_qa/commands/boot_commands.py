"""``hugepage-qa boot``, ``boot-matrix``, ``predict`` and ``facts``: what a kernel makes of a command line."""

import json
import platform
import sys
from itertools import chain
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from hugepage_qa.cases.boot.boot_case import BootCase
from hugepage_qa.cases.boot.boot_matrix import Matrix, Settings
from hugepage_qa.cases.boot.case_groups import choose_groups, groups
from hugepage_qa.cases.result import exit_code
from hugepage_qa.cases.run_settings import draw_seed
from hugepage_qa.commands.command_parts import options
from hugepage_qa.errors import InputError
from hugepage_qa.kernel.facts import read_facts
from hugepage_qa.kernel.tree import DirectoryTree
from hugepage_qa.oracle.boot.predict import predict as predict_boot
from hugepage_qa.qemu.boards import BOARDS, find_board, find_cpu
from hugepage_qa.qemu.kernel_image import KernelImage, identify
from hugepage_qa.qemu.nominal import nominal_machine
from hugepage_qa.qemu.virtual_machine import full_command_line
from hugepage_qa.report.boot_report import MatrixReport, print_facts, print_judgement, print_prediction
from hugepage_qa.report.open_console import open_console
from hugepage_qa.sizes import parse_memory

ARCHITECTURES = tuple(BOARDS)


class Memory(click.ParamType[tuple[int, ...]]):
    """Memory of each NUMA node: ``2G,2G`` -> bytes."""

    name = "2G,2G"

    def convert(self, value: Any, _param: click.Parameter | None, _ctx: click.Context | None) -> tuple[int, ...]:
        """Return bytes of each node; raises InputError, which names the input."""
        return value if isinstance(value, tuple) else parse_memory(value)


#: choose a probe machine
machine_options = options(
    click.option("--arch", "architecture", type=click.Choice(ARCHITECTURES), default="x86_64", show_default=True),
    click.option("--cpu", help="CPU of the board: x86_64 max, qemu64; ppc64le power9 (radix), power8 (hash)."),
    click.option("--memory", type=Memory(), default="2G", show_default=True, help="Of each NUMA node; 0: none."),
    click.option("--cpus", type=click.IntRange(1, 64), default=1, show_default=True),
)

#: choose the kernel under test and how it is booted
kernel_options = options(
    click.option("--kernel", type=click.Path(path_type=Path), help="Kernel image; default: the distribution's."),
    click.option("--package", help="Package of the distribution that holds the kernel."),
    click.option("--suite", help="Release of the distribution to take the kernel from, such as sid."),
    click.option("--append", default="", metavar="WORDS", help="Further kernel arguments for every boot."),
    click.option("--deadline", type=click.FloatRange(1), default=120.0, show_default=True, metavar="SECONDS"),
)


def _say(line: str) -> None:
    click.echo(line, err=True)


@click.command(epilog="Example: hugepage-qa boot 'hugepagesz=1G hugepages=1 hugepages=0:3,1:5' --memory 2G,2G")
@click.argument("command_line")
@machine_options
@kernel_options
@click.option("--serial", is_flag=True, help="Print the serial log, too.")
def boot(
    command_line: str,
    architecture: str,
    cpu: str | None,
    memory: tuple[int, ...],
    cpus: int,
    kernel: Path | None,
    package: str | None,
    suite: str | None,
    append: str,
    deadline: float,
    serial: bool,
) -> None:
    """Boot one probe machine with COMMAND_LINE and print prediction, fact and difference side by side.

    Exit code: 0 as predicted, 1 not as predicted, 2 not decided, 3 the tool or its input is wrong.
    """
    with Matrix(architecture, Settings(kernel, package, suite, append, deadline=deadline, say=_say)) as matrix:
        name = find_cpu(matrix.board, cpu).name
        case = BootCase("/boot", architecture, name, command_line, memory, cpus, "command line")
        judgement = next(iter(matrix.run([case])))
    print_judgement(open_console(), judgement, matrix.kernel.release)
    if serial:
        click.echo(judgement.evidence)
    sys.exit(exit_code([judgement.verdict]))


@click.command(name="boot-matrix", epilog="Example: hugepage-qa boot-matrix --arch aarch64 --random 200 --seed 7")
@click.option("--arch", "architectures", type=click.Choice(ARCHITECTURES), multiple=True, help="Repeatable.")
@click.option("--cpu", help="One CPU of the board instead of all.")
@click.option(
    "--group", "groups", multiple=True, help=f"Group of named cases; repeatable. Default: all of {', '.join(groups())}."
)
@click.option("--random", "random_count", type=click.IntRange(0), default=0, help="Random command lines per CPU.")
@click.option("--seed", type=click.IntRange(0), help="Seed of the random command lines; it is printed.")
@click.option("--machines", type=click.IntRange(1), help="Machines at once. Default: as many as fit.")
@click.option("--named/--no-named", default=True, help="Whether to run the named cases.")
@click.option("-x", "--exitfirst", is_flag=True, help="The first failure or error ends the run; no more is booted.")
@kernel_options
def boot_matrix(
    architectures: tuple[str, ...],
    cpu: str | None,
    groups: tuple[str, ...],
    random_count: int,
    seed: int | None,
    machines: int | None,
    named: bool,
    exitfirst: bool,
    kernel: Path | None,
    package: str | None,
    suite: str | None,
    append: str,
    deadline: float,
) -> None:
    """Boot many probe machines and judge every huge page parameter.

    Exit code: 0 good, 1 a case failed, 2 nothing was decided, 3 the tool or its input is wrong.
    """
    chosen = choose_groups(groups)
    if not named and not random_count:
        raise InputError("--no-named without --random: nothing is left to run")
    settings = Settings(kernel, package, suite, append, deadline=deadline, machines=machines, say=_say)
    seed = draw_seed() if seed is None else seed
    wanted = chosen if named else ()
    report = MatrixReport(Console())
    waiting = list(dict.fromkeys(architectures or ("x86_64",)))
    while waiting and not (exitfirst and report.has_failed):
        architecture = waiting.pop(0)
        with Matrix(architecture, settings) as matrix:
            cases = matrix.named_cases(wanted, cpu)
            total = len(cases) + random_count * len(matrix.targets(cpu))
            report.start(architecture, matrix.kernel, total, seed if random_count else None, append)
            try:
                for judgement in chain(matrix.run(cases), matrix.run_random(random_count, seed, cpu)):
                    report.add(judgement)
                    if exitfirst and report.has_failed:
                        break
            finally:
                report.stop()
    report.finish(not_begun=waiting)
    sys.exit(exit_code(judgement.verdict for judgement in report.judgements))


@click.command(epilog="Example: hugepage-qa predict 'hugepagesz=2M hugepages=0:3,1:5' --arch x86_64 --memory 2G,2G")
@click.argument("command_line")
@machine_options
@click.option("--version", "release", default="6.1", show_default=True, help="Kernel version to predict for.")
@click.option("--kernel", type=click.Path(path_type=Path), help="Kernel image: its version and configuration count.")
def predict(
    command_line: str,
    architecture: str,
    cpu: str | None,
    memory: tuple[int, ...],
    cpus: int,
    release: str,
    kernel: Path | None,
) -> None:
    """Print what COMMAND_LINE must do to a probe machine, each line with its rule."""
    # what "boot" refuses, too
    full_command_line(find_board(architecture), command_line)
    image = identify(kernel, architecture) if kernel else KernelImage(Path(), architecture, release, None)
    print_prediction(open_console(), predict_boot(command_line, nominal_machine(image, cpu, memory, cpus)))


@click.command(epilog="Example: hugepage-qa facts --json")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--root", type=click.Path(path_type=Path), default=Path("/"), help="Directory with proc/ and sys/.")
def facts(as_json: bool, root: Path) -> None:
    """Print pools, counters and switches of this machine, or of a captured tree."""
    if not (root / "proc").is_dir():
        raise InputError(f"--root {root}: expected a directory with proc/ and sys/ in it")
    found = read_facts(DirectoryTree(root), machine=platform.machine() if root == Path("/") else None)
    if as_json:
        head = {"architecture": found.architecture, "release": found.release, "command_line": found.command_line}
        click.echo(json.dumps(head | {"observations": found.observations()}, indent=2))
    else:
        print_facts(open_console(), found)
