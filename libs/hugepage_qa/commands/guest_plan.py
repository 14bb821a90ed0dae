"""``hugepage-qa guest plan``: what guests need, held against what a machine has of each pool and node, and besides."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from hugepage_qa.cases.pool_view import PoolView, read_pool_view
from hugepage_qa.errors import InputError
from hugepage_qa.kernel.pools import DIRECTORY
from hugepage_qa.kernel.tree import DirectoryTree, Tree, size_name
from hugepage_qa.oracle.rules import Rule
from hugepage_qa.qemu.guest.guest_description import Cell, GuestDescription, Pool, pages_needed
from hugepage_qa.sizes import MIB, format_size, parse_size

KVM_HPAGE = "sys/module/kvm/parameters/hpage"
KVM_NEEDS_HPAGE = Rule(
    "kvm-needs-hpage",
    "on s390x KVM refuses guests on huge pages unless it was loaded with hpage=1",
    "Documentation/virt/kvm/api.rst 7.14 KVM_CAP_S390_HPAGE_1M; arch/s390/kvm/kvm-s390.c",
)

#: of QEMU without the guest's memory: heap, firmware, and what TCG translates; see ``lab.probe`` for what was measured
QEMU_MEMORY = 256 * MIB
_ENTRY = 8
# of QEMU's page table and of KVM's, which maps the same pages for the guest
_TABLES = 2


@dataclass(frozen=True)
class PoolPlan:
    """What is asked of one pool: pages ``needed``, and those ``available`` in it now."""

    pool: Pool
    needed: int
    available: int

    @property
    def missing(self) -> int:
        """Pages that have to be reserved before the guests can start."""
        return max(0, self.needed - self.available)

    @property
    def left(self) -> int:
        """Pages that are free when the guests run."""
        return max(0, self.available - self.needed)

    @property
    def file(self) -> str:
        """The file that reserves pages for this pool."""
        name = f"{size_name(self.pool.size)}/nr_hugepages"
        if self.pool.node is None:
            return f"/{DIRECTORY}/{name}"
        return f"/sys/devices/system/node/node{self.pool.node}/hugepages/{name}"


@dataclass(frozen=True)
class GuestPlan:
    """What guests need: of each pool, and ordinary memory in bytes, for QEMU itself and for page tables."""

    pools: tuple[PoolPlan, ...]
    ordinary_memory: int

    @property
    def is_met(self) -> bool:
        """Whether the guests can start now."""
        return not any(pool.missing for pool in self.pools)


def ordinary_memory(guest: GuestDescription) -> int:
    """Return the bytes that QEMU takes besides the guest's huge pages."""
    tables = sum(_TABLES * _ENTRY * cell.memory // cell.page for cell in guest.cells if cell.page)
    return QEMU_MEMORY + tables


def plan_for_pool(guest: GuestDescription, count: int, pages: int) -> GuestPlan:
    """Return the plan for ``count`` such guests on a machine with ``pages`` pages in each pool that they need."""
    needs = _needs(guest, count)
    return GuestPlan(
        tuple(PoolPlan(pool, needed, pages) for pool, needed in needs.items()), count * ordinary_memory(guest)
    )


def plan_for_machine(guest: GuestDescription, count: int, tree: Tree) -> GuestPlan:
    """Return the plan for ``count`` such guests on the machine of ``tree``.

    Raises InputError for what the machine can never have: a page size, a node, more memory than there is, and for
    KVM on s390x that was loaded without huge pages.
    """
    view = read_pool_view(tree)
    needs = _needs(guest, count)
    _refuse_impossible(needs, view)
    if kvm_refuses(tree):
        raise InputError(f"/{KVM_HPAGE} is 0: {KVM_NEEDS_HPAGE.statement}; boot with kvm.hpage=1")
    return GuestPlan(
        tuple(PoolPlan(pool, needed, _available(pool, view)) for pool, needed in needs.items()),
        count * ordinary_memory(guest),
    )


def kvm_refuses(tree: Tree) -> bool:
    """Tell whether KVM of this machine will back no guest with huge pages: only that of s390x has the parameter."""
    value = (tree.read(KVM_HPAGE) or "").strip()
    return value in ("0", "N")


def _needs(guest: GuestDescription, count: int) -> Mapping[Pool, int]:
    if count < 1:
        raise InputError(f"{count} guests: expected at least 1")
    return {pool: count * pages for pool, pages in sorted(pages_needed(guest).items(), key=str)}


def _refuse_impossible(needs: Mapping[Pool, int], view: PoolView) -> None:
    for pool, pages in needs.items():
        if pool.size not in view.pools:
            sizes = ", ".join(format_size(size) for size in view.pools)
            raise InputError(
                f"page size {format_size(pool.size)}: this machine has none of it, expected one of {sizes}"
            )
        if pool.node is not None and pool.node not in view.nodes:
            nodes = ", ".join(map(str, view.nodes)) or "none"
            raise InputError(f"node {pool.node}: this machine has no such NUMA node, expected one of {nodes}")
        total = view.meminfo.get("MemTotal", 0)
        if pages * pool.size > total:
            raise InputError(
                f"{pages} pages of {format_size(pool.size)} are {pages * pool.size // MIB} MiB: this machine has"
                f" {total // MIB} MiB of memory, make the guests smaller"
            )


def _available(pool: Pool, view: PoolView) -> int:
    whole = view.pools[pool.size]
    if pool.node is None:
        return whole.available
    # which node the reserved pages will come from is not known: all of them may come from this one
    return max(0, min(view.nodes[pool.node][pool.size].free, whole.available))


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
