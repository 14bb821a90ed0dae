"""A system machine that ends with the process that it is for, and not only when that process comes to its end."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# QEMU is a daemon: nothing ties it to who started it. The end of our side of the pipe does, even after SIGKILL.
_WAIT_AND_BECOME = 'cat; exec "$@"'


@contextmanager
def removed_at_the_end(name: str) -> Iterator[None]:
    """Remove the machine ``name`` at the end of the block, or of this process. Enter it before the machine is made."""
    remove = [sys.executable, "-m", "hugepage_qa", "lab", "down", name]
    command = ["sh", "-c", _WAIT_AND_BECOME, "sh", *remove]
    # a session of its own: what ends the tests, make or a terminal, may send its signal to all in theirs
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True):
        yield
