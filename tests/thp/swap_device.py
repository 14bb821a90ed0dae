"""Huge pages that are swapped out to a device: as a whole, and counted so. To a file they go in pieces."""

import os
from functools import partial

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.swapped import swap_out, swapped
from hugepage_qa.cases.thp_memory import expect_change, pmd_size
from hugepage_qa.cases.thp_policy import huge_pages
from hugepage_qa.kernel.proc_tables import read_swaps
from hugepage_qa.kernel.uapi import AT_FDCWD
from hugepage_qa.machine.host import CannotRun, Host
from hugepage_qa.machine.swap_file import HEADER_OFFSET, MAGIC
from hugepage_qa.oracle.rules import THP_DOC
from hugepage_qa.plugins.avocado_test import LiveTest

SWAP_DEVICE = Area("thp/swap-device", sizes=Sizes.ONCE)

# include/uapi/linux/loop.h
_LOOP_SET_FD, _LOOP_CLR_FD, _LOOP_CTL_GET_FREE = 0x4C00, 0x4C01, 0x4C82
_ZSWAP = "sys/module/zswap/parameters/enabled"
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
    _swap_to_a_device(live, _ROOM * pmd_size(live))
    change = {"thp_swpout": _PAGES, "thp_swpout_fallback": 0}
    out = partial(swap_out, live, length=_PAGES * pmd_size(live))
    memory = expect_change(live, change, partial(huge_pages, live, _PAGES), out)
    live.expect("AnonHugePages", 0, memory.smaps().anon_huge_pages)
    memory.expect_filled()
    live.expect("memory in swap after it was read", 0, swapped(memory))


def _swap_to_a_device(live: Live, room: int) -> None:
    """Have the machine swap to a loop device of ``room`` bytes of shared memory, and nowhere else.

    Raises CannotRun where the machine has other users, swap of its own, or no such devices.
    """
    if not live.host.is_thrown_away():
        raise CannotRun("swap on a device is for machines that are thrown away")
    if read_swaps(live.host) or not live.host.has_modules(["loop"]):
        raise CannotRun("this machine has swap of its own, or no loop devices")
    live.set_knob_if_there(_ZSWAP, "N")
    owner, base, pack = live.actor(), live.base_page, live.host.uapi.pack
    content = owner.call("memfd_create", "swap", 0)
    owner.call("ftruncate", content, room)
    owner.call("pwrite64", content, pack("3I", 1, room // base - 1, 0), 12, HEADER_OFFSET)
    owner.call("pwrite64", content, MAGIC, len(MAGIC), base - len(MAGIC))
    number = owner.call("ioctl", live.open(owner, "/dev/loop-control", os.O_RDWR), _LOOP_CTL_GET_FREE, 0)
    device = f"/dev/loop{number}"
    owner.call("ioctl", live.open(owner, device, os.O_RDWR), _LOOP_SET_FD, content)
    owner.call("swapon", device, 0)
    live.when_actors_have_ended(_swap_off, live.host, device)


def _swap_off(host: Host, device: str) -> None:
    actor = host.start_actor()
    try:
        actor.call("swapoff", device)
        actor.call("ioctl", actor.call("openat", AT_FDCWD, device, os.O_RDWR), _LOOP_CLR_FD, 0)
    finally:
        actor.end()


class ThpSwapDevice(LiveTest):
    """Huge pages that are swapped out to a device.

    :avocado: enable
    """

    def test_swap_device(self) -> None:
        """Every case, once for the machine."""
        self.run_area(SWAP_DEVICE)
