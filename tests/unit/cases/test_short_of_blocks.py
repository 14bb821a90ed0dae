"""Where memory has no block for it, no case calls it a failure that a huge page does not come."""

import re
from collections.abc import Sequence
from typing import Any

import pytest
from tests.unit.cases.recorded import Recorded, WithoutEvidence, recorded_cases
from tests.unit.cases.transcript import Diverged, Event

from hugepage_qa.cases.result import Verdict

_HUGE = re.compile(r"^((?:Anon|Shmem)(?:HugePages|PmdMapped):) +[1-9]\d* kB$", re.MULTILINE)
_RSS = re.compile(r"^(Rss:) +[1-9]\d* kB$", re.MULTILINE)
_SHORT = "Node 0, zone Normal 4096 0 0 0 0 0 0 0 0 0 0\nNode 1, zone Normal 4096 0 0 0 0 0 0 0 0 0 0\n"

_NOTHING = ("names", "new_kernel_log")

#: case -> what smaps shows of a huge page, and not of the base pages that come in its place
CASES = {
    "accounting/transparent/anonymous-huge-pages": _HUGE,
    "accounting/transparent/a-page-shared-by-fork": _HUGE,
    "accounting/transparent/a-page-unmapped-in-part": _HUGE,
    "accounting/transparent/shared-huge-pages": _HUGE,
    "thp/defrag/counted-in-each-mode": _HUGE,
    "thp/deferred-split/underused": _HUGE,
    "thp/policy/no-zero-page": _RSS,
}


class Short(WithoutEvidence):
    """A machine that has free blocks until one looks at what a process has, which are base pages."""

    def __init__(self, events: Sequence[Event], shown: re.Pattern[str]) -> None:
        super().__init__(events)
        self._shown = shown
        self._is_short = False

    def perform(self, operation: str, arguments: Any) -> Any:
        path = str(arguments[0]) if arguments else ""
        if path == "proc/buddyinfo" and self._is_short:
            return _SHORT
        try:
            found = super().perform(operation, arguments)
        except Diverged:
            # the case ends sooner than it did, and puts back what it has changed
            if not self._is_short:
                raise
            if operation == "observe":
                return super().perform("read", arguments)
            return [] if operation in _NOTHING else None
        if path.endswith("/smaps"):
            self._is_short = True
            return self._shown.sub(r"\1 0 kB", found)
        return found


@pytest.mark.parametrize("recorded", [one for one in recorded_cases() if str(one) in CASES], ids=str)
def test_a_huge_page_that_does_not_come_without_a_block_is_a_skip(recorded: Recorded) -> None:
    judgement = recorded.judge(Short(recorded.events, CASES[str(recorded)]))
    assert judgement.verdict is Verdict.SKIP, judgement.reason
    assert "is fragmented" in judgement.reason


def test_all_of_them_are_recorded() -> None:
    assert {str(one) for one in recorded_cases()} >= CASES.keys()
