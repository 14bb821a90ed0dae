"""``hugepage-qa reproduce``: does this kernel have a bug that the suite found in others?"""

import sys
from pathlib import Path

import click

from hugepage_qa.cases.boot.boot_matrix import Settings, find_kernel
from hugepage_qa.cases.upstream.reproduction import DIRECTORY, Answer, Reproduction, bug_reports, reproduce
from hugepage_qa.commands.boot_commands import ARCHITECTURES
from hugepage_qa.errors import InputError
from hugepage_qa.qemu.packages import cache_directory, open_kernel

_WORDS = {
    Answer.RIGHT: "is right",
    Answer.BUG: "has the bug",
    Answer.UNDECIDED: "cannot be decided",
}


@click.command(name="reproduce", epilog="Example: hugepage-qa reproduce fork-loses-pages --suite trixie-backports")
@click.argument("name", type=click.Choice(list(bug_reports())), required=False, metavar="[NAME]")
@click.option("--kernel", type=click.Path(path_type=Path), help="Image or package; default: the distribution's.")
@click.option("--package", help="Package of the distribution that holds the kernel.")
@click.option("--suite", help="Release of the distribution to take the kernel from, such as sid.")
@click.option("--arch", "architecture", type=click.Choice(ARCHITECTURES), help="[that of the kernel, else x86_64]")
@click.option("--append", default="", metavar="WORDS", help="Further kernel arguments.")
def reproduce_command(
    name: str | None,
    kernel: Path | None,
    package: str | None,
    suite: str | None,
    architecture: str | None,
    append: str,
) -> None:
    """Run the reproducer of the kernel bug NAME in a throwaway machine, without NAME list them.

    Needs neither root nor KVM. A reproducer is a program of its own, or a command line and what files read after it:
    the directory that the list ends with has both, and a report for upstream.

    Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be decided, 3 the tool or its input is wrong.
    """
    if name is None:
        width = max(map(len, bug_reports()))
        for report in bug_reports().values():
            click.echo(f"{report.name:<{width}} {report.subject}")
        click.echo(f"reports and reproducers: {DIRECTORY}")
        return
    if kernel is not None and (package or suite):
        raise InputError("--kernel and --package or --suite: expected one kernel, leave out the one or the other")
    settings = Settings(kernel, package, suite, say=lambda line: click.echo(line, err=True))
    wanted = architecture or (open_kernel(kernel, cache_directory()).architecture if kernel else ARCHITECTURES[0])
    tried = find_kernel(wanted, settings)
    found = reproduce(bug_reports()[name], tried, settings.cache, append)
    _print(found, f"{name}: {tried.release} ({wanted})")
    sys.exit(found.answer)


def _print(found: Reproduction, what: str) -> None:
    for line in found.lines:
        click.echo(f"  {line}")
    why = f": {found.reason}" if found.reason else ""
    click.echo(f"{what} {_WORDS[found.answer]}{why}")
