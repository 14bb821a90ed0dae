"""System V shared memory of huge pages (shmget(2))."""

import errno
from typing import Final

from hugepage_qa.actor.process import Actor
from hugepage_qa.live.host import Host
from hugepage_qa.live.live import Live
from hugepage_qa.live.memory import Memory

# include/uapi/linux/shm.h, ipc.h: the same on all architectures
IPC_PRIVATE: Final = 0
IPC_CREAT: Final = 0o1000
IPC_EXCL: Final = 0o2000
IPC_RMID: Final = 0
SHM_HUGETLB: Final = 0o4000
SHM_NORESERVE: Final = 0o10000
SHM_RDONLY: Final = 0o10000
SHM_RND: Final = 0o20000


class Segment:
    """A segment; ``identifier`` is what shmat(2) takes."""

    def __init__(self, live: Live, actor: Actor, identifier: int) -> None:
        self._live = live
        self.actor = actor
        self.identifier = identifier

    def attach(self, actor: Actor | None = None, flags: int = 0, address: int = 0) -> Memory:
        """Attach it in ``actor`` (by default the one that created it). Raises OSError."""
        actor = actor or self.actor
        where = actor.call("shmat", self.identifier, address, flags) % (1 << 64)
        return Memory(self._live, actor, where, 1, self._live.size)

    def detach(self, memory: Memory) -> None:
        """Detach it where ``attach`` put it. Raises OSError."""
        memory.actor.call("shmdt", memory.address)

    def remove(self, actor: Actor | None = None) -> None:
        """Remove it: it goes when nobody has it attached any more. Raises OSError."""
        (actor or self.actor).call("shmctl", self.identifier, IPC_RMID, 0)


def get_segment(
    live: Live, length: int, actor: Actor | None = None, key: int = IPC_PRIVATE, flags: int = 0o600 | IPC_CREAT
) -> Segment:
    """Create or find a segment of ``length`` bytes; it is removed after the case at the latest. Raises OSError.

    ``flags`` are its mode and further IPC_* and SHM_* flags.
    """
    actor = actor or live.actor()
    identifier = actor.call("shmget", key, length, SHM_HUGETLB | live.size_flag | flags)
    live.when_actors_have_ended(_remove_if_there, live.host, identifier)
    return Segment(live, actor, identifier)


def _remove_if_there(host: Host, identifier: int) -> None:
    actor = host.start_actor()
    try:
        actor.call("shmctl", identifier, IPC_RMID, 0)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EIDRM):
            raise
    finally:
        actor.end()
