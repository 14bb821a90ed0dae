"""NUMA nodes: which there are, their processors and memory (drivers/base/node.c)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from hugepage_qa.kernel.counters import read_meminfo
from hugepage_qa.kernel.tree import Tree, malformed

DIRECTORY = "sys/devices/system/node"

_NODE = re.compile(r"node(?P<number>[0-9]{1,5})")
_RANGE = re.compile(r"(?P<first>[0-9]{1,5})(?:-(?P<last>[0-9]{1,5}))?")


@dataclass(frozen=True)
class Node:
    """One online node: its processors and the lines of its meminfo (bytes, or pages for HugePages_*)."""

    cpus: tuple[int, ...]
    meminfo: Mapping[str, int]


@dataclass(frozen=True)
class Nodes:
    """The nodes of a machine; all empty for a kernel without CONFIG_NUMA."""

    online: tuple[int, ...]
    possible: tuple[int, ...]
    has_memory: tuple[int, ...]
    each: Mapping[int, Node]


def read_nodes(tree: Tree) -> Nodes:
    """Return the nodes of the machine. Raises InputError for a malformed file."""
    each = {
        number: Node(
            cpus=_read_list(tree, f"{path}/cpulist"),
            meminfo=read_meminfo(tree, f"{path}/meminfo"),
        )
        for number, path in node_directories(tree).items()
    }
    return Nodes(
        online=_read_list(tree, f"{DIRECTORY}/online"),
        possible=_read_list(tree, f"{DIRECTORY}/possible"),
        has_memory=_read_list(tree, f"{DIRECTORY}/has_memory"),
        each=each,
    )


def node_directories(tree: Tree) -> dict[int, str]:
    """Return node -> path of its directory, ascending."""
    matches = (_NODE.fullmatch(name) for name in tree.names(DIRECTORY))
    numbers = sorted(int(match["number"]) for match in matches if match)
    return {number: f"{DIRECTORY}/node{number}" for number in numbers}


def parse_list(text: str, path: str) -> tuple[int, ...]:
    """Return the numbers in a list such as ``0-3,5`` (``%*pbl`` of the kernel); empty for an empty list.

    Raises InputError, which names ``path``, for another form.
    """
    numbers: list[int] = []
    for part in text.strip().split(",") if text.strip() else ():
        match = _RANGE.fullmatch(part)
        first, last = (int(match["first"]), int(match["last"] or match["first"])) if match else (1, 0)
        if first > last:
            malformed(path, 1, text, "a list such as 0-3,5")
        numbers.extend(range(first, last + 1))
    return tuple(numbers)


def _read_list(tree: Tree, path: str) -> tuple[int, ...]:
    return parse_list(tree.read(path) or "", path)
