"""What a program is told of memory whose faults it handles: the messages that userfaultfd(2) describes."""

import errno
import mmap
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import TypeVar

from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import WORD
from hugepage_qa.cases.race import at_once
from hugepage_qa.cases.userfaultfd_calls import UserfaultCalls
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.process.actor import Refused

Acted = TypeVar("Acted")

#: struct uffd_msg
MESSAGE_SIZE = 32
# include/uapi/asm-generic/poll.h
_POLLIN = 1
_PAGEFAULT = 0x12


class Event(IntEnum):
    """What a program is told of: UFFD_EVENT_*."""

    FORK = 0x13
    REMAP = 0x14
    REMOVE = 0x15
    UNMAP = 0x16


class Told(IntFlag):
    """What a program is told of a fault: UFFD_PAGEFAULT_FLAG_*."""

    WRITE = 1
    WRITE_PROTECTED = 2
    MINOR = 4
    READ_WRITE_PROTECTED = 8


@dataclass(frozen=True)
class PageFault:
    """A fault of which a program is told: what it was, where, and whose with UFFD_FEATURE_THREAD_ID."""

    told: Told
    address: int
    thread: int = 0


class UserfaultMessages(UserfaultCalls):
    """The messages of a userfaultfd that ``actor`` has as ``descriptor``."""

    def await_fault(self, live: Live) -> PageFault:
        """Return the fault of a thread, which waits until it is handled. Raises Failed where none is told."""
        messages = list[bytes]()

        def is_told() -> bool:
            messages.extend(self._messages())
            return bool(messages)

        live.host.wait_until(is_told)
        if not messages:
            live.fail("message of a fault", "one", "none")
        return self._fault_of(live, messages[0])

    def faults_at_once(self, live: Live, length: int) -> list[PageFault]:
        """Return the faults that one read of ``length`` bytes tells of. Raises Refused."""
        count, (found,) = self._actor.call_with_buffers("read", self.descriptor, bytes(length), length)
        live.expect("bytes beyond whole messages", 0, count % MESSAGE_SIZE)
        return [self._fault_of(live, found[at : at + MESSAGE_SIZE]) for at in range(0, count, MESSAGE_SIZE)]

    def _fault_of(self, live: Live, message: bytes) -> PageFault:
        event, told, address, thread = self._actor.uapi.unpack("B7x2QI4x", message)
        live.expect("event", _PAGEFAULT, event)
        return PageFault(Told(told), address, thread)

    def waiting(self, live: Live) -> tuple[int, int]:
        """Return how many threads wait of whose faults nobody was told yet, and how many of all (proc_pid_fdinfo(5)).

        Raises CannotRun where the kernel does not say.
        """
        text = ObservedTree(live.host).read(f"proc/{self._actor.pid}/fdinfo/{self.descriptor}") or ""
        words = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        if not {"pending", "total"} <= words.keys():
            raise CannotRun("this kernel does not tell how many threads wait for a userfaultfd")
        return int(words["pending"]), int(words["total"])

    def is_readable(self) -> bool:
        """Tell whether poll(2) says that there is a message. Raises Refused."""
        uapi = self._actor.uapi
        asked = uapi.pack("ihh", self.descriptor, _POLLIN, 0)
        _count, (answer, *_rest) = self._actor.call_with_buffers("ppoll", asked, 1, bytes(2 * WORD), 0, 0)
        return uapi.unpack("ihh", answer)[2] == _POLLIN

    def expect_nothing_told(self, live: Live) -> None:
        """Expect no message to be there, of one that waits. Raises Refused."""
        live.expect("messages of faults", 0, len(self._messages()))

    def _messages(self) -> list[bytes]:
        """Return the next message that is there, or none. Raises Refused."""
        try:
            _length, found = self._actor.call_with_buffers("read", self.descriptor, bytes(MESSAGE_SIZE), MESSAGE_SIZE)
        except Refused as refusal:
            if refusal.errno != errno.EAGAIN:
                raise
            return []
        return list(found)

    def event_of(self, live: Live, act: Callable[[], Acted], event: Event, *numbers: int) -> Acted:
        """Expect a thread to be told of ``event`` when ``act`` is called, which waits for that; return what it does.

        ``numbers`` are the old and the new address, and the length in bytes; or the start and the end.
        """
        acted, told = self.told_of(live, act, event)
        # what a number does not need is zero
        live.expect("numbers of the event", [*numbers, 0, 0][: len(told)], told)
        return acted

    def told_of(self, live: Live, act: Callable[[], Acted], event: Event) -> tuple[Acted, list[int]]:
        """Expect a thread to be told of ``event`` when ``act`` is called; return what it does, and all else of it.

        Raises Failed where it is told of none, or of another one.
        """
        message = self._actor.mmap(live.base_page, READ_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with at_once(live, self._actor, 0) as threads:
            threads.call("read", self.descriptor, message, MESSAGE_SIZE, may_fail=(errno.EAGAIN,))
            acted = act()
        # the first of its bytes is the event, and the others of the word are zero
        first, *told = (self._actor.read(message + at) for at in range(0, MESSAGE_SIZE, WORD))
        wanted = self._actor.uapi.unpack("Q", self._actor.uapi.pack("B7x", event))[0]
        if first != wanted:
            live.fail("event", event.name, first)
        return acted, told
