"""The QEMU process of a machine, found by the lock that QEMU keeps on its pid file.

A pid in a file may long belong to somebody else; the kernel names the process that holds a lock now.
"""

import fcntl
import os
import select
import signal
import struct
from pathlib import Path

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
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        # the pid may have passed to another process before it was opened
        if running_pid(pid_file) == pid:
            signal.pidfd_send_signal(process, signal.SIGKILL)
            select.select([process], [], [], _GONE_SECONDS)
    finally:
        os.close(process)
