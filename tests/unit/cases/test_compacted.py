"""The daemon of a node that is not at work fails its case, whatever those of others move: all there stays as it was."""

from typing import Any

import pytest
from tests.unit.cases.lies import Lie, by_its_own_rule, lied_to
from tests.unit.cases.recorded import Recorded, recorded_cases
from tests.unit.cases.transcript import Event

_KNOB, _BLOCKS, _ENTRY = "proc/sys/vm/compaction_proactiveness", "proc/buddyinfo", "call pread64 "


def _of_idle_daemons() -> Lie:
    """Return the lie of a machine that shows the same since it was told to compact beforehand."""
    seen: dict[str, Any] = {}
    told: list[Event] = []

    def lie(event: Event) -> Event:
        if event["operation"] == "write" and event["arguments"] == [_KNOB, "100"]:
            told.append(event)
        asked = str(event["arguments"])
        if _BLOCKS not in asked and _ENTRY not in asked:
            return event
        if not told:
            seen[asked] = event["result"]
        return event | {"result": seen.setdefault(asked, event["result"])}

    return lie


@pytest.mark.parametrize(
    "recorded", [one for one in recorded_cases() if one.case.name == "by-the-daemon-of-a-node"], ids=str
)
def test_a_daemon_that_does_nothing_is_found(recorded: Recorded) -> None:
    judgement, told = lied_to(recorded, _of_idle_daemons())
    assert told
    assert by_its_own_rule(recorded, judgement), judgement.reason
