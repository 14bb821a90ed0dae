"""What processes have of page tables, of static huge pages, and of code on huge pages."""

import time
from collections.abc import Iterator
from pathlib import Path

from hugepage_qa.bench.unavailable import Unavailable
from hugepage_qa.kernel.process_status import ProcessStatus, read_process_status
from hugepage_qa.kernel.smaps import read_smaps_rollup
from hugepage_qa.kernel.tree import DirectoryTree
from hugepage_qa.sizes import format_size

_TREE = DirectoryTree(Path("/"))

_LOOK_SECONDS = 60.0
_PAUSE_SECONDS = 0.02


def page_tables_of(server: int) -> int:
    """Return the bytes of page tables of the process ``server`` and of those that it has started."""
    return sum(one.page_tables for one in _statuses(server))


def huge_code_of(server: int) -> int:
    """Return the bytes of files, such as the program itself, that ``server`` has mapped with huge pages."""
    return (read_smaps_rollup(_TREE, server) or {}).get("FilePmdMapped", 0)


def expect_static(pid: int, size: int, name: str) -> None:
    """Look until the process ``pid``, of the program ``name``, has ``size`` bytes of static huge pages.

    Raises Unavailable if it does not.
    """
    deadline = time.monotonic() + _LOOK_SECONDS
    found = 0
    while found < size and time.monotonic() < deadline:
        sums = read_smaps_rollup(_TREE, pid) or {}
        found = max(found, sums.get("Shared_Hugetlb", 0) + sums.get("Private_Hugetlb", 0))
        time.sleep(_PAUSE_SECONDS)
    if found < size:
        raise Unavailable(f"{name} has {format_size(found)} of static huge pages, not {format_size(size)}")


def _statuses(server: int) -> Iterator[ProcessStatus]:
    for name in _TREE.names("proc"):
        if name.isascii() and name.isdigit():
            status = read_process_status(_TREE, name)
            if status is not None and server in (status.pid, status.parent):
                yield status
