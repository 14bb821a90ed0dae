"""What a process and its mapping count of hugetlb pages."""

from hugepage_qa.actor.process import Actor
from hugepage_qa.kernel.process_status import ProcessStatus, read_process_status
from hugepage_qa.live.host import ObservedTree
from hugepage_qa.live.live import Live
from hugepage_qa.live.memory import Memory

#: what a hugetlb mapping is never part of (Documentation/filesystems/proc.rst smaps)
_OTHERS = ("Rss", "Pss", "Anonymous", "AnonHugePages", "ShmemPmdMapped", "Shared_Dirty", "Private_Dirty")


def expect_hugetlb(live: Live, memory: Memory, *, private: int = 0, shared: int = 0) -> None:
    """Expect what the only hugetlb mapping of a process shows, in pages, and that the process shows the same."""
    mapping = memory.smaps()
    live.expect("Private_Hugetlb", private * live.size, mapping.private_hugetlb)
    live.expect("Shared_Hugetlb", shared * live.size, mapping.shared_hugetlb)
    for name in _OTHERS:
        live.expect(f"{name} of a hugetlb mapping", 0, mapping.fields.get(name, 0))
    live.expect("HugetlbPages", (private + shared) * live.size, process_status(live, memory.actor).hugetlb_pages)


def process_status(live: Live, actor: Actor) -> ProcessStatus:
    """Return /proc/PID/status of ``actor``. Raises Failed where there is none."""
    status = read_process_status(ObservedTree(live.host), actor.pid)
    return status or live.fail(f"/proc/{actor.pid}/status", "a process", "none")
