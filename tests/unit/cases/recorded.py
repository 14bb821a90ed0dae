"""The recorded cases, ready to be replayed."""

from collections.abc import Callable
from functools import cache
from typing import Any

from tests.unit.cases.areas import read_areas
from tests.unit.cases.record_areas import read_records
from tests.unit.cases.transcript import Diverged, Event, Replay

from hugepage_qa.cases.case import Area, Case, Sizes, result_name
from hugepage_qa.cases.judge import judge
from hugepage_qa.cases.result import Result, Verdict
from hugepage_qa.machine.host import Host
from hugepage_qa.sizes import parse_size


class Recorded:
    """One case on one page size, None for a case that runs once, and what it did and saw."""

    def __init__(self, area: Area, case: Case, size: int | None, events: list[Event]) -> None:
        self.area, self.case, self.size, self.events = area, case, size, events

    def replay(self, events: list[Event] | None = None) -> Result:
        """Return the verdict on ``events``, without them on those that were recorded."""
        return self.judge(WithoutEvidence(self.events if events is None else events))

    def judge(self, machine: Replay, case: Case | None = None) -> Result:
        """Return the verdict of ``case``, by default the recorded one, on ``machine``."""
        judgement = judge(self.area, case or self.case, Host(machine), self.size)
        assert judgement is not None
        return judgement

    def __str__(self) -> str:
        return result_name(self.area, self.case, self.size)[1:]


class WithoutEvidence(Replay):
    """The evidence that a failed case reads was not recorded, because the case had passed."""

    def perform(self, operation: str, arguments: Any) -> Any:
        try:
            return super().perform(operation, arguments)
        except Diverged:
            if operation != "read":
                raise
            return ""


def recorded_cases(
    kind: Callable[[Area], bool] = lambda _area: True, verdict: Verdict = Verdict.PASS
) -> list[Recorded]:
    """Return every recorded case of the areas of that ``kind`` that ended in ``verdict``."""
    return [one for area in read_areas() if kind(area) for one in recorded_cases_of(area, verdict)]


@cache
def recorded_cases_of(area: Area, verdict: Verdict = Verdict.PASS) -> list[Recorded]:
    """Return every recorded case of ``area`` that ended in ``verdict``."""
    found = []
    for name, events in read_records(area, verdict).items():
        for case in area.cases:
            if case.sizes is Sizes.ONCE and name == case.name:
                found.append(Recorded(area, case, None, events))
            elif case.sizes is not Sizes.ONCE and name.rpartition("/")[0] == case.name:
                found.append(Recorded(area, case, parse_size(name.rpartition("/")[2]), events))
    return found
