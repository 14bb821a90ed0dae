"""Block devices whose blocks are those of a file (loop(4)), for a case."""

import os

from hugepage_qa.cases.live import Live
from hugepage_qa.kernel.uapi import AT_FDCWD
from hugepage_qa.machine.host import CannotRun, Host
from hugepage_qa.process.actor import Actor

# include/uapi/linux/loop.h
_LOOP_SET_FD, _LOOP_CLR_FD, _LOOP_CTL_GET_FREE = 0x4C00, 0x4C01, 0x4C82


def need_loop_devices(live: Live) -> None:
    """Raise CannotRun where the machine has other users, who may look at new devices, or no loop devices."""
    if not live.host.is_thrown_away():
        raise CannotRun("loop devices are for machines that are thrown away")
    if not live.host.has_modules(["loop"]):
        raise CannotRun("this machine has no loop devices")


def attach_loop_device(live: Live, owner: Actor, content: int) -> str:
    """Make a device of what ``owner`` has open as ``content`` until the case ends, and return its path.

    Raises OSError.
    """
    number = owner.call("ioctl", live.open(owner, "/dev/loop-control", os.O_RDWR), _LOOP_CTL_GET_FREE, 0)
    device = f"/dev/loop{number}"
    owner.call("ioctl", live.open(owner, device, os.O_RDWR), _LOOP_SET_FD, content)
    live.when_actors_have_ended(_detach, live.host, device)
    return device


def sector_of(live: Live, device: str) -> int:
    """Return the bytes of the smallest range of a device that can be written (/sys/block logical_block_size).

    Raises CannotRun where it is not told.
    """
    told = live.host.read(f"sys/block/{device.removeprefix('/dev/')}/queue/logical_block_size")
    if told is None:
        raise CannotRun("this kernel does not tell the size of a sector")
    return int(told)


def _detach(host: Host, device: str) -> None:
    """Take its file from a device: one that is swapped to goes at swapoff(2), later (LO_FLAGS_AUTOCLEAR)."""
    actor = host.start_actor()
    try:
        actor.call("ioctl", actor.call("openat", AT_FDCWD, device, os.O_RDWR), _LOOP_CLR_FD, 0)
    finally:
        actor.end()
