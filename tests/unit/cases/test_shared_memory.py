"""Segments are removed after the case, whether or not it did so, and a kernel that refuses is no success."""

import errno
import os
from contextlib import ExitStack

import pytest
from tests.unit.cases.still_machine import StillMachine

from hugepage_qa.cases.hugetlb_segments import get_segment
from hugepage_qa.cases.live import Live
from hugepage_qa.machine.host import Host
from hugepage_qa.oracle.rules import Rule
from hugepage_qa.sizes import MIB


class Kernel(StillMachine):
    """Answers what a case with one segment asks; ``removal`` is the errno of its removal, 0 for success."""

    def __init__(self, removal: int) -> None:
        super().__init__({"start_actor": self._start_actor, "request": self._request, "end": self._end})
        self.removal = removal
        self.requests: list[str] = []
        self.actors = 0
        self.ended = 0

    def _start_actor(self) -> tuple[int, int]:
        self.actors += 1
        return self.actors, 100 + self.actors

    def _request(self, _number: int, text: str) -> tuple[str, None]:
        self.requests.append(text)
        if "shmctl" in text and self.removal:
            return f"errno {self.removal}", None
        return "ok 77", None

    def _end(self, _number: int) -> None:
        self.ended += 1


def use_a_segment(kernel: Kernel) -> None:
    with ExitStack() as stack:
        live = Live(Host(kernel), 2 * MIB, Rule("rule", "statement", "source"), stack)
        get_segment(live, 2 * MIB)


@pytest.mark.parametrize("removal", [0, errno.EINVAL, errno.EIDRM])
def test_a_segment_is_removed_after_the_case(removal: int) -> None:
    kernel = Kernel(removal)
    use_a_segment(kernel)
    assert kernel.requests[-1] == "call shmctl 77 0 0"
    assert kernel.ended == kernel.actors == 2


def test_a_segment_that_stays_is_an_error() -> None:
    kernel = Kernel(errno.EPERM)
    with pytest.raises(OSError, match=os.strerror(errno.EPERM)):
        use_a_segment(kernel)
    assert kernel.ended == kernel.actors
