"""Boot one probe machine: a kernel and a command line in; its files, or the reason why there are none, out."""

import enum
import re
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hugepage_qa.errors import InputError
from hugepage_qa.kernel.tree import CapturedTree
from hugepage_qa.qemu.accelerator import TCG, check_nodes, choose_accelerator, memory_arguments, processor_arguments
from hugepage_qa.qemu.boards import (
    Board,
    Cpu,
    find_board,
    find_cpu,
)
from hugepage_qa.qemu.emulator import Emulators, Run, Stopped
from hugepage_qa.qemu.initramfs import probe_initramfs
from hugepage_qa.qemu.kernel_image import KernelImage, identify
from hugepage_qa.qemu.packages import static_busybox
from hugepage_qa.qemu.serial_capture import GarbledCapture, parse_capture

__all__ = ["Boot", "Ending", "Lab", "ProbeMachine", "Stopped", "host_memory"]

PANIC = b"Kernel panic - not syncing"
_EMULATOR_MEMORY = 256 << 20
"""Bytes that QEMU takes besides the guest's memory: translated code above all."""
#: of RCU, the watchdogs of CPUs, and khungtaskd
_LOCKUP = re.compile(
    rb"self-detected stall|detected stalls on|(?:soft|hard) (?:lockup|LOCKUP)|blocked for more than \d+ seconds"
)
_PANIC_LINE = re.compile(r"Kernel panic - not syncing[^\r\n]*")
PANIC_SECONDS = 5.0
"""Seconds that a machine has left after its panic message: for the back trace. panic=-1 ends it before that,
except for a panic that comes before the kernel has read its command line."""


@dataclass(frozen=True)
class ProbeMachine:
    """What is booted. ``command_line`` is handed to the kernel as it is, after our own words."""

    architecture: str
    cpu: str
    """Name of a CPU model of the board, not of QEMU's."""
    kernel: Path
    memory: tuple[int, ...]
    """Bytes of each NUMA node; 0 is a node without memory, which then has a CPU."""
    command_line: str
    cpus: int = 1


# check_timer() in arch/x86/kernel/apic/io_apic.c; a machine whose words undo no_timer_check can still get there
_NO_TIMER = re.compile(r"timer doesn't work")
_EFLAGS = re.compile(r"\bEFLAGS: (?P<flags>[0-9a-f]{8})\b")
_EFLAGS_BITS = 22
_BREAKPOINT = re.compile(r"\bOops: int3\b.*?\bCode:(?: [0-9a-f]{2})* (?P<byte>[0-9a-f]{2}) <", re.DOTALL)
_INT3 = "cc"


class Ending(enum.Enum):
    """How a boot ended."""

    POWERED_OFF = "powered off"
    PANICKED = "panicked"
    HUNG = "hung"
    GARBLED = "garbled"
    #: a panic shows that a device or a register did what no real one does: nothing can be said of the kernel
    EMULATION_BROKE = "the emulation broke"
    QEMU_FAILED = "QEMU failed"


@dataclass(frozen=True)
class Boot:
    """What came of one boot; ``tree`` is there whenever the machine printed one whole capture."""

    machine: ProbeMachine
    ending: Ending
    tree: CapturedTree | None
    serial: str
    seconds: float
    reason: str
    """One line, empty when all is well."""
    qemu_command: tuple[str, ...]


def our_words(board: Board) -> str:
    """Return the kernel parameters that the lab needs; they stand before the command line under test.

    panic=-1 reboots at once, which -no-reboot turns into the end of the machine. rdinit= keeps an init= under
    test from replacing our init.
    """
    return " ".join(filter(None, (board.early_console, board.kernel_words, "panic=-1", "rdinit=/init")))


def full_command_line(board: Board, words: str) -> str:
    """Return our words and ``words``; InputError when the kernel of this architecture would cut them off."""
    line = f"{our_words(board)} {words}" if words else our_words(board)
    size, limit = len(line.encode()) + 1, board.command_line_size
    if size > limit:
        raise InputError(
            f"command line of {len(words.encode())} bytes: with our {len(our_words(board))} it needs {size} bytes,"
            f" and {board.architecture} kernels take {limit}"
        )
    return line


def qemu_arguments(
    board: Board, cpu: Cpu, machine: ProbeMachine, initramfs: Path, accelerator: str = TCG
) -> tuple[str, ...]:
    """Return the QEMU command without the program: no network, no disk, no display, no user configuration."""
    return (
        *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
        *processor_arguments(board, cpu, accelerator),
        *memory_arguments(machine.memory, machine.cpus),
        *("-chardev", "stdio,id=console,signal=off", *board.serial),
        *board.options,
        *("-kernel", str(machine.kernel), "-initrd", str(initramfs)),
        *("-append", full_command_line(board, machine.command_line)),
    )


class _Patience:
    """How many seconds a machine has left: ``deadline`` while it prints what a boot prints, few after a panic.

    What it prints after a lockup may go on for ever, and is no sign of life.
    """

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self._has_panicked = False
        self._is_locked_up = False

    def __call__(self, output: bytes) -> float | None:
        if self._has_panicked:
            return None
        if PANIC in output:
            self._has_panicked = True
            return PANIC_SECONDS
        self._is_locked_up = self._is_locked_up or _LOCKUP.search(output) is not None
        return None if self._is_locked_up else self._deadline


def _last_lines(serial: str, count: int = 3) -> str:
    lines = [line.strip() for line in serial.splitlines() if line.strip()]
    return " | ".join(line[:200] for line in lines[-count:]) or "nothing was printed"


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def _judge(run: Run, serial: str) -> tuple[Ending, CapturedTree | None, str]:
    """Return how ``run`` ended, its capture if there is a whole one, and the reason if all was not well."""
    tree, garbled = None, ""
    try:
        tree = parse_capture(serial)
    except GarbledCapture as error:
        garbled = str(error)
    panic = _PANIC_LINE.search(serial)
    if panic and (tree is None or run.exit_code != 0):
        broke = broken_emulation(panic[0], serial)
        return (Ending.EMULATION_BROKE if broke else Ending.PANICKED), tree, broke or panic[0].strip()
    if run.overflowed:
        return Ending.GARBLED, tree, f"printed more than {len(run.output)} bytes"
    if run.exit_code is None:
        return Ending.HUNG, tree, f"no power-off within {run.seconds:.1f} s: {_last_lines(serial)}"
    if run.exit_code != 0:
        return Ending.QEMU_FAILED, None, _first_line(run.errors) or f"exit code {run.exit_code}, no message"
    if tree is None:
        return Ending.GARBLED, None, f"{garbled}; last: {_last_lines(serial, 1)}"
    return Ending.POWERED_OFF, tree, ""


def broken_emulation(panic: str, serial: str) -> str:
    """Return what shows that ``panic`` is the emulator's fault, or nothing.

    QEMU 7.2 was seen to set bits 22 to 31 of EFLAGS, which read as 0 (Intel SDM volume 1, 3.4.3), now and then at a
    CMPXCHG16B in the allocator of Linux 6.12, which then faults. With several CPUs it was seen to trap at an int3 which
    the kernel had replaced before (jump labels; arch/x86/kernel/alternative.c smp_text_poke_batch_finish() waits for
    all CPUs): the byte before the instruction pointer, which the kernel prints, is another one then.
    """
    if _NO_TIMER.search(panic):
        return f"no interrupt of the emulated timer came in time: {panic.strip()}"
    flags = (found["flags"] for found in _EFLAGS.finditer(serial))
    impossible = next((text for text in flags if int(text, 16) >> _EFLAGS_BITS), None)
    if impossible:
        return f"EFLAGS {impossible} in a panic has bits that no processor sets"
    breakpoint_ = _BREAKPOINT.search(serial)
    if breakpoint_ and breakpoint_["byte"] != _INT3:
        return f"a trap for int3 was taken where {breakpoint_['byte']} stands: {panic.strip()}"
    return ""


class Lab:
    """Boots probe machines; any number of threads may call ``boot`` at once."""

    def __init__(
        self,
        cache: Path,
        *,
        deadline: float = 120.0,
        report: Callable[[str], None] = lambda _: None,
        accelerator: str | None = None,
    ) -> None:
        """Keep what is built below ``cache`` and give each boot ``deadline`` seconds from its last sign of life.

        ``report`` takes lines about what takes long (downloads, a hanging accelerator). ``accelerator`` replaces
        the proven choice; ``tcg`` is always safe.
        """
        self._cache = cache
        self._deadline = deadline
        self._report = report
        self._emulators = Emulators()
        self._lock = threading.Lock()
        self._accelerators: dict[tuple[str, str], str] = {}
        self._initramfs: dict[str, Path] = {}
        self._images: dict[tuple[Path, int], KernelImage] = {}
        self._forced = accelerator

    def stop(self) -> None:
        """End every machine that runs now: their ``boot`` raises Stopped. The lab can boot others after that."""
        self._emulators.stop()

    def boot(self, machine: ProbeMachine) -> Boot:
        """Boot ``machine`` and wait for its end.

        Raises InputError for what can never boot (unknown CPU, no kernel image, emulator not installed, command
        line too long), Stopped after ``stop``. Whatever the kernel or QEMU does is an Ending.
        """
        board = find_board(machine.architecture)
        cpu = find_cpu(board, machine.cpu)
        check_nodes(board, machine.memory)
        full_command_line(board, machine.command_line)
        emulator = find_emulator(board)
        self._check_image(board, machine.kernel)
        accelerator = self.accelerator(machine)
        with self._lock:
            initramfs = self._find_initramfs(board)
        return self._run(machine, (emulator, *qemu_arguments(board, cpu, machine, initramfs, accelerator)))

    def accelerator(self, machine: ProbeMachine) -> str:
        """Return the accelerator that ``boot`` would take for ``machine``; errors as in ``boot``."""
        board = find_board(machine.architecture)
        cpu = find_cpu(board, machine.cpu)
        with self._lock:
            initramfs = self._find_initramfs(board)
            return self._find_accelerator(board, cpu, machine, initramfs, find_emulator(board))

    def _run(self, machine: ProbeMachine, command: tuple[str, ...], deadline: float | None = None) -> Boot:
        seconds = deadline or self._deadline
        run = self._emulators.run(command, seconds, _Patience(seconds))
        serial = run.output.decode(errors="replace")
        ending, tree, reason = _judge(run, serial)
        return Boot(machine, ending, tree, serial, run.seconds, reason, command)

    def _check_image(self, board: Board, kernel: Path) -> None:
        with suppress(OSError):
            key = (kernel, kernel.stat().st_mtime_ns)
            if key not in self._images:
                self._images[key] = identify(kernel)
        image = self._images[key] if kernel.exists() else identify(kernel)
        if image.architecture != board.architecture:
            raise InputError(f"{kernel} is a kernel for {image.architecture}: expected one for {board.architecture}")

    def _find_initramfs(self, board: Board) -> Path:
        if board.architecture not in self._initramfs:
            busybox = static_busybox(board.architecture, self._cache, report=self._report)
            self._initramfs[board.architecture] = probe_initramfs(busybox, self._cache)
        return self._initramfs[board.architecture]

    def _find_accelerator(self, board: Board, cpu: Cpu, machine: ProbeMachine, initramfs: Path, emulator: str) -> str:
        if self._forced:
            return self._forced
        key = (board.architecture, cpu.name)
        if key not in self._accelerators:
            plain = ProbeMachine(board.architecture, cpu.name, machine.kernel, (1 << 30,), "")

            def reaches_init(accelerator: str, deadline: float) -> bool:
                arguments = qemu_arguments(board, cpu, plain, initramfs, accelerator)
                return self._run(plain, (emulator, *arguments), deadline).ending is Ending.POWERED_OFF

            self._accelerators[key] = choose_accelerator(
                board, cpu, emulator, self._cache, reaches_init, report=self._report
            )
        return self._accelerators[key]


def host_memory(machine: ProbeMachine) -> int:
    """Return the bytes of host memory that ``machine`` may really touch.

    Measured as peak RSS of QEMU 7.2 under TCG, Debian 6.1 and 7.2: 134 to 251 MiB for 1 GiB of guest memory, 202 to 363
    MiB for 4 GiB (struct pages, mostly). Gigantic pages stay untouched (3 of 1 GiB: 411 MiB). Smaller huge
    pages are zeroed as they are allocated (init_on_alloc=1 is Debian's default): 1024 of 2 MiB took 2383 MiB. So
    a machine that is asked for huge pages counts in full: how many of them are gigantic is not known here.
    """
    whole = sum(machine.memory)
    touched = whole if "hugepages=" in machine.command_line else whole // 16
    return _EMULATOR_MEMORY + touched


def find_emulator(board: Board) -> str:
    """Return the path of the emulator of ``board``; InputError names the package to install."""
    path = shutil.which(board.qemu)
    if path is None:
        raise InputError(
            f"{board.qemu} is not installed: install {board.debian_qemu} (Debian) or {board.rpm_qemu} (Fedora)"
        )
    return path
