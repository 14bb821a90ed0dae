"""Start a program that cannot outlive us: ``python tether.py PARENT PROGRAM ARGUMENTS...``.

Prctl(PR_SET_PDEATHSIG) makes the kernel kill the program when its parent ends, even by SIGKILL. QEMU
7.2 has no such option, and it does not notice that its standard input or output is gone. The call has to be made
in the child; Popen(preexec_fn=...) would make it in a forked copy of a process with threads, which may deadlock.
So this file is the child. It imports nothing of the suite.

"Parent" is the thread that forked: whoever starts the program must stay in that thread until it ends.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Tie this process to process PARENT and become PROGRAM; exit code 127 when it cannot be started."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        sys.exit(f"prctl(PR_SET_PDEATHSIG): {os.strerror(ctypes.get_errno())}")
    if os.getppid() != parent:
        # the parent died before the call: nobody would ever stop us
        sys.exit("the parent is gone")
    # Python ignores SIGPIPE, and an ignored signal stays ignored across exec
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        os.execv(command[0], command)  # noqa: S606 - no shell is wanted
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)  # noqa: T201
        sys.exit(127)


if __name__ == "__main__":
    main()
