"""Buffers for devices that lie in a file without a name: /dev/udmabuf (include/uapi/linux/udmabuf.h)."""

import errno
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass

from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.process.actor import Actor, Refused

_DEVICE = "/dev/udmabuf"
# UDMABUF_CREATE and UDMABUF_CREATE_LIST: the number, and the argument
_TYPE, _CREATE, _CREATE_LIST = ord("u"), 0x42, 0x43
_ONE, _HEAD, _ITEM = "2I2Q", "2I", "2I2Q"


@dataclass(frozen=True)
class Part:
    """``length`` bytes from ``offset`` on of the open file ``descriptor``."""

    descriptor: int
    offset: int
    length: int


@dataclass(frozen=True)
class DeviceBuffer:
    """An open buffer that is mapped at ``address``, all of it."""

    actor: Actor
    descriptor: int
    address: int
    length: int

    def close(self) -> None:
        """Unmap and close it. Raises OSError."""
        self.actor.call("munmap", self.address, self.length)
        self.actor.call("close", self.descriptor)


def open_device(live: Live, actor: Actor) -> int:
    """Have ``actor`` open the device that makes buffers. Raises CannotRun where the kernel has none."""
    try:
        return live.open(actor, _DEVICE, os.O_RDWR)
    except Refused as refusal:
        if refusal.errno in (errno.ENOENT, errno.ENODEV, errno.ENXIO):
            raise CannotRun("this kernel has no CONFIG_UDMABUF") from refusal
        raise


def create_buffer(actor: Actor, device: int, parts: Sequence[Part]) -> int:
    """Return the descriptor of a buffer of ``parts``, in their order; one alone has a call of its own. Raises Refused.

    It needs files that are sealed against shrinking, and not against writing.
    """
    uapi = actor.uapi
    if len(parts) == 1:
        (part,) = parts
        words = uapi.pack(_ONE, part.descriptor, 0, part.offset, part.length)
        return actor.call("ioctl", device, uapi.iow(_TYPE, _CREATE, len(words)), words)
    head = uapi.pack(_HEAD, 0, len(parts))
    items = b"".join(uapi.pack(_ITEM, part.descriptor, 0, part.offset, part.length) for part in parts)
    return actor.call("ioctl", device, uapi.iow(_TYPE, _CREATE_LIST, len(head)), head + items)


def map_buffer(actor: Actor, device: int, parts: Sequence[Part]) -> DeviceBuffer:
    """Make a buffer as ``create_buffer`` does, and map it. Raises Refused."""
    descriptor, length = create_buffer(actor, device, parts), sum(part.length for part in parts)
    return DeviceBuffer(actor, descriptor, actor.mmap(length, READ_WRITE, mmap.MAP_SHARED, descriptor), length)
