"""Counters of the machine, of its nodes and of its zones, of which each processor keeps a part for itself."""

from collections.abc import Iterable

from hugepage_qa.cases.live import Live
from hugepage_qa.oracle.known_issues import Quirk


def add_up_counters(live: Live) -> None:
    """Have what each processor has counted for itself added up now, and not within the next second.

    Source: Documentation/admin-guide/sysctl/vm.rst stat_refresh; mm/vmstat.c vmstat_refresh().
    """
    live.host.write("proc/sys/vm/stat_refresh", "1")


def tells_of_pages_in_use(live: Live, counts: Iterable[int]) -> bool:
    """Tell whether all ``counts`` of nr_hugetlb, with a page in use, say anything.

    One reads 0 where more pages were taken out of it than are in use, as kernels with a known bug do (nr-hugetlb-lost).
    Raises Failed where another kernel shows that.
    """
    if all(counts):
        return True
    if not live.has_bug(Quirk.NR_HUGETLB_LOST):
        live.fail("nr_hugetlb with a page in use", "more than 0", 0)
    return False
