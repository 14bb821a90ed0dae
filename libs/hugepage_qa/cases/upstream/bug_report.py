"""Reports of kernel bugs for upstream: a text, and a reproducer that needs nothing of this suite.

``reports/NAME``, where NAME is that of the known issue, has

report.md         the text; its first line is the subject of the mail
reproducer.c      a program whose exit code is an ``Answer``; or, for a bug of boot parameters, ``reads`` in
reproducer.yaml   the machine that shows it: memory of its nodes, words of its command line, the kernel version that
                  these came with, and what files read afterwards on a kernel that is right, and on one with the bug
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from hugepage_qa.errors import InputError
from hugepage_qa.schema import build, find_violation
from hugepage_qa.sizes import parse_memory
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
    file, below the root.
    """

    memory: str
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


def bug_reports(directory: Path = DIRECTORY) -> dict[str, BugReport]:
    """Return name -> report of all that are in ``directory``, by name."""
    return {path.name: BugReport(path.name, path) for path in sorted(directory.iterdir()) if path.is_dir()}
