"""Which accelerator boots, and QEMU's arguments for CPU, memory and NUMA nodes.

An accelerator counts only after a probe guest has reached its init under it. That /dev/kvm opens proves nothing. On
some hosts (nested virtualization above all) every guest then spins for ever, and QEMU's own fallback ``accel=kvm:tcg``
picks KVM there, because it only looks whether the device opens.
"""

import hashlib
import os
import platform
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from hugepage_qa.cache import locked, write_atomically
from hugepage_qa.errors import InputError
from hugepage_qa.qemu.boards import Board, Cpu

TCG = "tcg"
KVM = "kvm"
KVM_DEADLINE = 20.0
"""Seconds that a probe guest gets under KVM; one that works needs about one."""
_TCG_DEADLINE = 120.0

_DEVICE = Path("/dev/kvm")
_CPUINFO = Path("/proc/cpuinfo")


class ReachesInit(Protocol):
    """Boots a probe guest under an accelerator; true if it reached init and powered off within the deadline."""

    def __call__(self, accelerator: str, deadline: float) -> bool: ...


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
    once.
    """
    if not _may_use_kvm(board, cpu):
        return TCG
    answer = cache / "accelerators" / _key(board, cpu, emulator)
    with locked(answer.with_suffix(".lock")):
        if answer.exists() and answer.read_text() in {KVM, TCG}:
            return answer.read_text()
        return _prove(answer, reaches_init, report)


def _prove(answer: Path, reaches_init: ReachesInit, report: Callable[[str], None]) -> str:
    report(f"trying KVM with a probe guest, {KVM_DEADLINE:g} s at most")
    if reaches_init(KVM, KVM_DEADLINE):
        write_atomically(answer, KVM.encode())
        return KVM
    report("KVM is there, but no probe guest came up under it: using TCG")
    # a kernel that boots nowhere says nothing about KVM; only keep what the kernel is not to blame for
    if reaches_init(TCG, _TCG_DEADLINE):
        write_atomically(answer, TCG.encode())
    return TCG


def _may_use_kvm(board: Board, cpu: Cpu) -> bool:
    """True if KVM could run ``cpu`` here with the same page sizes; whether it works is another question."""
    return (
        cpu.kvm_cpu is not None
        and platform.machine() == board.architecture
        and cpu.host_flags <= _host_flags()
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


def _host_flags() -> frozenset[str]:
    return frozenset(_host_cpu().get("flags", "").split())


def _key(board: Board, cpu: Cpu, emulator: str) -> str:
    """Return a file name that changes with everything the answer depends on."""
    version = subprocess.run([emulator, "--version"], capture_output=True, text=True, check=False).stdout
    host_cpu = _host_cpu()
    # arm64 has no model name; the part numbers are what there is
    model = [host_cpu.get(name, "") for name in ("model name", "stepping", "microcode", "CPU part", "CPU revision")]
    facts = [emulator, version, platform.release(), platform.version(), *model, board.architecture, cpu.name]
    return hashlib.sha256("\0".join(facts).encode()).hexdigest()[:32]


def check_nodes(board: Board, memory: tuple[int, ...]) -> None:
    """Raise InputError unless ``board`` can have nodes with ``memory`` bytes each."""
    if not any(memory) or min(memory) < 0:
        raise InputError(f"memory {memory}: expected at least one node with memory")
    if len(memory) > board.max_nodes:
        name = f"{board.machine} machine of {board.architecture}"
        raise InputError(f"{len(memory)} NUMA nodes: the {name} has at most {board.max_nodes}")


def processor_arguments(board: Board, cpu: Cpu, accelerator: str) -> tuple[str, ...]:
    """Return QEMU's arguments for machine, accelerator and CPU model."""
    native = accelerator != TCG
    properties = board.kvm_machine_options if native else cpu.machine_options
    return (
        *("-machine", ",".join((board.machine, *properties)), "-accel", accelerator),
        *("-cpu", (cpu.kvm_cpu or cpu.qemu_cpu) if native else cpu.qemu_cpu),
    )


def memory_arguments(memory: tuple[int, ...], cpus: int) -> Iterator[str]:
    """Yield QEMU's arguments for memory (bytes of each node), CPUs and NUMA nodes. Nothing is preallocated."""
    if len(memory) == 1:
        yield from ("-m", f"{memory[0]}B", "-smp", str(cpus))
        return
    nodes = _node_cpus(memory, cpus)
    yield from ("-m", f"{sum(memory)}B", "-smp", str(sum(map(len, nodes))))
    for node, size in enumerate(memory):
        words = [f"node,nodeid={node}", *(f"cpus={cpu}" for cpu in nodes[node])]
        if size:
            yield from ("-object", f"memory-backend-ram,id=node{node},size={size}B")
            words.append(f"memdev=node{node}")
        yield from ("-numa", ",".join(words))


def _node_cpus(memory: tuple[int, ...], cpus: int) -> list[list[int]]:
    """Return the CPUs of each node: one for each memoryless node, the others shared by those with memory.

    The boot CPU is in the first node with memory. There are more CPUs than asked for where memoryless nodes need them.
    """
    with_memory = [node for node, size in enumerate(memory) if size]
    without = [node for node, size in enumerate(memory) if not size]
    nodes: list[list[int]] = [[] for _ in memory]
    shared = max(cpus - len(without), 1)
    for cpu in range(shared):
        nodes[with_memory[cpu % len(with_memory)]].append(cpu)
    for cpu, node in enumerate(without, start=shared):
        nodes[node].append(cpu)
    return nodes
