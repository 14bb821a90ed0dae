"""Huge pages that are swapped out to a device: as a whole, and counted so. To a file they go in pieces."""

from functools import partial

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.swapped import swap_out, swap_to_a_device, swapped
from hugepage_qa.cases.thp_memory import expect_change, pmd_size
from hugepage_qa.cases.thp_policy import huge_pages
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.oracle.rules import THP_DOC
from hugepage_qa.plugins.avocado_test import LiveTest

SWAP_DEVICE = Area("thp/swap-device", sizes=Sizes.ONCE)

_PAGES, _ROOM = 2, 8


@SWAP_DEVICE.case(
    "huge pages that swap on a device has room for are swapped out as a whole, each counts in thp_swpout, and they come"
    " back with what they held",
    f"{THP_DOC} thp_swpout; mm/page_io.c count_swpout_vm_event(); mm/swapfile.c SWP_BLKDEV",
    since="5.4",  # MADV_PAGEOUT
)
def swapped_out_whole(live: Live) -> None:
    if live.host.kernel_option("THP_SWAP") is False:  # powerpc's never have it
        raise CannotRun("this kernel swaps huge pages out in pieces: it has no CONFIG_THP_SWAP")
    swap_to_a_device(live, _ROOM * pmd_size(live))
    change = {"thp_swpout": _PAGES, "thp_swpout_fallback": 0}
    out = partial(swap_out, live, length=_PAGES * pmd_size(live))
    memory = expect_change(live, change, partial(huge_pages, live, _PAGES), out)
    live.expect("AnonHugePages", 0, memory.smaps().anon_huge_pages)
    memory.expect_filled()
    live.expect("memory in swap after it was read", 0, swapped(memory))


class ThpSwapDevice(LiveTest):
    """Huge pages that are swapped out to a device.

    :avocado: enable
    """

    def test_swap_device(self) -> None:
        """Every case, once for the machine."""
        self.run_area(SWAP_DEVICE)
