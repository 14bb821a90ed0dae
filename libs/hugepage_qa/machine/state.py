"""The run-time state of a machine: all that a run may change and that a reboot resets."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hugepage_qa.kernel.mounts import Mount, read_mounts
from hugepage_qa.kernel.sysvipc import Segment, read_segments
from hugepage_qa.kernel.tree import DirectoryTree
from hugepage_qa.machine.cgroups import find_cgroups, read_hugetlb_control
from hugepage_qa.machine.hierarchies import read_hierarchies
from hugepage_qa.machine.knobs import knob_name, read_knobs
from hugepage_qa.machine.marks import KEY_PREFIX


@dataclass(frozen=True)
class MachineState:
    """What a machine shows: ``knobs`` is path to value.

    ``cgroups`` are the directories of our cgroups, ``segments`` the System V segments with our prefix;
    ``hierarchies`` are the controllers that a version 1 hierarchy has; ``hugetlb_control`` tells for the mount point of
    a version 2 hierarchy whether its root hands hugetlb down.
    """

    knobs: Mapping[str, str]
    mounts: tuple[Mount, ...]
    cgroups: tuple[str, ...]
    hierarchies: tuple[str, ...]
    hugetlb_control: Mapping[str, bool]
    segments: tuple[Segment, ...]

    @classmethod
    def read(cls, root: Path = Path("/")) -> "MachineState":
        """Return the state of the machine below ``root``. Raises InputError for a kernel file of an unknown form."""
        return cls(
            knobs={knob.path: value for knob, value in read_knobs(root).items()},
            mounts=read_mounts(DirectoryTree(root)),
            cgroups=find_cgroups(root),
            hierarchies=read_hierarchies(root),
            hugetlb_control=read_hugetlb_control(root),
            segments=find_segments(root),
        )

    def values(self) -> dict[str, str]:
        """Return subject -> value, each in words that a person can compare."""
        return {
            **{knob_name(path): value for path, value in self.knobs.items()},
            **{f"mount {mount.point}": f"{mount.type} {mount.options}" for mount in self.mounts},
            **{f"cgroup {path}": "a directory" for path in self.cgroups},
            **{f"control groups of {controller}": "a hierarchy of version 1" for controller in self.hierarchies},
            **{f"hugetlb in {point}": describe_control(value) for point, value in self.hugetlb_control.items()},
            **{f"shared memory 0x{one.key:08x}": f"segment {one.identifier}" for one in self.segments},
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "MachineState":
        """Return the state in a part of a journal that its schema allows."""
        return cls(
            knobs=document["knobs"],
            mounts=tuple(Mount(**mount) for mount in document["mounts"]),
            cgroups=tuple(document["cgroups"]),
            hierarchies=tuple(document["hierarchies"]),
            hugetlb_control=document["hugetlb_control"],
            segments=tuple(Segment(**segment) for segment in document["segments"]),
        )


def describe_control(handed_down: bool) -> str:
    """Return in words what ``read_hugetlb_control`` tells of one hierarchy."""
    return "handed down" if handed_down else "not handed down"


def find_segments(root: Path = Path("/")) -> tuple[Segment, ...]:
    """Return the System V segments whose key has our prefix. Raises InputError for a malformed line."""
    segments = read_segments(DirectoryTree(root))
    return tuple(segment for segment in segments if segment.key >> 16 == KEY_PREFIX)
