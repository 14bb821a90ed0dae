"""The parent of a program that leaves orphans: ``python -I -S subreaper.py PROGRAM ARGUMENTS...``.

An orphan that has ended is a zombie until its new parent waits for it, which is the first process of the machine, where
no ancestor asks for orphans (PR_SET_CHILD_SUBREAPER). In containers and small virtual machines that one may look only
every two seconds. libvirt, whose QEMUs are orphans, takes a guest for running so long. So this process asks for them,
waits for each as soon as it has ended, and ends with the program. It imports nothing of the suite.
"""

import ctypes
import os
import signal
import sys

# linux/prctl.h
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36

_LIBC = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Start the program and wait for all that have ended; exit code 127 when it cannot be started."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    parent = os.getpid()
    program = os.fork()
    if program == 0:
        _become(sys.argv[1:], parent)
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == program:
            code = os.waitstatus_to_exitcode(status)
            # as a shell tells of a signal
            sys.exit(code if code >= 0 else 128 - code)


def _become(command: list[str], parent: int) -> None:
    """Be the program, which ends with its ``parent``."""
    # Python ignores it, and an ignored signal stays ignored across exec
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(127)
    try:
        os.execvp(command[0], command)  # noqa: S606 - no shell is wanted
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)  # noqa: T201
        sys.stderr.flush()
        os._exit(127)


def _prctl(option: int, value: int) -> None:
    if _LIBC.prctl(option, value, 0, 0, 0) < 0:
        raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    main()
