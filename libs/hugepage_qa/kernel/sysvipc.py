"""System V shared memory segments (/proc/sysvipc/shm, sysvipc_shm_proc_show() in ipc/shm.c)."""

from dataclasses import dataclass

from hugepage_qa.kernel.tree import Tree
from hugepage_qa.kernel.values import malformed, parse_integer

PATH = "proc/sysvipc/shm"

_KEY_MASK = 0xFFFFFFFF


@dataclass(frozen=True)
class Segment:
    """A segment: its key as an unsigned number of 32 bits, and the identifier that shmctl(2) takes."""

    key: int
    identifier: int


def read_segments(tree: Tree) -> tuple[Segment, ...]:
    """Return the segments of the machine; empty without System V IPC. Raises InputError for a malformed line."""
    lines = (tree.read(PATH) or "").splitlines()[1:]
    return tuple(_parse(line, number) for number, line in enumerate(lines, start=2))


def _parse(line: str, number: int) -> Segment:
    fields = line.split()
    if len(fields) < 2:  # noqa: PLR2004 - key and identifier
        malformed(PATH, number, line, "key and identifier of a segment")
    key, identifier = (parse_integer(field, PATH, number) for field in fields[:2])
    return Segment(key & _KEY_MASK, identifier)
