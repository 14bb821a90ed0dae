"""``hugepage-qa boot``: boot one probe machine and show prediction, fact and difference."""

import sys
from pathlib import Path

import click

from hugepage_qa.commands.options import kernel_options, machine_options, make_settings
from hugepage_qa.lab.boards import find_cpu
from hugepage_qa.matrix.case import BootCase
from hugepage_qa.matrix.run import Matrix
from hugepage_qa.report.boot_table import open_console, print_judgement
from hugepage_qa.verdict import exit_code


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
    matrix = Matrix(architecture, make_settings(kernel, package, suite, append, deadline))
    name = find_cpu(matrix.board, cpu).name
    case = BootCase("/boot", architecture, name, command_line, memory, cpus, "command line")
    try:
        judgement = next(iter(matrix.run([case])))
    finally:
        matrix.stop()
    print_judgement(open_console(), judgement, matrix.kernel.release)
    if serial:
        click.echo(judgement.serial)
    sys.exit(exit_code([judgement.verdict]))
