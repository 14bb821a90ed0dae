"""A switch that is neither the kernel's own nor set by a file fails the case, and one that a file sets is told."""

import pytest
from tests.unit.live.test_falsified import Padded, Recorded, recorded_cases

from hugepage_qa.live.host import Host
from hugepage_qa.live.judge import LiveJudgement, judge
from hugepage_qa.live.transcript import Event
from hugepage_qa.model.thp_default import own_values
from hugepage_qa.verdict import Verdict

RECORDED = next(one for one in recorded_cases() if one.area.name == "thp/default")
#: the kernel that it was recorded on has all of them
SWITCHES = sorted(own_values("", "madvise", pages=512, small=False))


class Settled(Padded):
    """A record on which files of the system can be asked for, which was not done when it was made."""

    def __init__(self, events: list[Event], files: list[str]) -> None:
        super().__init__(events)
        self._files = files

    def perform(self, operation: str, arguments: object) -> object:
        return self._files if operation == "settings" else super().perform(operation, arguments)


def changed(recorded: Recorded, switch: str, files: list[str]) -> LiveJudgement:
    events = [
        event | {"result": "7\n"}
        if event["operation"] == "observe" and event["arguments"][0].endswith(f"transparent_hugepage/{switch}")
        else event
        for event in recorded.events
    ]
    assert events != recorded.events
    judgement = judge(recorded.area, recorded.case, Host(Settled(events, files)), recorded.size)
    assert judgement is not None
    return judgement


@pytest.mark.parametrize("switch", SWITCHES)
def test_a_switch_that_nobody_sets(switch: str) -> None:
    judgement = changed(RECORDED, switch, [])
    assert judgement.verdict is Verdict.FAIL
    assert switch in judgement.reason


@pytest.mark.parametrize("switch", SWITCHES)
def test_a_switch_that_a_file_sets(switch: str) -> None:
    judgement = changed(RECORDED, switch, ["/usr/lib/tmpfiles.d/thp.conf"])
    assert judgement.verdict is Verdict.PASS
    assert "/usr/lib/tmpfiles.d/thp.conf" in judgement.reason
