"""Free lists that hold less than what is counted as free, from some moment on, whichever it is."""

import pytest
from tests.unit.cases.lies import by_its_own_rule, lied_to
from tests.unit.cases.recorded import Recorded, recorded_cases
from tests.unit.cases.transcript import Event

from hugepage_qa.cases.result import Verdict

#: the lists are looked at twice, to see that nothing has changed in between
_TIMES = 2


class _LosesABlock:
    """The lie that a block of the first zone is on no list, after so many ``true_looks``.

    ``looks`` counts all, and ``looks_before`` those before the case does anything.
    """

    def __init__(self, true_looks: int) -> None:
        self._true_looks = true_looks
        self.looks = 0
        self.looks_before: int | None = None

    def __call__(self, event: Event) -> Event:
        acts = event["operation"] in ("request", "write") and event["arguments"][0] != "proc/sys/vm/stat_refresh"
        if acts and self.looks and self.looks_before is None:
            self.looks_before = self.looks
        if event["arguments"] != ["proc/buddyinfo"]:
            return event
        self.looks += 1
        if self.looks <= self._true_looks:
            return event
        first, *others = event["result"].splitlines(keepends=True)
        *columns, largest = first.split()
        return event | {"result": " ".join([*columns, str(int(largest) - 1)]) + "\n" + "".join(others)}


@pytest.mark.parametrize("recorded", recorded_cases(lambda area: area.name == "accounting/free-lists"), ids=str)
def test_a_block_that_is_lost_is_seen(recorded: Recorded) -> None:
    never = _LosesABlock(1_000)
    assert lied_to(recorded, never)[0].verdict is Verdict.PASS
    assert never.looks_before
    assert never.looks > never.looks_before
    for true_looks in range(never.looks_before, never.looks, _TIMES):
        judgement, _told = lied_to(recorded, _LosesABlock(true_looks))
        assert by_its_own_rule(recorded, judgement), judgement.reason
