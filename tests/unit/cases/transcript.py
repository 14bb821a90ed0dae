"""What a case did and saw: recorded, and played back, true or falsified."""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tests.unit.cases.kinds import X86_64

from hugepage_qa.cases.guest.guest_machine import GUEST
from hugepage_qa.machine.backend import Backend, MachineKind
from hugepage_qa.process.actor_link import ActorGone

Event = dict[str, Any]
Key = tuple[str, ...]

#: operations that only look: how often and when a case looks may change without a new record
_LOOKS = {"read", "observe", "names", "kernel_option", "file_system", "new_kernel_log"}
#: and those of what a driver is asked about a guest
_LOOKS_AT_GUESTS = {"site", "state", "pid", "balloon", "free_pages", "page_sizes", "host_cells"}
#: what comes behind the last event
_NOTHING: Event = {"operation": None, "arguments": None}
#: the clock of a replay goes on with what is waited, and a little each time that it is asked
_WAITS = {"pause", "clock", "skip_kernel_log"}
_TICK_SECONDS = 0.001
_FASTER, _MOST_STALE = 1.3, 200


class Diverged(Exception):
    """A replayed case acted in another way than it did when it was recorded, or looks at what was never looked at."""


class Recorder:
    """Passes operations on and keeps them; ``events`` is what Replay takes."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.events: list[Event] = []

    @property
    def kind(self) -> MachineKind:
        """What is recorded; what the judge alone looks at is no part of a case."""
        return replace(self._backend.kind, is_accounted=False)

    def perform(self, operation: str, arguments: Sequence[Any]) -> Any:
        """Carry out ``operation`` on the backend and record it, with its result, its errno or the end of an actor."""
        if operation in _WAITS:
            return self._backend.perform(operation, arguments)
        event: Event = {"operation": operation, "arguments": list(arguments)}
        self.events.append(event)
        try:
            result = self._backend.perform(operation, arguments)
        except OSError as error:
            event["errno"] = error.errno
            raise
        except ActorGone as gone:
            event["gone"] = str(gone)
            raise
        # through JSON, so that a case sees now what it will see in a replay
        event["result"] = json.loads(json.dumps(result))
        return event["result"]


class Replay:
    """Answers as a machine once did.

    Actions have to come in the order in which they were recorded. Looks are answered with what was seen after the last
    action: one after the other, the last one again and again. ``falsify`` gets each event before its answer is given.
    """

    kind = X86_64

    def __init__(self, events: Sequence[Event], falsify: Callable[[Event], Event] = lambda event: event) -> None:
        self._events = list(events)
        self._falsify = falsify
        self._next = 0
        self._clock = 0.0
        #: how often in turn something was looked at again that was not looked at again then
        self._stale = 0
        #: how often in turn something was done again that was not done again then, and whether it is just now
        self._repeats, self._is_repeat = 0, False
        #: what was seen since the last action and not asked for yet, and what was seen last
        self._ahead: dict[Key, list[Event]] = {}
        self._seen: dict[Key, Event] = {}
        self._look_ahead()

    def perform(self, operation: str, arguments: Sequence[Any]) -> Any:
        """Return the recorded result of an operation. Raises Diverged where there is none."""
        if operation in _WAITS:
            return self._wait(operation, arguments)
        is_look = _is_look(operation, arguments)
        event = self._falsify(self._look(operation, arguments) if is_look else self._act(operation, arguments))
        if "errno" in event:
            raise OSError(event["errno"], os.strerror(event["errno"]))
        if "gone" in event:
            raise ActorGone(event["gone"])
        return event["result"]

    def _wait(self, operation: str, arguments: Sequence[Any]) -> float:
        """Let time pass, the faster the longer nothing new is seen: a case may wait in vain for minutes."""
        seconds = arguments[0] if operation == "pause" else _TICK_SECONDS
        self._clock += seconds * _FASTER ** max(self._stale, self._repeats)
        return self._clock

    def _look(self, operation: str, arguments: Sequence[Any]) -> Event:
        key = _key(operation, arguments)
        if ahead := self._ahead.get(key):
            self._seen[key] = ahead.pop(0)
            self._stale = -1
        self._stale = min(self._stale + 1, _MOST_STALE)
        if key not in self._seen:
            raise Diverged(f"operation {self._next}: {operation} {arguments} was not recorded before")
        return self._seen[key]

    def _act(self, operation: str, arguments: Sequence[Any]) -> Event:
        event = self._events[self._next] if self._next < len(self._events) else _NOTHING
        recorded, asked = event["arguments"], list(arguments)
        # a tuple within them is a list in a record
        if event["operation"] != operation or (recorded != asked and recorded != json.loads(json.dumps(asked))):
            raise Diverged(f"operation {self._next}: recorded {event['operation'], recorded}, asked {operation, asked}")
        self._next += 1
        self._stale = 0
        self._repeats = min(self._repeats + 1, _MOST_STALE) if self._is_repeat else 0
        self._is_repeat = False
        self._look_ahead()
        return event

    def go_back(self, operation: str, arguments: Sequence[Any]) -> bool:
        """Go on from where the machine was asked this last; return whether it ever was."""
        asked = (operation, json.loads(json.dumps(list(arguments))))
        for index in range(min(self._next, len(self._events)) - 1, -1, -1):
            event = self._events[index]
            if (event["operation"], event["arguments"]) == asked:
                self._next = index
                self._is_repeat = True
                self._look_ahead()
                return True
        return False

    def _look_ahead(self) -> None:
        """Collect what was seen until the next action."""
        if self._ahead:
            self._seen |= {key: events[-1] for key, events in self._ahead.items() if events}
            self._ahead = {}
        while self._next < len(self._events):
            event = self._events[self._next]
            if _is_look(event["operation"], event["arguments"]):
                self._ahead.setdefault(_key(event["operation"], event["arguments"]), []).append(event)
            elif event["operation"] not in _WAITS:
                return
            self._next += 1


def _is_look(operation: str, arguments: Sequence[Any]) -> bool:
    return operation in _LOOKS or (operation == GUEST and arguments[1] in _LOOKS_AT_GUESTS)


def _key(operation: str, arguments: Sequence[Any]) -> Key:
    # what looks has words for arguments
    return operation, *arguments
