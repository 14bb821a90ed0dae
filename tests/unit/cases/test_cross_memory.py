"""A kernel that does not let processes read each other's memory is no kernel that gives the wrong error."""

import errno
import struct

import pytest
from tests.unit.cases.lies import instead, lied_to
from tests.unit.cases.recorded import Recorded, recorded_cases

from hugepage_qa.cases.result import Verdict
from hugepage_qa.process.actor_threads import Came

OF_THE_KERNEL = [one for one in recorded_cases() if one.case.name.startswith("faults-of-the-kernel")]


@pytest.mark.parametrize("recorded", OF_THE_KERNEL, ids=str)
@pytest.mark.parametrize(("number", "verdict"), [(errno.ENOSYS, Verdict.SKIP), (errno.EPERM, Verdict.FAIL)])
def test_calls_that_the_kernel_does_not_have_are_not_judged(recorded: Recorded, number: int, verdict: Verdict) -> None:
    requests = [event for event in recorded.events if event["operation"] == "request"]
    asked = [str(event["arguments"][1]) for event in requests]
    started = next(at for at, words in enumerate(asked) if words.startswith("attempt process_vm_readv "))
    stopped = requests[next(at for at, words in enumerate(asked) if at > started and words.startswith("stop "))]
    refused = struct.pack("<5Q", 1, Came.REFUSED.value, 1 << number, 0, 0).hex()
    judgement, told = lied_to(recorded, instead(stopped, stopped | {"result": [f"ok 0 {refused}", None]}))
    assert told
    assert judgement.verdict is verdict, judgement.reason
