"""``hugepage-qa guest plan``: what guests need, held against what a machine has of each pool and node, and besides."""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import click

from hugepage_qa.cases.guest.page_commands import advice
from hugepage_qa.cases.guest.page_plan import GuestPlan, plan_for_any_host, plan_for_machine, plan_for_pool
from hugepage_qa.cases.result import ExitCode
from hugepage_qa.errors import InputError
from hugepage_qa.kernel.counters import read_meminfo
from hugepage_qa.kernel.tree import DirectoryTree
from hugepage_qa.qemu.guest.foreign_domain import LONGEST, WantedGuest, defined_domain, read_domain
from hugepage_qa.qemu.guest.guest_description import Cell, pages_of_cells
from hugepage_qa.sizes import MIB, format_size, parse_size

_MOST_GUESTS = 10_000
#: that are told one by one
_REFUSALS = 10
#: what QEMU says of too few pages, whatever version it is; libvirt passes it on
_REFUSAL = "unable to map backing store for guest RAM: Cannot allocate memory"


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
    epilog="Example: hugepage-qa guest plan --memory 32G@0,32G@1 --page 1G;"
    " hugepage-qa guest plan --domain db1 --xml db2.xml",
    help="""Say how many huge pages guests need, whether this machine has them, and what to type where it has not.

    The guests are started in the order in which they are told here, those of --memory first.

    Exit code: 0 the guests can start, or nothing is known of their host, 1 something has to be done first, 3 the
    machine can never have them, or the input is wrong.
    """,
)
@click.option("--memory", metavar="64G", help="Of each guest; 32G@0,32G@1 binds parts to NUMA nodes.")
@click.option("--page", type=Size(), metavar="2M", help="Size of the huge pages, and of those in XML without one.")
@click.option("--guests", "count", default=1, show_default=True, help="How many guests with --memory run at once.")
@click.option("--xml", "files", type=Path, multiple=True, metavar="FILE", help="A guest: a libvirt domain. Repeatable.")
@click.option("--domain", "names", multiple=True, metavar="NAME", help="A guest that libvirt knows here. Repeatable.")
@click.option("--pool", type=click.IntRange(0), metavar="PAGES", help="Plan for a pool of PAGES, not for this machine.")
@click.option("--elsewhere", is_flag=True, help="Plan for another host, of which nothing is known.")
@click.option("--root", type=click.Path(path_type=Path, exists=True, file_okay=False), default=Path("/"), hidden=True)
def plan(
    memory: str | None,
    page: int | None,
    count: int,
    files: tuple[Path, ...],
    names: tuple[str, ...],
    pool: int | None,
    elsewhere: bool,
    root: Path,
) -> None:
    """Print the plan."""
    tree = DirectoryTree(root)
    default = None if elsewhere or pool is not None else read_meminfo(tree).get("Hugepagesize")
    default_page = partial(_expect_page, default if page is None else page)
    guests = [
        *_described(memory, default_page, count),
        *(_read_file(file, default_page) for file in files),
        *_defined(names, default_page),
    ]
    _check(guests, names)
    if elsewhere and pool is not None:
        raise InputError("--pool and --elsewhere: expected one of them")
    if elsewhere:
        found = plan_for_any_host(guests)
    elif pool is not None:
        found = plan_for_pool(guests, pool)
    else:
        found = plan_for_machine(guests, tree)
    _print(guests, found, default)
    sys.exit(ExitCode.GOOD if found.is_met else ExitCode.BAD)


def _expect_page(page: int | None) -> int:
    if page is None:
        raise InputError("no size of huge pages: expected --page, here the default size of the host is not known")
    return page


def _described(memory: str | None, page: Callable[[], int], count: int) -> Iterator[WantedGuest]:
    """Yield the guests of --memory, of which nobody knows how they get their pages."""
    if not 1 <= count <= _MOST_GUESTS:
        raise InputError(f"{count} guests: expected at least 1, and at most {_MOST_GUESTS}")
    if memory is not None:
        cells = tuple(_cell(part, page()) for part in memory.split(","))
        for number in range(1, count + 1):
            yield WantedGuest("guest" if count == 1 else f"guest {number}", cells, in_files=False)


def _cell(text: str, page: int) -> Cell:
    size, separator, node = text.partition("@")
    if separator and not (node.isascii() and node.isdecimal()):
        raise InputError(f"memory {text!r}: expected the number of a NUMA node behind @, for example 32G@0")
    return Cell(parse_size(size), page, int(node) if separator else None)


def _read_file(file: Path, default_page: Callable[[], int]) -> WantedGuest:
    try:
        with file.open("rb") as stream:
            return read_domain(stream.read(LONGEST + 1), default_page)
    except OSError as error:
        raise InputError(f"--xml {file}: {error.strerror}") from error
    except InputError as error:
        raise InputError(f"--xml {file}: {error}") from error


def _defined(names: tuple[str, ...], default_page: Callable[[], int]) -> Iterator[WantedGuest]:
    for name in names:
        domain = defined_domain(name)
        if domain.is_running:
            click.echo(f"{name} runs already, and has its pages")
            continue
        try:
            yield read_domain(domain.xml, default_page)
        except InputError as error:
            raise InputError(f"--domain {name}: {error}") from error


def _check(guests: list[WantedGuest], names: tuple[str, ...]) -> None:
    if not guests and not names:
        raise InputError("no guest: expected --memory, --xml or --domain")
    called = [one.name for one in guests]
    if twice := next((name for name in called if called.count(name) > 1), None):
        raise InputError(f"two guests are called {twice}: expected different ones, as libvirt does")


def _print(guests: list[WantedGuest], found: GuestPlan, default_page: int | None) -> None:
    if len({one.cells for one in guests}) > 1:
        for one in guests:
            pages = ", ".join(
                f"{count} pages of {format_size(pool.size)}{_on(pool.node)}"
                for pool, count in pages_of_cells(one.cells).items()
            )
            click.echo(f"{one.name}: {pages or 'no huge pages'}")
    for pool in found.pools:
        needed = f"{pool.needed} pages of {format_size(pool.pool.size)}{_on(pool.pool.node)} are needed"
        if not found.is_held_against_a_host:
            click.echo(needed)
        elif pool.missing:
            click.echo(f"{needed}, {pool.available} are available\n  {pool.missing} are missing")
        else:
            click.echo(f"{needed}, {pool.available} are available\n  {pool.left} stay free")
    click.echo(f"about {found.ordinary_memory // MIB} MiB of ordinary memory for QEMU itself and page tables")
    for line in (*found.refusals[:_REFUSALS], *found.remarks[:_REFUSALS]):
        click.echo(line)
    if (more := len(found.refusals) - _REFUSALS) > 0:
        click.echo(f"so it is with {more} more")
    if any(pool.missing for pool in found.pools) and found.refusals:
        click.echo(f"(QEMU takes all or none, and no ordinary pages instead: {_REFUSAL})")
    for line in advice(found, default_page):
        click.echo(line)


def _on(node: int | None) -> str:
    return "" if node is None else f" on node {node}"
