"""Requests to the agent of a throwaway machine (process/programs/agent)."""

import errno
import os
import socket
import struct
import time
from collections.abc import Callable, Sequence
from itertools import takewhile

from hugepage_qa.qemu.lost_machine import MachineLost
from hugepage_qa.sizes import MIB

_LENGTH = struct.Struct(">I")
_LOOK_SECONDS = 1.0
#: for one answer; a machine that shares its CPU with ten others clears 32 pages of 1 GiB in that time
_ANSWER_SECONDS = 900.0

Request = tuple[str, Sequence[str | bytes | int]]


class AgentChannel:
    """The agent at the other end of ``line``; used by one thread.

    ``find_loss`` looks at the machine and tells how it was lost, None while it lives; ``lost_by`` tells it of a machine
    that is lost, by how its line was cut.
    """

    def __init__(
        self,
        line: socket.socket,
        find_loss: Callable[[], MachineLost | None],
        lost_by: Callable[[str], MachineLost],
    ) -> None:
        self._line = line
        self._find_loss = find_loss
        self._lost_by = lost_by
        self._received = bytearray()
        self._lost: MachineLost | None = None

    @property
    def is_lost(self) -> bool:
        """Whether no answer came, and none will."""
        return self._lost is not None

    def ask(self, letter: str, *fields: str | bytes | int) -> list[bytes]:
        """Send a request and return the fields of its answer. Raises OSError as the kernel says, or MachineLost."""
        self._send([(letter, fields)])
        return _fields(self.receive())

    def ask_many(self, requests: Sequence[Request]) -> list[list[bytes] | OSError]:
        """Send all ``requests`` at once and return the answers to each. Raises MachineLost."""
        self._send(requests)
        answers: list[list[bytes] | OSError] = []
        for _request in requests:
            try:
                answers.append(_fields(self.receive()))
            except OSError as error:
                answers.append(error)
        return answers

    def ask_actor(self, letter: str, *fields: str | bytes | int, waiting: Callable[[list[bytes]], None]) -> list[bytes]:
        """Send a request that an actor answers, as ``ask``. ``waiting`` is told each second what the actor does.

        What it raises ends the waiting.
        """
        self._send([(letter, fields)])
        while (frame := self.receive())[:1] == b"p":
            try:
                waiting(_fields(b"k" + frame[1:]))
            except Exception:
                self._send([("!", ())])
                while self.receive()[:1] != b"!":
                    pass
                raise
        return _fields(frame)

    def receive(self, seconds: float = _ANSWER_SECONDS) -> bytes:
        """Return the next frame. Raises MachineLost."""
        size = _LENGTH.unpack(self._receive_bytes(_LENGTH.size, seconds))[0]
        return self._receive_bytes(size, seconds)

    def _send(self, requests: Sequence[Request]) -> None:
        if self._lost:
            raise self._lost
        data = b"".join(_frame(*request) for request in requests)
        try:
            self._line.settimeout(_ANSWER_SECONDS)
            self._line.sendall(data)
        except OSError as error:
            raise self._lose(f"a request cannot be sent: {error}") from error

    def _receive_bytes(self, count: int, seconds: float) -> bytes:
        deadline = time.monotonic() + seconds
        self._line.settimeout(_LOOK_SECONDS)
        while len(self._received) < count:
            try:
                piece = self._line.recv(MIB)
            except TimeoutError:
                self._lost = self._find_loss()
                if self._lost:
                    raise self._lost from None
                if time.monotonic() > deadline:
                    raise self._lose(f"in {seconds:g} s") from None
            except OSError as error:
                raise self._lose(str(error)) from error
            else:
                if not piece:
                    raise self._lose("its line was cut")
                self._received += piece
        data = bytes(self._received[:count])
        del self._received[:count]
        return data

    def _lose(self, detail: str) -> MachineLost:
        self._lost = self._lost_by(detail)
        return self._lost


def _frame(letter: str, fields: Sequence[str | bytes | int]) -> bytes:
    payload = letter.encode()
    for one in fields:
        data = one if isinstance(one, bytes) else os.fsencode(str(one))
        payload += _LENGTH.pack(len(data)) + data
    return _LENGTH.pack(len(payload)) + payload


def _fields(frame: bytes) -> list[bytes]:
    fields, at = [], 1
    while at < len(frame):
        (size,) = _LENGTH.unpack_from(frame, at)
        at += _LENGTH.size
        fields.append(frame[at : at + size])
        at += size
    match frame[:1]:
        case b"k":
            return fields
        case b"e":
            number = int(fields[0])
            raise OSError(number, os.strerror(number))
        case _:
            raise OSError(errno.EPROTO, f"the agent answers {frame[:40]!r}")


class ReadAhead:
    """Which files are read one after the other: after each action they are fetched at once, and each is used once.

    A round trip to an emulated machine costs more than reading a file there. What is read has been so since the last
    action; nothing is kept beyond the next one, and who reads a file again before that gets what it holds by then.
    The kernel works meanwhile: what is read later is never older than what was read before, and so what was fetched
    before it and not used is dropped.
    """

    _REMEMBERED = 200

    def __init__(self, channel: AgentChannel) -> None:
        self._channel = channel
        self._after: dict[tuple[str, str], list[tuple[str, str]]] = {}
        self._sequence: list[tuple[str, str]] = []
        self._fetched: dict[tuple[str, str], list[bytes] | OSError] = {}

    def forget(self) -> None:
        """Begin anew: something is done to the machine, or time passes."""
        if self._sequence:
            self._after[self._sequence[0]] = self._sequence[: self._REMEMBERED]
        self._sequence = []
        self._fetched = {}

    def read(self, letter: str, path: str) -> list[bytes]:
        """Return the answer to a request that changes nothing. Raises OSError as the kernel says."""
        key = (letter, path)
        is_first = not self._sequence
        self._sequence.append(key)
        if key not in self._fetched:
            # a file that was read twice is fetched once: the second time it may hold something else
            wanted = list(dict.fromkeys([key, *self._after.get(key, ())])) if is_first else [key]
            answers = self._channel.ask_many([(one, (place,)) for one, place in wanted])
            self._fetched = dict(zip(wanted, answers, strict=True))
        for passed_over in takewhile(key.__ne__, list(self._fetched)):
            del self._fetched[passed_over]
        answer = self._fetched.pop(key)
        if isinstance(answer, OSError):
            raise answer
        return answer
