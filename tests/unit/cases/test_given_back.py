"""A page that a case gave back and its pool did not get again: others have it, or the kernel lost it."""

import re

import pytest
from tests.unit.cases.still_machine import SIZE, StillMachine, judge_on

from hugepage_qa.cases.live import Live
from hugepage_qa.cases.result import Verdict
from hugepage_qa.kernel.tree import size_name

_POOL = f"hugepages/{size_name(SIZE)}/nr_hugepages"
#: in pages, and in kB
_TOTAL = re.compile(r"(HugePages_Total: +|Hugetlb: +)(\d+)( kB)?")
_USED = 2
_FREE_BLOCKS = "Node 0, zone   Normal 50000 0 0 0 0 0 0 0 0 {} 0\n"


class ShortMachine(StillMachine):
    """Others use its pool, which has a page less after the case, until a write after compaction if it ``is_mended``."""

    def __init__(self, *, is_mended: bool, blocks: int) -> None:
        super().__init__()
        self._is_mended, self._blocks = is_mended, blocks
        self._has_room = False
        self.is_short = False

    def perform(self, operation: str, arguments: list[str]) -> object:
        """Answer."""
        path = arguments[0] if arguments else ""
        if operation == "write":
            self._has_room = self._has_room or path.endswith("compact_memory")
            if self._has_room and self._is_mended and path.endswith(_POOL):
                self.is_short = False
        if path == "proc/buddyinfo":
            return _FREE_BLOCKS.format(self._blocks)
        answer: object = super().perform(operation, arguments)
        if operation in ("read", "observe") and isinstance(answer, str):
            if path.endswith((_POOL, "vm/nr_hugepages")):
                return f"{int(answer) + self._used}\n"
            if path.endswith("meminfo"):
                return _TOTAL.sub(self._with_used, answer)
        return answer

    def _with_used(self, found: re.Match[str]) -> str:
        return f"{found[1]}{int(found[2]) + self._used * (SIZE >> 10 if found[3] else 1)}{found[3] or ''}"

    @property
    def _used(self) -> int:
        return _USED - self.is_short


@pytest.mark.parametrize(
    ("is_mended", "blocks", "verdict"),
    [(True, 0, Verdict.PASS), (False, 0, Verdict.ERROR), (False, 9, Verdict.FAIL)],
)
def test_a_page_that_was_given_back(is_mended: bool, blocks: int, verdict: Verdict) -> None:
    machine = ShortMachine(is_mended=is_mended, blocks=blocks)

    def act(_live: Live) -> None:
        machine.is_short = True

    judgement = judge_on(machine, act)
    assert judgement.verdict is verdict, judgement.reason
    assert ("others have the memory" in judgement.reason) is (verdict is Verdict.ERROR)
    assert ("nothing-left" in judgement.reason) is (verdict is not Verdict.PASS)
