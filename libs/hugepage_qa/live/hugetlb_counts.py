"""What a process and its mapping count of hugetlb pages."""

from hugepage_qa.actor.process import Actor
from hugepage_qa.kernel.process_status import ProcessStatus, read_process_status
from hugepage_qa.live.host import ObservedTree
from hugepage_qa.live.live import Live
from hugepage_qa.live.memory import Memory
from hugepage_qa.model.known import Quirk

#: what a hugetlb mapping is never part of (Documentation/filesystems/proc.rst smaps)
_OTHERS = ("Rss", "Pss", "Anonymous", "AnonHugePages", "ShmemPmdMapped", "Shared_Dirty", "Private_Dirty")


def expect_hugetlb(live: Live, memory: Memory, *, private: int = 0, shared: int = 0) -> None:
    """Expect what the only hugetlb mapping of a process shows, in pages, and that the process shows the same."""
    mapping = memory.smaps()
    expect_private_and_shared(live, private, shared, (mapping.private_hugetlb, mapping.shared_hugetlb))
    for name in _OTHERS:
        live.expect(f"{name} of a hugetlb mapping", 0, mapping.fields.get(name, 0))
    live.expect("HugetlbPages", (private + shared) * live.size, process_status(live, memory.actor).hugetlb_pages)


def expect_private_and_shared(live: Live, private: int, shared: int, found: tuple[int | None, int | None]) -> None:
    """Expect Private_Hugetlb and Shared_Hugetlb, ``found`` in bytes, to be this many pages. Raises KnownBug."""
    swapped = {Quirk.SMAPS_SHOWS_SHARED: (0, (private + shared) * live.size)}
    known = swapped if private and not live.mmu.has_pmd_entries(live.size) else None
    live.expect("Private_Hugetlb, Shared_Hugetlb", (private * live.size, shared * live.size), found, known)


def forked(live: Live, memory: Memory, pages: int = 1) -> Memory:
    """Fork the actor of private ``memory``, and return what its child has of it: the ``pages`` that were touched.

    Raises KnownBug where it has none of them.
    """
    child = memory.seen_by(memory.actor.fork())
    known = None if live.mmu.has_pmd_entries(live.size) else {Quirk.FORK_LOSES_PAGES: 0}
    found = process_status(live, child.actor).hugetlb_pages
    live.expect("HugetlbPages of the child", pages * live.size, found, known)
    return child


def process_status(live: Live, actor: Actor) -> ProcessStatus:
    """Return /proc/PID/status of ``actor``. Raises Failed where there is none."""
    status = read_process_status(ObservedTree(live.host), actor.pid)
    return status or live.fail(f"/proc/{actor.pid}/status", "a process", "none")
