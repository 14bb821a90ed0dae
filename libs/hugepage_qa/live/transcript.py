"""Record what a case did and saw, and play it back, true or falsified."""

import json
import os
from collections.abc import Sequence
from typing import Any

from hugepage_qa.live.host import Backend

Event = dict[str, Any]


class Diverged(Exception):
    """A replayed case did something else than it did when it was recorded."""


class Recorder:
    """Passes operations on and keeps them; ``events`` is what Replay takes."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.events: list[Event] = []

    def perform(self, operation: str, arguments: Sequence[Any]) -> Any:
        """Carry out ``operation`` on the backend and record it, with its result or its errno."""
        event: Event = {"operation": operation, "arguments": list(arguments)}
        self.events.append(event)
        try:
            result = self._backend.perform(operation, arguments)
        except OSError as error:
            event["errno"] = error.errno
            raise
        # through JSON, so that a case sees now what it will see in a replay
        event["result"] = json.loads(json.dumps(result))
        return event["result"]


class Replay:
    """Answers as a machine once did."""

    def __init__(self, events: Sequence[Event]) -> None:
        self._events = list(events)
        self._next = 0

    def perform(self, operation: str, arguments: Sequence[Any]) -> Any:
        """Return the recorded result of the next operation. Raises Diverged when another one was recorded."""
        asked = (operation, json.loads(json.dumps(list(arguments))))
        event = self._events[self._next] if self._next < len(self._events) else {}
        recorded = (event.get("operation"), event.get("arguments"))
        if recorded != asked:
            raise Diverged(f"operation {self._next}: recorded {recorded}, asked for {asked}")
        self._next += 1
        if "errno" in event:
            raise OSError(event["errno"], os.strerror(event["errno"]))
        return event["result"]
