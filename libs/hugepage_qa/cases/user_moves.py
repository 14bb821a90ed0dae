"""Memory of two sides, of which one is moved to where the other misses it: UFFDIO_MOVE of ioctl_userfaultfd(2)."""

import errno
from dataclasses import dataclass
from functools import partial

from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory, value_or_signal
from hugepage_qa.cases.thp_policy import advised
from hugepage_qa.cases.userfaultfd import Feature, Mode, Userfault

MOVE = "ioctl_userfaultfd(2) UFFDIO_MOVE"
_SIGBUS = "SIGBUS"


@dataclass(frozen=True)
class Sides:
    """Memory that is to be moved, and what misses it."""

    live: Live
    source: Memory
    target: Memory
    faults: Userfault

    @classmethod
    def of(cls, live: Live, source: Memory) -> "Sides":
        """Map what misses as much as ``source`` is. Raises CannotRun where the kernel has no UFFDIO_MOVE."""
        target = advised(live, source.pages, actor=source.actor)
        return cls(live, source, target, Userfault(target, Mode.MISSING, Feature.MOVE))

    def move(self, start: int, to: int, length: int, *, holes: bool = False) -> tuple[int, int]:
        """Move bytes from one offset to another; return errno, and what .move tells."""
        return self.faults.moving(self.source.address + start, self.target.address + to, length, holes=holes)

    def move_all(self, start: int, to: int, length: int, *, holes: bool = False) -> None:
        """Move all of it, and on from where it stops: somebody else may have a hold of a page for a moment."""
        self.live.expect("bytes moved, and error", (length, 0), self.move_until(length, start, to, length, holes=holes))

    def move_until(
        self, end: int, start: int = 0, to: int = 0, length: int = 0, *, holes: bool = False
    ) -> tuple[int, int]:
        """Move ``length`` bytes, by default all; return how many were moved when it ends, and the error that ended it.

        It goes on from where it stops, and again when that is before ``end``.
        """
        done = error = 0
        length = length or self.source.length

        def is_over() -> bool:
            nonlocal done, error
            while done < length:
                left = length - done
                error, moved = self.move(start + done, to + done, left, holes=holes)
                if moved % self.live.base_page and moved > 0:
                    self.live.fail(".move", "whole base pages", moved)
                if moved <= 0:
                    self.live.expect(".move where nothing was moved", -error, moved)
                    break
                self.live.expect(
                    "error of what moved in part or as a whole", 0 if moved == left else errno.EAGAIN, error
                )
                done += moved
            return done >= end

        self.live.host.wait_until(is_over)
        return done, error

    def expect_missing(self, *offsets: int) -> None:
        """Expect an access to the target at each of these offsets to be the program's to handle, if it is there."""
        for offset in offsets:
            if 0 <= offset < self.target.length:
                found = value_or_signal(partial(self.target.actor.read, self.target.address + offset))
                self.live.expect("what is read where nothing was moved to", _SIGBUS, found)
