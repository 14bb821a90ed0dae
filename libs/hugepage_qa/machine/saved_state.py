"""What a journal holds, and its form as a text: all that a run may change and that a reboot resets."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from hugepage_qa.kernel.proc_tables import Mount, Segment, read_mounts, read_segments
from hugepage_qa.kernel.tree import DirectoryTree
from hugepage_qa.machine.cgroups import find_cgroups, read_hierarchies, read_hugetlb_control
from hugepage_qa.machine.kept_file import KeptFile
from hugepage_qa.machine.knobs import knob_name, read_knobs
from hugepage_qa.machine.run_lock import Holder
from hugepage_qa.process.marks import KEY_PREFIX
from hugepage_qa.schema import build, find_violation, parse_json


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


def describe_control(handed_down: bool) -> str:
    """Return in words what ``read_hugetlb_control`` tells of one hierarchy."""
    return "handed down" if handed_down else "not handed down"


def find_segments(root: Path) -> tuple[Segment, ...]:
    """Return the System V segments whose key has our prefix. Raises InputError for a malformed line."""
    segments = read_segments(DirectoryTree(root))
    return tuple(segment for segment in segments if segment.key >> 16 == KEY_PREFIX)


_FORMAT = "hugepage-qa journal"
_VERSION = 1


@dataclass(frozen=True)
class KeptArguments:
    """The kernel arguments of the entry that boots next, as the boot loader ``loader`` had them."""

    loader: str
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class ExpectedReboot:
    """A reboot that a case has asked for; ``arrived`` is the id of the first boot that was seen after it."""

    token: str
    arrived: str | None = None


@dataclass(frozen=True)
class Record:
    """What the journal holds.

    ``state`` is of the boot ``boot_id``; ``scratch`` names directories of the run, ``files`` and ``arguments`` are
    what a reboot does not reset.
    """

    run_id: str
    purpose: str
    holder: Holder
    boot_id: str
    state: MachineState
    scratch: tuple[str, ...] = ()
    files: tuple[KeptFile, ...] = ()
    arguments: KeptArguments | None = None
    expected_reboot: ExpectedReboot | None = None


def format_record(record: Record) -> str:
    """Return ``record`` as a text. Raises ValueError for one that could not be read again."""
    text = json.dumps({"format": _FORMAT, "version": _VERSION, **asdict(record)}, indent=1)
    # as it will be read: tuples are lists there
    violation = find_violation(json.loads(text), __package__, "journal")
    if violation is not None:
        raise ValueError(violation)
    return f"{text}\n"


def parse_record(text: str) -> Record:
    """Return the record in ``text``. Raises ValueError for one that is corrupt, foreign or of a later version."""
    try:
        document = parse_json(text)
    except ValueError as error:
        raise ValueError(f"no JSON ({error})") from error
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise ValueError("not a journal of hugepage-qa")
    version = document.get("version")
    if isinstance(version, int) and version > _VERSION:
        raise ValueError(f"written by a later hugepage-qa (version {version}, this one knows {_VERSION})")
    violation = find_violation(document, __package__, "journal")
    if violation is not None:
        raise ValueError(violation)
    return build(Record, document)
