"""A descriptor that is waited for by epoll(7), which hears of it from the wake-ups of those who wait alone."""

from hugepage_qa.process.actor import Actor

# include/uapi/linux/eventpoll.h
_ADD, _READABLE = 1, 1
#: struct epoll_event, which is packed on x86 alone: without what is told besides, either way
_EVENT = "I12x"


class EventPoll:
    """What ``actor`` is told of one of its descriptors: that it can be read, once who waits for that was woken."""

    def __init__(self, actor: Actor, descriptor: int) -> None:
        """Wait for ``descriptor`` from now on. Raises Refused."""
        self._actor = actor
        self._poll = actor.call("epoll_create1", 0)
        actor.call("epoll_ctl", self._poll, _ADD, descriptor, actor.uapi.pack(_EVENT, _READABLE))

    def is_woken(self) -> bool:
        """Tell whether somebody who waits for it is woken, or would have been. Raises Refused."""
        room = bytes(self._actor.uapi.size_of(_EVENT))
        return self._actor.call("epoll_pwait", self._poll, room, 1, 0, 0, 0) == 1
