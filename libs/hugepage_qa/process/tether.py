"""The child's side of child.py: ``python -I -S tether.py SETTINGS PROGRAM ARGUMENTS...``, with the settings in JSON.

This process prepares itself and becomes the program. prctl(PR_SET_PDEATHSIG) makes the kernel send the program a signal
when its parent ends, even by SIGKILL: QEMU 7.2 has no such option, and it does not notice that its standard input or
output is gone. The call has to be made in the child; Popen(preexec_fn=...) would make it in a forked copy of a process
with threads, which may deadlock. So this file is the child. It imports nothing of the suite.

"Parent" is the thread that forked: whoever starts the program must stay in that thread until it ends.
"""

import ctypes
import errno
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

# linux/prctl.h, linux/sched.h, linux/mount.h
_PR_SET_PDEATHSIG = 1
_CLONE_NEWNS = 0x00020000
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000
_MNT_DETACH = 2
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_OPEN_TREE_CLONE, _MOVE_MOUNT_F_EMPTY_PATH = 1, 4
# those since Linux 5.0 have one number on all architectures (include/uapi/asm-generic/unistd.h)
_SYS_OPEN_TREE, _SYS_MOVE_MOUNT = 428, 429
_CGROUPS = ("cgroup", "cgroup2")

_LIBC = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Become the program; exit code 126 when this process cannot be prepared, 127 when it cannot be started."""
    # Python ignores or catches them, a shell that starts us in the background has us ignore SIGINT, and an ignored
    # signal stays ignored across exec
    for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    settings, command = json.loads(sys.argv[1]), sys.argv[2:]
    try:
        environment = _given_environment()
        _prepare(settings)
    except OSError as error:
        print(f"{command[0]}: {error.filename or 'its start'}: {error.strerror}", file=sys.stderr)  # noqa: T201
        sys.exit(126)
    if os.getppid() != settings["parent"]:
        # the parent died before the call: nobody would ever stop us
        sys.exit("the parent is gone")
    try:
        os.execvpe(command[0], command, environment)  # noqa: S606 - no shell is wanted
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)  # noqa: T201
        sys.exit(127)


def _given_environment() -> dict[bytes, bytes]:
    """Return the environment without what Python adds to its own where there is no locale (PEP 538)."""
    entries = Path("/proc/self/environ").read_bytes().split(b"\0")
    return dict(entry.split(b"=", 1) for entry in entries if b"=" in entry)


def _prepare(settings: dict[str, Any]) -> None:
    """Be where, and who, the program is to be. Raises OSError."""
    if settings["control_group"] is not None:
        # before the program has memory: what was charged elsewhere stays charged there
        Path(settings["control_group"], "cgroup.procs").write_text(f"{os.getpid()}\n", encoding="ascii")
    mounts = settings["mounts"]
    if mounts is not None:
        if mounts["namespace"] is None:
            _make_namespace(mounts["hidden"], mounts["kept"], mounts["bound"], mounts["pages"])
        else:
            _check(_LIBC.setns(mounts["namespace"], _CLONE_NEWNS))
        os.chdir("/")
    if settings["user"] is not None:
        os.setgroups([])
        os.setgid(settings["user"])
        os.setuid(settings["user"])
    # last: a change of user forgets it
    _check(_LIBC.prctl(_PR_SET_PDEATHSIG, settings["death_signal"], 0, 0, 0))


def _make_namespace(hidden: list[str], kept: list[str], bound: dict[str, str], pages: list[str] | None) -> None:
    _check(_LIBC.unshare(_CLONE_NEWNS))
    _mount("none", "/", "", _MS_REC | _MS_PRIVATE)
    if pages is not None:
        # before a clone has them, too
        _unmount_pages(lambda point: point not in pages)
    # what lies below a hidden directory is listed on, where nobody finds it: a clone takes its place
    clones = {directory: _cloned(directory) for directory in kept}
    # a daemon that reads of a hugetlbfs, and does not find it, does not come up (virFileGetHugepageSize())
    _unmount_pages(lambda point: any(map(Path(point).is_relative_to, hidden)))
    for directory in hidden:
        if Path(directory).is_dir():
            _mount("hugepage-qa", directory, "tmpfs", 0, "mode=755")
    for directory, clone in clones.items():
        if not Path(directory).is_dir():
            Path(directory).mkdir(parents=True)
            _move(clone, directory)
        os.close(clone)
    for target, source in bound.items():
        Path(target).touch()
        _mount(source, target, "", _MS_BIND)
    _hide_cgroups()


def _cloned(directory: str) -> int:
    """Return an open copy of a directory and what is mounted in it, which is in no namespace (open_tree(2))."""
    flags = _OPEN_TREE_CLONE | _AT_RECURSIVE | os.O_CLOEXEC
    clone = _LIBC.syscall(_SYS_OPEN_TREE, _AT_FDCWD, directory.encode(), flags)
    _check(clone, directory)
    return int(clone)


def _move(clone: int, directory: str) -> None:
    flags = _MOVE_MOUNT_F_EMPTY_PATH
    _check(_LIBC.syscall(_SYS_MOVE_MOUNT, clone, b"", _AT_FDCWD, directory.encode(), flags), directory)


def _unmount_pages(is_unwanted: Callable[[str], bool]) -> None:
    """Unmount each hugetlbfs whose place is unwanted, in this namespace alone."""
    for _source, point, kind, *_rest in reversed(_mounts()):
        if kind == "hugetlbfs" and is_unwanted(point):
            _check(_LIBC.umount2(point.encode(), _MNT_DETACH), point)


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
    _check(_LIBC.mount(*arguments), target)


def _check(result: int, path: str | None = None) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)


if __name__ == "__main__":
    main()
