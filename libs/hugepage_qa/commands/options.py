"""Options that several commands share, and the settings they make."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from hugepage_qa.lab.boards import BOARDS
from hugepage_qa.lab.packages import cache_directory
from hugepage_qa.matrix.run import Settings
from hugepage_qa.sizes import parse_memory

Command = TypeVar("Command", bound=Callable[..., Any])

ARCHITECTURES = tuple(BOARDS)


class Memory(click.ParamType[tuple[int, ...]]):
    """Memory of each NUMA node: ``2G,2G`` -> bytes."""

    name = "2G,2G"

    def convert(self, value: Any, _param: click.Parameter | None, _ctx: click.Context | None) -> tuple[int, ...]:
        """Return bytes of each node; raises InputError, which names the input."""
        return value if isinstance(value, tuple) else parse_memory(value)


def machine_options(command: Command) -> Command:
    """Add the options that choose a probe machine."""
    for option in reversed(
        (
            click.option(
                "--arch", "architecture", type=click.Choice(ARCHITECTURES), default="x86_64", show_default=True
            ),
            click.option("--cpu", help="CPU of the board: x86_64 max, qemu64; ppc64le power9 (radix), power8 (hash)."),
            click.option(
                "--memory", type=Memory(), default="2G", show_default=True, help="Of each NUMA node; 0: none."
            ),
            click.option("--cpus", type=click.IntRange(1, 64), default=1, show_default=True),
        )
    ):
        command = option(command)
    return command


def kernel_options(command: Command) -> Command:
    """Add the options that choose the kernel under test and how it is booted."""
    for option in reversed(
        (
            click.option(
                "--kernel", type=click.Path(path_type=Path), help="Kernel image; default: the distribution's."
            ),
            click.option("--package", help="Package of the distribution that holds the kernel."),
            click.option("--suite", help="Release of the distribution to take the kernel from, such as sid."),
            click.option("--append", default="", metavar="WORDS", help="Further kernel arguments for every boot."),
            click.option("--deadline", type=click.FloatRange(1), default=120.0, show_default=True, metavar="SECONDS"),
        )
    ):
        command = option(command)
    return command


def make_settings(
    kernel: Path | None,
    package: str | None,
    suite: str | None,
    append: str,
    deadline: float,
    machines: int | None = None,
) -> Settings:
    """Return the settings; raises InputError when the cache cannot be used."""
    return Settings(
        kernel=kernel,
        package=package,
        suite=suite,
        append=append,
        cache=cache_directory(),
        deadline=deadline,
        machines=machines,
        say=lambda line: click.echo(line, err=True),
    )
