"""``hugepage-qa ps``: which processes use huge pages."""

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from hugepage_qa.errors import InputError
from hugepage_qa.kernel.tree import DirectoryTree
from hugepage_qa.machine.huge_page_users import HugePageUser, HugePageUsers, find_huge_page_users
from hugepage_qa.report.huge_page_table import as_json, table_lines

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
