"""Swap that the control group of the suite, or one above it, does not grant."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from hugepage_qa.cases.swapped import need_swap
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.sizes import MIB

FILES = {
    "proc/self/mounts": "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n",
    "proc/self/cgroup": "1:name=systemd:/\n0::/outer/inner\n",
    "proc/swaps": "Filename Type Size Used Priority\n/dev/vda2 partition 1048576 0 -2\n",
    "proc/meminfo": "MemTotal: 4194304 kB\nSwapFree: 1048576 kB\n",
    "sys/fs/cgroup/outer/inner/memory.swap.max": "max\n",
}


def ask(changed: dict[str, str], *, has_others: bool = True) -> None:
    """Ask for 2 MiB of swap."""
    host = SimpleNamespace(read=(FILES | changed).get, has_others=has_others)
    need_swap(cast(Any, SimpleNamespace(host=host)), 2 * MIB)


@pytest.mark.parametrize("group", ["/outer/inner", "/outer", "/"])
@pytest.mark.parametrize("most", ["0", str(2 * MIB - 4096)])
def test_a_group_that_may_swap_less_cannot_run_it(group: str, most: str) -> None:
    with pytest.raises(CannotRun, match="no room for 2 MiB"):
        ask({f"sys/fs/cgroup{group}".rstrip("/") + "/memory.swap.max": f"{most}\n"})


def test_what_the_group_has_in_swap_is_taken_off() -> None:
    group = "sys/fs/cgroup/outer/memory.swap"
    with pytest.raises(CannotRun, match="no room for 2 MiB"):
        ask({f"{group}.max": f"{3 * MIB}\n", f"{group}.current": f"{2 * MIB}\n"})


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"sys/fs/cgroup/outer/memory.swap.max": f"{2 * MIB}\n"},
        # of another group
        {"sys/fs/cgroup/other/memory.swap.max": "0\n"},
        {"proc/self/cgroup": "1:name=systemd:/\n"},
        {"proc/self/mounts": "", "sys/fs/cgroup/outer/memory.swap.max": "0\n"},
    ],
)
def test_any_other_may(changed: dict[str, str]) -> None:
    ask(changed)


def test_a_machine_without_others_has_no_such_groups() -> None:
    ask({"sys/fs/cgroup/outer/memory.swap.max": "0\n"}, has_others=False)
