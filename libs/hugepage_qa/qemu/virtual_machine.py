"""A machine in QEMU that boots a kernel with an initramfs of ours: what it is, and QEMU's command line for it."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hugepage_qa.errors import InputError
from hugepage_qa.qemu.accelerator import TCG
from hugepage_qa.qemu.boards import Board, Cpu, find_board, find_cpu
from hugepage_qa.qemu.installed_emulator import expect_offered, find_emulator
from hugepage_qa.qemu.kernel_image import KernelImage
from hugepage_qa.sizes import MIB

#: no network, no disk, no display, no user configuration
BARE = ("-nodefaults", "-no-user-config", "-display", "none")
_COUNTED_SINCE = "2026-01-01T00:00:00"
"""What the clock of a machine that counts instructions shows at first: the same at each boot."""
_EMULATOR_MEMORY = 256 * MIB
"""Bytes that QEMU takes besides the guest's memory: translated code above all."""


@dataclass(frozen=True)
class VirtualMachine:
    """What is booted."""

    kernel: KernelImage
    cpu: str
    """Name of a CPU model of the board, not of QEMU's."""
    memory: tuple[int, ...]
    """Bytes of each NUMA node; 0 is a node without memory, which then has a CPU."""
    command_line: str = ""
    """It is handed to the kernel as it is, after our own words."""
    cpus: int = 1
    accelerator: str = TCG
    runs_guests: bool = False
    """Whether KVM is to work in it, where an emulated CPU of its kind has what that needs."""
    instructions_seed: int | None = None
    """With a number, its clock counts instructions, one a nanosecond, and what is random is drawn from the number."""

    @property
    def board(self) -> Board:
        """The board for the architecture of its kernel."""
        return find_board(self.kernel.architecture)

    def check(self) -> None:
        """Raise InputError for what can never boot.

        That is an unknown CPU, no memory, more nodes than there can be, a command line that is too long, or an emulator
        that is not installed.
        """
        find_cpu(self.board, self.cpu)
        check_nodes(self.board, self.memory)
        full_command_line(self.board, self.command_line)
        find_emulator(self.board)

    def qemu_command(self, initramfs: Path, devices: Iterable[str] = ()) -> tuple[str, ...]:
        """Return the command that runs it, with its console on standard output and ``devices`` (further arguments).

        Raises InputError as ``check`` does, and NotOffered where the emulator has not all of it.
        """
        board = self.board
        emulator = find_emulator(board)
        arguments = (
            *(*BARE, "-no-reboot"),
            *processor_arguments(board, find_cpu(board, self.cpu), self.accelerator, runs_guests=self.runs_guests),
            *self._counting_arguments(),
            *memory_arguments(self.memory, self.cpus),
            *("-chardev", "stdio,id=console,signal=off", *board.serial),
            *devices,
            *("-kernel", str(self.kernel.path), "-initrd", str(initramfs)),
            *("-append", full_command_line(board, self.command_line)),
        )
        expect_offered(emulator, arguments)
        return (emulator, *arguments)

    def _counting_arguments(self) -> tuple[str, ...]:
        if self.instructions_seed is None:
            return ()
        # sleep=off: while nothing runs, time goes on to the next timer at once
        clocks = ("-icount", "shift=0,sleep=off", "-rtc", f"clock=vm,base={_COUNTED_SINCE}")
        return (*clocks, "-seed", str(self.instructions_seed))


def our_words(board: Board) -> str:
    """Return the kernel parameters that the lab needs; they stand before the command line under test.

    panic=-1 reboots at once, which -no-reboot turns into the end of the machine. rdinit= keeps an init= under
    test from replacing our init. The self-tests of ciphers take a third of the time of an emulated boot.
    """
    return " ".join(
        filter(None, (board.early_console, board.kernel_words, "cryptomgr.notests", "panic=-1", "rdinit=/init"))
    )


def full_command_line(board: Board, words: str) -> str:
    """Return our words and ``words``; InputError when the kernel of this architecture would cut them off.

    It is also raised for bytes that no character has, which the shell may have given: no report could show them.
    """
    line = f"{our_words(board)} {words}" if words else our_words(board)
    try:
        encoded = line.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"command line {words!a}: expected UTF-8, found another byte; leave it out") from error
    size, limit = len(encoded) + 1, board.command_line_size
    if size > limit:
        raise InputError(
            f"command line of {len(words.encode())} bytes: with our {len(our_words(board))} it needs {size} bytes,"
            f" and {board.architecture} kernels take {limit}"
        )
    return line


def check_nodes(board: Board, memory: tuple[int, ...]) -> None:
    """Raise InputError unless ``board`` can have nodes with ``memory`` bytes each."""
    if not any(memory) or min(memory) < 0:
        raise InputError(f"memory {memory}: expected at least one node with memory")
    if len(memory) > board.max_nodes:
        name = f"{board.machine} machine of {board.architecture}"
        raise InputError(f"{len(memory)} NUMA nodes: the {name} has at most {board.max_nodes}")


def processor_arguments(board: Board, cpu: Cpu, accelerator: str, *, runs_guests: bool = False) -> tuple[str, ...]:
    """Return QEMU's arguments for machine, accelerator and CPU model, so that it ``runs_guests`` where it can."""
    machine, model = machine_and_cpu(board, cpu, accelerator)
    if runs_guests and accelerator == TCG and cpu.kvm_inside:
        model = cpu.kvm_inside
    options = board.tcg_options if accelerator == TCG else ()
    return ("-machine", machine, "-accel", ",".join((accelerator, *options)), "-cpu", model)


def machine_and_cpu(board: Board, cpu: Cpu, accelerator: str) -> tuple[str, str]:
    """Return the values of QEMU's ``-machine`` and ``-cpu`` under ``accelerator``."""
    if accelerator == TCG:
        return ",".join((board.machine, *cpu.machine_options)), cpu.qemu_cpu
    return ",".join((board.machine, *board.kvm_machine_options)), cpu.kvm_cpu or cpu.qemu_cpu


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


def host_memory(memory: tuple[int, ...], command_line: str) -> int:
    """Return the bytes of host memory that a machine with ``memory`` may really touch.

    Measured as peak RSS of QEMU 7.2 under TCG, Debian 6.1 and 7.2: 134 to 251 MiB for 1 GiB of guest memory, 202 to 363
    MiB for 4 GiB (struct pages, mostly). Gigantic pages stay untouched (3 of 1 GiB: 411 MiB). Smaller huge
    pages are zeroed as they are allocated (init_on_alloc=1 is Debian's default): 1024 of 2 MiB took 2383 MiB. So
    a machine that is asked for huge pages counts in full: how many of them are gigantic is not known here.
    """
    whole = sum(memory)
    return _EMULATOR_MEMORY + (whole if "hugepages=" in command_line else whole // 16)
