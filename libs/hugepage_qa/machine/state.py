"""The run-time state of a machine: all that a run may change and that a reboot resets."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hugepage_qa.kernel.mounts import Mount, read_mounts
from hugepage_qa.kernel.sysvipc import Segment, read_segments
from hugepage_qa.kernel.tree import DirectoryTree
from hugepage_qa.machine.cgroups import find_cgroups, read_subtree_control
from hugepage_qa.machine.knobs import read_knobs
from hugepage_qa.machine.marks import KEY_PREFIX


@dataclass(frozen=True)
class MachineState:
    """What a machine shows: ``knobs`` is path to value, ``subtree_control`` mount point to controllers.

    ``cgroups`` are the directories of our cgroups, ``segments`` the System V segments with our prefix.
    """

    knobs: Mapping[str, str]
    mounts: tuple[Mount, ...]
    cgroups: tuple[str, ...]
    subtree_control: Mapping[str, str]
    segments: tuple[Segment, ...]

    @classmethod
    def read(cls, root: Path = Path("/")) -> "MachineState":
        """Return the state of the machine below ``root``. Raises InputError for a kernel file of an unknown form."""
        return cls(
            knobs={knob.path: value for knob, value in read_knobs(root).items()},
            mounts=read_mounts(DirectoryTree(root)),
            cgroups=find_cgroups(root),
            subtree_control=read_subtree_control(root),
            segments=find_segments(root),
        )

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "MachineState":
        """Return the state in a part of a journal that its schema allows."""
        return cls(
            knobs=document["knobs"],
            mounts=tuple(Mount(**mount) for mount in document["mounts"]),
            cgroups=tuple(document["cgroups"]),
            subtree_control=document["subtree_control"],
            segments=tuple(Segment(**segment) for segment in document["segments"]),
        )


def find_segments(root: Path = Path("/")) -> tuple[Segment, ...]:
    """Return the System V segments whose key has our prefix. Raises InputError for a malformed line."""
    segments = read_segments(DirectoryTree(root))
    return tuple(segment for segment in segments if segment.key >> 16 == KEY_PREFIX)
