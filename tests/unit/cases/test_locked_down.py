"""What a locked down kernel would not mend is not broken."""

import pytest
from tests.unit.cases.still_machine import StillMachine, judge_on

from hugepage_qa.cases.broken_memory import need_mending
from hugepage_qa.cases.result import Verdict


@pytest.mark.parametrize(
    ("lockdown", "verdict"),
    [
        (None, Verdict.PASS),
        ("[none] integrity confidentiality\n", Verdict.PASS),
        ("none [integrity] confidentiality\n", Verdict.SKIP),
    ],
)
def test_nothing_is_broken_that_cannot_be_mended(lockdown: str | None, verdict: Verdict) -> None:
    shown = {"proc/filesystems": "nodev\tdebugfs\n", "sys/kernel/security/lockdown": lockdown}

    def read(path: str) -> str | None:
        text: str | None = shown[path] if path in shown else StillMachine().perform("read", [path])
        return text

    def names(path: str) -> list[str]:
        found: list[str] = StillMachine().perform("names", [path])
        return ["unpoison-pfn"] if path.endswith("/hwpoison") else found

    machine = StillMachine({"read": read, "names": names, "mount": lambda *_options: "/scratch/debugfs-1"})
    judgement = judge_on(machine, need_mending)
    assert judgement.verdict is verdict, judgement.reason
