"""A program that runs could be opened for writing on some kernels, and on these alone it is no failure."""

import errno

import pytest
from tests.unit.cases.recorded import WithoutEvidence, recorded_cases
from tests.unit.cases.transcript import Event

from hugepage_qa.cases.result import Verdict


@pytest.mark.parametrize(("version", "verdict"), [("6.12.1", Verdict.PASS), ("6.13.0", Verdict.FAIL)])
def test_who_opens_a_running_program_for_writing(version: str, verdict: Verdict) -> None:
    (recorded,) = (one for one in recorded_cases() if str(one) == "text/every-kernel/open-for-write")

    def let_open(event: Event) -> Event:
        if event["arguments"] == ["proc/sys/kernel/osrelease"]:
            return event | {"result": f"{version}\n"}
        if event["operation"] == "request" and event["result"][0] == f"errno {int(errno.ETXTBSY)}":
            return event | {"result": ["ok 9", None]}
        return event

    judgement = recorded.judge(WithoutEvidence(recorded.events, let_open))
    assert judgement.verdict is verdict, judgement.reason
