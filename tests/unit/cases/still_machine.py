"""A machine on which nothing happens: it shows what a recorded one showed, and takes every write."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from tests.unit.cases.areas import TESTS
from tests.unit.cases.kinds import X86_64
from tests.unit.cases.recorded import Recorded, recorded_cases_of

from hugepage_qa.cases.area_files import read_areas
from hugepage_qa.cases.case import Act, Area
from hugepage_qa.cases.judge import judge
from hugepage_qa.cases.result import Result
from hugepage_qa.machine.host import Host
from hugepage_qa.sizes import MIB

SIZE = 2 * MIB


class StillMachine:
    """Answers as the first recorded case of the pools saw the machine at first; ``others`` are other operations."""

    kind = X86_64

    def __init__(self, others: Mapping[str, Callable[..., Any]] | None = None) -> None:
        self._others = dict(others or {})
        events = _a_pool_case().events
        self._seen = {
            (event["operation"], event["arguments"][0]): event["result"]
            for event in reversed(events)
            if event["operation"] in ("read", "names")
        }

    def perform(self, operation: str, arguments: Any) -> Any:
        """Answer."""
        if operation in self._others:
            return self._others[operation](*arguments)
        if operation in ("read", "observe"):
            return self._seen.get(("read", arguments[0]))
        if operation == "names":
            return self._seen.get(("names", arguments[0]), [])
        return [] if operation == "new_kernel_log" else None


def judge_on(machine: StillMachine, act: Act, size: int = SIZE) -> Result:
    """Return the verdict on a case that does ``act`` with pages of ``size`` bytes."""
    area = Area("still")
    area.case("what is judged here", "nowhere")(act)
    judgement = judge(area, area.cases[0], Host(machine), size)
    assert judgement is not None
    return judgement


@cache
def _a_pool_case() -> Recorded:
    # of all areas only this one is imported: some tests start Pythons with such a machine
    (area,) = read_areas(TESTS / "pool" / "pool.py")
    return next(one for one in recorded_cases_of(area) if one.size == SIZE)
