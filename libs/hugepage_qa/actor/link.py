"""The connection to one actor process: a request goes out as one packet, its answer comes back as one."""

import os
import select
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hugepage_qa.errors import InputError

# actor.c, PACKET
_PACKET = 65536

# clearing a page of 16 GiB takes seconds, on an emulated machine a minute
ANSWER_SECONDS = 120.0


class ActorGone(Exception):
    """The actor did not answer: it was killed (by the OOM killer, say), or its kernel does not come back."""


class ActorLink:
    """A running actor, or one that it forked. ``pid`` is its process id in our PID namespace."""

    def __init__(self, channel: socket.socket, pid: int) -> None:
        channel.settimeout(ANSWER_SECONDS)
        self._channel = channel
        self._children: list[ActorLink] = []
        self._gone = False
        self.pid = pid

    def request(self, text: str) -> tuple[str, "ActorLink | None"]:
        """Send a request (``actor.c`` says which there are); return the answer, and the child after a fork.

        Raises ActorGone when there is no answer, ValueError for a request that is too long.
        """
        if len(text) > _PACKET:
            raise ValueError(f"a request of {len(text)} bytes: an actor takes at most {_PACKET}")
        try:
            self._channel.send(text.encode())
            answer, descriptors, _flags, _address = socket.recv_fds(self._channel, _PACKET, 1)
        except OSError as error:
            raise ActorGone(f"the actor (process {self.pid}) does not answer {text[:60]!r}: {error}") from error
        if not answer:
            raise ActorGone(f"the actor (process {self.pid}) ended at {text[:60]!r}")
        return answer.decode(), self._child(answer.decode(), descriptors)

    def _child(self, answer: str, descriptors: list[int]) -> "ActorLink | None":
        if not descriptors:
            return None
        child = ActorLink(socket.socket(fileno=descriptors[0]), int(answer.split()[1]))
        self._children.append(child)
        return child

    def end(self) -> None:
        """Kill the actor and those it forked, and wait until all that they held is given back."""
        for child in self._children:
            child.end()
        self.exit()

    def exit(self) -> None:
        """Kill the actor alone, and wait until what it held is given back."""
        if self._gone:
            return  # by now its process id may be another's
        self._gone = True
        self._channel.close()
        with suppress(ProcessLookupError):
            descriptor = os.pidfd_open(self.pid)
            try:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                _wait_for_end(descriptor)
            finally:
                os.close(descriptor)


@contextmanager
def start_link(program: Path) -> Iterator[ActorLink]:
    """Start ``program`` (``build.build_actor``) and yield the connection to it; it is killed at the end.

    Raises InputError when it cannot be started.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        with theirs:
            child = _start(program, theirs)
        link = ActorLink(ours, child.pid)
        try:
            yield link
        finally:
            link.end()
            child.wait()


def _start(program: Path, standard_input: socket.socket) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen([str(program), str(os.getpid())], stdin=standard_input.fileno(), start_new_session=True)
    except OSError as error:
        # says nothing of the kernel under test
        raise InputError(
            f"{program}: {error.strerror}: expected a file system that is not mounted with noexec"
        ) from error


def _wait_for_end(descriptor: int) -> None:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    poll.poll(ANSWER_SECONDS * 1000)
    # a process that nobody has waited for is still in its control group; those that an actor forked are not ours
    with suppress(ChildProcessError):
        os.waitid(os.P_PIDFD, descriptor, os.WEXITED | os.WNOHANG)
