"""Memory that is free or used, and what others on the machine do with it, who are no bug of the kernel."""

from hugepage_qa.cases.live import Live
from hugepage_qa.kernel.counters import read_meminfo
from hugepage_qa.kernel.memory_layout import free_pages
from hugepage_qa.machine.host import CannotRun, ObservedTree

#: lines of /proc/meminfo
_USED = ("AnonPages", "Cached", "Buffers", "Slab", "PageTables", "Hugetlb")
_LOOKS, _LOOK_SECONDS = 10, 0.5


def used_memory(live: Live) -> int:
    """Return the bytes of memory of which the kernel says what they are used for."""
    counters = read_meminfo(live.host)
    return sum(counters.get(name, 0) for name in _USED)


def free_bytes(live: Live) -> int:
    """Return the bytes that are free, those in lists of processors, too."""
    return free_pages(ObservedTree(live.host)) * live.base_page


def expect_no_drift(live: Live, much: int) -> None:
    """Raise CannotRun where others take or give ``much`` memory, in bytes, while the case does nothing."""
    if not live.host.has_others:
        return
    for _look in range(_LOOKS):
        before = free_bytes(live)
        live.host.pause(_LOOK_SECONDS)
        drift = abs(before - free_bytes(live))
        if drift >= much:
            raise CannotRun(f"others take and give memory: {drift} bytes while nothing was done")


def expect_not_others(live: Live, short: int, expected: int) -> None:
    """Raise CannotRun where others use as much memory more than ``expected`` as a case is ``short`` of, in bytes.

    What the kernel has lost it counts as used by nobody. Where nobody else uses the machine all of it is a bug.
    """
    if short <= 0 or not live.host.has_others:
        return
    more = used_memory(live) - expected
    if short <= more:
        raise CannotRun(f"others took {more >> 20} MiB of memory meanwhile")
