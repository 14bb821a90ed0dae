"""Which text the kernel has to make huge, by what it was built for and what smaps says."""

from collections.abc import Sequence
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.unit.cases.kinds import X86_64
from tests.unit.cases.text.double.files import ENABLED, PMD
from tests.unit.cases.text.double.machine import TextDouble
from tests.unit.cases.text.linked import link

from hugepage_qa.cases.file_text import is_eligible
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.text_program import TextProgram
from hugepage_qa.machine.host import Host
from hugepage_qa.oracle.rules import Rule


class Mainline:
    """A kernel without hugetext, built with or without READ_ONLY_THP_FOR_FS; the programs lie on ``file_system``."""

    kind = X86_64

    def __init__(self, version: str, file_system: str, *, built_in: bool) -> None:
        self._double = TextDouble(link)
        self._built_in = built_in
        del self._double.files.texts[ENABLED]
        self._double.files.texts |= {
            "proc/sys/kernel/osrelease": f"{version}\n",
            "proc/self/mounts": f"/dev/vda / {file_system} rw 0 0\n",
        }

    def perform(self, operation: str, arguments: Sequence[Any]) -> Any:
        return self._built_in if operation == "kernel_option" else self._double.perform(operation, arguments)


def judge(machine: Mainline | TextDouble, *, shown: bool) -> tuple[bool, list[str]]:
    """Return whether text is eligible where smaps says ``shown``, and the differences."""
    mapping = SimpleNamespace(thp_eligible=shown)
    program = SimpleNamespace(built=SimpleNamespace(file="/text"), mappings=lambda: (mapping,))
    with ExitStack() as stack:
        live = Live(Host(machine), PMD, Rule("rule", "statement", "source"), stack)
        eligible = is_eligible(live, cast(TextProgram, program))
    return eligible, [difference.subject for difference in live.differences]


@pytest.mark.parametrize("shown", [True, False])
def test_smaps_says_what_the_kernel_was_built_for(shown: bool) -> None:
    assert judge(Mainline("6.12.1", "ext4", built_in=shown), shown=shown) == (shown, [])
    eligible, differences = judge(Mainline("6.12.1", "ext4", built_in=not shown), shown=shown)
    assert eligible == shown
    assert len(differences) == 1


@pytest.mark.parametrize(("version", "differences"), [("6.1.192", 1), ("6.12.1", 0)])
def test_smaps_is_not_believed_where_xfs_has_a_handler_of_huge_faults(version: str, differences: int) -> None:
    eligible, found = judge(Mainline(version, "xfs", built_in=False), shown=True)
    assert len(found) == differences
    assert eligible == bool(differences)


@pytest.mark.parametrize("shown", [True, False])
def test_without_the_option_file_systems_decide(shown: bool) -> None:
    assert judge(Mainline("7.3.4", "ext4", built_in=False), shown=shown) == (shown, [])


@pytest.mark.parametrize(("version", "differences"), [("7.1.1", 0), ("7.3.4", 1)])
def test_where_file_systems_decide_text_on_xfs_is_eligible(version: str, differences: int) -> None:
    _eligible, found = judge(Mainline(version, "xfs", built_in=False), shown=False)
    assert len(found) == differences


def test_with_hugetext_advice_decides_and_not_smaps() -> None:
    assert judge(TextDouble(link), shown=False) == (True, [])
