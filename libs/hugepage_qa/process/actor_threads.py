"""Threads of an actor: what they do at the same moment, or again and again meanwhile, and what came of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, Flag

from hugepage_qa.kernel.uapi import Uapi
from hugepage_qa.process.actor_link import Argument, encode

# struct repeated in repeaters.c
_REPEATED, _REPEATED_SIZE = "5Q", 40


class Action(Enum):
    """What a thread does to a mapping, or to its file, while others do theirs: act() in same_moment.c."""

    TOUCH = "t"
    READ_FIRST = "l"
    READ_FIRST_FROM_OUTSIDE = "o"
    COPY = "c"
    DISCARD = "d"
    REPLACE = "r"
    PUNCH = "p"
    MOVE = "v"
    PROTECT = "w"
    MAP_MORE = "m"
    FORK = "k"


class Came(Flag):
    """What comes of an action: enum came in actor.h."""

    DONE = 1
    GONE = 2
    WRONG = 4
    SIGBUS = 8
    SIGSEGV = 16
    REFUSED = 32
    STUCK = 64


@dataclass(frozen=True)
class Repeated:
    """What came of what a thread did again and again: ``times`` it was done, and all ``errors`` of a system call."""

    times: int
    came: Came
    errors: frozenset[int]


class ActorThreads:
    """The threads of one actor, whose requests ``ask`` makes; those that go on do so until ``stop``."""

    def __init__(self, ask: Callable[..., list[str]], uapi: Uapi) -> None:
        self._ask = ask
        self._uapi = uapi

    def clash(
        self, actions: Sequence[Action], seconds: float, length: int, flags: int, fd: int = -1, *, aligned: bool = False
    ) -> list[Came]:
        """Have a thread for each of ``actions`` do it at the same moment to ``length`` bytes that are mapped anew.

        They do so for ``seconds``; returned is what came of each action, in any round. ``flags`` are MAP_*; ``fd`` is
        emptied after a round. ``aligned`` memory begins at a multiple of ``length``, and all threads store, all over
        it. Raises Refused where nothing can be mapped.
        """
        words = "".join(action.value for action in actions).encode()
        more = [1] if aligned else []
        _rounds, came = self._ask("clash", encode(words), round(1000 * seconds), length, flags, fd, *more)
        return [Came(byte) for byte in bytes.fromhex(came)]

    def repeat(self, name: str, *arguments: Argument) -> None:
        """Have a new thread make the system call ``name`` again and again until ``stop``, with copies of buffers."""
        self._ask("repeat", name, *(encode(argument) for argument in arguments))

    def attempt(self, name: str, *arguments: Argument) -> None:
        """Have a new thread make a system call as ``repeat`` does; it has acted when it was refused, too."""
        self._ask("attempt", name, *(encode(argument) for argument in arguments))

    def shuttle(self, address: int, length: int, flags: int, other: int) -> None:
        """Have a new thread move a mapping to ``other`` and back again and again until ``stop`` (mremap(2))."""
        self._ask("shuttle", "mremap", address, length, length, flags, other)

    def use(self, address: int, length: int, step: int) -> None:
        """Have a new thread store at multiples of ``step`` and look for it later, again and again until ``stop``."""
        self._ask("use", address, length, step)

    def watch(self, address: int, length: int, step: int, value: int) -> None:
        """Have a new thread look, at multiples of ``step``, for what ``fill`` stored in all words, until ``stop``.

        A ``value`` of 0 stands for zeroes.
        """
        self._ask("watch", address, length, step, value)

    def reread(self, descriptor: int, length: int, step: int, value: int) -> None:
        """Have a new thread look for the same in a file, by pread(2), until ``stop``."""
        self._ask("reread", descriptor, length, step, value)

    def stop(self, seconds: float) -> list[Repeated]:
        """End these threads after ``seconds``, or later when each has done it once; return what came of each."""
        _zero, *buffer = self._ask("stop", round(1000 * seconds))
        data = bytes.fromhex("".join(buffer))
        found = (
            self._uapi.unpack(_REPEATED, data[at : at + _REPEATED_SIZE]) for at in range(0, len(data), _REPEATED_SIZE)
        )
        return [Repeated(times, Came(came), _errors(words)) for times, came, *words in found]


def _errors(words: Sequence[int]) -> frozenset[int]:
    """Return the numbers of the bits that are set."""
    return frozenset(at for at in range(64 * len(words)) if words[at // 64] >> at % 64 & 1)
