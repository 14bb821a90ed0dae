"""System calls that may never come back: an actor that is in one is ended for it."""

from collections.abc import Callable

from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Value
from hugepage_qa.process.actor import Actor, set_alarm
from hugepage_qa.process.actor_link import ActorGone

#: what takes milliseconds has come back by then on a busy machine, too
_ENDLESS_SECONDS = 30


def returned(live: Live, actor: Actor, act: Callable[[], Value]) -> Value | None:
    """Return what ``act`` returns, which calls the kernel by ``actor``; None where that had to be ended for it.

    Raises ActorGone where something else ended it.
    """
    began = live.host.clock()
    try:
        # timers of used time would not do: they are looked at on the way out of the kernel
        set_alarm(actor, _ENDLESS_SECONDS)
        value = act()
        set_alarm(actor, 0)
    except ActorGone:
        if live.host.clock() - began < _ENDLESS_SECONDS:
            raise
        return None
    return value
