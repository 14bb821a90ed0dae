"""A process that writes the size of a pool: the kernel goes by its memory policy and its cpuset."""

import os

from hugepage_qa.cases.live import Live
from hugepage_qa.kernel.tree import read_integer
from hugepage_qa.kernel.uapi import AT_FDCWD
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.oracle.rules import HUGETLB_DOC
from hugepage_qa.process.actor import Actor

POLICY = f"{HUGETLB_DOC} Interaction of Task Memory Policy with Huge Page Allocation/Freeing"


def persistent_pages(live: Live) -> int:
    """Return what nr_hugepages is now, without surplus."""
    nr, surplus = (read_integer(live.host, live.pool_file(name)) or 0 for name in ("nr_hugepages", "surplus_hugepages"))
    return nr - surplus


def nr_with_policy(live: Live) -> str:
    """Return the path of nr_hugepages_mempolicy. Raises CannotRun where the kernel has none, as without CONFIG_NUMA."""
    path = live.pool_file("nr_hugepages_mempolicy")
    if live.host.read(path) is None:
        raise CannotRun(f"this kernel has no /{path}")
    return path


def write_number(actor: Actor, path: str, number: int) -> None:
    """Have ``actor`` write ``number``: the kernel goes by the policy of the process that writes."""
    text = str(number).encode()
    fd = actor.call("openat", AT_FDCWD, f"/{path}", os.O_WRONLY)
    actor.call("write", fd, text, len(text))
    actor.call("close", fd)
