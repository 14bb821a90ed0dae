"""What a userfaultfd is asked for by number: the ioctls of ioctl_userfaultfd(2)."""

import errno

from hugepage_qa.kernel.uapi import iowr
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.process.actor import Actor

#: UFFD_API
API = 0xAA

# include/uapi/linux/userfaultfd.h: the number and the argument of each UFFDIO_*, all of them _IOWR() but one
_CALLS = {
    "api": (0x3F, "3Q"),
    "register": (0x00, "4Q"),
    "copy": (0x03, "5q"),
    "zeropage": (0x04, "4q"),
    "move": (0x05, "5q"),
    "writeprotect": (0x06, "3Q"),
    "continue": (0x07, "4q"),
    "poison": (0x08, "4q"),
    "rwprotect": (0x09, "3Q"),
}
# UFFDIO_SET_MODE, an _IOW()
_SET_MODE, _SWITCHED = 0x0A, "2Q"
# UFFDIO_UNREGISTER, UFFDIO_WAKE, each an _IOR()
_OF_A_RANGE, _RANGE = {"unregister": 0x01, "wake": 0x02}, "2Q"


class UserfaultCalls:
    """The calls of a userfaultfd that ``actor`` has as ``descriptor``, by the name of their UFFDIO_*."""

    def __init__(self, actor: Actor, descriptor: int) -> None:
        self._actor = actor
        self.descriptor = descriptor

    def make(self, name: str, *words: int) -> tuple[int, ...]:
        """Make a call and return the words of its argument as the kernel leaves them. Raises Refused."""
        _zero, (told,) = self._actor.call_with_buffers("ioctl", *self.arguments(name, *words))
        return self._actor.uapi.unpack(_CALLS[name][1], told)

    def outcome(self, name: str, *words: int) -> tuple[int, tuple[int, ...]]:
        """Make a call and return errno, 0 if it is not refused, and the words as the kernel leaves them."""
        value, (told,) = self._actor.result_with_buffers("ioctl", *self.arguments(name, *words))
        return -value, self._actor.uapi.unpack(_CALLS[name][1], told)

    def arguments(self, name: str, *words: int) -> tuple[int, int, bytes]:
        """Return the arguments of ioctl(2) that make a call."""
        number, layout = _CALLS[name]
        argument = self._actor.uapi.pack(layout, *words)
        return self.descriptor, iowr(API, number, len(argument)), argument

    def act_on_range(self, name: str, start: int, length: int) -> None:
        """Make a call that is told of ``length`` bytes alone, and tells nothing. Raises Refused."""
        argument = self._actor.uapi.pack(_RANGE, start, length)
        number = self._actor.uapi.ior(API, _OF_A_RANGE[name], len(argument))
        self._actor.call("ioctl", self.descriptor, number, argument)

    def set_mode(self, enable: int, disable: int) -> None:
        """Switch features on and off (UFFDIO_SET_MODE). Raises Refused."""
        argument = self._actor.uapi.pack(_SWITCHED, enable, disable)
        self._actor.call("ioctl", self.descriptor, self._actor.uapi.iow(API, _SET_MODE, len(argument)), argument)


def call_number(name: str) -> int:
    """Return the number of a call, by which the kernel tells that it is there."""
    return _OF_A_RANGE[name] if name in _OF_A_RANGE else _CALLS[name][0]


def create_userfaultfd(actor: Actor, flags: int) -> int:
    """Make a userfaultfd and return its descriptor. Raises CannotRun where the kernel has none, OSError."""
    try:
        return actor.call("userfaultfd", flags)
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
        raise CannotRun("this kernel has no userfaultfd") from error
