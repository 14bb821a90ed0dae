"""Memory that others use on the same machine, who are no bug of the kernel: what it has lost it counts as nobody's."""

from hugepage_qa.cases.live import Live
from hugepage_qa.kernel.counters import read_meminfo
from hugepage_qa.machine.host import CannotRun

#: lines of /proc/meminfo
_USED = ("AnonPages", "Cached", "Buffers", "Slab", "PageTables", "Hugetlb")


def used_memory(live: Live) -> int:
    """Return the bytes of memory that the kernel tells what they are used for."""
    counters = read_meminfo(live.host)
    return sum(counters.get(name, 0) for name in _USED)


def expect_not_others(live: Live, short: int, expected: int) -> None:
    """Raise CannotRun where others use as much memory more than ``expected`` as a case is ``short`` of, in bytes.

    Where nobody else uses the machine that is a bug of the kernel, too.
    """
    if short <= 0 or not live.host.has_others:
        return
    more = used_memory(live) - expected
    if short <= more:
        raise CannotRun(f"others took {more >> 20} MiB of memory meanwhile")
