"""QEMU's arguments for the part of a machine that huge pages see: CPU, memory and NUMA nodes."""

from collections.abc import Iterator

from hugepage_qa.errors import InputError
from hugepage_qa.lab.accelerator import TCG
from hugepage_qa.lab.boards import Board, Cpu


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
