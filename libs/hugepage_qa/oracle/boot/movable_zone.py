"""kernelcore= and movablecore=: how much memory is kept for what can be moved, in ZONE_MOVABLE.

Sources: Documentation/admin-guide/kernel-parameters.txt kernelcore, movablecore; mm/mm_init.c cmdline_parse_core(),
find_zone_movable_pfns_for_nodes().
"""

import re

from hugepage_qa.oracle.boot.cstring import memparse
from hugepage_qa.oracle.prediction import Between, Draft, Exactly
from hugepage_qa.oracle.rules import MOVABLE_ZONE
from hugepage_qa.sizes import GIB

SUBJECT = "zoneinfo/movable"
_PERCENT = re.compile(r"(?P<number>0[xX][0-9a-fA-F]+|[0-9]+)%")
#: where the highest zone of a machine may begin, below which nothing becomes movable
_ZONE_BORDER, _ZONE_BORDER_OF_S390 = 4 * GIB, 2 * GIB


def has_movable_words(draft: Draft) -> bool:
    """Tell whether a zone of movable memory begins somewhere within the nodes."""
    return any(_given(draft).values())


def _given(draft: Draft) -> dict[str, list[str]]:
    return {
        name: [value for value in draft.values(name) if value is not None] for name in ("kernelcore", "movablecore")
    }


def expect_movable_zone(draft: Draft) -> None:
    """Add what follows from kernelcore= and movablecore=: the rest of the former, and of the latter what that leaves.

    Each node rounds where its movable memory begins up to the largest block of the buddy allocator.
    """
    given = _given(draft)
    if not any(given.values()):
        return
    if draft.values("movable_node") or "mirror" in given["kernelcore"]:
        draft.leave_open(SUBJECT, "firmware tells which memory is hotpluggable, or mirrored")
        return
    machine = draft.machine
    block, total = machine.mmu.largest_block, sum(node.present for node in machine.nodes)
    kernel, movable = (_bytes(values[-1], total) if values else 0 for values in given.values())
    if movable:
        kernel = max(kernel, total - min(-(-movable // block) * block, total))
    if not kernel or kernel >= total:
        draft.expect(SUBJECT, Exactly(0), MOVABLE_ZONE)
        return
    border = _ZONE_BORDER_OF_S390 if machine.architecture == "s390x" else _ZONE_BORDER
    has_lower_zones = any(span.end > border for node in machine.memory_nodes for span in node.spans)
    least = 0 if has_lower_zones else max(0, total - kernel - block * len(machine.memory_nodes))
    draft.expect(SUBJECT, Between(least, total - kernel + block), MOVABLE_ZONE)


def _bytes(value: str, total: int) -> int:
    percent = _PERCENT.match(value)
    return total * memparse(percent["number"])[0] // 100 if percent else memparse(value)[0]
