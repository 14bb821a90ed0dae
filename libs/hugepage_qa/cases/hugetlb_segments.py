"""Segments that actors share huge pages by (shmget(2)): they are attached, told of, changed and removed."""

import errno
from dataclasses import dataclass
from itertools import count
from typing import Final

from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.machine.host import Host
from hugepage_qa.process.actor import Actor
from hugepage_qa.process.marks import KEY_PREFIX

# include/uapi/linux/shm.h, ipc.h: the same on all architectures
IPC_PRIVATE: Final = 0
IPC_CREAT: Final = 0o1000
IPC_EXCL: Final = 0o2000
IPC_RMID: Final = 0
IPC_SET: Final = 1
IPC_STAT: Final = 2
SHM_LOCK: Final = 11
SHM_UNLOCK: Final = 12
SHM_HUGETLB: Final = 0o4000
SHM_NORESERVE: Final = 0o10000
SHM_RDONLY: Final = 0o10000
SHM_RND: Final = 0o20000
SHM_REMAP: Final = 0o40000
SHM_EXEC: Final = 0o100000
#: struct shmid64_ds: 48 bytes of shm_perm, of which the first six words are read, then what architectures order
#: differently
_SHMID_SIZE: Final = 112
#: with kernel.shm_rmid_forced a segment goes with its last attachment
_GOES_WHEN_DETACHED = "proc/sys/kernel/shm_rmid_forced"
#: of keys for segments without one; a few cases have keys of their own
_numbers = count(0x100)


@dataclass(frozen=True)
class SegmentStatus:
    """What IPC_STAT tells of a segment: bytes as asked for, processes, seconds since 1970, and how often attached."""

    owner: int
    creator: int
    mode: int
    size: int
    attached_at: int
    detached_at: int
    changed_at: int
    creator_pid: int
    last_pid: int
    attachments: int


class Segment:
    """A segment of ``pages`` pages; ``identifier`` is what shmat(2) takes."""

    def __init__(self, live: Live, actor: Actor, identifier: int, pages: int) -> None:
        self._live = live
        self.actor = actor
        self.identifier = identifier
        self.pages = pages

    def attach(self, actor: Actor | None = None, flags: int = 0, address: int = 0) -> Memory:
        """Attach it in ``actor`` (by default the one that created it). Raises OSError."""
        actor = actor or self.actor
        where = actor.call("shmat", self.identifier, address, flags) % (1 << 64)
        return Memory(self._live, actor, where, self.pages, self._live.size)

    def attach_for_good(self) -> Memory:
        """Attach and remove it: it goes with the last process that has it attached. Raises OSError."""
        memory = self.attach()
        self.remove()
        return memory

    def detach(self, memory: Memory) -> None:
        """Detach it where ``attach`` put it. Raises OSError."""
        memory.actor.call("shmdt", memory.address)

    def remove(self, actor: Actor | None = None) -> None:
        """Remove it: it goes when nobody has it attached any more. Raises OSError."""
        (actor or self.actor).call("shmctl", self.identifier, IPC_RMID, 0)

    def status(self, actor: Actor | None = None) -> SegmentStatus:
        """Return what IPC_STAT tells ``actor`` of it. Raises OSError."""
        uapi = self._live.host.uapi
        words = self.identifier, IPC_STAT, bytes(_SHMID_SIZE)
        _zero, (status,) = (actor or self.actor).call_with_buffers("shmctl", *words)
        _key, owner, _group, creator, _its_group, mode = uapi.unpack("6I", status[:24])
        longs = dict(zip(uapi.shmid_longs, uapi.unpack("4q", status[48:80]), strict=True))
        size, *times = (longs[name] for name in ("shm_segsz", "shm_atime", "shm_dtime", "shm_ctime"))
        return SegmentStatus(owner, creator, mode, size, *times, *uapi.unpack("2iQ", status[80:96]))

    def change(self, owner: int, mode: int, actor: Actor | None = None) -> None:
        """Have ``actor`` give it another owner, user and group, and mode (IPC_SET). Raises OSError."""
        status = self._live.host.uapi.pack("6I", 0, owner, owner, 0, 0, mode).ljust(_SHMID_SIZE, b"\0")
        (actor or self.actor).call("shmctl", self.identifier, IPC_SET, status)


def get_segment(
    live: Live, length: int, actor: Actor | None = None, key: int = IPC_PRIVATE, flags: int = 0o600 | IPC_CREAT
) -> Segment:
    """Create or find a segment of ``length`` bytes; it is removed after the case at the latest. Raises OSError.

    ``flags`` are its mode and further IPC_* and SHM_* flags.
    """
    actor = actor or live.actor()
    identifier = segment_number(live, actor, length, SHM_HUGETLB | live.size_flag | flags, key)
    return Segment(live, actor, identifier, -(-length // live.size))


def get_segment_of_no_size(live: Live) -> Segment:
    """Create a segment of as many bytes as a page has, which names no page size, as ``get_segment`` does."""
    actor = live.actor()
    return Segment(live, actor, segment_number(live, actor, live.size, SHM_HUGETLB | IPC_CREAT | 0o600), 1)


def segment_number(live: Live, actor: Actor, length: int, flags: int, key: int = IPC_PRIVATE) -> int:
    """Create or find a segment of ``length`` bytes, of any pages, that is removed after the case. Raises OSError."""
    if live.host.has_others:
        if (live.host.read(_GOES_WHEN_DETACHED) or "0").strip() != "0":
            live.set_knob(_GOES_WHEN_DETACHED, "0")
        if key == IPC_PRIVATE:
            # a run that is killed leaves it, and nobody would know whose it is
            key, flags = KEY_PREFIX << 16 | next(_numbers) & 0xFFFF, flags | IPC_CREAT | IPC_EXCL
    identifier = actor.call("shmget", key, length, flags)
    live.when_actors_have_ended(_remove_if_there, live.host, identifier)
    return identifier


def _remove_if_there(host: Host, identifier: int) -> None:
    actor = host.start_actor()
    try:
        actor.call("shmctl", identifier, IPC_RMID, 0)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EIDRM):
            raise
    finally:
        actor.end()
