"""/proc/meminfo and its twin of each NUMA node (fs/proc/meminfo.c, drivers/base/node.c)."""

import re

from hugepage_qa.kernel.tree import Tree
from hugepage_qa.kernel.values import malformed
from hugepage_qa.sizes import KIB

PATH = "proc/meminfo"

# "MemTotal:  24684084 kB", "HugePages_Total:  0", and in a node's file "Node 0 MemTotal:  5466316 kB"
_LINE = re.compile(r"(?:Node [0-9]+ )?(?P<name>[^\s:]+):\s*(?P<number>[0-9]{1,20})(?P<unit> kB)?\s*")


def read_meminfo(tree: Tree) -> dict[str, int]:
    """Return every line of /proc/meminfo: bytes, or a number of pages where the line has no unit (HugePages_*).

    Empty without the file. Raises InputError for a line of another form.
    """
    return parse_meminfo(tree.read(PATH) or "", PATH)


def parse_meminfo(text: str, path: str) -> dict[str, int]:
    """Return name -> bytes or count from ``text``, which was read from ``path``; raises InputError."""
    values: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            malformed(path, number, line, "a line such as 'MemTotal: 2048 kB'")
        if match["name"] in values:
            malformed(path, number, line, "every name once")
        values[match["name"]] = int(match["number"]) * (KIB if match["unit"] else 1)
    return values
