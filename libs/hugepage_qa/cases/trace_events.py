"""Trace events of the kernel that come while a process acts, counted by what they tell.

They are counted by perf_event_open(2), for that process alone: nothing of tracing is switched on for anybody else, and
the counters end with the process.
"""

import errno
import mmap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import WORD
from hugepage_qa.kernel.tree import read_integer
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.process.actor import Actor, Refused

DOC = "Documentation/trace/events.rst Event filtering; perf_event_open(2) PERF_TYPE_TRACEPOINT"
#: PERF_TYPE_TRACEPOINT, and struct perf_event_attr as it was at first (PERF_ATTR_SIZE_VER0)
_TRACEPOINT, _ATTRIBUTES = 2, 64
#: PERF_EVENT_IOC_SET_FILTER, whose argument is a pointer
_IOCTL, _SET_FILTER = ord("$"), 6


@dataclass(frozen=True)
class Told:
    """What trace events are to tell: of those of ``event`` that tell ``of_these`` each tells one of ``times``.

    ``event`` is a directory below events in tracefs, the others are filters. What they are to tell comes as often as is
    said or more often: what the kernel tries again it tells of again.
    """

    event: str
    of_these: str
    times: Mapping[str, int]


class TraceEvents:
    """The trace events of a kernel."""

    def __init__(self, live: Live) -> None:
        """Raise CannotRun where the kernel has none, or tells nobody of them."""
        self._live = live
        self._point = live.mount_interface("tracefs")

    def expect(self, actor: Actor, expected: Iterable[Told], act: Callable[[], object]) -> None:
        """Expect these events, and no others of their kind, while ``act`` has ``actor`` act. Raises CannotRun, too."""
        for what, (wanted, found) in self.found(actor, expected, act).items():
            self._live.expect(what, wanted, found)

    def found(self, actor: Actor, expected: Iterable[Told], act: Callable[[], object]) -> Mapping[str, tuple[int, int]]:
        """Return what is told while ``act`` has ``actor`` act: what -> how often it is to be, and how often it was.

        Raises CannotRun where the kernel has no such event.
        """
        room = actor.mmap(self._live.base_page, READ_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        counters = [
            (
                told,
                self._counter(actor, told.event, told.of_these),
                [self._counter(actor, told.event, f"({told.of_these}) && {one}") for one in told.times],
            )
            for told in expected
        ]
        act()
        found = {}
        for told, of_all, of_each in counters:
            counts = [_count(actor, counter, room) for counter in of_each]
            for (one, times), count in zip(told.times.items(), counts, strict=True):
                found[f"times that {told.event} tells {one}, of {times} at least"] = times, min(times, count)
            found[f"times that {told.event} tells something else"] = 0, _count(actor, of_all, room) - sum(counts)
        return found

    def _counter(self, actor: Actor, event: str, told: str) -> int:
        """Return a descriptor of ``actor`` that counts the events that tell ``told``, and come while it acts."""
        number = read_integer(self._live.host, f"{self._point}/events/{event}/id")
        if number is None:
            raise CannotRun(f"this kernel has no trace event {event}, or tells nobody of it")
        attributes = actor.uapi.pack("2I7Q", _TRACEPOINT, _ATTRIBUTES, number, *[0] * 6)
        try:
            descriptor = actor.call("perf_event_open", attributes, 0, -1, -1, 0)
        except Refused as refusal:
            if refusal.errno not in (errno.EPERM, errno.EACCES, errno.ENOSYS):
                raise
            raise CannotRun("this kernel counts trace events for nobody (kernel_lockdown(7))") from refusal
        actor.call("ioctl", descriptor, actor.uapi.iow(_IOCTL, _SET_FILTER, WORD), told)
        return descriptor


def _count(actor: Actor, descriptor: int, room: int) -> int:
    """Return what ``descriptor`` has counted, which is read to ``room``."""
    actor.call("read", descriptor, room, WORD)
    return actor.read(room)
