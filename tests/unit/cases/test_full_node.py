"""A node without free memory is a reason not to bind anybody to it, and no reason to call the kernel wrong."""

from contextlib import ExitStack
from typing import Any

import pytest
from tests.unit.cases.still_machine import StillMachine

from hugepage_qa.cases.live import Live
from hugepage_qa.cases.pages_of_a_node import need_memory
from hugepage_qa.machine.host import CannotRun, Host
from hugepage_qa.oracle.rules import Rule
from hugepage_qa.sizes import GIB, KIB, MIB


class Nodes(StillMachine):
    """Two nodes with so many bytes of free memory, and what is free when caches are dropped."""

    def __init__(self, free: list[int], dropped: list[int] | None = None) -> None:
        super().__init__({"write": self._write})
        self._free, self._dropped = free, dropped

    def _write(self, path: str, _text: str) -> None:
        if path.endswith("drop_caches"):
            self._free = self._dropped or self._free

    def perform(self, operation: str, arguments: Any) -> Any:
        """Answer."""
        for node, free in enumerate(self._free):
            if arguments and arguments[0].endswith(f"node{node}/meminfo"):
                return f"Node {node} MemTotal: {2 * GIB // KIB} kB\nNode {node} MemFree: {free // KIB} kB\n"
            if arguments and operation == "names" and arguments[0] == "sys/devices/system/node":
                return [f"node{each}" for each in range(len(self._free))]
        return super().perform(operation, arguments)


@pytest.mark.parametrize(
    ("free", "dropped", "short"),
    [
        ([GIB, GIB], None, False),
        ([60 * MIB, GIB], None, True),
        ([GIB, 60 * MIB], None, True),
        # the page cache had it
        ([60 * MIB, GIB], [GIB, GIB], False),
    ],
)
def test_nobody_is_bound_to_a_node_without_memory(free: list[int], dropped: list[int] | None, short: bool) -> None:
    with ExitStack() as stack:
        live = Live(Host(Nodes(free, dropped)), 2 * MIB, Rule("rule", "statement", "source"), stack)
        if short:
            with pytest.raises(CannotRun, match=r"node [01] has no 8 MiB free"):
                need_memory(live, (0, 1), 8 * MIB)
        else:
            need_memory(live, (0, 1), 8 * MIB)
