"""What seals allow of calls that change how long a file is, or what is in it: a table of calls, and a model of both."""

import errno
import fcntl
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations

from hugepage_qa.cases.hugetlb_files import HugeFile
from hugepage_qa.cases.live import Live
from hugepage_qa.kernel.uapi import F_SEAL_FUTURE_WRITE, FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE
from hugepage_qa.process.actor import Refused

#: where the model is from
SEALED_SIZES = "fcntl(2) File Sealing; ftruncate(2); fallocate(2) FALLOC_FL_KEEP_SIZE"

_HOLE = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
_NO_WRITES = fcntl.F_SEAL_WRITE | F_SEAL_FUTURE_WRITE
_NAMES = {
    fcntl.F_SEAL_GROW: "GROW",
    fcntl.F_SEAL_SHRINK: "SHRINK",
    fcntl.F_SEAL_WRITE: "WRITE",
    F_SEAL_FUTURE_WRITE: "FUTURE_WRITE",
}
#: each seal alone, none, and pairs of them
SEALS = tuple(sum(chosen) for count in (0, 1, 2) for chosen in combinations(_NAMES, count))


@dataclass(frozen=True)
class Change:
    """A call that makes a file ``end`` bytes long (ftruncate), or is about its bytes from ``start`` to ``end``."""

    call: str
    start: int
    end: int
    mode: int = 0

    def size_after(self, size: int) -> int:
        """Return how long a file of ``size`` bytes is when the call has succeeded."""
        if self.call == "ftruncate":
            return self.end
        return size if self.mode & FALLOC_FL_KEEP_SIZE else max(size, self.end)

    def is_refused(self, seals: int, size: int) -> bool:
        """Tell whether ``seals`` forbid it of a file of ``size`` bytes.

        fallocate(2) takes what reaches behind the end for growth also where it is to keep the size (shmem_fallocate(),
        hugetlbfs_fallocate()).
        """
        is_hole = bool(self.mode & FALLOC_FL_PUNCH_HOLE)
        grows = self.end > size and not is_hole
        return bool(
            (grows and seals & fcntl.F_SEAL_GROW)
            or (self.size_after(size) < size and seals & fcntl.F_SEAL_SHRINK)
            or ((is_hole or self.call == "pwrite64") and seals & _NO_WRITES)
        )

    def may_write(self, size: int, seals: int, pieces: Iterable[int]) -> set[int]:
        """Return how many bytes write(2) may write of a file of ``size`` bytes before it comes to what is forbidden.

        It goes on by ``pieces``: base pages before Linux 6.11, and up to huge pages since (9aac777aaf94). Where the
        first one is forbidden it is refused.
        """
        if seals & _NO_WRITES:
            return {0}
        return {max(0, size // piece * piece - self.start) for piece in pieces} or {0}

    def act(self, file: HugeFile) -> int:
        """Call it and return how many bytes it has written. Raises Refused."""
        if self.call == "ftruncate":
            return file.actor.call("ftruncate", file.descriptor, self.end)
        length = self.end - self.start
        if self.call == "fallocate":
            return file.actor.call("fallocate", file.descriptor, self.mode, self.start, length)
        return file.actor.call("pwrite64", file.descriptor, self.content, length, self.start)

    @property
    def content(self) -> bytes:
        """What it writes."""
        return b"w" * (self.end - self.start) if self.call == "pwrite64" else b""


def changes(size: int, ends: Iterable[int], truncated: Iterable[int], hole: tuple[int, int]) -> tuple[Change, ...]:
    """Return calls for a file of ``size`` bytes: allocations to ``ends``, growths first and shorter files last."""
    to_ends = sorted(ends)
    lengths = sorted(truncated)
    return (
        Change("fallocate", *hole, _HOLE),
        *(Change("fallocate", 0, end, FALLOC_FL_KEEP_SIZE) for end in to_ends),
        *(Change("fallocate", max(0, min(size, end - 1)), end, FALLOC_FL_KEEP_SIZE) for end in to_ends),
        *(Change("fallocate", max(0, min(size, end - 1)), end) for end in to_ends),
        *(Change("ftruncate", 0, length) for length in lengths if length >= size),
        *(Change("ftruncate", 0, length) for length in reversed(lengths) if length < size),
    )


def expect_sizes(live: Live, file: HugeFile, seals: int, calls: Iterable[Change], pieces: Iterable[int] = ()) -> None:
    """Seal ``file`` and expect each of ``calls`` to be refused or not, and the file to be as long as it is then.

    ``pieces`` are the bytes that the kernel may write at once.
    """
    if seals:
        file.seal(seals)
    size = file.size
    for change in calls:
        with live.about(f"{named(seals)}, {size} bytes, {change}"):
            is_refused = change.is_refused(seals, size)
            found = written = 0
            try:
                written = change.act(file)
            except Refused as refusal:
                found = refusal.errno or 0
            live.expect("errno", errno.EPERM if is_refused and not written else 0, found)
            if change.call == "pwrite64":
                allowed = change.may_write(size, seals, pieces) if is_refused else {len(change.content)}
                live.expect("bytes written, as many as may be", True, written in allowed)
                found_again = file.read(change.start, written) if written else b""
                live.expect("these when they are read", change.content[:written], found_again)
            size = size if is_refused else change.size_after(size)
            live.expect("the size of the file", size, file.size)


def named(seals: int) -> str:
    """Return the names of ``seals``."""
    return "|".join(name for seal, name in _NAMES.items() if seals & seal) or "no seal"
