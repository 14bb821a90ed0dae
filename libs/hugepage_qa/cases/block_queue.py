"""What the device of a file takes in one request, and how much of a file is read ahead.

Documentation/ABI/stable/sysfs-block: in the directory of the queue of a device. A partition has that of its disk.
"""

from dataclasses import dataclass

from hugepage_qa.cases.file_status import STATX_SIZE
from hugepage_qa.cases.live import Live
from hugepage_qa.kernel.tree import read_integer
from hugepage_qa.kernel.uapi import AT_EMPTY_PATH
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.process.actor import Actor
from hugepage_qa.sizes import KIB

# include/uapi/linux/stat.h: where struct statx has stx_dev_major and stx_dev_minor
_DEVICE_AT = 136
_WINDOW, _REQUEST = "read_ahead_kb", "max_sectors_kb"
#: POSIX_FADV_NORMAL: a file that is open takes the window that its device has by now
_NORMAL = 0


@dataclass(frozen=True)
class BlockQueue:
    """The queue of a device, by its directory."""

    live: Live
    directory: str

    @classmethod
    def of(cls, live: Live, actor: Actor, descriptor: int) -> "BlockQueue":
        """Return that of the device of an open file. Raises CannotRun where it has none."""
        words = descriptor, "", AT_EMPTY_PATH, 0, bytes(STATX_SIZE)
        _zero, (*_path, found) = actor.call_with_buffers("statx", *words)
        major, minor = live.host.uapi.unpack("2I", found[_DEVICE_AT : _DEVICE_AT + 8])
        for place in ("queue", "../queue"):
            directory = f"sys/dev/block/{major}:{minor}/{place}"
            if live.host.read(f"{directory}/{_WINDOW}") is not None:
                return cls(live, directory)
        raise CannotRun(f"the file is on no device with a queue: {major}:{minor}")

    @property
    def largest_request(self) -> int:
        """The bytes that the device is asked for at once, at most."""
        return KIB * (read_integer(self.live.host, f"{self.directory}/{_REQUEST}") or 0)

    def read_ahead(self, window: int, actor: Actor, descriptor: int) -> None:
        """Have no more than ``window`` bytes be read ahead of what is read of an open file, until the case ends."""
        self.live.set_knob(f"{self.directory}/{_WINDOW}", f"{window // KIB}")
        actor.call("fadvise64", descriptor, 0, 0, _NORMAL)
