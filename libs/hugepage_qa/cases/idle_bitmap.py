"""The bitmap that tells which frames nobody has used since they were marked as idle, and pages that are used."""

import mmap
import os
from collections.abc import Iterable
from typing import TypeVar

from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import WORD, Memory, read_entries
from hugepage_qa.kernel.facts import read_process_names
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.machine.knobs import DAMON_STAT

DOC = "Documentation/admin-guide/mm/idle_page_tracking.rst"
#: of a word of the bitmap
BITS = 64
_DIRECTORY, _NAME = "sys/kernel/mm/page_idle", "bitmap"
BITMAP = f"/{_DIRECTORY}/{_NAME}"
_DAMON_THREADS = "kdamond."
#: a page that somebody isolates or moves in that moment is passed over
_ATTEMPTS = 3

Seen = TypeVar("Seen")


def has_idle_bitmap(live: Live) -> bool:
    """Tell whether the kernel keeps account of idle pages (CONFIG_IDLE_PAGE_TRACKING)."""
    return _NAME in live.host.names(_DIRECTORY)


class IdleBitmap:
    """The file that tells which frames are idle, opened, and nobody else marks any.

    Raises CannotRun for a kernel without it, and where others have DAMON watch memory: that marks what it looks at
    (damon_ptep_mkold(), damon_pmdp_mkold() in mm/damon/ops-common.c).
    """

    def __init__(self, live: Live) -> None:
        if not has_idle_bitmap(live):
            raise CannotRun("this kernel has no CONFIG_IDLE_PAGE_TRACKING")
        live.set_knob_if_there(DAMON_STAT, "N")
        if any(name.startswith(_DAMON_THREADS) for name in read_process_names(ObservedTree(live.host))):
            raise CannotRun("DAMON watches memory, and marks pages as idle itself")
        self._live = live
        self.actor = live.actor()
        self.descriptor = live.open(self.actor, BITMAP, os.O_RDWR)

    def write(self, first: int, *words: int) -> int:
        """Write ``words`` from number ``first`` on, and return how many bytes were. Raises OSError."""
        data = self.actor.uapi.pack(f"{len(words)}Q", *words)
        return self.actor.call("pwrite64", self.descriptor, data, len(data), first * WORD)

    def words(self, first: int, count: int) -> list[int]:
        """Return ``count`` words from number ``first`` on; the kernel looks now whether the frames were used."""
        return list(read_entries(self.actor, self.descriptor, first, count))

    def mark(self, frames: Iterable[int]) -> None:
        """Mark ``frames`` as idle; the other bits of a word are left alone where they are 0."""
        words: dict[int, int] = {}
        for frame in frames:
            words[frame // BITS] = words.get(frame // BITS, 0) | 1 << frame % BITS
        for number, word in words.items():
            self._live.expect("bytes written", WORD, self.write(number, word))

    def mark_huge(self, memory: Memory) -> int:
        """Mark the huge page of ``memory`` as idle until it is so, and return its first frame."""
        first = memory.frames().pop()
        for _attempt in range(_ATTEMPTS):
            self.mark([first])
            now = memory.frames().pop()
            if now == first and self.is_idle(first):
                break
            first = now
        self._live.expect("whether what was marked is idle", 1, self.is_idle(first))
        return first

    def is_idle(self, frame: int) -> int:
        """Tell whether a frame is idle; the kernel looks now whether it was used."""
        return self.words(frame // BITS, 1)[0] >> frame % BITS & 1


def let_uses_show(memory: Memory) -> None:
    """Have the processor forget what it knows of ``memory``: it writes down a use when it does not know the page."""
    for prot in (mmap.PROT_READ, READ_WRITE):
        memory.protect(prot)


def use(memory: Memory) -> None:
    """Read all of ``memory``, in such a way that it shows."""
    let_uses_show(memory)
    memory.expect_filled()
