"""The faults that can be seeded into a kernel, as the files in faults/ describe them."""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from ci.seeded_kernel.source_edits import Edit, Place, compile_anchor

from hugepage_qa.errors import InputError
from hugepage_qa.schema import build, find_violation
from hugepage_qa.version import KernelVersion

DIRECTORY = Path(__file__).with_name("faults")
#: those that no case of the suite is to find: all is right and takes longer. They have no proof but that
LONGER_PATHS = Path(__file__).with_name("longer_paths")
#: fixes of known bugs, in the form of faults: what reports for upstream suggest. Their reproducers are the proof
SUGGESTED_FIXES = Path(__file__).with_name("suggested_fixes")
_WITHOUT_PROOF = (LONGER_PATHS, SUGGESTED_FIXES)
#: the files are long: that of libyaml takes a tenth of the time, where PyYAML was built with it
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class EditOfVersions:
    """An edit as it is written: one of ``before``, ``after`` and ``instead`` is its anchor.

    It is made in kernels from ``since`` on and before ``below``.
    """

    files: tuple[str, ...]
    functions: tuple[str, ...]
    code: str
    before: str = ""
    after: str = ""
    instead: str = ""
    number: int | None = None
    since: str = ""
    below: str = ""

    def is_for(self, version: KernelVersion) -> bool:
        """Tell whether it is made in kernels of ``version``."""
        if self.since and version < KernelVersion.parse(self.since):
            return False
        return not self.below or version < KernelVersion.parse(self.below)


@dataclass(frozen=True)
class Proof:
    """What shows that a fault acts: the body of a C function that prints what it sees.

    The fault is live where it prints something else than on the healthy kernel; one without a proof has no program.
    With ``words`` of the kernel command line two boots are compared, without them the fault is switched on while the
    machine runs.
    """

    program: str = ""
    words: str = ""


@dataclass(frozen=True)
class Fault:
    """A small bug of a kernel; ``breaks`` is what a report of it would say.

    ``found_in`` are the areas of the suite where it should be seen; ``absent`` has version -> why kernels of that
    version cannot have it. ``area`` is the name of the file that it is in.
    """

    name: str
    breaks: str
    found_in: tuple[str, ...]
    edits: tuple[EditOfVersions, ...]
    proof: Proof = Proof()
    absent: Mapping[str, str] = field(default_factory=dict)
    area: str = ""

    def edits_for(self, version: KernelVersion) -> list[Edit]:
        """Return what seeds it into a kernel of ``version``; nothing where it is absent."""
        branch = f"{version.major}.{version.minor}"
        if branch in self.absent:
            return []
        return [_edit(self.name, edit) for edit in self.edits if edit.is_for(version)]

    @property
    def digest(self) -> str:
        """What changes with what it does to a kernel."""
        return hashlib.sha256(repr(self.edits).encode()).hexdigest()[:16]


def _edit(fault: str, edit: EditOfVersions) -> Edit:
    place = next(place for place in Place if getattr(edit, place.value))
    return Edit(fault, edit.files, edit.functions, place, getattr(edit, place.value), edit.code, edit.number)


def read_faults(directory: Path = DIRECTORY) -> tuple[Fault, ...]:
    """Return all faults of the files in ``directory``, by area and as they are written there.

    Raises InputError, which names file, fault and what is wrong.
    """
    files = sorted(directory.glob("*.yaml"))
    if not files:
        raise InputError(f"{directory}: no file with faults; expected AREA.yaml")
    faults = tuple(fault for file in files for fault in _read_file(file))
    names = [fault.name for fault in faults]
    for fault in faults:
        if names.count(fault.name) > 1:
            raise InputError(f"{directory}: two faults are named {fault.name}")
    return faults


def choose(faults: Sequence[Fault], names: Sequence[str]) -> tuple[Fault, ...]:
    """Return those of ``faults`` that are named, all where none is. Raises InputError for a name that none has."""
    for name in names:
        if name not in (fault.name for fault in faults):
            raise InputError(f"fault {name}: expected the name of a fault in {DIRECTORY}")
    return tuple(fault for fault in faults if not names or fault.name in names)


def _read_file(file: Path) -> Iterator[Fault]:
    try:
        document: Any = yaml.load(file.read_text(encoding="utf-8"), _LOADER)  # noqa: S506 - a safe one
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise InputError(f"{file}: cannot be read: {' '.join(str(error).split())}") from error
    if violation := find_violation(document, __package__, "faults"):
        raise InputError(f"{file}: {violation}")
    for entry in document:
        _check_edits(file, entry)
        if ("proof" in entry) == (file.parent in _WITHOUT_PROOF):
            without = " and ".join(directory.name for directory in _WITHOUT_PROOF)
            raise InputError(f"{file}: {entry['name']}: expected a proof of all faults but those of {without}")
        yield build(Fault, entry | {"area": file.stem})


def _check_edits(file: Path, entry: Mapping[str, Any]) -> None:
    """Raise InputError for an edit that no condition guards, or whose anchor is no regular expression."""
    for edit in entry["edits"]:
        where = f"{file}: {entry['name']}"
        if not re.search(r"\bSEEDED\b", edit["code"]):
            raise InputError(f"{where}: expected SEEDED in {edit['code']!r}, it would act on a healthy kernel, too")
        anchor = next(edit[place.value] for place in Place if place.value in edit)
        try:
            compile_anchor(anchor)
        except re.error as error:
            raise InputError(f"{where}: {anchor!r} is no regular expression: {error}") from error
