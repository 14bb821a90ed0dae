"""Where a machine swaps to (/proc/swaps, mm/swapfile.c)."""

import re

from hugepage_qa.kernel.tree import Tree
from hugepage_qa.kernel.values import malformed

PATH = "proc/swaps"

_TITLE = "Filename"
_FIELDS = 5
_ESCAPE = re.compile(r"\\([0-7]{3})")


def read_swaps(tree: Tree) -> tuple[str, ...]:
    """Return the files and devices that are swapped to, none on a kernel without swap.

    Raises InputError for a malformed line.
    """
    return tuple(
        _parse(line, number)
        for number, line in enumerate((tree.read(PATH) or "").splitlines(), start=1)
        if not line.startswith(_TITLE)
    )


def _parse(line: str, number: int) -> str:
    # the kernel escapes space, tab, newline and backslash in octal
    fields = line.split()
    if len(fields) != _FIELDS or not fields[0].startswith("/"):
        malformed(PATH, number, line, "a line such as '/swapfile file 65532 0 -2'")
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), fields[0])
