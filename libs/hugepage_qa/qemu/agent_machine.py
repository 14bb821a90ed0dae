"""A throwaway machine that stays: kernel and agent, memory on nodes, a disk; asked for things until it is closed."""

import os
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import overload

from hugepage_qa.errors import InputError
from hugepage_qa.process.c_compiler import SOURCE as ACTOR
from hugepage_qa.process.child import PIPE, Child, cpu_seconds
from hugepage_qa.process.static_program import AGENT, build_static
from hugepage_qa.qemu.accelerator import TCG, check_nodes, memory_arguments, processor_arguments
from hugepage_qa.qemu.agent_channel import AgentChannel, Loss, MachineLost
from hugepage_qa.qemu.boards import Board, find_board, find_cpu
from hugepage_qa.qemu.initramfs import agent_initramfs
from hugepage_qa.qemu.kernel_image import identify
from hugepage_qa.qemu.kernel_modules import load_order
from hugepage_qa.qemu.probe_machine import broken_emulation, find_emulator, full_command_line
from hugepage_qa.qemu.starvation import Starvation
from hugepage_qa.sizes import GIB, format_size

#: what a machine gets of the modules of its kernel; crc32c is what ext4 asks modprobe for, which is not there
_MODULES = (
    *("virtio_pci", "virtio_console", "virtio_blk", "crc32c_generic", "ext4"),
    # for cases that poison pages by debugfs
    "hwpoison_inject",
)
_DISK = GIB
_BOOT_SECONDS = 300.0
_SERIAL_LIMIT = 4 << 20
#: bytes of a line whose end is printed with the next piece
_LINE = 200
_PANIC = re.compile(rb"Kernel panic - not syncing[^\r\n]*")
_AGENT_ENDED = re.compile(rb"@hugepage-qa the agent ([^\r\n]*)")
#: for the back trace that follows the line of the panic
_PANIC_SECONDS = 5.0
_END_SECONDS = 10.0


@dataclass(frozen=True)
class AgentMachine:
    """What is booted. ``memory`` are bytes of each NUMA node, ``modules`` files of the kernel's package."""

    architecture: str
    cpu: str
    kernel: Path
    memory: tuple[int, ...]
    modules: tuple[Path, ...] = ()
    command_line: str = ""
    cpus: int = 2
    accelerator: str = TCG


class RunningMachine:
    """A machine that was started; ``child`` is its emulator. It can be asked when ``await_agent`` has returned."""

    def __init__(self, machine: AgentMachine, child: Child, line: socket.socket) -> None:
        self.machine = machine
        self._child = child
        self._serial = bytearray()
        self._errors = b""
        self.starvation = Starvation(partial(cpu_seconds, child.pid))
        self._readers = [
            threading.Thread(target=self._read_serial, daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for reader in self._readers:
            reader.start()
        self.channel = AgentChannel(line, self.find_loss)
        self.base_page = 0

    @property
    def serial(self) -> str:
        """What it has printed on its console, at most the last 4 MiB."""
        return self._serial.decode(errors="replace")

    def kill(self) -> None:
        """End it at once, whoever waits for its agent."""
        self._child.kill()

    def close(self) -> None:
        """End it at once, and read what it has printed to its end."""
        self.kill()
        self._await_readers()
        self.starvation.close()

    def await_agent(self, seconds: float = _BOOT_SECONDS) -> None:
        """Wait until the agent has come up. Raises MachineLost."""
        self.base_page = int(self.channel.receive(seconds)[1 + 4 :])

    @overload
    def find_loss(self) -> MachineLost | None: ...

    @overload
    def find_loss(self, cut: str) -> MachineLost: ...

    def find_loss(self, cut: str = "") -> MachineLost | None:
        """Tell how the machine was lost, None while it lives as far as is seen.

        ``cut`` tells how its line was: then it is lost in any case.
        """
        if cut:
            self._child.wait(_END_SECONDS)
        if _PANIC.search(self._serial):
            # the line may not be whole yet, and a back trace follows
            self._child.wait(_PANIC_SECONDS)
        if self._child.has_ended:
            # what was printed last tells most
            self._await_readers()
        serial = bytes(self._serial)
        if panic := _PANIC.search(serial):
            line = _text(panic[0])
            broke = broken_emulation(line, _text(serial))
            return self._lost(Loss.EMULATION_BROKE, broke) if broke else self._lost(Loss.PANICKED, line)
        if ended := _AGENT_ENDED.search(serial):
            return self._lost(Loss.AGENT_ENDED, _text(ended[1]))
        if self._child.has_ended:
            said = _text(self._errors).splitlines()
            return self._lost(Loss.EMULATOR_ENDED, said[-1] if said else f"exit code {self._child.exit_code}")
        if cut and (lockup := self.starvation.lockup):
            return self._lost(Loss.LOCKED_UP, lockup)
        if cut and (told := self.starvation.told):
            return self._lost(Loss.STARVED, told)
        return self._lost(Loss.NO_ANSWER, cut) if cut else None

    def _lost(self, loss: Loss, detail: str) -> MachineLost:
        return MachineLost(loss, detail, self.serial)

    def _await_readers(self) -> None:
        for reader in self._readers:
            reader.join(_END_SECONDS)

    def _read_serial(self) -> None:
        if self._child.output is not None:
            while piece := os.read(self._child.output.fileno(), 1 << 16):
                self._serial += piece
                del self._serial[:-_SERIAL_LIMIT]
                self.starvation.take(bytes(self._serial[-len(piece) - _LINE :]))

    def _read_errors(self) -> None:
        if self._child.errors is not None:
            self._errors = self._child.errors.read()[-(1 << 16) :]


def _text(found: bytes) -> str:
    return found.decode(errors="replace").strip()


@contextmanager
def start_agent_machine(machine: AgentMachine, cache: Path) -> Iterator[RunningMachine]:
    """Start ``machine`` and yield it, which comes up by then or later; it is gone after the block.

    Raises InputError for what can never boot.
    """
    board = find_board(machine.architecture)
    check_nodes(board, machine.memory)
    emulator = find_emulator(board)
    modules = load_order(machine.modules, _MODULES)
    agent, actor = (build_static(source, machine.architecture) for source in (AGENT, ACTOR))
    initramfs = agent_initramfs(agent, actor, modules, board.second_port_device, cache)
    with ExitStack() as stack:
        ours, theirs = socket.socketpair()
        stack.enter_context(ours)
        with theirs, _disk(cache) as disk:
            command = (emulator, *_arguments(board, machine, initramfs, theirs.fileno(), disk))
            descriptors = [theirs.fileno(), *([] if disk is None else [disk])]
            child = stack.enter_context(Child(command, output=PIPE, errors=PIPE, descriptors=descriptors))
        running = RunningMachine(machine, child, ours)
        stack.callback(running.close)
        yield running


def _arguments(board: Board, machine: AgentMachine, initramfs: Path, line: int, disk: int | None) -> Iterator[str]:
    cpu = find_cpu(board, machine.cpu)
    yield from ("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot")
    yield from processor_arguments(board, cpu, machine.accelerator)
    yield from memory_arguments(machine.memory, machine.cpus)
    yield from ("-chardev", "stdio,id=console,signal=off", *board.serial)
    if board.second_port and not _has_virtio_port(machine):
        yield from ("-chardev", f"socket,id=second,fd={line}", *board.second_port)
    else:
        yield from ("-device", f"virtio-serial-{board.virtio_bus}", "-chardev", f"socket,id=agent,fd={line}")
        yield from ("-device", "virtserialport,chardev=agent,name=hugepage-qa")
    if disk is not None:
        drive = f"file=/proc/self/fd/{disk},format=raw,if=none,id=disk,cache=unsafe,discard=unmap"
        yield from ("-drive", drive)
        yield from ("-device", f"virtio-blk-{board.virtio_bus},drive=disk")
    yield from board.options
    yield from ("-kernel", str(machine.kernel), "-initrd", str(initramfs))
    yield from ("-append", full_command_line(board, machine.command_line))


def _has_virtio_port(machine: AgentMachine) -> bool:
    """Tell whether the kernel has a driver for it, or may have: built in, or a module that it gets."""
    config = identify(machine.kernel).config
    modules = {module.name for module in load_order(machine.modules, ["virtio_console"])}
    return config is None or config.get("CONFIG_VIRTIO_CONSOLE") == "y" or "virtio_console" in modules


@contextmanager
def _disk(cache: Path) -> Iterator[int | None]:
    """Yield an open file with an empty ext4, which has no name: it is gone with who has it open.

    None where no mke2fs is installed. Raises InputError where it fails.
    """
    program = shutil.which("mke2fs", path=f"{os.environ.get('PATH', '')}:/sbin:/usr/sbin")
    if program is None:
        yield None
        return
    descriptor = os.open(cache, os.O_TMPFILE | os.O_RDWR, 0o600)
    try:
        try:
            # now, while that can be told: an emulator that finds no room stops its machine without a word
            os.posix_fallocate(descriptor, 0, _DISK)
        except OSError as error:
            need = format_size(_DISK)
            raise InputError(f"{cache}: no room for {need}, the disk of a machine: {error.strerror}") from error
        place = f"/proc/self/fd/{descriptor}"
        done = subprocess.run(
            [program, "-q", "-F", "-t", "ext4", "-E", "lazy_itable_init=1,nodiscard", place],
            pass_fds=[descriptor],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise InputError(f"{program} makes no file system below {cache}: {done.stderr.strip()[:200]}")
        yield descriptor
    finally:
        os.close(descriptor)
