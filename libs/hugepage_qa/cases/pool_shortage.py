"""Why a pool has fewer pages than it was told to have: memory is short or fragmented, or the kernel is wrong."""

from dataclasses import dataclass

from hugepage_qa.cases.expectations import Failed
from hugepage_qa.cases.result import FRAGMENTED
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.oracle.compare import Difference
from hugepage_qa.oracle.rules import HUGETLB_DOC, Rule
from hugepage_qa.sizes import MIB, format_size

RESERVES = Rule(
    "reserves-what-memory-allows",
    "a write to nr_hugepages reserves that many pages where twice their memory is available, in blocks or movable",
    f"{HUGETLB_DOC} nr_hugepages; mm/hugetlb.c set_max_huge_pages()",
)
#: memory that must stay for the machine itself
_MARGIN = 256 * MIB


@dataclass(frozen=True)
class PoolShortage:
    """``missing`` of ``pages`` pages of ``size`` bytes, of which the buddy allocator has no block if ``is_gigantic``.

    ``memory`` bytes were available.
    """

    size: int
    is_gigantic: bool
    pages: int
    missing: int
    memory: int

    def error(self, pool_file: str, *, owed: bool) -> Exception:
        """Return what to raise: CannotRun where memory is short, or where the kernel has not ``owed`` them, or Failed.

        ``pool_file`` is what was written.
        """
        size = format_size(self.size)
        # no numbers that differ from case to case: a report shows one line for all that it kept out
        if self.memory < 2 * self.pages * self.size + _MARGIN:
            return CannotRun(f"memory is short: no pages of {size} and as much again for the machine itself are free")
        if not owed:
            lacks = f"range is free for a page of {size}" if self.is_gigantic else f"block is free for pages of {size}"
            return CannotRun(f"{FRAGMENTED}: after compaction no {lacks}")
        found = f"{self.pages - self.missing} with {self.memory >> 20} MiB available, after compaction"
        return Failed(Difference(pool_file, RESERVES, f"{self.pages} pages", found))
