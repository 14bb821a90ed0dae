"""How much of its address space a process has locked, in the two places that tell."""

from hugepage_qa.cases.hugetlb_files import process_status
from hugepage_qa.cases.live import Live
from hugepage_qa.kernel.smaps import read_smaps
from hugepage_qa.machine.host import ObservedTree
from hugepage_qa.process.actor import Actor

#: VmFlags of /proc/PID/smaps: a mapping is locked, also on fault
LOCKED = "lo"


def expect_locked(live: Live, actor: Actor, length: int | None = None) -> None:
    """Expect ``actor`` to have ``length`` bytes locked, by default as much as the flags of its mappings say."""
    flagged = flagged_bytes(live, actor)
    if length is not None:
        live.expect("bytes with lo in VmFlags", length, flagged)
    live.expect("VmLck", flagged if length is None else length, process_status(live, actor).locked)


def flagged_bytes(live: Live, actor: Actor) -> int:
    """Return how many bytes of the mappings of ``actor`` are locked, as their flags say."""
    mappings = read_smaps(ObservedTree(live.host), actor.pid) or ()
    return sum(found.end - found.start for found in mappings if LOCKED in found.flags)
