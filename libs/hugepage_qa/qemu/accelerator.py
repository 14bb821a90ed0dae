"""Which accelerator boots.

An accelerator counts only after a probe guest has reached its init under it. That /dev/kvm opens proves nothing. On
some hosts (nested virtualization above all) every guest then spins for ever, and QEMU's own fallback ``accel=kvm:tcg``
picks KVM there, because it only looks whether the device opens.
"""

import hashlib
import os
import platform
from collections.abc import Callable
from pathlib import Path

from hugepage_qa.cache import locked, write_atomically
from hugepage_qa.process.child import run_to_end
from hugepage_qa.qemu.boards import Board, Cpu
from hugepage_qa.qemu.installed_emulator import NotOffered, Part, expect_part, offered

TCG = "tcg"
KVM = "kvm"
KVM_DEADLINE = 20.0
"""Seconds that a probe guest gets under KVM; one that works needs about one."""
_TCG_DEADLINE = 120.0

_DEVICE = Path("/dev/kvm")
_CPUINFO = Path("/proc/cpuinfo")


#: boots a probe guest under an accelerator; true if it reached init and powered off within so many seconds
ReachesInit = Callable[[str, float], bool]


def choose_accelerator(
    board: Board,
    cpu: Cpu,
    emulator: str,
    cache: Path,
    reaches_init: ReachesInit,
    *,
    report: Callable[[str], None],
) -> str:
    """Return KVM if it is proven to give the machine that ``cpu`` stands for, else TCG.

    The answer is kept below ``cache`` for this emulator, host kernel and host CPU: a hanging KVM costs its deadline
    once. Raises NotOffered where the emulator has no TCG, and KVM is none for this machine or does not work.
    """
    if KVM not in offered(emulator, Part.ACCELERATOR) or not _may_use_kvm(board, cpu):
        _expect_tcg(emulator)
        return TCG
    answer = cache / "accelerators" / _key(board, cpu, emulator)
    with locked(answer.with_suffix(".lock")):
        if answer.exists() and answer.read_text() in {KVM, TCG}:
            return answer.read_text()
        return _prove(answer, emulator, reaches_init, report)


def _prove(answer: Path, emulator: str, reaches_init: ReachesInit, report: Callable[[str], None]) -> str:
    report(f"trying KVM with a probe guest, {KVM_DEADLINE:g} s at most")
    if reaches_init(KVM, KVM_DEADLINE):
        write_atomically(answer, KVM.encode())
        return KVM
    report("KVM is there, but no probe guest came up under it: using TCG")
    _expect_tcg(emulator)
    # a kernel that boots nowhere says nothing about KVM; only keep what the kernel is not to blame for
    if reaches_init(TCG, _TCG_DEADLINE):
        write_atomically(answer, TCG.encode())
    return TCG


def _expect_tcg(emulator: str) -> None:
    """Raise NotOffered without it, where KVM is out of the question."""
    try:
        expect_part(emulator, Part.ACCELERATOR, TCG)
    except NotOffered as error:
        raise NotOffered(f"{error}, under which no such machine comes up here") from error


def _may_use_kvm(board: Board, cpu: Cpu) -> bool:
    """True if KVM could run ``cpu`` here with the same page sizes; whether it works is another question."""
    return (
        cpu.kvm_cpu is not None
        and platform.machine() == board.architecture
        and cpu.host_flags.issubset(_host_cpu().get("flags", "").split())
        and _opens(_DEVICE)
    )


def _opens(device: Path) -> bool:
    try:
        os.close(os.open(device, os.O_RDWR | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def _host_cpu() -> dict[str, str]:
    """Return the lines of the first CPU in /proc/cpuinfo."""
    first = _CPUINFO.read_text(errors="replace").split("\n\n", 1)[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _key(board: Board, cpu: Cpu, emulator: str) -> str:
    """Return a file name that changes with everything the answer depends on."""
    version = run_to_end([emulator, "--version"]).stdout
    host_cpu = _host_cpu()
    # arm64 has no model name; the part numbers are what there is
    model = [host_cpu.get(name, "") for name in ("model name", "stepping", "microcode", "CPU part", "CPU revision")]
    facts = [emulator, version, platform.release(), platform.version(), *model, board.architecture, cpu.name]
    return hashlib.sha256("\0".join(facts).encode()).hexdigest()[:32]
