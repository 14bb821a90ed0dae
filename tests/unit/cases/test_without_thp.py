"""On a kernel without transparent huge pages a case that needs them is skipped: it finds nothing wrong."""

import errno
import os
from collections.abc import Sequence
from typing import Any

import pytest
from tests.unit.cases.recorded import Recorded, WithoutEvidence, recorded_cases
from tests.unit.cases.transcript import Diverged

from hugepage_qa.cases.result import Verdict
from hugepage_qa.kernel.thp import DIRECTORY

#: what ends a case, and how it is answered
_AT_THE_END: dict[str, Any] = {"end": None, "new_kernel_log": [], "unmount": None, "write": None}
_REFUSED = {"write": errno.ENOENT, "mount": errno.EINVAL}


class WithoutThp(WithoutEvidence):
    """Answers as the recorded machine did, but for what a kernel without CONFIG_TRANSPARENT_HUGEPAGE lacks.

    Who ends a case there does so earlier than it was recorded: what is done then is taken, whenever it was done.
    """

    def perform(self, operation: str, arguments: Any) -> Any:
        """Answer, or refuse."""
        if lacks(operation, arguments):
            if operation in _REFUSED:
                raise OSError(_REFUSED[operation], os.strerror(_REFUSED[operation]))
            return {"names": [], "kernel_option": False}.get(operation)
        try:
            return super().perform(operation, arguments)
        except Diverged:
            if operation in _AT_THE_END:
                return _AT_THE_END[operation]
            if operation != "observe":
                raise
            return super().perform("read", arguments)


def lacks(operation: str, arguments: Sequence[Any]) -> bool:
    """Tell whether it is about what such a kernel has not (mm/shmem.c shmem_parse_opt_huge())."""
    first = str(arguments[0]) if arguments else ""
    if operation == "mount":
        return "huge=" in first and "huge=never" not in first
    return first.startswith(DIRECTORY) or (operation, first) == ("kernel_option", "TRANSPARENT_HUGEPAGE")


def needing_thp() -> list[Recorded]:
    """Return the recorded cases that ask for it."""
    return [
        one
        for one in recorded_cases()
        if any(lacks(event["operation"], event["arguments"]) for event in one.events if event["operation"])
    ]


@pytest.mark.parametrize("recorded", needing_thp(), ids=str)
def test_a_case_finds_nothing_wrong_without_thp(recorded: Recorded) -> None:
    result = recorded.judge(WithoutThp(recorded.events))
    told = " ".join(result.reasons)
    # what a case does otherwise, where it has found that it may, was not recorded
    if Diverged.__name__ not in told:
        assert result.verdict is not Verdict.ERROR, told
        # a pool is not as it was before, as the record goes on elsewhere: that is no finding of the case
        assert f"(rule {recorded.case.name}:" not in told
