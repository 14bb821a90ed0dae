"""How much of its address space a process has locked, in the two places that tell, and how much it may."""

import errno

from hugepage_qa.cases.live import Live
from hugepage_qa.cases.process_counters import process_status
from hugepage_qa.kernel.smaps import read_smaps
from hugepage_qa.kernel.uapi import RLIM_INFINITY, RLIMIT_MEMLOCK
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.process.actor import Actor, Refused

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


def limit_locked_memory(live: Live, actor: Actor, length: int, most: int = RLIM_INFINITY) -> None:
    """Let ``actor`` lock ``length`` bytes; it may change that again, up to ``most``.

    Raises CannotRun where ``most`` is more than root may give: a container can be without CAP_SYS_RESOURCE.
    """
    try:
        actor.call("setrlimit", RLIMIT_MEMLOCK, live.host.uapi.pack("2Q", length, most))
    except Refused as refusal:
        if refusal.errno != errno.EPERM:
            raise
        raise CannotRun("root may not raise the limit of locked memory: it lacks CAP_SYS_RESOURCE") from refusal
