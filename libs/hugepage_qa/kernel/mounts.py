"""Mounts (/proc/self/mounts) as far as huge pages are concerned, and the huge= option of tmpfs."""

import re
from dataclasses import dataclass
from pathlib import Path

from hugepage_qa.kernel.tree import Tree
from hugepage_qa.kernel.values import malformed

#: where a probe machine mounts a tmpfs without options, to see what huge= it gets
TMPFS = "/tmp"  # noqa: S108 - a mount point, no file is made there

#: of this process
MOUNTS = "proc/self/mounts"

_FIELDS = 4
_ESCAPE = re.compile(r"\\([0-7]{3})")
_ALL_FIELDS = 6  # the same as in fstab(5)


@dataclass(frozen=True)
class Mount:
    """A mounted file system: where, of which type, and its options as the kernel shows them."""

    point: str
    type: str
    options: str

    def option(self, name: str) -> str | None:
        """Return the value of the option ``name``, empty for one without a value, None where it is not shown."""
        return dict(option.partition("=")[::2] for option in self.options.split(",")).get(name)


def read_mounts(tree: Tree) -> tuple[Mount, ...]:
    """Return the mounts in the order in which they were made. Raises InputError for a malformed line."""
    lines = (tree.read(MOUNTS) or "").splitlines()
    return tuple(_parse(line, number) for number, line in enumerate(lines, start=1))


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
        if len(fields) >= _FIELDS and fields[1:3] == [TMPFS, "tmpfs"]:
            policy = huge_policy(Mount(*fields[1:4]))
    return policy


def huge_policy(tmpfs: Mount) -> str:
    """Return the huge= policy of a mounted tmpfs.

    shmem_show_options() in mm/shmem.c prints the option unless it is ``never``.
    """
    return tmpfs.option("huge") or "never"


def _parse(line: str, number: int) -> Mount:
    fields = line.split(" ")
    if len(fields) != _ALL_FIELDS:
        malformed(MOUNTS, number, line, f"{_ALL_FIELDS} fields")
    # the kernel escapes space, tab, newline and backslash in octal
    point = _ESCAPE.sub(lambda match: chr(int(match[1], 8)), fields[1])
    return Mount(point, fields[2], fields[3])
