"""Counters of the memory management (/proc/vmstat, mm/vmstat.c)."""

import re
from collections.abc import Mapping

from hugepage_qa.kernel.tree import Tree
from hugepage_qa.kernel.values import malformed

PATH = "proc/vmstat"

_LINE = re.compile(r"(?P<name>[^\s:]+) (?P<number>[0-9]{1,20})")


def read_vmstat(tree: Tree) -> dict[str, int]:
    """Return every counter by name, in its own unit: events, or base pages for names such as ``nr_free_pages``.

    Empty without the file. Raises InputError for a line of another form.
    """
    return parse_vmstat(tree.read(PATH) or "", PATH)


def parse_vmstat(text: str, path: str) -> dict[str, int]:
    """Return name -> count from ``text``, read from ``path``: a node has a vmstat of its own. Raises InputError."""
    counters: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if not line:
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            malformed(path, number, line, "a line such as 'thp_fault_alloc 7'")
        if match["name"] in counters:
            malformed(path, number, line, "every name once")
        counters[match["name"]] = int(match["number"])
    return counters


def vmstat_delta(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Return how much each counter rose between two readings of one machine; what fell (``nr_*``) is negative."""
    return {name: count - before[name] for name, count in after.items() if name in before}
