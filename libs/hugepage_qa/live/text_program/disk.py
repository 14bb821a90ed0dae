"""A directory on a disk: text of a tmpfs is shared memory, which becomes huge by other rules (shmem_enabled, huge=)."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

from hugepage_qa.errors import InputError
from hugepage_qa.kernel.filesystems import read_disk_filesystems
from hugepage_qa.kernel.mounts import find_mount
from hugepage_qa.kernel.tree import Tree
from hugepage_qa.lab.cache import cache_directory
from hugepage_qa.live.outcomes import CannotRun
from hugepage_qa.machine.marks import PREFIX

_KEPT_OVER_BOOTS = Path("/var/tmp")  # noqa: S108 - only a directory of our own is made there


def find_disk(scratch: Path, tree: Tree, stack: ExitStack) -> Path:
    """Return ``scratch``, or where that is on no disk a directory that is until ``stack`` ends.

    Programs can be started there. Raises CannotRun where there is none.
    """
    refused = []
    for directory in (scratch, *_elsewhere()):
        place = directory.resolve()
        why = _why_not(place, tree)
        if why:
            refused.append(f"{place} {why}")
        elif directory == scratch:
            return scratch
        else:
            made = Path(tempfile.mkdtemp(prefix=f"{PREFIX}text-", dir=place))
            stack.callback(shutil.rmtree, made)
            return made
    raise CannotRun(f"no directory for programs is on a disk: {', '.join(refused)}")


def _why_not(place: Path, tree: Tree) -> str | None:
    mount = find_mount(tree, str(place))
    if mount is None:
        return "is below no mount"
    if mount.type not in read_disk_filesystems(tree):
        return f"is on {mount.type}"
    return None if mount.option("noexec") is None else "is mounted noexec"


def _elsewhere() -> Iterator[Path]:
    with suppress(InputError):
        yield cache_directory()
    yield _KEPT_OVER_BOOTS
