"""Files of huge pages that an actor has open: of a hugetlbfs, or without a name (memfd_create(2))."""

import os
from typing import Any

from hugepage_qa.actor.process import Actor
from hugepage_qa.live.live import Live
from hugepage_qa.live.memory import Memory
from hugepage_qa.live.mman import FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE


class HugeFile:
    """An open file; pages of it count from 0."""

    def __init__(self, live: Live, actor: Actor, descriptor: int) -> None:
        self._live = live
        self.actor = actor
        self.descriptor = descriptor

    @property
    def size(self) -> int:
        """The size in bytes."""
        return self.actor.call("lseek", self.descriptor, 0, os.SEEK_END)

    def map(self, pages: int, *, shared: bool = True, **named: Any) -> Memory:
        """Map pages of it, as ``Live.map`` does. Raises OSError."""
        return self._live.map(pages, self.actor, fd=self.descriptor, shared=shared, **named)

    def truncate(self, pages: int) -> None:
        """Make it ``pages`` pages long. Raises OSError."""
        self.actor.call("ftruncate", self.descriptor, pages * self._live.size)

    def allocate(self, pages: int, first: int = 0, mode: int = 0) -> None:
        """Allocate ``pages`` pages from ``first`` on (fallocate(2)). Raises OSError."""
        self.actor.call("fallocate", self.descriptor, mode, first * self._live.size, pages * self._live.size)

    def punch(self, pages: int, first: int = 0) -> None:
        """Give ``pages`` pages from ``first`` on back, and leave a hole. Raises OSError."""
        self.allocate(pages, first, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE)

    def close(self) -> None:
        """Close it. Raises OSError."""
        self.actor.call("close", self.descriptor)


def open_file(live: Live, path: str, actor: Actor | None = None, flags: int = os.O_RDWR | os.O_CREAT) -> HugeFile:
    """Open a file of a hugetlbfs, in a new actor without one. Raises OSError."""
    actor = actor or live.actor()
    return HugeFile(live, actor, live.open(actor, path, flags))


def new_memfd(live: Live, actor: Actor | None = None, flags: int = 0) -> HugeFile:
    """Create an empty file without a name; ``flags`` are further MFD_* flags. Raises OSError."""
    actor = actor or live.actor()
    flags |= os.MFD_HUGETLB | live.size_flag
    return HugeFile(live, actor, actor.call("memfd_create", "hugepage-qa", flags))
