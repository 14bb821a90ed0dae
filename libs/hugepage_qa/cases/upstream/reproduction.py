"""Reports of kernel bugs for upstream, each with a reproducer, which runs on a throwaway machine, by its agent.

A reproducer needs nothing of this suite.
"""

import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import yaml

from hugepage_qa.cases.live_machine import MachineKind, MachinePlan
from hugepage_qa.cases.result import one_line
from hugepage_qa.cases.verdicts import try_again
from hugepage_qa.errors import InputError
from hugepage_qa.process.process_table import STATE, split_stat
from hugepage_qa.process.static_program import build_static
from hugepage_qa.qemu.agent_channel import AgentChannel
from hugepage_qa.qemu.agent_machine import RunningMachine, start_agent_machine
from hugepage_qa.qemu.boards import find_board
from hugepage_qa.qemu.kernel_image import KernelImage
from hugepage_qa.qemu.lost_machine import MachineLost
from hugepage_qa.qemu.virtual_machine import VirtualMachine
from hugepage_qa.schema import build, find_violation
from hugepage_qa.sizes import MIB, parse_memory
from hugepage_qa.version import KernelVersion

DIRECTORY = Path(__file__).with_name("reports")


class Answer(IntEnum):
    """What a reproducer says of a kernel; the value is its exit code."""

    RIGHT = 0
    BUG = 1
    UNDECIDED = 2


@dataclass(frozen=True)
class Reading:
    """A word that a file has on a kernel that is ``right``, and the one that it has on a kernel with the bug."""

    right: str
    wrong: str


@dataclass(frozen=True)
class BootedMachine:
    """The machine that a reproducer needs. ``memory`` is that of its nodes, as in ``2G,2G``.

    ``since`` is the first kernel that knows the words, where older ones would seem to have the bug. ``reads`` are by
    file, below the root. Few need more than one of ``cpus``, and each is more to emulate.
    """

    memory: str
    cpus: int = 1
    words: str = ""
    since: str = "0.0"
    reads: Mapping[str, Reading] = field(default_factory=dict)


@dataclass(frozen=True)
class BugReport:
    """The report of the known issue ``name``."""

    name: str
    directory: Path

    @property
    def program(self) -> Path | None:
        """The source of its reproducer, None where reading files after a boot shows the bug."""
        source = self.directory / "reproducer.c"
        return source if source.exists() else None

    @property
    def text(self) -> str:
        """The report, in Markdown."""
        return (self.directory / "report.md").read_text(encoding="utf-8")

    @property
    def subject(self) -> str:
        """What is wrong, in one line."""
        return self.text.partition("\n")[0].removeprefix("# ")

    @cached_property
    def machine(self) -> BootedMachine:
        """The machine that shows the bug. Raises InputError for a file of another form."""
        document: Any = yaml.safe_load((self.directory / "reproducer.yaml").read_text(encoding="utf-8"))
        if violation := find_violation(document, __package__, "reproducer"):
            raise InputError(f"{self.directory / 'reproducer.yaml'}: {violation}")
        return build(BootedMachine, document)

    @property
    def memory(self) -> tuple[int, ...]:
        """Bytes of each NUMA node of the machine."""
        return parse_memory(self.machine.memory)

    def is_for(self, version: KernelVersion) -> bool:
        """Tell whether kernels of ``version`` know the words of the command line."""
        return version >= KernelVersion.parse(self.machine.since)


def bug_reports() -> dict[str, BugReport]:
    """Return name -> report of all that there are, by name."""
    return {path.name: BugReport(path.name, path) for path in sorted(DIRECTORY.iterdir()) if path.is_dir()}


_PROGRAM = "/tmp/reproducer"  # noqa: S108 - of a machine that nobody else is on
_PIECE = MIB
_CONSOLE = "/dev/console"
#: between it the console has what the program printed
_MARK = "@hugepage-qa reproducer"
#: only what ends the machine is printed between the lines of the program (kernel.printk)
_QUIET = b"1"
#: a starved machine complains as loudly as one that ends (printk.time)
_OF_THE_KERNEL = re.compile(r"\[ *[0-9]+\.[0-9]+\]")
_POLL_SECONDS = 0.2
_RUN_SECONDS = 900.0
_PRINT_SECONDS = 20.0
#: in the answer of the agent, proc_pid_stat(5): as of wait(2), and there as long as nobody has waited for the process
_STATUS = 49


@dataclass(frozen=True)
class Reproduction:
    """What came of a reproducer: ``lines`` that it printed, and where it decides nothing, why."""

    answer: Answer
    lines: tuple[str, ...] = ()
    reason: str = ""


def reproduce(report: BugReport, kernel: KernelImage, cache: Path, append: str = "") -> Reproduction:
    """Boot ``kernel`` on the machine of ``report``, run the reproducer there and return what it says.

    ``append`` are words that stand behind those that the reproducer needs. A machine that is lost decides nothing;
    where the kernel had no part in that, another one is tried. Raises InputError for what can never boot, or without a
    compiler.
    """
    wanted = report.machine
    if not report.is_for(kernel.version):
        return Reproduction(Answer.UNDECIDED, reason=f"{wanted.words} is of kernels since {wanted.since}")
    words = " ".join(filter(None, (wanted.words, append)))
    plan = MachinePlan(kernel, find_board(kernel.architecture).default_cpu, cache, words)
    machine = replace(plan.machine(MachineKind(report.memory, cleared=False)), cpus=wanted.cpus)
    program = None if report.program is None else build_static(report.program, kernel.architecture)
    try:
        found, _lost_before = try_again(partial(_boot, machine, program, wanted.reads, cache))
    except MachineLost as lost:
        return Reproduction(Answer.UNDECIDED, reason=one_line(str(lost)))
    return found


def _boot(machine: VirtualMachine, program: Path | None, reads: Mapping[str, Reading], cache: Path) -> Reproduction:
    with start_agent_machine(machine, cache) as running:
        running.await_agent()
        return compare(_read(running.channel, reads), reads) if program is None else _run(running, program)


def compare(found: Mapping[str, str], wanted: Mapping[str, Reading]) -> Reproduction:
    """Return what it means that the files of ``wanted`` hold what was ``found``: all right, all wrong, or nothing."""
    lines = [
        f"{file}: expected {reading.right}, found {found.get(file, 'no such file')}" for file, reading in wanted.items()
    ]
    words = {file: found.get(file, "").split() for file in wanted}
    if all(reading.right in words[file] for file, reading in wanted.items()):
        return Reproduction(Answer.RIGHT, tuple(lines))
    if all(reading.wrong in words[file] for file, reading in wanted.items()):
        return Reproduction(Answer.BUG, tuple(lines))
    return Reproduction(Answer.UNDECIDED, tuple(lines), "that is neither right nor what the bug makes of it")


def _read(channel: AgentChannel, files: Mapping[str, Reading]) -> dict[str, str]:
    answers = channel.ask_many([("r", (f"/{file}",)) for file in files])
    return {
        file: one_line(answer[0].decode(errors="replace"))
        for file, answer in zip(files, answers, strict=True)
        if not isinstance(answer, OSError)
    }


def _run(running: RunningMachine, program: Path) -> Reproduction:
    channel, content = running.channel, program.read_bytes()
    for offset in range(0, len(content), _PIECE):
        channel.ask("f", _PROGRAM, offset, content[offset : offset + _PIECE])
    channel.ask("c", _PROGRAM, "700")
    channel.ask("w", "/proc/sys/kernel/printk", _QUIET)
    channel.ask("w", _CONSOLE, f"\n{_MARK}\n".encode())
    status = _wait(channel, int(channel.ask("a", _PROGRAM)[1]))
    channel.ask("w", _CONSOLE, f"\n{_MARK}\n".encode())
    printed = [line.strip() for line in _printed(running).splitlines()]
    lines = tuple(line for line in printed if line and not _OF_THE_KERNEL.match(line))
    if status is None:
        return Reproduction(Answer.UNDECIDED, lines, f"it has not ended after {_RUN_SECONDS:g} s")
    code = os.waitstatus_to_exitcode(status)
    if code in (Answer.RIGHT, Answer.BUG):
        return Reproduction(Answer(code), lines)
    why = lines[-1] if code == Answer.UNDECIDED and lines else f"it ended with exit code {code}"
    return Reproduction(Answer.UNDECIDED, lines, why)


def _wait(channel: AgentChannel, pid: int) -> int | None:
    """Wait until the process ``pid`` has ended and return its status as of wait(2), None when it does not end."""
    deadline = time.monotonic() + _RUN_SECONDS
    while time.monotonic() < deadline:
        fields = split_stat(channel.ask("r", f"/proc/{pid}/stat")[0].decode(errors="replace"))
        if fields[STATE] == "Z":
            return int(fields[_STATUS])
        time.sleep(_POLL_SECONDS)
    return None


def _printed(running: RunningMachine) -> str:
    """Return what the console has between the marks, when the second one has come."""
    deadline = time.monotonic() + _PRINT_SECONDS
    while (pieces := running.serial.split(_MARK))[2:] == [] and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    return pieces[1] if len(pieces) > 1 else ""
