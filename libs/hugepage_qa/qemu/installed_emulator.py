"""The emulator that is installed for an architecture, and what it says that it has.

Distributions build QEMU with as much of it as they support. RHEL and its relatives have one for the architecture of
the machine alone, outside of PATH, with machine types of their own and few devices: nothing of it is taken for granted.
"""

import enum
import json
import os
import platform
import re
import shutil
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path

from hugepage_qa.errors import InputError
from hugepage_qa.process.child import complaint, run_to_end
from hugepage_qa.qemu.boards import Board

#: the environment variable that names the emulator of this machine's own architecture
VARIABLE = "HUGEPAGE_QA_QEMU"

#: of this machine's own architecture: that of RHEL, and that of others, which may be a link or a script
_NATIVE = ("/usr/libexec/qemu-kvm", "/usr/bin/qemu-kvm")
_NATIVE_RPM = "qemu-kvm-core"
_ANSWER_SECONDS = 60.0
_LISTED = 8


class NotOffered(InputError):
    """The emulator that is installed has not all that a machine is made of; the message names both."""


def find_emulator(board: Board) -> str:
    """Return the path of the emulator of ``board``; InputError names the package to install."""
    path = installed_emulator(board)
    if path is None:
        own = f" nor {' nor '.join(_NATIVE)}" if _is_native(board) else ""
        raise InputError(
            f"{board.qemu} is not installed{own}: install {board.debian_qemu} (Debian) or {rpm_package(board)} (RPM)"
        )
    return path


def installed_emulator(board: Board) -> str | None:
    """Return the absolute path of the emulator of ``board``, None where none is installed.

    For the architecture of this machine ``VARIABLE`` names it. Raises InputError when it names none.
    """
    named = os.environ.get(VARIABLE) if _is_native(board) else None
    names = (named,) if named else (board.qemu, *(_NATIVE if _is_native(board) else ()))
    found = next((str(Path(path).absolute()) for name in names if (path := shutil.which(name))), None)
    if named and found is None:
        raise InputError(f"{VARIABLE}={named}: no such program; expected an emulator, such as {_NATIVE[0]}")
    return found


def rpm_package(board: Board) -> str:
    """Return the RPM package with the emulator of ``board``; of its own architecture RHEL and Fedora name it alike."""
    return _NATIVE_RPM if _is_native(board) else board.rpm_qemu


def _is_native(board: Board) -> bool:
    return board.architecture == platform.machine()


class Part(enum.Enum):
    """What a machine is made of, by the option of QEMU that names it."""

    MACHINE = "machine"
    CPU = "cpu"
    ACCELERATOR = "accel"
    DEVICE = "device"


#: a line of the option's help; up to QEMU 9 some architectures put a word of their own before the name of a CPU
_LINES = {
    Part.MACHINE: re.compile(r"^(?!Supported machines)(\S+) ", re.MULTILINE),
    Part.CPU: re.compile(r"^(?!Available CPUs)(?:x86 |s390 |PowerPC )? *(\S+)", re.MULTILINE),
    Part.ACCELERATOR: re.compile(r"^(\S+)$", re.MULTILINE),
    Part.DEVICE: re.compile(r'(?:^name|, alias) "([^"]+)"', re.MULTILINE),
}


@cache
def offered(emulator: str, part: Part) -> tuple[str, ...]:
    """Return the names that ``emulator`` lists, in its order. Raises InputError when it lists nothing."""
    try:
        done = run_to_end([emulator, f"-{part.value}", "help"], seconds=_ANSWER_SECONDS)
    except OSError as error:
        raise InputError(f"{emulator}: {error}") from error
    names = tuple(_LINES[part].findall(done.stdout))
    if done.returncode != 0 or not names:
        raise InputError(f"{emulator} -{part.value} help: expected a list, it says: {complaint(done)}")
    return names


def expect_offered(emulator: str, arguments: Sequence[str]) -> None:
    """Raise NotOffered unless ``emulator`` has every machine, CPU, accelerator and device of ``arguments``.

    What it has is asked once; what it does with properties of them is not known.
    """
    for option, value in pairwise(arguments):
        part = next((one for one in Part if option == f"-{one.value}"), None)
        if part is not None:
            expect_part(emulator, part, _name_in(value))


def expect_part(emulator: str, part: Part, name: str) -> None:
    """Raise NotOffered unless ``emulator`` has the ``part`` called ``name``."""
    names = offered(emulator, part)
    if name not in names:
        few = ", ".join(names) if len(names) <= _LISTED else f"{', '.join(names[:_LISTED])} and others"
        raise NotOffered(f"{emulator} has no -{part.value} {name}: it has {few}")


def _name_in(value: str) -> str:
    """Return what ``value`` of an option is a kind of: ``q35,memory-backend=ram`` -> ``q35``; devices may be JSON."""
    return str(json.loads(value)["driver"]) if value.startswith("{") else value.partition(",")[0]
