"""Why a pool has fewer pages than it was told to have: memory is short or fragmented, or the kernel is wrong."""

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


def shortage(
    pool_file: str, size: int, pages: int, missing: int, memory: int, *, is_gigantic: bool, owed: bool
) -> CannotRun | Failed:
    """Return what to raise where a write to ``pool_file`` left ``missing`` of ``pages`` pages of ``size`` bytes out.

    ``memory`` bytes were available. Of what ``is_gigantic`` the buddy allocator has no blocks. It is CannotRun where
    memory was short, or where the kernel has not ``owed`` them, and Failed otherwise.
    """
    page = format_size(size)
    # no numbers that differ from case to case: a report shows one line for all that it kept out
    if memory < 2 * pages * size + _MARGIN:
        return CannotRun(f"memory is short: no pages of {page} and as much again for the machine itself are free")
    if not owed:
        lacks = f"range is free for a page of {page}" if is_gigantic else f"block is free for pages of {page}"
        return CannotRun(f"{FRAGMENTED}: after compaction no {lacks}")
    found = f"{pages - missing} with {memory >> 20} MiB available, after compaction"
    return Failed(Difference(pool_file, RESERVES, f"{pages} pages", found))
