"""Memory whose faults a program handles itself: userfaultfd(2), as ioctl_userfaultfd(2) describes it."""

import errno
from copy import copy
from enum import IntFlag

from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import WRITE_PROTECTED, Memory
from hugepage_qa.cases.userfaultfd_calls import API, UserfaultCalls, call_number, create_userfaultfd
from hugepage_qa.cases.userfaultfd_messages import Event, UserfaultMessages
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.process.actor import Actor
from hugepage_qa.version import KernelVersion

#: faults of the kernel itself stay its own; flags that it does not know are EINVAL
USER_MODE_ONLY, _USER_MODE_ONLY_SINCE = 1, KernelVersion(5, 11)
#: where it was seen; 6.12 does not know it
_KNOWN_TO_S390_SINCE = KernelVersion(7, 3)
# O_NONBLOCK, the same on all architectures
_NONBLOCK = 0o4000

_COPY_DONE = _MOVE_DONE = 4
# UFFDIO_MOVE_MODE_ALLOW_SRC_HOLES
_HOLES_MOVE = 2
# UFFDIO_COPY_MODE_WP, UFFDIO_CONTINUE_MODE_WP
_FILLED_PROTECTED = 2
#: UFFDIO_*_MODE_DONTWAKE, and those of UFFDIO_WRITEPROTECT and UFFDIO_RWPROTECT, which are another bit
_WAKES_NOBODY, _PROTECTION_WAKES_NOBODY = 1, 2


class Feature(IntFlag):
    """What is asked of the kernel: UFFD_FEATURE_*."""

    PAGEFAULT_FLAG_WP = 1 << 0
    EVENT_FORK = 1 << 1
    EVENT_REMAP = 1 << 2
    EVENT_REMOVE = 1 << 3
    MISSING_HUGETLBFS = 1 << 4
    MISSING_SHMEM = 1 << 5
    EVENT_UNMAP = 1 << 6
    SIGBUS = 1 << 7
    THREAD_ID = 1 << 8
    MINOR_HUGETLBFS = 1 << 9
    MINOR_SHMEM = 1 << 10
    EXACT_ADDRESS = 1 << 11
    WP_HUGETLBFS_SHMEM = 1 << 12
    WP_UNPOPULATED = 1 << 13
    POISON = 1 << 14
    WP_ASYNC = 1 << 15
    MOVE = 1 << 16
    RWP = 1 << 17
    RWP_ASYNC = 1 << 18


class Mode(IntFlag):
    """Which faults are the program's: UFFDIO_REGISTER_MODE_*."""

    MISSING = 1
    WRITE_PROTECTED = 2
    MINOR = 4
    READ_WRITE_PROTECTED = 8


class Userfault(UserfaultMessages):
    """Memory that is registered with a userfaultfd; nobody handles its faults, which end in SIGBUS.

    Those of one that ``waits`` end when another thread fills the page. Faults of the kernel itself, in a system call,
    are those of one that is ``of_kernel`` alone.
    """

    def __init__(
        self, memory: Memory, mode: Mode, feature: Feature, *, waits: bool = False, of_kernel: bool = False
    ) -> None:
        """Register ``memory``. Raises CannotRun where the kernel has no userfaultfd or not ``feature``, OSError."""
        self._memory = memory
        #: whether messages tell of the byte that was accessed, and not of the page
        self.is_exact = Feature.EXACT_ADDRESS in feature
        flags = _NONBLOCK if waits else 0
        if not of_kernel and memory.kernel_version >= _USER_MODE_ONLY_SINCE:
            flags |= USER_MODE_ONLY
        descriptor = _open(memory.actor, feature if waits else Feature.SIGBUS | feature, flags)
        super().__init__(memory.actor, descriptor)
        self.register(mode)

    def register(self, mode: int) -> None:
        """Register the memory, also for faults that were not the program's so far (UFFDIO_REGISTER). Raises Refused."""
        *_words, self._promised = self.make("register", self._memory.address, self._memory.length, mode, 0)

    def unregister(self, page: int = 0, *, offset: int = 0, length: int | None = None) -> None:
        """Have the kernel handle the faults of all pages from ``page`` on, or of ``length`` bytes. Raises Refused.

        ``offset`` bytes of the page are left out.
        """
        start = page * self._memory.size + offset
        size = self._memory.length - start if length is None else length
        self.act_on_range("unregister", self._memory.address + start, size)

    def wake(self, first: int = 0, pages: int | None = None) -> None:
        """Have the threads that wait for ``pages`` pages from ``first`` on, by default all, try again (UFFDIO_WAKE).

        Raises Refused.
        """
        self.act_on_range("wake", *self._memory.extent(first, pages))

    def promises(self, name: str) -> bool:
        """Tell whether the kernel said at the registration that the call ``name`` works on this memory."""
        return bool(self._promised >> call_number(name) & 1)

    def copy(
        self,
        source: Memory,
        page: int = 0,
        *,
        offset: int = 0,
        length: int | None = None,
        protected: bool = False,
        wakes: bool = True,
    ) -> int:
        """Fill a missing page from the first page of ``source``; return the bytes copied. Raises OSError.

        ``offset`` is added to both addresses, ``length`` is that of the page by default. A ``protected`` page is there
        to be read, until it may be written. Who waits for the page goes on unless it ``wakes`` nobody.
        """
        target, mode = self._memory.at(page) + offset, _filling(protected, wakes)
        return self.make("copy", target, source.address + offset, self._length(length), mode, 0)[_COPY_DONE]

    def move(self, source: Memory, page: int = 0, *, length: int | None = None, wakes: bool = True) -> int:
        """Have a missing page be the first page of ``source``, which is missing then (UFFDIO_MOVE).

        Returns the bytes moved, by default to be the whole page. Raises OSError.
        """
        target, mode = self._memory.at(page), _filling(False, wakes)
        return self.make("move", target, source.address, self._length(length), mode, 0)[_MOVE_DONE]

    def moving(self, source: int, target: int, length: int, *, holes: bool = False) -> tuple[int, int]:
        """Have ``length`` bytes at the address ``source`` be at ``target``; return errno, and what .move tells.

        That is how many bytes were moved, or an error with a minus sign. With ``holes`` the source may have some.
        """
        number, words = self.outcome("move", target, source, length, _HOLES_MOVE if holes else 0, 0)
        return number, words[_MOVE_DONE]

    def copying(self, source: Memory, offset: int, length: int) -> tuple[int, int, bytes]:
        """Return the arguments of ioctl(2) that copy ``length`` bytes of ``source``, from ``offset`` on, to there."""
        return self.arguments("copy", self._memory.address + offset, source.address + offset, length, 0, 0)

    def copied(self, source: Memory, offset: int, length: int) -> tuple[int, int]:
        """Copy as ``copying`` says; return errno, and what .copy tells: the bytes copied, or an error with a minus."""
        number, words = self.outcome("copy", self._memory.address + offset, source.address + offset, length, 0, 0)
        return number, words[_COPY_DONE]

    def zero(self, page: int = 0, *, wakes: bool = True) -> None:
        """Fill a missing page with zeroes. Raises OSError."""
        self.make("zeropage", self._memory.at(page), self._memory.size, _filling(False, wakes), 0)

    def write_protect(
        self, page: int = 0, *, on: bool = True, offset: int = 0, length: int | None = None, wakes: bool = True
    ) -> None:
        """Have writes to a page fault, or no longer; ``offset`` and ``length`` name a part of it. Raises OSError."""
        self.make("writeprotect", self._memory.at(page) + offset, self._length(length), _protecting(on, wakes))

    def read_write_protect(
        self, page: int = 0, *, on: bool = True, offset: int = 0, length: int | None = None, wakes: bool = True
    ) -> None:
        """Have reads and writes of what is there of a page fault, or no longer (UFFDIO_RWPROTECT).

        ``offset`` and ``length`` name a part of it, or more. Raises Refused.
        """
        self.rwprotect(self._memory.at(page) + offset, self._length(length), _protecting(on, wakes))

    def rwprotect(self, start: int, length: int, mode: int) -> None:
        """Call UFFDIO_RWPROTECT for ``length`` bytes at an address, with any mode. Raises Refused."""
        self.make("rwprotect", start, length, mode)

    def go_on(self, *, offset: int = 0, length: int | None = None, protected: bool = False, wakes: bool = True) -> None:
        """Map a page, or ``length`` bytes, from ``offset`` on, which the file has (UFFDIO_CONTINUE). Raises OSError.

        What is ``protected`` is there to be read, until it may be written.
        """
        self.make("continue", self._memory.address + offset, self._length(length), _filling(protected, wakes), 0)

    def fork(self, live: Live) -> "tuple[Memory, Userfault]":
        """Fork who has the memory, and expect a thread of the actor to be told of it.

        Returned is what the child has, and what handles its faults. These are the actor's to handle, not the child's.
        """
        child, (descriptor, *others) = self.told_of(live, self._memory.actor.fork, Event.FORK)
        live.expect("further numbers of the event", [0, 0], others)
        live.see_inherited(self._memory.actor, child)
        memory = self._memory.seen_by(child)
        faults = self.handling(memory)
        # of the word the first four bytes are the number
        faults.descriptor, _rest = self._actor.uapi.unpack("2I", self._actor.uapi.pack("Q", descriptor))
        return memory, faults

    def handling(self, memory: Memory) -> "Userfault":
        """Return that of memory that has moved, or that a child has."""
        other = copy(self)
        other._memory = memory
        return other

    def poison(self, page: int = 0, *, offset: int = 0, length: int | None = None) -> None:
        """Have every access to a page, which is missing, end in SIGBUS; or to ``length`` bytes. Raises OSError."""
        self.make("poison", self._memory.at(page) + offset, self._length(length), 0, 0)

    def _length(self, length: int | None) -> int:
        return self._memory.size if length is None else length


def _filling(protected: bool, wakes: bool) -> int:
    """Return the mode of a call that fills."""
    return (_FILLED_PROTECTED if protected else 0) | (0 if wakes else _WAKES_NOBODY)


def _protecting(on: bool, wakes: bool) -> int:
    """Return the mode of a call that protects, or no longer."""
    return int(on) | (0 if wakes else _PROTECTION_WAKES_NOBODY)


def protected_pages(memory: Memory) -> list[int]:
    """Return the numbers of the base pages of which pagemap says that userfaultfd protects them, in either way."""
    return [number for number, entry in enumerate(memory.whole_pagemap()) if entry & WRITE_PROTECTED]


def need_signal_for_poison(live: Live) -> None:
    """Raise CannotRun where an access to a hugetlb page that a program has poisoned is a BUG() of the kernel."""
    if live.host.architecture == "s390x" and live.kernel_version < _KNOWN_TO_S390_SINCE:
        raise CannotRun("arch/s390/mm/fault.c may not know VM_FAULT_HWPOISON_LARGE: BUG()")


def offered_features(live: Live) -> Feature:
    """Return what UFFDIO_API offers to who asks for nothing. Raises CannotRun without userfaultfd, OSError."""
    actor = live.actor()
    descriptor = create_userfaultfd(actor, USER_MODE_ONLY if live.kernel_version >= _USER_MODE_ONLY_SINCE else 0)
    offered, _calls = answer_to_api(actor, descriptor, API, 0)
    return Feature(offered)


def answer_to_api(actor: Actor, descriptor: int, api: int, features: int) -> tuple[int, int]:
    """Ask for ``features`` of a userfaultfd (UFFDIO_API), and return all features and calls. Raises Refused."""
    _api, offered, calls = UserfaultCalls(actor, descriptor).make("api", api, features, 0)
    return offered, calls


def register_range(memory: Memory, descriptor: int, mode: int) -> None:
    """Register ``memory`` with a userfaultfd of its actor (UFFDIO_REGISTER). Raises Refused."""
    UserfaultCalls(memory.actor, descriptor).make("register", memory.address, memory.length, mode, 0)


def _open(actor: Actor, features: Feature, flags: int) -> int:
    descriptor = create_userfaultfd(actor, flags)
    try:
        answer_to_api(actor, descriptor, API, features)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise CannotRun(f"userfaultfd of this kernel has not {features.name}") from error
    return descriptor
