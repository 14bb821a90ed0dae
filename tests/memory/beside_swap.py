"""Pages of a pool in processes of which other memory is in swap: swapoff(2) goes through all that they have mapped."""

import mmap

from hugepage_qa.cases.case import Area
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.swapped import only_swap, swap_out, swapped
from hugepage_qa.cases.thp_memory import map_aligned
from hugepage_qa.kernel.uapi import MADV_NOHUGEPAGE
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Refused
from hugepage_qa.sizes import MIB

BESIDE_SWAP = Area("memory/beside-swap")

_ORDINARY = 4 * MIB
_SWAP = 64 * MIB


@BESIDE_SWAP.case(
    "swapoff(2) brings back what a process has in swap and leaves its pages of a pool, private and shared, written and"
    " read alone, where they are, and a child's, with what they hold",
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
    except Refused:
        live.notes.append("this kernel has no transparent huge pages")
    ordinary.fill()
    swap_out(live, ordinary, ordinary.length)
    child = actor.fork()
    swap_off()
    for each in (actor, child):
        live.expect("memory in swap", 0, swapped(ordinary.seen_by(each)))
        ordinary.seen_by(each).expect_filled()
        private.seen_by(each).part(0).expect_filled()
        private.seen_by(each).expect_zero(1)
        shared.seen_by(each).expect_filled()
    live.expect_pool(nr=3, free=0)
    for each in (child, actor):
        each.end()
    live.expect_pool(nr=3, free=3)


class BesideSwap(LiveTest):
    """Pages of a pool beside memory in swap, for every page size of the machine.

    :avocado: enable
    """

    def test_beside_swap(self) -> None:
        """Every case for every page size."""
        self.run_area(BESIDE_SWAP)
