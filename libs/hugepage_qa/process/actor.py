"""What an actor can be asked to do."""

import errno
import mmap
import os
import platform
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from hugepage_qa.kernel.uapi import SIG_BLOCK, Uapi, find_uapi
from hugepage_qa.process.actor_link import Argument, encode, start_link
from hugepage_qa.process.actor_threads import ActorThreads, Came

_WORD = 1 << 64
#: bytes of a set of signals
_SIGNALS = 8
#: of a call that a store comes right after: one less than those of a request
_LATE_STORE_ARGUMENTS = 5
_ITIMER_REAL = 0
_ITIMER_PROF = 2
#: bytes of what is stored and looked at
_LEAST_STEP = 8


class Refused(OSError):
    """The kernel refused what a case asked of it; any other OSError is the suite's own.

    ``buffers`` are those of a system call as it left them.
    """

    buffers: tuple[bytes, ...] = ()


class Fault(Exception):
    """An access to memory ended in a signal.

    ``signal`` is SIGBUS or SIGSEGV, ``code`` its si_code (sigaction(2)), ``address`` where it happened; ``extent`` is
    how many bytes are lost, where memory is broken (si_addr_lsb).
    """

    def __init__(self, number: int, code: int, address: int, lsb: int = 0) -> None:
        self.signal = signal.Signals(number)
        self.code = code
        self.address = address
        self.extent = 1 << lsb if lsb else 0
        super().__init__(f"{self.signal.name} (code {code}) at {address:#x}")


class Link(Protocol):
    """What an actor is reached through: a process, or the record of one."""

    @property
    def pid(self) -> int:
        """The process id of the actor."""

    def request(self, text: str) -> tuple[str, "Link | None"]:
        """Return the answer to a request, and the link to the child after a fork."""

    def exit(self) -> None:
        """Kill the actor alone, and wait until it is gone."""

    def end(self) -> None:
        """Kill the actor and those it forked, and wait until they are gone."""


class Actor:
    """A process that acts on request; ``uapi`` is that of the machine on which it runs."""

    def __init__(self, link: Link, uapi: Uapi) -> None:
        self._link = link
        self.uapi = uapi
        self.threads = ActorThreads(self._ask, uapi)
        """What its threads do, while others act."""

    @property
    def pid(self) -> int:
        """The process id, under which /proc shows what the actor has mapped."""
        return self._link.pid

    def call(self, name: str, *arguments: Argument) -> int:
        """Make the system call ``name``; a str argument is passed as a path, bytes as a buffer.

        Raises Refused with the errno that the kernel gave, ENOSYS too for a call that calls.c does not list.
        """
        value, _buffers = self.call_with_buffers(name, *arguments)
        return value

    def result(self, name: str, *arguments: Argument) -> int:
        """Make a system call as ``call`` does and return its value, or the error with a minus sign."""
        value, _buffers = self.result_with_buffers(name, *arguments)
        return value

    def result_with_buffers(self, name: str, *arguments: Argument) -> tuple[int, tuple[bytes, ...]]:
        """Make a system call as ``result`` does and return its value and the buffers as it left them."""
        try:
            return self.call_with_buffers(name, *arguments)
        except Refused as refusal:
            return -(refusal.errno or 0), refusal.buffers

    def call_with_buffers(self, name: str, *arguments: Argument) -> tuple[int, tuple[bytes, ...]]:
        """Make a system call as ``call`` does and return its value and the buffers as it left them."""
        words = self._ask("call", name, *(encode(argument) for argument in arguments))
        return int(words[0]), _buffers(words[1:])

    def late_store(self, offset: int, name: str, *arguments: int) -> Came:
        """Store 1, make the system call ``name``, and store 2 at the same place again before anything else.

        That is ``offset`` bytes behind the first of five ``arguments`` at most. Returned is what came of the last
        store. Raises Refused as ``call`` does, and EFAULT where nothing can be stored before.
        """
        none = [0] * (_LATE_STORE_ARGUMENTS - len(arguments))
        return Came(int(self._ask("late-store", name, *arguments, *none, offset)[0]))

    def soft_dirty(self, address: int, rounds: int, clear_refs: int, pagemap: int) -> tuple[int, int]:
        """Store at ``address`` right before and right after what was written is forgotten, and as often only before.

        ``clear_refs`` and ``pagemap`` are descriptors of these files of the actor itself. Returned is after how many of
        the ``rounds`` the base page was not soft-dirty though it was stored to, and after how many it was though not.
        Raises Refused.
        """
        lost, kept = self._ask("soft-dirty", address, rounds, clear_refs, pagemap)
        return int(lost), int(kept)

    def mmap(self, length: int, prot: int, flags: int, fd: int = -1, offset: int = 0, address: int = 0) -> int:
        """Map ``length`` bytes and return the address (mmap(2)). Raises Refused."""
        return self.call("mmap", address, length, prot, flags, fd, offset) % _WORD

    def pipe(self) -> tuple[int, int]:
        """Make a pipe and return where it is read and where it is written (pipe2(2)). Raises Refused."""
        _value, (ends,) = self.call_with_buffers("pipe2", bytes(8), 0)
        reader, writer = self.uapi.unpack("2i", ends)
        return reader, writer

    def read(self, address: int) -> int:
        """Return the 8 bytes at ``address`` as a number. Raises Fault."""
        return int(self._ask("load", address)[0]) % _WORD

    def write(self, address: int, value: int) -> None:
        """Store ``value`` as 8 bytes at ``address``. Raises Fault."""
        self._ask("store", address, value % _WORD)

    def fill(self, address: int, length: int, step: int, value: int) -> None:
        """Store ``value`` + offset in the 8 bytes at every multiple of ``step`` bytes. Raises Fault.

        With a step of 64 they are others in each cache line: the first word of the first, the second of the second.
        """
        self._ask("fill", address, length, step, value)

    def check(self, address: int, length: int, step: int, value: int) -> int:
        """Return how many places do not hold what ``fill`` with the same arguments stored. Raises Fault."""
        return int(self._ask("check", address, length, step, value)[0])

    def nonzero(self, address: int, length: int, step: int = _LEAST_STEP) -> int:
        """Return how many words of 8 bytes, where ``fill`` with ``step`` stores them, are not zero. Raises Fault."""
        steps = [step] if step != _LEAST_STEP else []
        return int(self._ask("nonzero", address, length, *steps)[0])

    def discard(self, address: int, length: int, step: int, part: int, *, shared: bool = False) -> None:
        """Give ``part`` bytes back at every multiple of ``step`` bytes (MADV_DONTNEED). Raises Refused.

        ``shared`` memory keeps them but for MADV_REMOVE.
        """
        self._ask("discard", address, length, step, part, *([mmap.MADV_REMOVE] if shared else []))

    def compute(self, seconds: float) -> None:
        """Use ``seconds`` of a CPU, and touch no memory but the stack."""
        self._ask("compute", round(1000 * seconds))

    def race(self, processes: int, seconds: float, length: int, flags: int, fd: int = -1, step: int = 0) -> set[int]:
        """Have new ``processes`` map ``length`` bytes at the same moment, store there at the same moment, and unmap.

        They do so for ``seconds``; returned is how many of them could map and store in a round, of all rounds.
        ``flags`` are MAP_*; each maps ``fd`` a multiple of ``step`` further on, and the file is emptied after a round.
        Raises Refused for a file that cannot be emptied.
        """
        outcomes = int(self._ask("race", processes, round(1000 * seconds), length, flags, fd, step)[0])
        return _numbers(outcomes, processes)

    def race_to_attach(self, processes: int, seconds: float, length: int, identifier: int, step: int) -> set[int]:
        """Have new ``processes`` attach a segment of ``length`` bytes, fill all of it, look at it, and detach it.

        They do each of these at the same moment, for ``seconds``; in every other round its pages are given back before
        they are filled, at multiples of ``step``. Returned is how many of them found all words in a round, of all
        rounds. At last they attach it and end.
        """
        words = processes, round(1000 * seconds), length, identifier, -1, step
        return _numbers(int(self._ask("attach", *words)[0]), processes)

    def touch_first(
        self, processes: int, seconds: float, address: int, *, value: int = 0, removed: int = 0, fd: int = -1
    ) -> tuple[int, Came]:
        """Have two threads of each of new ``processes`` touch ``address`` at the same moment, and end.

        They look for zeroes there, or store a ``value``, for ``seconds`` in one round after the other. Before each the
        first ``removed`` bytes, of shared memory, are removed, and 2 is written to ``fd``. Returned is how many rounds
        there were, and what came of any of them. Raises Refused.
        """
        rounds, came = self._ask("first", processes, round(1000 * seconds), address, removed, fd, value)
        return int(rounds), Came(int(came))

    def tag(self, address: int, length: int, tag: int) -> None:
        """Give ``length`` bytes a ``tag``, which pointers to them need to have then (arm64, MTE). Raises Fault."""
        self._ask("tag", address, length, tag)

    def text(self) -> int:
        """Return the address of the code that was linked to the actor for tests, 0 without."""
        return int(self._ask("text")[0]) % _WORD

    def run(self, address: int, count: int, step: int) -> int:
        """Call ``count`` functions, ``step`` bytes apart; return how many do not return their number. Raises Fault."""
        return int(self._ask("run", address, count, step)[0])

    def told_of_broken_memory(self) -> Fault | None:
        """Return the last signal since this was asked that told of broken memory and ended no access, if there was one.

        It comes while a system call is made: to who waits for a request none may come.
        """
        try:
            self._ask("broken")
        except Fault as fault:
            return fault
        return None

    def sum(self, address: int, length: int) -> int:
        """Return the Adler-32 checksum of ``length`` bytes. Raises Fault."""
        return int(self._ask("sum", address, length)[0])

    def exec(self, variable: str = "", arguments: int = 0, length: int = 0) -> int:
        """Execute its program anew: all that it had mapped is gone, what execve(2) keeps is there. Raises Refused.

        Its environment is ``variable`` (NAME=value) alone if one is given, and it gets ``arguments`` of ``length``
        bytes each; returned is how many of these arrive as others.
        """
        more = [encode(variable) if variable else 0, arguments, length] if variable or arguments else []
        return int(self._ask("exec", *more)[0])

    def wake(self, word: int, other: int) -> tuple[int, int]:
        """Have two threads sleep until one of two words of 4 bytes, both 0, is woken; wake the second, then the first.

        Returned is how many threads each woke of those that were left (futex(2) FUTEX_WAIT, FUTEX_WAKE).
        """
        first, second = divmod(int(self._ask("wake", word, other)[0]), 256)
        return first, second

    def libc(self) -> float:
        """Return the version of the glibc that it was linked with, 0 for another C library."""
        return int(self._ask("libc")[0]) / 1000

    def malloc(self, length: int) -> int:
        """Have the C library allocate ``length`` bytes, and return their address. Raises Refused."""
        return int(self._ask("malloc", length)[0]) % _WORD

    def free(self, address: int) -> None:
        """Give what ``malloc`` returned back."""
        self._ask("free", address)

    def fork(self) -> "Actor":
        """Fork; the child is an actor of its own and ends with ``end``."""
        answer, child = self._link.request("fork")
        _words(answer)
        if child is None:
            raise ValueError(f"{answer!r}: a fork without a child")
        return Actor(child, self.uapi)

    def exit(self) -> None:
        """Kill the actor and leave those it forked; when this returns, what it alone held is given back."""
        self._link.exit()

    def end(self) -> None:
        """Kill the actor and those it forked; when this returns, all that it held is given back."""
        self._link.end()

    def _ask(self, *words: int | str) -> list[str]:
        answer, _child = self._link.request(" ".join(str(word) for word in words))
        return _words(answer)


@contextmanager
def start_actor(program: Path) -> Iterator[Actor]:
    """Start the actor ``program`` (``build.build_actor``); it ends when the block does, and so do those it forked."""
    with start_link(program) as link:
        yield Actor(link, find_uapi(platform.machine()))


def _numbers(outcomes: int, most: int) -> set[int]:
    """Return the numbers up to ``most`` of the bits that are set."""
    return {number for number in range(most + 1) if outcomes >> number & 1}


def _buffers(words: Iterable[str]) -> tuple[bytes, ...]:
    return tuple(map(bytes.fromhex, words))


def _words(answer: str) -> list[str]:
    kind, *words = answer.split()
    match kind:
        case "ok":
            return words
        case "errno":
            number = int(words[0])
            refused = Refused(number, f"{errno.errorcode.get(number, number)}: {os.strerror(number)}")
            refused.buffers = _buffers(words[1:])
            raise refused
        case "signal":
            raise Fault(*(int(word) for word in words))
        case _:
            raise ValueError(f"the actor answers {answer!r}")


def set_alarm(actor: Actor, seconds: int) -> None:
    """Send ``actor`` SIGALRM after ``seconds``, which ends it and what it does for the kernel; none with 0."""
    actor.call("setitimer", _ITIMER_REAL, actor.uapi.pack("4q", 0, 0, seconds, 0), 0)


def limit_cpu_time(actor: Actor, seconds: int) -> None:
    """Send ``actor`` SIGPROF, which ends it, when it has used a CPU for so many ``seconds`` more; none with 0.

    A busy machine does not count. It comes on the way out of the kernel, and so not to who never leaves it
    (CONFIG_POSIX_CPU_TIMERS_TASK_WORK, since Linux 5.9).
    """
    actor.call("setitimer", _ITIMER_PROF, actor.uapi.pack("4q", 0, 0, seconds, 0), 0)


def hold_back(actor: Actor, number: signal.Signals) -> None:
    """Have a signal wait that ``actor`` gets from now on."""
    actor.call("rt_sigprocmask", SIG_BLOCK, actor.uapi.pack("Q", 1 << number - 1), 0, _SIGNALS)


def is_waiting(actor: Actor, number: signal.Signals) -> bool:
    """Tell whether a signal that is held back waits for ``actor``."""
    _zero, (waiting,) = actor.call_with_buffers("rt_sigpending", bytes(_SIGNALS), _SIGNALS)
    return bool(actor.uapi.unpack("Q", waiting)[0] >> number - 1 & 1)
