"""Memory counts as swapped out when it has left memory, and a control group that may not swap is told first."""

from contextlib import ExitStack
from dataclasses import replace

import pytest
from tests.unit.cases.kinds import X86_64
from tests.unit.cases.still_machine import SIZE, StillMachine

from hugepage_qa.cases.live import Live
from hugepage_qa.cases.swapped import need_swap
from hugepage_qa.kernel.proc_tables import MOUNTS
from hugepage_qa.machine.host import CannotRun, Host
from hugepage_qa.oracle.rules import Rule
from hugepage_qa.sizes import MIB

_GROUP = "/sys/fs/cgroup/{}memory.swap.{}"
_SWAP = "Filename\tType\tSize\tUsed\tPriority\n/dev/sda2 partition 4194304 0 -2\n"


def _need(files: dict[str, str]) -> None:
    seen = {
        "proc/self/cgroup": "0::/system.slice/suite.service\n",
        MOUNTS: "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n",
        "proc/swaps": _SWAP,
        "proc/meminfo": "SwapFree: 4194304 kB\n",
        **files,
    }
    still = StillMachine()
    machine = StillMachine({"read": lambda path: seen.get(path, still.perform("read", [path]))})
    machine.kind = replace(X86_64, has_others=True)
    with ExitStack() as stack:
        need_swap(Live(Host(machine), SIZE, Rule("a-rule", "what is judged here", "nowhere"), stack), 8 * MIB)


@pytest.mark.parametrize("group", ["", "system.slice/", "system.slice/suite.service/"])
def test_a_group_that_may_not_swap_as_much(group: str) -> None:
    limit, used = (_GROUP.format(group, kind) for kind in ("max", "current"))
    for may, has in (("max", 0), (16 * MIB, 8 * MIB)):
        _need({limit: f"{may}\n", used: f"{has}\n"})
    for may, has in (("0", 0), (str(16 * MIB), 9 * MIB)):
        with pytest.raises(CannotRun, match=r"memory\.swap\.max"):
            _need({limit: f"{may}\n", used: f"{has}\n"})
