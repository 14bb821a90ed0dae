"""Memory that a process asks to have in huge pages now (MADV_COLLAPSE), and that others have a hold of meanwhile."""

import errno
from collections.abc import Callable
from functools import partial

from hugepage_qa.cases.fragmentation import expect_no_node_short, expect_no_shortage
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.thp_memory import mapped_huge, need_folios_of_mapping, pmd_size
from hugepage_qa.kernel.uapi import MADV_COLLAPSE
from hugepage_qa.process.actor import Refused

#: for how long and after how many seconds a collapse is tried again
_COLLAPSE_SECONDS, _PAUSE_SECONDS = 60.0, 0.1


def collapse(live: Live, advise: Callable[[], object], node: int | None = None) -> None:
    """Call ``advise``, which gives MADV_COLLAPSE, again while a base page is busy (madvise(2): EAGAIN, EBUSY).

    Compaction in the background takes pages from the LRU for moments, which are long on a busy machine. Raises Refused,
    and CannotRun where there is no free block (ENOMEM), of ``node`` or at all.
    """
    end = live.host.clock() + _COLLAPSE_SECONDS
    while True:
        try:
            advise()
        except Refused as refusal:
            if refusal.errno == errno.ENOMEM:
                if node is None:
                    expect_no_node_short(live, pmd_size(live), 1)
                expect_no_shortage(live, pmd_size(live), 1, node)
            if refusal.errno not in (errno.EAGAIN, errno.EBUSY) or live.host.clock() > end:
                raise
        else:
            return
        live.host.pause(_PAUSE_SECONDS)


def collapse_memory(live: Live, memory: Memory, node: int | None = None) -> None:
    """Have the process of ``memory`` ask for all of it to be in huge pages, as ``collapse`` does, and raise as that.

    Raises CannotRun, too, where it is shared, and has none so large (EINVAL).
    """
    try:
        collapse(live, partial(memory.advise, MADV_COLLAPSE), node)
    except Refused as refusal:
        if refusal.errno == errno.EINVAL:
            need_folios_of_mapping(live, memory)
        raise


def expect_no_collapse(
    live: Live, memory: Memory, number: int, advise: Callable[[], object] | None = None, huge: int = 0
) -> None:
    """Expect MADV_COLLAPSE of ``memory`` to fail with errno ``number``, tried again while a base page is busy (EAGAIN).

    Its process asks for it, or ``advise`` does. It makes ``huge`` bytes huge all the same: where a base page of these
    is busy, and not one of the last huge page, the errno does not tell. Raises CannotRun where there is no free block
    (ENOMEM).
    """
    found: int | None = None

    def is_decided() -> bool:
        nonlocal found
        found = None
        try:
            advise() if advise else memory.advise(MADV_COLLAPSE)
        except Refused as refusal:
            found = refusal.errno
        return found == errno.ENOMEM or (found != errno.EAGAIN and not (huge and mapped_huge(memory) < huge))

    live.host.wait_until(is_decided, _COLLAPSE_SECONDS)
    if found == errno.ENOMEM:
        expect_no_node_short(live, memory.size, 1)
    live.expect("errno of MADV_COLLAPSE", number, found)
