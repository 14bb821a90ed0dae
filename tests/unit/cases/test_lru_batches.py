"""Where move_pages(2) is there, each CPU empties its batches and no page is moved; elsewhere memory is compacted."""

import errno
from contextlib import ExitStack
from types import SimpleNamespace
from typing import cast

import pytest
from tests.unit.cases.still_machine import SIZE, StillMachine

from hugepage_qa.cases.live import Live
from hugepage_qa.cases.lru_batches import drain_lru_batches
from hugepage_qa.machine.host import Host
from hugepage_qa.oracle.rules import Rule
from hugepage_qa.process.actor import Actor


@pytest.mark.parametrize(
    ("answer", "written"), [(0, []), (-errno.ENOSYS, ["proc/sys/vm/compact_memory"])], ids=["NUMA", "no NUMA"]
)
def test_memory_is_compacted_where_nothing_else_drains_batches(answer: int, written: list[str]) -> None:
    asked: list[str] = []
    writes: list[str] = []

    def result(name: str, _process: int, pages: int, *_others: object) -> int:
        asked.append(f"{name} of {pages} pages")
        return answer

    machine = StillMachine({"write": lambda path, _text: writes.append(path)})
    with ExitStack() as stack:
        live = Live(Host(machine), SIZE, Rule("rule", "statement", "source"), stack)
        drain_lru_batches(live, cast(Actor, SimpleNamespace(result=result)))
    assert asked == ["move_pages of 0 pages"]
    assert writes == written
