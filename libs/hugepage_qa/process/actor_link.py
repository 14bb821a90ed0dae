"""The connection to one actor process: a request goes out as one packet, its answer comes back as one."""

import os
import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from hugepage_qa.errors import InputError
from hugepage_qa.process.child import Child, RunningProcess
from hugepage_qa.process.process_table import stat_fields, state_and_cpu_seconds

#: of a request: a number, a path or a buffer
Argument = int | str | bytes

# PACKET in actor.h
_PACKET = 65536
#: A request that changes nothing. Until a new program has answered one the kernel may still map it, and commit memory
#: for it: what execve(2) closes, by which it is seen to begin, it closes before (begin_new_exec() in fs/exec.c).
FIRST_REQUEST = "call dup -1"

# clearing a page of 16 GiB takes seconds, on an emulated machine a minute; that is time on a CPU, and on a busy machine
# an actor waits for one many times as long
_CPU_SECONDS = 120.0
_BLOCKED_SECONDS = 300.0
#: how long who was waited for in vain is waited for when it is killed: if the kernel keeps it, it does so for ever
BLOCKED_BEFORE_SECONDS = 10.0
_STARVED_SECONDS = 1200.0
#: how long an actor may be asleep: for its threads and children, who may wait for a CPU, or a user who never comes
_ASLEEP_SECONDS = 600.0
_LOOK_SECONDS = 1.0


class ActorGone(Exception):
    """The actor does not answer: it was killed (by the OOM killer, say), or the kernel does not come back to it."""


class ActorStarved(Exception):
    """The actor has not had enough of a CPU to answer, or sleeps: nothing can be said of the kernel."""


def encode(argument: Argument) -> str:
    """Return an argument as the word of a request that stands for it."""
    if isinstance(argument, int):
        return str(argument)
    data = os.fsencode(argument) + b"\0" if isinstance(argument, str) else argument
    return f"x{data.hex()}"


def packet(text: str) -> bytes:
    """Return the packet with the request ``text``. Raises ValueError for one that is too long."""
    data = text.encode()
    if len(data) > _PACKET:
        raise ValueError(f"a request of {len(data)} bytes: an actor takes at most {_PACKET}")
    return data


class ActorLink:
    """A running actor, or one that it forked. ``pid`` is its process id in our PID namespace."""

    def __init__(self, channel: socket.socket, pid: int) -> None:
        self._channel = channel
        self._children: list[ActorLink] = []
        self._gone = False
        self._may_be_blocked: float | None = None
        self.pid = pid

    def request(self, text: str) -> tuple[str, "ActorLink | None"]:
        """Send a request (programs/actor/actor.c says which there are); return the answer, and the child after a fork.

        Raises ActorGone or ActorStarved when there is no answer, ValueError for a request that is too long.
        """
        data = packet(text)
        try:
            self._channel.send(data)
            _await(self._channel.fileno(), self.pid, text)
            answer, descriptors, _flags, _address = socket.recv_fds(self._channel, _PACKET, 1)
        except ActorGone:
            self._may_be_blocked = BLOCKED_BEFORE_SECONDS
            raise
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
        with suppress(ProcessLookupError), RunningProcess(self.pid) as process:
            process.kill()
            _await(process.fileno(), self.pid, "SIGKILL", self._may_be_blocked)
            # those that an actor forked are not ours to wait for
            process.reap()


@contextmanager
def start_link(program: Path) -> Iterator[ActorLink]:
    """Start ``program`` (``build.build_actor``) and yield the connection to it, as it runs; it is killed at the end.

    Raises InputError when it cannot be started, ActorGone or ActorStarved when it gives no answer.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        with theirs:
            child = _start(program, theirs)
        link = ActorLink(ours, child.pid)
        try:
            link.request(FIRST_REQUEST)
            yield link
        finally:
            link.end()
            child.wait()


def _start(program: Path, standard_input: socket.socket) -> Child:
    try:
        # an actor ties itself to its parent: thousands are started, and through Python that would take minutes
        return Child([str(program), str(os.getpid())], death_signal=None, standard_input=standard_input.fileno())
    except OSError as error:
        # says nothing of the kernel under test
        raise InputError(
            f"{program}: {error.strerror}: expected a file system that is not mounted with noexec"
        ) from error


class Patience:
    """How long an answer of process ``pid`` to ``what`` is waited for: by what the process does meanwhile.

    It may be blocked in the kernel for ``blocked`` seconds, or those that any process may.
    """

    def __init__(self, pid: int, what: str, blocked: float | None = None) -> None:
        self._most_blocked = _BLOCKED_SECONDS if blocked is None else blocked
        self._asked = f"the actor (process {pid}) does not answer {what[:60]!r}"
        self._began = self._unchanged_since = time.monotonic()
        self._at_first: float | None = None
        self._seen = ("", 0.0)

    def look(self, state: str, seconds: float, stack: Callable[[], str]) -> None:
        """Take note that the process is in ``state`` and has had ``seconds`` of a CPU.

        Raises ActorGone for one that runs or is blocked in the kernel without an end, ActorStarved for one that is not
        let run, or that nobody wakes.
        """
        now = time.monotonic()
        if self._at_first is None:
            self._at_first = seconds
        if (state, seconds) != self._seen:
            self._unchanged_since, self._seen = now, (state, seconds)
        unchanged = now - self._unchanged_since
        had = seconds - self._at_first
        if had > _CPU_SECONDS:
            raise ActorGone(f"{self._asked}: {had:.0f} s of CPU time, and no end")
        if state == "D" and unchanged > self._most_blocked:
            raise ActorGone(f"{self._asked}: blocked in the kernel for {unchanged:.0f} s{_place(stack())}")
        if state == "S" and unchanged > _ASLEEP_SECONDS:
            raise ActorStarved(f"{self._asked}: asleep for {unchanged:.0f} s{_place(stack())}")
        if now - self._began > _STARVED_SECONDS:
            raise ActorStarved(f"{self._asked}: it had {had:.0f} s of a CPU in {now - self._began:.0f} s")


def _place(stack: str) -> str:
    """Return where in the kernel a process is by its ``stack``, which is empty where we may not know it."""
    calls = stack.split()[1::2]
    return f" in {' < '.join(calls)}" if calls else ""


def _await(descriptor: int, pid: int, what: str, blocked: float | None = None) -> None:
    """Wait until ``descriptor`` can be read, which is the answer of process ``pid`` to ``what``, as Patience does.

    Raises as that.
    """
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    patience = Patience(pid, what, blocked)
    patience.look(*_state_and_cpu_seconds(pid), str)
    while not poll.poll(_LOOK_SECONDS * 1000):
        patience.look(*_state_and_cpu_seconds(pid), partial(_stack, pid))


def _state_and_cpu_seconds(pid: int) -> tuple[str, float]:
    """Return what a process does and the CPU time that it has had; one that is gone has no state."""
    return state_and_cpu_seconds(stat_fields(Path(f"/proc/{pid}/stat")))


def _stack(pid: int) -> str:
    """Return where in the kernel a process is, as far as we may know it."""
    try:
        return Path(f"/proc/{pid}/stack").read_text(encoding="utf-8")
    except OSError:
        return ""
