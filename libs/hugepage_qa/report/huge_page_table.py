"""Processes that use huge pages, for people and for programs."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from hugepage_qa.kernel.pools import Pool
from hugepage_qa.machine.huge_page_users import HugePageUser, HugePageUsers, MemoryUse
from hugepage_qa.sizes import format_size

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
    yield from (_pool_line(pool) for pool in users.pools if pool.nr_hugepages or pool.size in sizes)
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
    pages, free = pool.nr_hugepages or 0, pool.free_hugepages or 0
    used = pages - free
    return (
        f"pool of {format_size(pool.size)} pages: {pages}, of which {used} in use ({format_size(used * pool.size)})"
        f" and {free} free ({pool.resv_hugepages or 0} of them reserved); {pool.surplus_hugepages or 0} surplus"
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
