"""The QEMU process of a machine, found by the lock that QEMU keeps on its pid file.

A pid in a file may long belong to somebody else; the kernel names the process that holds a lock now.
"""

import fcntl
import os
import struct
from contextlib import suppress
from pathlib import Path

from hugepage_qa.process.child import RunningProcess

# struct flock of 64-bit Linux: l_type, l_whence, l_start, l_len, l_pid
_FLOCK = "hhqqi4x"
_GONE_SECONDS = 30.0


def running_pid(pid_file: Path) -> int | None:
    """Return the process id of the QEMU that holds ``pid_file``, None when none runs."""
    try:
        file = os.open(pid_file, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        question = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, question))
    finally:
        os.close(file)
    return None if kind == fcntl.F_UNLCK else pid


def kill(pid_file: Path) -> None:
    """End the QEMU that holds ``pid_file`` as a power cut would, and wait until it is gone."""
    pid = running_pid(pid_file)
    if pid is None:
        return
    with suppress(ProcessLookupError), RunningProcess(pid) as process:
        # the pid may have passed to another process before it was held
        if running_pid(pid_file) == pid:
            process.kill()
            process.wait(_GONE_SECONDS)
