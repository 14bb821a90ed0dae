"""Judging one case: what the lab returns decides, and nothing passes without a comparison."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from hugepage_qa.kernel.tree import CapturedTree
from hugepage_qa.lab.probe import Boot, Ending, Lab, ProbeMachine
from hugepage_qa.matrix.case import BootCase
from hugepage_qa.matrix.judge import Judge, Judgement, Kernel
from hugepage_qa.sizes import GIB
from hugepage_qa.verdict import Verdict

NODES = "x86_64-max-6.1-nodes"
WORDS = "hugepagesz=1G hugepages=1 hugepagesz=2M hugepages=64"
GetCapture = Callable[[str], CapturedTree]


class FakeLab:
    """Returns one prepared boot for the words under test, and another one for the control without them."""

    def __init__(
        self, ending: Ending, tree: CapturedTree | None = None, reason: str = "", control: bool = True
    ) -> None:
        self.ending, self.tree, self.reason = ending, tree, reason
        self.control = Ending.POWERED_OFF if control else Ending.HUNG
        self.boots = 0

    def boot(self, machine: ProbeMachine) -> Boot:
        self.boots += 1
        if not machine.command_line:
            return Boot(machine, self.control, None, "", 1.0, "", ())
        return Boot(machine, self.ending, self.tree, self.reason, 1.0, self.reason, ())


def judge(lab: FakeLab, words: str = WORDS, **changes: object) -> Judgement:
    case = BootCase("/test", "x86_64", "max", words, (2 * GIB, 2 * GIB))
    kernel = Kernel(Path("vmlinuz"), "6.1.0", None)
    return Judge(cast(Lab, lab), kernel).judge(replace(case, **changes))  # type: ignore[arg-type]


def changed(tree: CapturedTree, path: str, text: str) -> CapturedTree:
    return CapturedTree({**tree.files, path: text})


def test_a_right_machine_passes(capture: GetCapture) -> None:
    judgement = judge(FakeLab(Ending.POWERED_OFF, capture(NODES)))
    assert (judgement.verdict, judgement.reason) == (Verdict.PASS, "")


@pytest.mark.parametrize(
    ("path", "text", "rule"),
    [
        ("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "63\n", "pool-size"),
        ("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "63\n", "all-free-at-boot"),
        ("sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages", "31\n", "node-spread"),
        ("proc/sys/vm/nr_hugepages", "0\n", "default-size-files"),
        ("sys/kernel/mm/transparent_hugepage/enabled", "always madvise never [x]\n", "thp-enabled"),
    ],
)
def test_a_wrong_machine_fails_with_rule_and_values(capture: GetCapture, path: str, text: str, rule: str) -> None:
    judgement = judge(FakeLab(Ending.POWERED_OFF, changed(capture(NODES), path, text)))
    assert judgement.verdict is Verdict.FAIL
    assert rule in {difference.rule.name for difference in judgement.differences}
    assert "expected" in judgement.reason and "found" in judgement.reason


def test_what_the_source_says_is_judged_too(capture: GetCapture) -> None:
    judgement = judge(FakeLab(Ending.POWERED_OFF, capture(NODES)), facts={"hugepages-2048kB/nr_hugepages": 65})
    assert judgement.verdict is Verdict.FAIL
    assert "documented-example" in judgement.reason


def test_a_line_that_the_source_says_is_judged_too(capture: GetCapture) -> None:
    judgement = judge(FakeLab(Ending.POWERED_OFF, capture(NODES)), log=("no such line",))
    assert judgement.verdict is Verdict.FAIL


def test_another_command_line_is_an_error(capture: GetCapture) -> None:
    judgement = judge(FakeLab(Ending.POWERED_OFF, capture(NODES)), words="hugepages=1")
    assert judgement.verdict is Verdict.ERROR


def test_a_capture_that_cannot_be_read_is_an_error(capture: GetCapture) -> None:
    tree = changed(capture(NODES), "proc/meminfo", "MemTotal: many kB\n")
    assert judge(FakeLab(Ending.POWERED_OFF, tree)).verdict is Verdict.ERROR


def test_an_empty_capture_is_an_error() -> None:
    assert judge(FakeLab(Ending.POWERED_OFF, CapturedTree({}))).verdict is Verdict.ERROR


def test_a_panic_is_the_kernels_fault_if_it_boots_without_the_words() -> None:
    judgement = judge(FakeLab(Ending.PANICKED, reason="Kernel panic - not syncing: hugetlb"))
    assert judgement.verdict is Verdict.FAIL
    assert "boot-survives" in judgement.reason and "hugetlb" in judgement.reason


def test_a_machine_that_never_boots_is_an_error() -> None:
    judgement = judge(FakeLab(Ending.PANICKED, reason="Kernel panic - not syncing: no init", control=False))
    assert judgement.verdict is Verdict.ERROR


def test_a_hang_is_tried_again() -> None:
    lab = FakeLab(Ending.HUNG, reason="no power-off within 1 s: ...")
    assert judge(lab).verdict is Verdict.FAIL
    assert lab.boots == 3  # twice, and the control


def test_an_emulation_that_breaks_says_nothing_of_the_kernel() -> None:
    lab = FakeLab(Ending.EMULATION_BROKE, reason="EFLAGS 92320362 in a panic has bits that no processor sets")
    judgement = judge(lab)
    assert judgement.verdict is Verdict.ERROR
    assert "EFLAGS 92320362" in judgement.reason
    assert lab.boots == 5


def test_out_of_memory_passes_only_when_all_memory_was_asked_for() -> None:
    reason = "Kernel panic - not syncing: System is deadlocked on memory"
    assert judge(FakeLab(Ending.PANICKED, reason=reason), words="hugepages=100000").verdict is Verdict.PASS
    assert judge(FakeLab(Ending.HUNG, reason="no power-off"), words="hugepages=100000").verdict is Verdict.SKIP
    crash = "BUG: kernel NULL pointer dereference; Kernel panic - not syncing: Out of memory"
    assert judge(FakeLab(Ending.PANICKED, reason=crash), words="hugepages=100000").verdict is Verdict.FAIL
    assert judge(FakeLab(Ending.QEMU_FAILED, reason="x"), words="hugepages=100000").verdict is Verdict.ERROR
    assert judge(FakeLab(Ending.PANICKED, reason=reason), words="hugepages=100").verdict is Verdict.FAIL


def test_qemu_that_does_not_start_is_an_error() -> None:
    assert judge(FakeLab(Ending.QEMU_FAILED, reason="no such machine")).verdict is Verdict.ERROR


def test_a_parameter_that_the_kernel_does_not_know_is_a_skip(capture: GetCapture) -> None:
    tree = capture(NODES)
    words = f"{WORDS} thp_anon=64K:always"
    unknown = (
        '<5>[    0.1] Unknown kernel command line parameters "thp_anon=64K:always", will be passed to user space.\n'
    )
    tree = changed(tree, "proc/cmdline", f"panic=-1 {words}\n")
    tree = changed(tree, "dmesg", f"{tree.read('dmesg')}{unknown}")
    judgement = judge(FakeLab(Ending.POWERED_OFF, tree), words=words)
    assert judgement.verdict is Verdict.SKIP
    assert "thp_anon" in judgement.reason
