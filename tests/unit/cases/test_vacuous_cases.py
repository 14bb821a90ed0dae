"""Cases that are worth nothing are told from those that are: the tests of all recorded cases would reject them."""

from collections.abc import Callable

import pytest
from tests.unit.cases.recorded import Recorded, recorded_cases
from tests.unit.cases.test_falsified import can_fail, sees_its_stimulus

from hugepage_qa.cases.case import Act, Area
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.result import Verdict

AREA = Area("vacuous")


def _vacuous(act: Act) -> Act:
    return AREA.case("something that is never looked at", "nowhere")(act)


@_vacuous
def empty(_live: Live) -> None:
    """Do and judge nothing."""


@_vacuous
def repeats_what_it_read(live: Live) -> None:
    """Expect of the machine what the machine has said just before."""
    found = live.pool()
    live.expect_pool(nr=found.nr, free=found.free, resv=found.resv, surplus=found.surplus)


@_vacuous
def does_nothing(live: Live) -> None:
    """Judge rightly what would come of a page that is mapped and touched, and of one that is not, too."""
    live.expect_pool(nr=0, free=0)


def _recorded(act: str) -> Recorded:
    """Return a case of ``AREA`` as it would be recorded: on a machine that has what every case looks at."""
    one = next(one for one in recorded_cases(lambda area: area.name == "pool/pool") if one.size)
    case = next(case for case in AREA.cases if case.name == act)
    end = max(index for index, event in enumerate(one.events) if event["operation"] == "new_kernel_log")
    looks = [event for event in one.events if event["operation"] in ("read", "names")]
    first = {str(event["arguments"]): event for event in reversed(looks)}
    reserves = next(event for event in one.events if event["operation"] == "write")
    seen = [event | {"operation": "observe"} for event in first.values() if event["operation"] == "read"]
    return Recorded(AREA, case, one.size, [*first.values(), reserves, *seen, one.events[end]])


@pytest.mark.parametrize("act", ["empty", "repeats-what-it-read", "does-nothing"])
def test_it_passes_and_is_rejected(act: str) -> None:
    recorded = _recorded(act)
    assert recorded.replay().verdict is Verdict.PASS, recorded.replay().reason
    worth: tuple[Callable[[Recorded], bool], ...] = (can_fail, sees_its_stimulus)
    assert not all(is_worth(recorded) for is_worth in worth)
