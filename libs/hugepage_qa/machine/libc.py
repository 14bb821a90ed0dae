"""System calls that Python has no function for, tried again while a mount or a cgroup stays busy for a moment."""

import ctypes
import errno
import os
import time
from collections.abc import Callable

from hugepage_qa.kernel.uapi import CLONE_NEWIPC

# linux/fs.h, linux/ipc.h
_UMOUNT_NOFOLLOW = 8
_IPC_RMID = 0

_LIBC = ctypes.CDLL(None, use_errno=True)


def mount(file_system: str, point: str, options: str) -> None:
    """Mount ``file_system`` on the directory ``point`` (mount(2)). Raises OSError."""
    words = [os.fsencode(word) for word in ("hugepage-qa", point, file_system)]
    _check(_LIBC.mount(*words, 0, os.fsencode(options)), point)


def unmount(point: str) -> None:
    """Unmount what is mounted last on ``point``, which must be no symbolic link (umount2(2)). Raises OSError."""
    _check(_LIBC.umount2(os.fsencode(point), _UMOUNT_NOFOLLOW), point)


def remove_segment(identifier: int) -> None:
    """Remove a System V shared memory segment; it goes when the last process detaches (shmctl(2)). Raises OSError."""
    _check(_LIBC.shmctl(identifier, _IPC_RMID, None), f"segment {identifier}")


def have_own_segments() -> None:
    """Have this thread, and what it starts, see no System V segments but its own, which go with the last of them.

    Raises OSError for those without rights, and on a kernel without CONFIG_IPC_NS (unshare(2)).
    """
    _check(_LIBC.unshare(CLONE_NEWIPC), "System V segments")


def swap_on(file: str) -> None:
    """Have the kernel swap to ``file``, with the lowest priority (swapon(2)). Raises OSError."""
    _check(_LIBC.swapon(os.fsencode(file), 0), file)


def swap_off(file: str) -> None:
    """Bring back what was swapped to ``file`` and swap to it no more (swapoff(2)). Raises OSError."""
    _check(_LIBC.swapoff(os.fsencode(file)), file)


def _check(result: int, subject: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), subject)


# seconds and not tries: on a loaded machine the moment is long
BUSY_SECONDS = 30.0
_PAUSE_SECONDS = 0.02


def retry_while_busy(removal: Callable[[], object], seconds: float = BUSY_SECONDS) -> None:
    """Call ``removal`` until the kernel no longer answers EBUSY, for ``seconds``. Raises OSError."""
    deadline = time.monotonic() + seconds
    while True:
        # before the call: one that was kept from running for so long tries once more
        is_last = time.monotonic() > deadline
        try:
            removal()
        except OSError as error:
            if error.errno != errno.EBUSY or is_last:
                raise
        else:
            return
        time.sleep(_PAUSE_SECONDS)
