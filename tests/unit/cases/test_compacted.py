"""The daemon of a node that is not at work fails its case: free blocks, and what was moved, stay as they were."""

import pytest
from tests.unit.cases.lies import Lie, by_its_own_rule, lied_to
from tests.unit.cases.recorded import Recorded, recorded_cases
from tests.unit.cases.transcript import Event

_KNOB, _LOOKS = "proc/sys/vm/compaction_proactiveness", ("proc/buddyinfo", "proc/vmstat")


def _of_idle_daemons() -> Lie:
    """Return the lie of a machine that shows the same since it was told to compact beforehand."""
    seen: dict[str, str] = {}
    told: list[Event] = []

    def lie(event: Event) -> Event:
        path = event["arguments"][0] if event["arguments"] else ""
        if event["operation"] == "write" and event["arguments"] == [_KNOB, "100"]:
            told.append(event)
        if event["operation"] not in ("read", "observe") or path not in _LOOKS:
            return event
        if not told:
            seen[path] = event["result"]
        return event | {"result": seen.setdefault(path, event["result"])}

    return lie


@pytest.mark.parametrize(
    "recorded", [one for one in recorded_cases() if one.case.name == "by-the-daemon-of-a-node"], ids=str
)
def test_a_daemon_that_does_nothing_is_found(recorded: Recorded) -> None:
    judgement, told = lied_to(recorded, _of_idle_daemons())
    assert told
    assert by_its_own_rule(recorded, judgement), judgement.reason
