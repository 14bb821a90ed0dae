"""The report of memory that the kernel logs, for sysrq m and when memory runs out (show_free_areas() in mm)."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hugepage_qa.sizes import KIB

# breaks of a line are told as \x0a; Linux 6.1 has a blank behind some names
_COUNT = re.compile(r"([a-z]\w*):(\d+)")
_AMOUNT = re.compile(r"\b([a-z]\w*(?:\(\w+\))?): ?(-?\d+)[kK]B")
_NODE = re.compile(r"Node (\d+) (active_anon:.*)")
# of zones a kernel without CONFIG_NUMA names no node (show_node() in mm/page_alloc.c, mm/show_mem.c)
_ZONE = re.compile(r"(?:Node (\d+) )?(\w+) (free:.*)")
_BLOCKS = re.compile(r"(?:Node (\d+) )?(\w+): ((?:\d+\*\d+kB (?:\(\w+\) )?)+)= (\d+)kB")
_BLOCK = re.compile(r"(\d+)\*(\d+)kB")
_TOTAL = re.compile(r"(\d+) (?:total )?(pages?\w* .*|pagecache pages)")
_SWAP = re.compile(r"(Free swap|Total swap) +=\s*(\d+)kB")


@dataclass(frozen=True)
class MemoryReport:
    """A report: counts of base pages for the machine, bytes for each node and for each zone of it.

    ``free_blocks`` are the numbers of free blocks of each order, and the bytes of them all, of each zone. ``totals``
    are the lines at its end: base pages by what they are called, and bytes of swap.
    """

    machine: Mapping[str, int]
    nodes: Mapping[int, Mapping[str, int]]
    zones: Mapping[tuple[int, str], Mapping[str, int]]
    free_blocks: Mapping[tuple[int, str], tuple[tuple[int, ...], int]]
    totals: Mapping[str, int]


def read_memory_report(lines: Iterable[str]) -> MemoryReport:
    """Return what a report tells that is among ``lines`` of the kernel log; empty without one."""
    machine: dict[str, int] = {}
    nodes: dict[int, Mapping[str, int]] = {}
    zones: dict[tuple[int, str], Mapping[str, int]] = {}
    blocks: dict[tuple[int, str], tuple[tuple[int, ...], int]] = {}
    totals: dict[str, int] = {}
    for line in lines:
        if line.startswith("active_anon:"):
            machine = {name: int(count) for name, count in _COUNT.findall(line)}
        elif found := _NODE.fullmatch(line):
            nodes[int(found[1])] = _amounts(found[2])
        elif found := _ZONE.fullmatch(line):
            zones[int(found[1] or 0), found[2]] = _amounts(found[3])
        elif found := _BLOCKS.fullmatch(line):
            counts = tuple(int(count) for count, _size in _BLOCK.findall(found[3]))
            blocks[int(found[1] or 0), found[2]] = counts, int(found[4]) * KIB
        elif found := _SWAP.fullmatch(line):
            totals[found[1]] = int(found[2]) * KIB
        elif found := _TOTAL.fullmatch(line):
            totals[found[2]] = int(found[1])
    return MemoryReport(machine, nodes, zones, blocks, totals)


def _amounts(text: str) -> dict[str, int]:
    return {name: int(amount) * KIB for name, amount in _AMOUNT.findall(text)}
