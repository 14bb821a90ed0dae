"""An outcome that depends on free blocks is judged where there are some, and only there."""

from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.cases.kinds import X86_64
from tests.unit.cases.text.double.machine import TextDouble
from tests.unit.cases.text.linked import link

from hugepage_qa.cases.fragmentation import (
    compact_if_short,
    expect_at_fault,
    expect_no_node_short,
    expect_no_shortage,
    fragmentation,
    tell,
    with_blocks,
)
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.thp_memory import map_aligned, need_folios_of
from hugepage_qa.machine.host import CannotRun, Host
from hugepage_qa.oracle.rules import Rule

PMD = 2 << 20


class Fragmented:
    """A double without huge pages at a fault, with ``blocks`` free blocks of order 9 and 512 free base pages."""

    kind = X86_64

    def __init__(self, blocks: int) -> None:
        self._double = TextDouble(link)
        self._buddyinfo = f"Node 0, zone Normal 512 0 0 0 0 0 0 0 0 {blocks} 0\n"
        self.others = ""
        self.texts = dict[str, str]()

    def perform(self, operation: str, arguments: Sequence[Any]) -> Any:
        self._double.files.texts |= self.texts
        self._double.files.texts["proc/buddyinfo"] = self._buddyinfo + self.others
        if operation == "request" and "munmap" in arguments[1]:
            return "ok 0", None
        return self._double.perform(operation, arguments)


def live(blocks: int, stack: ExitStack) -> Live:
    return Live(Host(Fragmented(blocks)), PMD, Rule("rule", "statement", "source"), stack)


@pytest.mark.parametrize(("blocks", "unusable"), [(0, 1.0), (1, 0.5), (3, 0.25)])
def test_the_share_of_free_memory_in_smaller_blocks(blocks: int, unusable: float) -> None:
    with ExitStack() as stack:
        found = fragmentation(live(blocks, stack), PMD)
    assert (found.blocks, found.unusable) == (blocks, unusable)


@pytest.mark.parametrize(("node", "differences"), [(0, 0), (1, 3)])
def test_blocks_of_another_node_owe_nothing_to_memory_of_one(node: int, differences: int) -> None:
    machine = Fragmented(0)
    machine.others = "Node 1, zone Normal 512 0 0 0 0 0 0 0 0 100 0\n"
    with ExitStack() as stack:
        case = Live(Host(machine), PMD, Rule("rule", "statement", "source"), stack)
        with nullcontext() if differences else pytest.raises(CannotRun, match="is fragmented"):
            expect_at_fault(case, "never", True, lambda: map_aligned(case, 1, PMD), node)
    assert len(case.differences) == differences


@pytest.mark.parametrize("blocks", [0, 8, 9])
def test_who_may_have_to_stay_on_a_node_is_owed_nothing_where_one_is_short(blocks: int) -> None:
    machine = Fragmented(blocks)
    machine.others = "Node 1, zone Normal 512 0 0 0 0 0 0 0 0 100 0\n"
    with ExitStack() as stack:
        case = Live(Host(machine), PMD, Rule("rule", "statement", "source"), stack)
        case._before = replace(case.before, nodes={0: {}, 1: {}})
        expect_no_shortage(case, PMD, 1)
        with nullcontext() if blocks == 9 else pytest.raises(CannotRun, match="is fragmented"):
            expect_no_node_short(case, PMD, 1)


@pytest.mark.parametrize(("size", "none"), [(PMD, False), (8 << 20, False), (16 << 20, True)])
def test_shared_memory_is_owed_no_pages_beyond_the_largest_folio_of_the_page_cache(size: int, none: bool) -> None:
    with ExitStack() as stack, pytest.raises(CannotRun, match="no pages of 16 MiB") if none else nullcontext():
        need_folios_of(live(100, stack), size)


_ZONE = "Node 0, zone {}\n  pages free {}\n min {}\n spanned 0\n present 1\n managed 0\n protection: (0, {}, {})\n"
_KINDS = """\
Pages per block:  512
Node    0, zone   Normal, type   HighAtomic      0      0      0      0      0      0      0      0      0      3      0
Node    0, zone   Normal, type          CMA      0      0      0      0      0      0      0      0      0      0      5
Number of blocks type   HighAtomic          CMA
Node 0, zone   Normal           4           20
"""


@pytest.mark.parametrize(
    ("zones", "kinds", "movable", "owed"),
    [
        ("", "", True, 80),
        # a zone that has less above what it keeps than it has in blocks
        (_ZONE.format("DMA32", 70 * 512 + 100, 60, 20, 64 * 512), "", True, 26),
        (_ZONE.format("DMA32", 70 * 512 + 100, 60, 20, 80 * 512), "", True, 20),
        # small pages are what it keeps
        (_ZONE.format("DMA32", 140 * 512 + 100, 60, 20, 64 * 512), "", True, 80),
        ("", _KINDS, True, 77),
        ("", _KINDS, False, 60),
        # those for who cannot wait count all, in use or not
        (_ZONE.format("Normal", 10 * 512, 0, 0, 0), _KINDS, True, 76),
    ],
)
def test_of_free_blocks_that_nobody_gets_none_is_owed(zones: str, kinds: str, movable: bool, owed: int) -> None:
    machine = Fragmented(10)
    machine.others = "Node 0, zone DMA32 0 0 0 0 0 0 0 0 0 10 25\nNode 0, zone Movable 0 0 0 0 0 0 0 0 0 10 0\n"
    machine.texts = {"proc/zoneinfo": zones, "proc/pagetypeinfo": kinds}
    with ExitStack() as stack:
        case = Live(Host(machine), PMD, Rule("rule", "statement", "source"), stack)
        found = fragmentation(case, PMD, movable=movable)
        assert (found.blocks, found.owed) == (80, owed)
        with nullcontext() if owed >= 70 else pytest.raises(CannotRun, match="to be had"):
            expect_no_shortage(case, PMD, 62, movable=movable)


def test_a_huge_page_that_does_not_come_is_a_difference_where_there_are_blocks() -> None:
    with ExitStack() as stack:
        case = live(100, stack)
        expect_at_fault(case, "always", True, lambda: map_aligned(case, 1, PMD))
    assert len(case.differences) == 3
    assert "100 free blocks" in str(case.differences[0])


@pytest.mark.parametrize(("blocks", "short"), [(0, True), (9, True), (10, False)])
def test_a_shortage_of_blocks_is_no_failure(blocks: int, short: bool) -> None:
    with ExitStack() as stack, pytest.raises(CannotRun) if short else nullcontext():
        expect_no_shortage(live(blocks, stack), PMD, 2)


@pytest.mark.parametrize(("blocks", "compacted"), [(9, True), (10, False)])
def test_memory_is_compacted_before_it_is_called_too_fragmented(blocks: int, compacted: bool) -> None:
    with ExitStack() as stack:
        case = live(blocks, stack)
        assert compact_if_short(case, PMD, 2) is compacted
        assert with_blocks(case, PMD, 2).blocks == blocks
        tell(case, fragmentation(case, PMD))
        assert case.host.read("proc/sys/vm/compact_memory") == ("1\n" if compacted else "0\n")
    assert [note.startswith("memory was compacted") for note in case.notes] == ([True, False] if compacted else [False])


def test_without_blocks_nothing_is_said() -> None:
    with ExitStack() as stack, pytest.raises(CannotRun, match="is fragmented: 2 free blocks"):
        case = live(2, stack)
        expect_at_fault(case, "always", True, lambda: map_aligned(case, 1, PMD))
