"""``hugepage-qa facts``: what a machine shows about its huge pages."""

import json
import platform
from pathlib import Path

import click

from hugepage_qa.errors import InputError
from hugepage_qa.kernel.facts import read_facts
from hugepage_qa.kernel.tree import DirectoryTree
from hugepage_qa.report.boot_table import open_console, print_facts


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
