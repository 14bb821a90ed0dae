"""Run a program in a mount namespace of its own: ``python private_namespace.py JSON PROGRAM ARGUMENTS...``.

What it writes into the directories ``hidden`` is in memory and gone with the last process in the namespace, even after
SIGKILL. The directories ``kept`` stay visible where they are, with what is mounted in them; ``bound`` maps files to
those that replace them. With ``namespace``, an open file descriptor, the program enters that one instead. Control
groups cannot be seen. The program cannot outlive ``parent``. This file imports nothing of the suite.
"""

import ctypes
import errno
import json
import os
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_CLONE_NEWNS = 0x00020000
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000
_MNT_DETACH = 2
_CGROUPS = ("cgroup", "cgroup2")

_LIBC = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Prepare this process and become the program; exit code 126 when that fails."""
    wishes, command = json.loads(sys.argv[1]), sys.argv[2:]
    try:
        _check(_LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
        if os.getppid() != wishes["parent"]:
            sys.exit("the parent is gone")
        if wishes["namespace"] is None:
            _make_namespace(wishes["hidden"], wishes["kept"], wishes["bound"])
        else:
            _check(_LIBC.setns(wishes["namespace"], _CLONE_NEWNS))
        os.chdir("/")
        os.execve(command[0], command, wishes["environment"])  # noqa: S606 - no shell is wanted
    except OSError as error:
        print(f"{command[0]}: {error.filename or 'mount namespace'}: {error.strerror}", file=sys.stderr)  # noqa: T201
        sys.exit(126)


def _make_namespace(hidden: list[str], kept: list[str], bound: dict[str, str]) -> None:
    _check(_LIBC.unshare(_CLONE_NEWNS))
    _mount("none", "/", "", _MS_REC | _MS_PRIVATE)
    _unmount_hidden_pages(hidden, kept)
    seen = {directory: os.open(directory, os.O_PATH | os.O_DIRECTORY) for directory in kept}
    for directory in hidden:
        if Path(directory).is_dir():
            _mount("hugepage-qa", directory, "tmpfs", 0, "mode=755")
    for directory, descriptor in seen.items():
        if not Path(directory).is_dir():
            Path(directory).mkdir(parents=True)
            _mount(f"/proc/self/fd/{descriptor}", directory, "", _MS_BIND | _MS_REC)
        os.close(descriptor)
    for target, source in bound.items():
        Path(target).touch()
        _mount(source, target, "", _MS_BIND)
    _hide_cgroups()


def _unmount_hidden_pages(hidden: list[str], kept: list[str]) -> None:
    """A daemon that reads of a hugetlbfs, and does not find it, does not come up (virFileGetHugepageSize())."""
    for _source, point, kind, *_rest in reversed(_mounts()):
        below = Path(point).is_relative_to
        if kind == "hugetlbfs" and any(map(below, hidden)) and not any(map(below, kept)):
            _check(_LIBC.umount2(point.encode(), _MNT_DETACH))


def _mounts() -> list[list[str]]:
    return [line.split(" ") for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()]


def _hide_cgroups() -> None:
    """A daemon that finds a hierarchy makes groups for its guests there, which nobody removes after SIGKILL."""
    for _source, point, kind, *_rest in reversed(_mounts()):
        # one that lies below another mount cannot be reached, neither by us (EINVAL) nor by the daemon
        if kind in _CGROUPS and _LIBC.umount2(point.encode(), _MNT_DETACH) != 0 and ctypes.get_errno() != errno.EINVAL:
            _check(-1)


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    arguments = (source.encode(), target.encode(), kind.encode(), flags, options.encode())
    if _LIBC.mount(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), target)


def _check(result: int) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    main()
