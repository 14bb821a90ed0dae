"""/proc/meminfo and its like of a node, and /proc/vmstat."""

import re
from collections.abc import Mapping
from functools import lru_cache

from hugepage_qa.kernel.tree import Tree, malformed
from hugepage_qa.sizes import KIB

MEMINFO = "proc/meminfo"

# "MemTotal:  24684084 kB", "HugePages_Total:  0", and in a node's file "Node 0 MemTotal:  5466316 kB"
_MEMINFO_LINE = re.compile(r"(?:Node [0-9]+ )?(?P<name>[^\s:]+):\s*(?P<number>[0-9]{1,20})(?P<unit> kB)?\s*")


def read_meminfo(tree: Tree, path: str = MEMINFO) -> dict[str, int]:
    """Return every line of /proc/meminfo: bytes, or a number of pages where the line has no unit (HugePages_*).

    Or of a node's file at ``path``. Empty without the file. Raises InputError for a line of another form.
    """
    return parse_meminfo(tree.read(path) or "", path)


def parse_meminfo(text: str, path: str) -> dict[str, int]:
    """Return name -> bytes or count from ``text``, which was read from ``path``; raises InputError."""
    matches = _parse(text, path, _MEMINFO_LINE, "MemTotal: 2048 kB")
    return {name: int(match["number"]) * (KIB if match["unit"] else 1) for name, match in matches.items()}


VMSTAT = "proc/vmstat"

_VMSTAT_LINE = re.compile(r"(?P<name>[^\s:]+) (?P<number>[0-9]{1,20})")


def read_vmstat(tree: Tree, path: str = VMSTAT) -> dict[str, int]:
    """Return every counter by name, in its own unit: events, or base pages for names such as ``nr_free_pages``.

    A node has a file of its own, at another ``path``. Empty without the file. Raises InputError for a line of another
    form.
    """
    return parse_vmstat(tree.read(path) or "", path)


def parse_vmstat(text: str, path: str) -> dict[str, int]:
    """Return name -> count from ``text``, which was read from ``path``. Raises InputError."""
    matches = _parse(text, path, _VMSTAT_LINE, "thp_fault_alloc 7")
    return {name: int(match["number"]) for name, match in matches.items()}


def vmstat_delta(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Return how much each counter rose between two readings of one machine; what fell (``nr_*``) is negative."""
    return {name: count - before[name] for name, count in after.items() if name in before}


# whoever waits for a change, or has a record played, reads the same again and again
@lru_cache(maxsize=128)
def _parse(text: str, path: str, form: re.Pattern[str], example: str) -> Mapping[str, re.Match[str]]:
    """Return name -> line of a table of names and numbers. Raises InputError."""
    found: dict[str, re.Match[str]] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if not line:
            continue
        match = form.fullmatch(line)
        if match is None:
            malformed(path, number, line, f"a line such as '{example}'")
        if match["name"] in found:
            malformed(path, number, line, "every name once")
        found[match["name"]] = match
    return found
