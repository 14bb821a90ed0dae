"""``hugepage-qa guest``: plan guests on huge pages."""

import sys
from pathlib import Path
from typing import Any

import click

from hugepage_qa.errors import InputError
from hugepage_qa.guest.description import Cell, GuestDescription
from hugepage_qa.guest.plan import GuestPlan, plan_for_machine, plan_for_pool
from hugepage_qa.kernel.tree import DirectoryTree
from hugepage_qa.sizes import MIB, format_size, parse_size

_NOT_READY = 1


class Size(click.ParamType[int]):
    """A size: ``64G`` -> bytes."""

    name = "64G"

    def convert(self, value: Any, _param: click.Parameter | None, _ctx: click.Context | None) -> int:
        """Return bytes; raises InputError, which names the input."""
        return value if isinstance(value, int) else parse_size(value)


@click.group(epilog="Example: hugepage-qa guest plan --memory 64G --page 1M")
def guest() -> None:
    """Guests whose memory is huge pages of this machine."""


@guest.command(
    epilog="Example: hugepage-qa guest plan --memory 32G@0,32G@1 --page 1G",
    help="""Say how many huge pages guests need, and whether this machine has them.

    Exit code: 0 the guests can start, 1 pages have to be reserved first, 3 the machine can never have them, or the
    input is wrong.
    """,
)
@click.option("--memory", required=True, metavar="64G", help="Of each guest; 32G@0,32G@1 binds parts to NUMA nodes.")
@click.option("--page", required=True, type=Size(), metavar="2M", help="Size of the huge pages.")
@click.option("--guests", "count", default=1, show_default=True, help="How many such guests run at once.")
@click.option("--pool", type=click.IntRange(0), metavar="PAGES", help="Plan for a pool of PAGES, not for this machine.")
@click.option("--root", type=click.Path(path_type=Path, exists=True, file_okay=False), default=Path("/"), hidden=True)
def plan(memory: str, page: int, count: int, pool: int | None, root: Path) -> None:
    """Print the plan."""
    description = GuestDescription("guest", tuple(_cell(part, page) for part in memory.split(",")))
    if pool is None:
        found = plan_for_machine(description, count, DirectoryTree(root))
    else:
        found = plan_for_pool(description, count, pool)
    _print(found)
    sys.exit(0 if found.is_met else _NOT_READY)


def _cell(text: str, page: int) -> Cell:
    size, separator, node = text.partition("@")
    if separator and not (node.isascii() and node.isdecimal()):
        raise InputError(f"memory {text!r}: expected the number of a NUMA node behind @, for example 32G@0")
    return Cell(parse_size(size), page, int(node) if separator else None)


def _print(found: GuestPlan) -> None:
    for one in found.pools:
        where = "" if one.pool.node is None else f" on node {one.pool.node}"
        size = format_size(one.pool.size)
        click.echo(f"{one.needed} pages of {size}{where} are needed, {one.available} are available")
        if one.missing:
            click.echo(f"  {one.missing} are missing: raise {one.file} by as many")
        else:
            click.echo(f"  {one.left} stay free")
    click.echo(f"about {found.ordinary_memory // MIB} MiB of ordinary memory for QEMU itself and page tables")
