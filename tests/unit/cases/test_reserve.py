"""A pool that does not grow is a failure where memory has the blocks for it, or can be put together, and only there."""

import pytest
from tests.unit.cases.still_machine import StillMachine, judge_on

from hugepage_qa.cases.live import Live
from hugepage_qa.cases.result import Verdict


@pytest.mark.parametrize(
    ("blocks", "available", "movable", "verdict", "reason"),
    [
        (100, 4 << 20, False, Verdict.FAIL, "reserves-what-memory-allows"),
        (9, 4 << 20, False, Verdict.SKIP, "memory is fragmented"),
        (0, 4 << 20, True, Verdict.FAIL, "reserves-what-memory-allows"),
        (100, 64 << 10, False, Verdict.SKIP, "memory is short"),
    ],
)
def test_a_pool_that_does_not_grow(blocks: int, available: int, movable: bool, verdict: Verdict, reason: str) -> None:
    def read(path: str) -> str | None:
        text: str | None = StillMachine().perform("read", [path])
        if path == "proc/buddyinfo":
            return f"Node 0, zone   Normal 50000 0 0 0 0 0 0 0 0 {blocks} 0\n"
        if path == "proc/meminfo":
            lines = (line for line in (text or "").splitlines(keepends=True) if "MemAvailable" not in line)
            return f"{''.join(lines)}MemAvailable: {available} kB\n"
        return text

    def act(live: Live) -> None:
        live.reserve(2, movable=movable)

    judgement = judge_on(StillMachine({"read": read}), act)
    assert judgement.verdict is verdict, judgement.reason
    assert reason in judgement.reason
