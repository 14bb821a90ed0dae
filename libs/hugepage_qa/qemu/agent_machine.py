"""A throwaway machine that stays: kernel and agent, memory on nodes, a disk; asked for things until it is closed."""

import os
import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from hugepage_qa.errors import InputError
from hugepage_qa.process.c_compiler import ACTOR
from hugepage_qa.process.child import PIPE, Child, find_installed, run_to_end
from hugepage_qa.process.static_program import AGENT, build_static
from hugepage_qa.qemu.agent_channel import AgentChannel
from hugepage_qa.qemu.empty_disks import empty_disks
from hugepage_qa.qemu.emulator import Emulator, quoted
from hugepage_qa.qemu.initramfs import agent_initramfs
from hugepage_qa.qemu.kernel_image import KernelImage
from hugepage_qa.qemu.kernel_modules import load_order
from hugepage_qa.qemu.lost_machine import PANIC_SECONDS, Loss, MachineLost, find_panic, has_panicked
from hugepage_qa.qemu.unpacked_kernel import entered_directly
from hugepage_qa.qemu.virtual_machine import VirtualMachine
from hugepage_qa.sizes import GIB, format_size

#: what a machine gets of the modules of its kernel; crc32c is what ext4 asks modprobe for, which is not there
_MODULES = (
    *("virtio_pci", "virtio_console", "virtio_blk", "crc32c_generic", "ext4"),
    # for cases that poison pages by debugfs
    "hwpoison_inject",
    # for swap on a device that a reproducer has
    "loop",
)
_DISK = GIB
_BOOT_SECONDS = 300.0
#: after which a machine is seen to have ended whose line was cut
_END_SECONDS = 10.0
_AGENT_ENDED = re.compile(r"@hugepage-qa the agent ([^\r\n]*)")


class RunningMachine(Emulator):
    """A machine that was started; ``child`` is its emulator. It can be asked when ``await_agent`` has returned."""

    def __init__(self, machine: VirtualMachine, child: Child, line: socket.socket) -> None:
        super().__init__(child)
        self.machine = machine
        self.channel = AgentChannel(line, self.find_loss, self.lost_by)
        self.base_page = 0

    def await_agent(self) -> None:
        """Wait until the agent has come up. Raises MachineLost."""
        self.base_page = int(self.channel.receive(_BOOT_SECONDS)[1 + 4 :])

    def find_loss(self, seconds: float = 0) -> MachineLost | None:
        """Tell how the machine was lost, None while it lives as far as is seen in ``seconds``."""
        has_ended = self.wait(seconds)
        if has_panicked(self.serial):
            # a back trace follows
            has_ended = self.wait(PANIC_SECONDS)
        serial = self.serial
        if panicked := find_panic(serial, self.starvation.told):
            return panicked
        if ended := _AGENT_ENDED.search(serial):
            return MachineLost(Loss.AGENT_ENDED, ended[1].strip(), serial)
        return MachineLost(Loss.EMULATOR_ENDED, self.why_it_ended, serial) if has_ended else None

    def lost_by(self, cut: str) -> MachineLost:
        """Tell how the machine was lost whose line was ``cut`` so."""
        if found := self.find_loss(_END_SECONDS):
            return found
        if lockup := self.starvation.lockup:
            return MachineLost(Loss.LOCKED_UP, lockup, self.serial)
        if told := self.starvation.told:
            return MachineLost(Loss.STARVED, told, self.serial)
        return MachineLost(Loss.NO_ANSWER, cut, self.serial)


@contextmanager
def start_agent_machine(machine: VirtualMachine, cache: Path, acting: Path = ACTOR) -> Iterator[RunningMachine]:
    """Start ``machine`` and yield it, which comes up by then or later; it is gone after the block.

    ``acting`` is the C source of the program that acts in it, which is asked as an actor is. Raises InputError for what
    can never boot.
    """
    machine.check()
    modules = load_order(machine.kernel.modules, _MODULES)
    agent, actor = (build_static(source, machine.kernel.architecture) for source in (AGENT, acting))
    initramfs = agent_initramfs(agent, actor, modules, machine.board.second_port_device, cache)
    with ExitStack() as stack:
        ours, theirs = socket.socketpair()
        stack.enter_context(ours)
        with theirs, _disk(cache) as disk:
            entered = entered_directly(machine, cache)
            command = entered.qemu_command(initramfs, _devices(machine, theirs.fileno(), disk, empty_disks(cache)))
            descriptors = [theirs.fileno(), *([] if disk is None else [disk])]
            child = Child(command, output=PIPE, errors=PIPE, descriptors=descriptors)
            running = stack.enter_context(RunningMachine(machine, child, ours))
        yield running


def _devices(machine: VirtualMachine, line: int, disk: int | None, more_disks: Mapping[str, Path]) -> Iterator[str]:
    """Yield QEMU's arguments for the line to the agent and a disk, which are open files, and for images of others."""
    board = machine.board
    if board.second_port and not _has_virtio_port(machine.kernel):
        yield from ("-chardev", f"socket,id=second,fd={line}", *board.second_port)
    else:
        yield from ("-device", f"virtio-serial-{board.virtio_bus}", "-chardev", f"socket,id=agent,fd={line}")
        yield from ("-device", "virtserialport,chardev=agent,name=hugepage-qa")
    if disk is not None:
        drive = f"file=/proc/self/fd/{disk},format=raw,if=none,id=disk,cache=unsafe,discard=unmap"
        yield from ("-drive", drive)
        yield from ("-device", f"virtio-blk-{board.virtio_bus},drive=disk,serial=ext4")
    for name, image in more_disks.items():
        # what is written goes to a temporary file
        yield from ("-drive", f"file={quoted(image)},format=raw,if=none,id={name},snapshot=on,cache=unsafe")
        yield from ("-device", f"virtio-blk-{board.virtio_bus},drive={name},serial={name}")


def _has_virtio_port(kernel: KernelImage) -> bool:
    """Tell whether ``kernel`` has a driver for it, or may have: built in, or a module that it gets."""
    modules = {module.name for module in load_order(kernel.modules, ["virtio_console"])}
    built_in = kernel.config is None or kernel.config.get("CONFIG_VIRTIO_CONSOLE") == "y"
    return built_in or "virtio_console" in modules


@contextmanager
def _disk(cache: Path) -> Iterator[int | None]:
    """Yield an open file with an empty ext4, which has no name: it is gone with who has it open.

    None where no mke2fs is installed. Raises InputError where it fails.
    """
    program = find_installed("mke2fs")
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
        command = [program, "-q", "-F", "-t", "ext4", "-E", "lazy_itable_init=1,nodiscard", place]
        done = run_to_end(command, descriptors=[descriptor])
        if done.returncode != 0:
            raise InputError(f"{program} makes no file system below {cache}: {done.stderr.strip()[:200]}")
        yield descriptor
    finally:
        os.close(descriptor)
