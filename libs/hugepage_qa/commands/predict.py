"""``hugepage-qa predict``: what a machine must show after it booted with a command line."""

from pathlib import Path

import click

from hugepage_qa.commands.options import machine_options
from hugepage_qa.errors import InputError
from hugepage_qa.lab.boards import find_board
from hugepage_qa.lab.image import identify
from hugepage_qa.lab.nominal import nominal_machine
from hugepage_qa.lab.probe import full_command_line
from hugepage_qa.model.boot import predict as predict_boot
from hugepage_qa.report.boot_table import open_console, print_prediction
from hugepage_qa.version import KernelVersion


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
    image = identify(kernel) if kernel else None
    if image is not None and image.architecture != architecture:
        raise InputError(f"{kernel} is a kernel for {image.architecture}: expected one for {architecture}")
    version = KernelVersion.parse(image.release if image else release)
    machine = nominal_machine(architecture, cpu, memory, version, image.config if image else None, cpus)
    print_prediction(open_console(), predict_boot(command_line, machine))
