"""The tables below /proc: mounts, file systems that the kernel knows, swaps, System V segments."""

import re
from dataclasses import dataclass
from pathlib import Path

from hugepage_qa.kernel.tree import Tree, malformed, parse_integer

#: where a probe machine mounts a tmpfs without options, to see what huge= it gets
TMPFS = "/tmp"  # noqa: S108 - a mount point, no file is made there

#: of this process
MOUNTS = "proc/self/mounts"

_TMPFS_FIELDS = 4
_ESCAPE = re.compile(r"\\([0-7]{3})")
_MOUNT_FIELDS = 6  # the same as in fstab(5)


@dataclass(frozen=True)
class Mount:
    """A mounted file system: where, of which type, and its options as the kernel shows them."""

    point: str
    type: str
    options: str

    @property
    def by_name(self) -> dict[str, str]:
        """The value of each option that is shown, empty for one without a value."""
        return dict(option.partition("=")[::2] for option in self.options.split(","))

    def option(self, name: str) -> str | None:
        """Return the value of the option ``name``, empty for one without a value, None where it is not shown."""
        return self.by_name.get(name)


def read_mounts(tree: Tree, pid: int | None = None) -> tuple[Mount, ...]:
    """Return the mounts that the process ``pid`` sees, None for ours, in the order in which they were made.

    Raises InputError for a malformed line.
    """
    lines = (tree.read(MOUNTS if pid is None else f"proc/{pid}/mounts") or "").splitlines()
    return tuple(_parse_mount(line, number) for number, line in enumerate(lines, start=1))


def find_mount(tree: Tree, path: str) -> Mount | None:
    """Return what is mounted where the absolute ``path`` without symbolic links lies, None where no mount is shown."""
    here = [mount for mount in read_mounts(tree) if Path(path).is_relative_to(mount.point)]
    # of two on one point the later one hides the other
    return max(enumerate(here), key=lambda found: (len(found[1].point), found[0]))[1] if here else None


def read_tmpfs_huge(tree: Tree) -> str | None:
    """Return the huge= policy of the tmpfs on /tmp; None without such a mount."""
    policy = None
    for line in (tree.read("proc/mounts") or "").splitlines():
        fields = line.split(" ")
        if len(fields) >= _TMPFS_FIELDS and fields[1:3] == [TMPFS, "tmpfs"]:
            policy = huge_policy(Mount(*fields[1:4]))
    return policy


def huge_policy(tmpfs: Mount) -> str:
    """Return the huge= policy of a mounted tmpfs.

    shmem_show_options() in mm/shmem.c prints the option unless it is ``never``.
    """
    return tmpfs.option("huge") or "never"


def _parse_mount(line: str, number: int) -> Mount:
    fields = line.split(" ")
    if len(fields) != _MOUNT_FIELDS:
        malformed(MOUNTS, number, line, f"{_MOUNT_FIELDS} fields")
    return Mount(_unescape(fields[1]), fields[2], fields[3])


def _unescape(path: str) -> str:
    """Return ``path`` without the kernel's escapes of space, tab, newline and backslash, which are octal."""
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), path)


def read_filesystems(tree: Tree) -> frozenset[str]:
    """Return the names of the registered file systems; empty without the file.

    hugetlbfs is missing when the kernel has no huge page size on this processor
    (init_hugetlbfs_fs() in fs/hugetlbfs/inode.c).
    """
    return frozenset(name for _nodev, name in _lines(tree))


def read_disk_filesystems(tree: Tree) -> frozenset[str]:
    """Return the names of those that need a block device: what is on a disk, and not in memory or elsewhere."""
    return frozenset(name for nodev, name in _lines(tree) if not nodev)


def _lines(tree: Tree) -> list[tuple[str, str]]:
    # "nodev\thugetlbfs" or "\text4"
    lines = (tree.read("proc/filesystems") or "").split("\n")
    return [(words[0].strip(), words[-1].strip()) for line in lines if line.strip() for words in [line.split("\t")]]


SWAPS = "proc/swaps"

_TITLE = "Filename"
_SWAP_FIELDS = 5


def read_swaps(tree: Tree) -> dict[str, int]:
    """Return the files and devices that are swapped to -> bytes used of each, none on a kernel without swap.

    Raises InputError for a malformed line.
    """
    return dict(
        _parse_swap(line, number)
        for number, line in enumerate((tree.read(SWAPS) or "").splitlines(), start=1)
        if not line.startswith(_TITLE)
    )


def _parse_swap(line: str, number: int) -> tuple[str, int]:
    fields = line.split()
    if len(fields) != _SWAP_FIELDS or not fields[0].startswith("/") or not fields[3].isdecimal():
        malformed(SWAPS, number, line, "a line such as '/swapfile file 65532 0 -2'")
    return _unescape(fields[0]), int(fields[3]) << 10


SEGMENTS = "proc/sysvipc/shm"

_KEY_MASK = 0xFFFFFFFF
_SEGMENT_FIELDS = 16


@dataclass(frozen=True)
class Segment:
    """A segment: its key as an unsigned number of 32 bits, and the identifier that shmctl(2) takes."""

    key: int
    identifier: int


def read_segments(tree: Tree) -> tuple[Segment, ...]:
    """Return the segments of the machine; empty without System V IPC. Raises InputError for a malformed line."""
    lines = (tree.read(SEGMENTS) or "").splitlines()[1:]
    return tuple(_parse_segment(line, number) for number, line in enumerate(lines, start=2))


def _parse_segment(line: str, number: int) -> Segment:
    fields = line.split()
    if len(fields) < 2:  # noqa: PLR2004 - key and identifier
        malformed(SEGMENTS, number, line, "key and identifier of a segment")
    key, identifier = (parse_integer(field, SEGMENTS, number) for field in fields[:2])
    return Segment(key & _KEY_MASK, identifier)


def read_segment_sizes(tree: Tree) -> dict[int, tuple[int, int]]:
    """Return identifier -> the size that was asked for and what of it is in memory, in bytes, of each segment.

    Raises InputError for a malformed line.
    """
    found = {}
    for number, line in enumerate((tree.read(SEGMENTS) or "").splitlines()[1:], start=2):
        fields = line.split()
        if len(fields) < _SEGMENT_FIELDS:
            malformed(SEGMENTS, number, line, f"the {_SEGMENT_FIELDS} fields of a segment")
        identifier, size, rss = (parse_integer(fields[place], SEGMENTS, number) for place in (1, 3, 14))
        found[identifier] = (size, rss)
    return found
