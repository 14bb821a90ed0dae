"""``hugepage-qa boot-matrix``: named and random command lines on probe machines."""

import sys
from itertools import chain
from pathlib import Path

import click
from rich.console import Console

from hugepage_qa.commands.options import ARCHITECTURES, kernel_options, make_settings
from hugepage_qa.errors import InputError
from hugepage_qa.matrix.case import choose_groups, groups
from hugepage_qa.matrix.run import Matrix
from hugepage_qa.report.matrix_report import MatrixReport
from hugepage_qa.report.settings import draw_seed
from hugepage_qa.verdict import exit_code


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
@kernel_options
def boot_matrix(
    architectures: tuple[str, ...],
    cpu: str | None,
    groups: tuple[str, ...],
    random_count: int,
    seed: int | None,
    machines: int | None,
    named: bool,
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
    settings = make_settings(kernel, package, suite, append, deadline, machines)
    seed = draw_seed() if seed is None else seed
    wanted = chosen if named else ()
    report = MatrixReport(Console())
    for architecture in architectures or ("x86_64",):
        matrix = Matrix(architecture, settings)
        cases = matrix.named_cases(wanted, cpu)
        total = len(cases) + random_count * len(matrix.targets(cpu))
        report.start(architecture, matrix.kernel, total, seed if random_count else None, append)
        try:
            for judgement in chain(matrix.run(cases), matrix.run_random(random_count, seed, cpu)):
                report.add(judgement)
        finally:
            matrix.stop()
            report.stop()
    report.finish()
    sys.exit(exit_code(judgement.verdict for judgement in report.judgements))
