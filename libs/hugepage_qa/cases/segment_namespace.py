"""A namespace of System V segments that is one process' own (ipc_namespaces(7)), its limits, and segments in it."""

import errno
import os

from hugepage_qa.cases.hugetlb_segments import IPC_CREAT, IPC_PRIVATE, SHM_HUGETLB, Segment
from hugepage_qa.cases.live import Live
from hugepage_qa.kernel.uapi import CLONE_NEWIPC
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.process.actor import Actor, Refused

_MODE = 0o600


def in_own_namespace(live: Live) -> Actor:
    """Return an actor that sees no segments but its own. Raises CannotRun where there are no namespaces of them."""
    actor = live.actor()
    try:
        actor.call("unshare", CLONE_NEWIPC)
    except Refused as refusal:
        if refusal.errno != errno.EINVAL:
            raise
        raise CannotRun("this kernel has no CONFIG_IPC_NS") from refusal
    return actor


def write_limit(live: Live, actor: Actor, name: str, value: int) -> None:
    """Write the sysctl kernel.``name`` of the namespace of ``actor``: nobody else has another one. Raises Refused."""
    file = live.open(actor, f"/proc/sys/kernel/{name}", os.O_WRONLY)
    text = f"{value}\n".encode()
    actor.call("write", file, text, len(text))
    actor.call("close", file)


def new_segment(live: Live, actor: Actor, length: int, flags: int = 0) -> Segment:
    """Make a segment in the namespace of ``actor``, with which it goes at the latest. Raises Refused."""
    flags |= SHM_HUGETLB | live.size_flag | IPC_CREAT | _MODE
    return Segment(live, actor, actor.call("shmget", IPC_PRIVATE, length, flags), -(-length // live.size))
