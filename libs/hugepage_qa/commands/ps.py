"""``hugepage-qa ps``: which processes use huge pages, for people and for programs."""

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from hugepage_qa.errors import InputError
from hugepage_qa.kernel.pools import Pool
from hugepage_qa.kernel.tree import DirectoryTree
from hugepage_qa.machine.huge_page_users import HugePageUser, HugePageUsers, MemoryUse, find_huge_page_users
from hugepage_qa.sizes import format_size

_SORT_KEYS: dict[str, Callable[[HugePageUser], Any]] = {
    "huge-pages": lambda process: -process.memory.huge_pages,
    "hugetlb": lambda process: -process.memory.hugetlb_pages,
    "thp": lambda process: -process.memory.thp,
    "page-tables": lambda process: -process.memory.page_tables,
    "pid": lambda process: process.pid,
    "name": lambda process: process.name,
}


@click.command(epilog="Example: hugepage-qa ps --sort page-tables --watch 5")
@click.option(
    "--sort",
    type=click.Choice(tuple(_SORT_KEYS)),
    default="huge-pages",
    show_default=True,
    help="Largest first; or by pid or name.",
)
@click.option("--all", "everyone", is_flag=True, help="Also processes without huge pages.")
@click.option("--json", "is_json", is_flag=True, help="Print one JSON object; with --watch one in each line.")
@click.option("--watch", type=click.FloatRange(0.1), metavar="SECONDS", help="Print again and again, until Ctrl-C.")
@click.option("--root", type=click.Path(path_type=Path), default=Path("/"), help="Directory with proc/ and sys/.")
def ps(sort: str, everyone: bool, is_json: bool, watch: float | None, root: Path) -> None:
    """Print the processes that use huge pages, and how much memory their page tables take.

    MAPPED is address space with pages of a hugetlb pool, touched or not. Of the pages in it, PRIVATE are mapped by this
    process alone, SHARED by others, too. THP are the transparent huge pages that are mapped as a whole: anonymous
    memory, shared memory and files.

    The JSON object, sizes in bytes, page sizes as keys:

    \b
    {"base_page_size": 4096,
     "processes": [{"pid": 7, "name": "postgres", "uid": 26,
                    "hugetlb": {"2097152": {"mappings": 1, "mapped": 8388608,
                                            "private": 0, "shared": 4194304}},
                    "anonymous_thp": 0, "shmem_thp": 0, "file_thp": 0,
                    "page_tables": 90112}],
     "total": {as of a process, from hugetlb on},
     "pools": {"2097152": {"nr_hugepages": 8, and its other files}},
     "not_readable": 0}
    """
    if not (root / "proc").is_dir():
        raise InputError(f"--root {root}: expected a directory with proc/ and sys/ in it")
    tree = DirectoryTree(root)
    while True:
        users = find_huge_page_users(tree, everyone=everyone)
        processes = sorted(users.processes, key=_SORT_KEYS[sort])
        if is_json:
            click.echo(json.dumps(as_json(users, processes), indent=None if watch else 2))
        else:
            if watch:
                click.clear()
            click.echo(_table(users, processes))
        if watch is None:
            return
        time.sleep(watch)


def _table(users: HugePageUsers, processes: Sequence[HugePageUser]) -> str:
    # the names of processes hold what they like, also what the terminal has no code for
    encoding = sys.stdout.encoding or "utf-8"
    return "\n".join(table_lines(users, processes)).encode(encoding, "backslashreplace").decode(encoding)


_GAP = "  "


def table_lines(users: HugePageUsers, processes: Sequence[HugePageUser]) -> Iterator[str]:
    """Yield a line for each of ``processes``, the totals, the pools and what the totals do not tell.

    There is no control character in them, whatever a process calls itself.
    """
    total = users.total
    sizes = sorted(total.hugetlb)
    hugetlb = [f"{format_size(size)} {kind}" for size in sizes for kind in ("MAPPED", "PRIVATE", "SHARED")]
    rows = [
        ["PID", *hugetlb, "ANON THP", "SHMEM THP", "FILE THP", "PAGE TABLES", "NAME"],
        *([str(process.pid), *_cells(process.memory, sizes), printable(process.name)] for process in processes),
        ["total", *_cells(total, sizes), _count(len(processes), "process", "processes")],
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for *cells, name in rows:
        yield _GAP.join([*(cell.rjust(width) for cell, width in zip(cells, widths, strict=False)), name])
    if any(use.shared for use in total.hugetlb.values()):
        yield "a page that several processes map is in each of them, and in the total several times"
    yield from (_pool_line(pool) for pool in users.pools if pool.count("nr_hugepages") or pool.size in sizes)
    if users.not_readable:
        yield f"not readable: {_count(users.not_readable, 'process', 'processes')} of other users, or protected"


def as_json(users: HugePageUsers, processes: Iterable[HugePageUser]) -> dict[str, Any]:
    """Return ``processes``, totals and pools as the JSON object that ``hugepage-qa ps --help`` describes."""
    return {
        "base_page_size": users.base_page_size,
        "processes": [
            {"pid": process.pid, "name": process.name, "uid": process.uid, **_memory(process.memory)}
            for process in processes
        ],
        "total": _memory(users.total),
        "pools": {str(pool.size): dict(pool.files) for pool in users.pools},
        "not_readable": users.not_readable,
    }


def printable(text: str) -> str:
    r"""Return ``text`` as one line that does nothing to a terminal: ``\x1b`` for escape, ``\\`` for a backslash."""
    return "".join(
        character if character.isprintable() and character != "\\" else character.encode("unicode_escape").decode()
        for character in text
    )


def _cells(memory: MemoryUse, sizes: Iterable[int]) -> list[str]:
    amounts: list[int] = []
    for size in sizes:
        use = memory.hugetlb.get(size)
        amounts += [use.mapped, use.private, use.shared] if use else [0, 0, 0]
    amounts += [memory.anonymous_thp, memory.shmem_thp, memory.file_thp, memory.page_tables]
    return [format_size(amount) for amount in amounts]


def _pool_line(pool: Pool) -> str:
    pages, free, reserved, surplus = (pool.count(f"{kind}_hugepages") for kind in ("nr", "free", "resv", "surplus"))
    used = pages - free
    return (
        f"pool of {format_size(pool.size)} pages: {pages}, of which {used} in use ({format_size(used * pool.size)})"
        f" and {free} free ({reserved} of them reserved); {surplus} surplus"
    )


def _memory(memory: MemoryUse) -> dict[str, Any]:
    return {
        "hugetlb": {str(size): asdict(use) for size, use in memory.hugetlb.items()},
        "anonymous_thp": memory.anonymous_thp,
        "shmem_thp": memory.shmem_thp,
        "file_thp": memory.file_thp,
        "page_tables": memory.page_tables,
    }


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
