"""Pages of a pool in processes of which other memory is in swap: swapoff(2) goes through all that they have mapped."""

import errno
import mmap
from functools import partial

from hugepage_qa.cases.case import Area
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory, value_or_signal
from hugepage_qa.cases.swapped import only_swap, swap_out, swapped
from hugepage_qa.cases.thp_memory import map_aligned
from hugepage_qa.kernel.uapi import MADV_NOHUGEPAGE
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Refused
from hugepage_qa.sizes import MIB

BESIDE_SWAP = Area("swap/beside-swap")

_ORDINARY = 4 * MIB
_SWAP = 64 * MIB


@BESIDE_SWAP.case(
    "swapoff(2) brings back what a process has in swap and leaves its pages of a pool, private and shared, written and"
    " read alone, where they are, with what they hold, and a child's shared ones",
    "swapoff(2); mm/swapfile.c unuse_mm()",
    pages=3,
    since="5.4",  # MADV_PAGEOUT
)
def swapped_in_again(live: Live) -> None:
    swap_off = only_swap(live, _SWAP)
    actor = live.actor()
    private, shared = live.map(2, actor), live.map(1, actor, shared=True)
    private.part(0).fill()
    live.expect("a page that is read", 0, private.read(1))
    shared.fill()
    private.protect(mmap.PROT_READ, 0, 1)
    ordinary = map_aligned(live, 1, _ORDINARY, actor=actor)
    try:
        ordinary.advise(MADV_NOHUGEPAGE)
    except Refused as refusal:
        if refusal.errno != errno.EINVAL:
            raise
        live.notes.append("this kernel has no transparent huge pages")
    ordinary.fill()
    swap_out(live, ordinary, ordinary.length)
    child = actor.fork()
    frames = private.frames(), shared.frames()
    swap_off()
    live.expect("frames of the pages of the pool", frames, (private.frames(), shared.frames()))
    for who, memory, is_written in (
        ("ordinary memory", ordinary, True),
        ("ordinary memory of a child", ordinary.seen_by(child), True),
        ("a private page that was written", private.part(0), True),
        ("a private page that was read", private.part(1), False),
        ("a shared page", shared, True),
        ("a shared page of a child", shared.seen_by(child), True),
    ):
        live.expect(f"words of {who} that changed", 0, value_or_signal(partial(_wrong, memory, is_written=is_written)))
    live.expect("memory in swap", (0, 0), (swapped(ordinary), swapped(ordinary.seen_by(child))))
    live.expect_pool(nr=3, free=0)
    for each in (child, actor):
        each.end()
    live.expect_pool(nr=3, free=3)


def _wrong(memory: Memory, *, is_written: bool) -> int:
    """Return how many words of filled memory, or of zeroes, are others. Raises Fault."""
    if is_written:
        return memory.actor.check(memory.address, memory.length, memory.step, 1)
    return memory.actor.nonzero(memory.address, memory.length, memory.step)


class BesideSwap(LiveTest):
    def test_beside_swap(self) -> None:
        self.run_area(BESIDE_SWAP)
