"""Judging one case: what the lab returns decides, and nothing passes without a comparison."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from hugepage_qa.cases.boot.boot_case import BootCase
from hugepage_qa.cases.boot.boot_judge import BootResult, Judge
from hugepage_qa.cases.result import Verdict
from hugepage_qa.kernel.tree import CapturedTree
from hugepage_qa.qemu.installed_emulator import NotOffered
from hugepage_qa.qemu.kernel_image import KernelImage
from hugepage_qa.qemu.lost_machine import Loss, MachineLost
from hugepage_qa.qemu.probe_machine import Boot, Lab
from hugepage_qa.qemu.virtual_machine import VirtualMachine
from hugepage_qa.sizes import GIB

NODES = "x86_64-max-6.1-nodes"
WORDS = "hugepagesz=1G hugepages=1 hugepagesz=2M hugepages=64"
GetCapture = Callable[[str], CapturedTree]


class FakeLab:
    """Loses the machine with the words under test in prepared ways, None for a boot, the last one again and again.

    ``control`` tells whether one without them boots.
    """

    def __init__(
        self, *losses: Loss | None, tree: CapturedTree | None = None, detail: str = "", control: bool = True
    ) -> None:
        self.losses, self.tree, self.detail, self.control = list(losses), tree, detail, control
        self.booted: list[str] = []
        self.patience: list[float] = []

    def boot(self, machine: VirtualMachine, patience: float) -> Boot:
        self.booted.append(machine.command_line)
        self.patience.append(patience)
        if not machine.command_line:
            loss = None if self.control else Loss.HUNG
        else:
            loss = self.losses.pop(0) if len(self.losses) > 1 else self.losses[0]
        if loss:
            raise MachineLost(loss, self.detail, self.detail)
        return Boot(self.tree or CapturedTree({}), "", 1.0, ())


CASE = BootCase("/test", "x86_64", "max", WORDS, (2 * GIB, 2 * GIB))


def judge_of(lab: FakeLab) -> Judge:
    return Judge(cast(Lab, lab), KernelImage(Path("vmlinuz"), "x86_64", "6.1.0", None))


def judge(lab: FakeLab, **changes: object) -> BootResult:
    return judge_of(lab).judge(replace(CASE, **changes))  # type: ignore[arg-type]


def changed(tree: CapturedTree, path: str, text: str) -> CapturedTree:
    return CapturedTree({**tree.files, path: text})


def test_a_right_machine_passes(capture: GetCapture) -> None:
    judgement = judge(FakeLab(None, tree=capture(NODES)))
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
    judgement = judge(FakeLab(None, tree=changed(capture(NODES), path, text)))
    assert judgement.verdict is Verdict.FAIL
    assert rule in {difference.rule.name for difference in judgement.differences}
    assert "expected" in judgement.reason and "found" in judgement.reason


def test_what_the_source_says_is_judged_too(capture: GetCapture) -> None:
    judgement = judge(FakeLab(None, tree=capture(NODES)), facts={"hugepages-2048kB/nr_hugepages": 65})
    assert judgement.verdict is Verdict.FAIL
    assert "documented-example" in judgement.reason


def test_a_line_that_the_source_says_is_judged_too(capture: GetCapture) -> None:
    judgement = judge(FakeLab(None, tree=capture(NODES)), log=("no such line",))
    assert judgement.verdict is Verdict.FAIL


def test_another_command_line_is_an_error(capture: GetCapture) -> None:
    judgement = judge(FakeLab(None, tree=capture(NODES)), words="hugepages=1")
    assert judgement.verdict is Verdict.ERROR


def test_a_capture_that_cannot_be_read_is_an_error(capture: GetCapture) -> None:
    tree = changed(capture(NODES), "proc/meminfo", "MemTotal: many kB\n")
    assert judge(FakeLab(None, tree=tree)).verdict is Verdict.ERROR


def test_an_empty_capture_is_an_error() -> None:
    assert judge(FakeLab(None, tree=CapturedTree({}))).verdict is Verdict.ERROR


def test_a_panic_is_the_kernels_fault_if_it_boots_without_the_words() -> None:
    judgement = judge(FakeLab(Loss.PANICKED, detail="Kernel panic - not syncing: hugetlb"))
    assert judgement.verdict is Verdict.FAIL
    assert "boot-survives" in judgement.reason and "hugetlb" in judgement.reason


def test_a_machine_that_never_boots_is_an_error() -> None:
    judgement = judge(FakeLab(Loss.PANICKED, detail="Kernel panic - not syncing: no init", control=False))
    assert judgement.verdict is Verdict.ERROR


def test_a_hang_is_tried_again() -> None:
    lab = FakeLab(Loss.HUNG, detail="no power-off within 1 s: ...")
    assert judge(lab).verdict is Verdict.FAIL
    assert lab.booted == [WORDS, WORDS, ""]


@pytest.mark.parametrize("loss", [Loss.PANICKED, Loss.HUNG, Loss.GARBLED, Loss.EMULATION_BROKE])
def test_the_same_words_come_again_before_they_are_blamed(capture: GetCapture, loss: Loss) -> None:
    lab = FakeLab(loss, None, tree=capture(NODES), detail="what went wrong")
    judgement = judge(lab)
    assert lab.booted == [WORDS, WORDS]
    assert judgement.evidence.startswith("what went wrong\n")
    assert (judgement.verdict, judgement.reason) == (
        Verdict.PASS,
        f"booted again after: {loss.value}: what went wrong",
    )


def test_a_panic_is_blamed_on_the_words_only_when_it_comes_again() -> None:
    lab = FakeLab(Loss.PANICKED, Loss.EMULATION_BROKE, Loss.PANICKED, detail="Kernel panic - not syncing: x")
    assert judge(lab).verdict is Verdict.FAIL
    assert lab.booted == [WORDS] * 3 + [""]


def test_an_emulation_that_breaks_says_nothing_of_the_kernel() -> None:
    lab = FakeLab(Loss.EMULATION_BROKE, detail="EFLAGS 92320362 in a panic has bits that no processor sets")
    judgement = judge(lab)
    assert judgement.verdict is Verdict.ERROR
    assert "EFLAGS 92320362" in judgement.reason
    assert lab.booted == [WORDS] * 5


def test_out_of_memory_passes_only_when_all_memory_was_asked_for() -> None:
    reason = "Kernel panic - not syncing: System is deadlocked on memory"
    assert judge(FakeLab(Loss.PANICKED, detail=reason), words="hugepages=100000").verdict is Verdict.PASS
    assert judge(FakeLab(Loss.HUNG, detail="no power-off"), words="hugepages=100000").verdict is Verdict.SKIP
    crash = "BUG: kernel NULL pointer dereference; Kernel panic - not syncing: Out of memory"
    assert judge(FakeLab(Loss.PANICKED, detail=crash), words="hugepages=100000").verdict is Verdict.FAIL
    assert judge(FakeLab(Loss.EMULATOR_ENDED, detail="x"), words="hugepages=100000").verdict is Verdict.ERROR
    assert judge(FakeLab(Loss.PANICKED, detail=reason), words="hugepages=100").verdict is Verdict.FAIL


class LabWithoutControl(FakeLab):
    """Loses the machine without the words by the host's fault."""

    def boot(self, machine: VirtualMachine, patience: float) -> Boot:
        if not machine.command_line:
            raise MachineLost(Loss.STARVED, "it had 1 s of a CPU in 20 s", "")
        return super().boot(machine, patience)


def test_a_control_boot_that_the_host_lost_decides_nothing() -> None:
    judgement = judge(LabWithoutControl(Loss.PANICKED, detail="Kernel panic - not syncing: x"))
    assert judgement.verdict is Verdict.ERROR
    assert "without the words under test it was lost, too: the machine was starved: it had 1 s" in judgement.reason


def test_a_machine_without_memory_is_waited_for_less_than_others() -> None:
    lab = FakeLab(Loss.HUNG)
    judge(lab, words="hugepages=100000")
    assert lab.patience == [0.25, 1.0]


def test_qemu_that_does_not_start_is_an_error() -> None:
    assert judge(FakeLab(Loss.EMULATOR_ENDED, detail="no such machine")).verdict is Verdict.ERROR


def asked_of(tree: CapturedTree, words: str, unknown: str) -> CapturedTree:
    """Return what a kernel shows that was booted with ``words`` and calls ``unknown`` unknown."""
    line = f'<5>[    0.1] Unknown kernel command line parameters "{unknown}", will be passed to user space.\n'
    tree = changed(tree, "proc/cmdline", f"panic=-1 {words}\n")
    return changed(tree, "dmesg", f"{tree.read('dmesg')}{line if unknown else ''}")


def test_no_machine_boots_for_a_parameter_that_the_kernel_does_not_know(capture: GetCapture) -> None:
    lab = FakeLab(None, tree=asked_of(capture(NODES), "", "thp_anon=0 thp_shmem=0"))
    judged = judge_of(lab)
    for words, name in (("thp_anon=64K:always", "thp_anon"), ("thp_shmem=64K:always", "thp_shmem")):
        judgement = judged.judge(replace(CASE, words=f"{WORDS} {words}"))
        assert judgement.verdict is Verdict.SKIP
        assert judgement.reason == f"{name}: kernel 6.1.192 does not know this parameter"
    [asked] = lab.booted
    assert {"thp_anon=0", "thp_shmem=0", "hugepage_alloc_threads=0"} <= set(asked.split())
    assert "hugepages=0" not in asked.split()


def test_a_parameter_that_the_kernel_took_over_from_a_later_one_is_tried(capture: GetCapture) -> None:
    words = f"{WORDS} thp_anon=64K:sometimes"
    lab = FakeLab(None, tree=asked_of(capture(NODES), words, ""))
    judgement = judge(lab, words=words)
    assert (judgement.verdict, judgement.differences[0].rule.name) == (Verdict.FAIL, "warning-given")
    assert lab.booted[1:] == [words]


def test_a_parameter_that_the_kernel_does_not_know_is_a_skip_where_it_could_not_be_asked(capture: GetCapture) -> None:
    words = f"{WORDS} thp_anon=64K:always"
    tree = asked_of(capture(NODES), words, "thp_anon=64K:always")
    lab = FakeLab(*[Loss.EMULATOR_ENDED] * 2, None, tree=tree, detail="no memory")
    judgement = judge(lab, words=words)
    assert (judgement.verdict, len(lab.booted)) == (Verdict.SKIP, 3)
    assert "thp_anon" in judgement.reason


class LabWithoutCpu(FakeLab):
    """Its emulator has no such CPU."""

    def boot(self, machine: VirtualMachine, patience: float) -> Boot:
        raise NotOffered(f"/usr/libexec/qemu-kvm has no -cpu {machine.cpu}: it has max ({patience})")


def test_a_machine_that_the_emulator_does_not_have_is_a_skip_with_the_reason() -> None:
    judgement = judge(LabWithoutCpu(None), cpu="qemu64")
    assert (judgement.verdict, judgement.reason) == (
        Verdict.SKIP,
        "/usr/libexec/qemu-kvm has no -cpu qemu64: it has max (1.0)",
    )
