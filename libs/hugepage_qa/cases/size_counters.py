"""What each size of transparent huge pages counts for itself: hugepages-*/stats, since Linux 6.10."""

from collections.abc import Iterable

from hugepage_qa.cases.live import Live
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.tree import read_integer, size_directories, size_name
from hugepage_qa.machine.host import CannotRun, ObservedTree


def counted_sizes(live: Live) -> dict[int, str]:
    """Return size in bytes -> directory of the sizes below the PMD's that anonymous memory can have, ascending.

    Raises CannotRun on a kernel that counts none.
    """
    sizes = {
        size: path
        for size, path in size_directories(live.host, DIRECTORY).items()
        if size < pmd_size(live) and {"enabled", "stats"} <= set(live.host.names(path))
    }
    if not sizes:
        raise CannotRun("this kernel counts no sizes below that of a PMD")
    return sizes


def allow_only(live: Live, *sizes: int, knob: str = "enabled", policy: str = "madvise") -> None:
    """Have advised memory get pages of ``sizes`` in bytes, and of no other, until the case ends.

    ``policy`` says what ``knob`` is for these; that of all others is never.
    """
    for size in (*counted_sizes(live), pmd_size(live)):
        path = f"{DIRECTORY}/{size_name(size)}/{knob}"
        if live.host.read(path) is not None:
            live.set_knob(path, policy if size in sizes else "never")


def size_counter(size: int, name: str) -> str:
    """Return what :func:`read_size_counters` calls the counter ``name`` of a size in bytes."""
    return f"{size // 1024}kB/{name}"


def read_size_counters(live: Live, names: Iterable[str]) -> dict[str, int]:
    """Return these counters of all sizes, as far as the kernel has them."""
    tree = ObservedTree(live.host)
    paths = {
        size_counter(size, name): f"{path}/stats/{name}"
        for name in names
        for size, path in size_directories(live.host, DIRECTORY).items()
    }
    return {counter: count for counter, path in paths.items() if (count := read_integer(tree, path)) is not None}
