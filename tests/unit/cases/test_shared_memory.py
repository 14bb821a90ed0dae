"""Segments are removed after the case, whether or not it did so, and a kernel that refuses is no success."""

import errno
import os
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import pytest
from tests.unit.cases.kinds import X86_64

from hugepage_qa.cases.hugetlb_segments import get_segment
from hugepage_qa.cases.live import Live
from hugepage_qa.machine.host import Host
from hugepage_qa.oracle.rules import Rule
from hugepage_qa.sizes import MIB

FILES = {
    "proc/sys/kernel/osrelease": "6.12.5\n",
    "proc/buddyinfo": "Node 0, zone Normal 1 1 1 1 1 1 1 1 1 1 1\n",
    "proc/meminfo": "MemAvailable: 1000 kB\nHugepagesize: 2048 kB\n",
    **{
        f"sys/kernel/mm/hugepages/hugepages-2048kB/{name}": "0\n"
        for name in (
            "nr_hugepages",
            "free_hugepages",
            "resv_hugepages",
            "surplus_hugepages",
            "nr_overcommit_hugepages",
        )
    },
}


class Kernel:
    """Answers what a case with one segment asks; ``removal`` is the errno of its removal, 0 for success."""

    kind = X86_64

    def __init__(self, removal: int) -> None:
        self.removal = removal
        self.requests: list[str] = []
        self.actors = 0
        self.ended = 0

    def perform(self, operation: str, arguments: Sequence[Any]) -> Any:
        match operation:
            case "read" | "observe":
                return FILES.get(arguments[0])
            case "names":
                prefix = f"{arguments[0]}/"
                return sorted({path[len(prefix) :].split("/")[0] for path in FILES if path.startswith(prefix)})
            case "start_actor":
                self.actors += 1
                return self.actors, 100 + self.actors
            case "request":
                self.requests.append(arguments[1])
                if "shmctl" in arguments[1] and self.removal:
                    return f"errno {self.removal}", None
                return "ok 77", None
            case "end":
                self.ended += 1
                return None
        raise AssertionError(operation)


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
