"""Memory that an actor has mapped: pages that are written, read, checked and given back."""

import os
from collections.abc import Callable, Iterable, Set
from typing import Any, NoReturn, Protocol, TypeVar

from hugepage_qa.kernel.numa_maps import NumaMapping, read_numa_maps
from hugepage_qa.kernel.smaps import MemoryMapping, read_smaps
from hugepage_qa.kernel.uapi import MLOCK_ONFAULT, MREMAP_FIXED, MREMAP_MAYMOVE
from hugepage_qa.machine.host import Host, ObservedTree
from hugepage_qa.process.actor import Actor, Fault
from hugepage_qa.sizes import GIB
from hugepage_qa.version import KernelVersion

Value = TypeVar("Value")

#: what is stored and looked at: every word, for a page may be wrong in any of them
WORD = 8
#: and in gigantic pages a word of each cache line, of the first line the first one, and so on: an emulated processor
#: takes seconds for each GiB of words, and what clears and copies pages goes by base pages (folio_zero_user() in
#: mm/memory.c), of which the first and the last word are looked at. Smaller ones are looked at in parts, too
#: (``Memory.wrong``): also those of 512 MiB, which are transparent or of the buddy allocator on arm64
_LINE, _GIGANTIC = 64, GIB
PAGEMAP = "/proc/self/pagemap"
#: bits of an entry of it (Documentation/admin-guide/mm/pagemap.rst): frame, written since clear_refs was, mapped by
#: one process alone, write-protected by userfaultfd, with a guard (since Linux 6.15), of a file or shared, in swap (its
#: place there), present
FRAME, SOFT_DIRTY, EXCLUSIVE, OF_A_FILE, PRESENT = (1 << 55) - 1, 1 << 55, 1 << 56, 1 << 61, 1 << 63
WRITE_PROTECTED, GUARDED, SWAPPED = 1 << 57, 1 << 58, 1 << 62
#: of pagemap, in one request
_ENTRIES = 2048


class Owner(Protocol):
    """What memory asks of the case that mapped it."""

    host: Host

    @property
    def base_page(self) -> int:
        """Bytes of a base page."""

    def open(self, actor: Actor, path: str, flags: int) -> int:
        """Return a descriptor of ``path`` that ``actor`` has opened."""

    @property
    def kernel_version(self) -> KernelVersion:
        """The version of the running kernel."""

    def fork(self, actor: Actor) -> Actor:
        """Fork ``actor``, and return its child. Raises KnownBug, Refused."""

    def expect(self, subject: str, expected: Any, found: Any) -> None:
        """Keep a difference where ``found`` is not what is expected."""

    def fail(self, subject: str, expected: Any, found: Any) -> NoReturn:
        """End the case with a difference."""


class Memory:
    """``pages`` pages of ``size`` bytes at ``address`` in ``actor``; page numbers count from 0."""

    def __init__(self, live: Owner, actor: Actor, address: int, pages: int, size: int) -> None:
        self._live = live
        self.actor = actor
        self.address = address
        self.pages = pages
        self.size = size

    @property
    def kernel_version(self) -> KernelVersion:
        """The version of the kernel that maps it."""
        return self._live.kernel_version

    @property
    def length(self) -> int:
        """Its length in bytes."""
        return self.pages * self.size

    @property
    def step(self) -> int:
        """How many bytes the words that are stored and looked at are apart."""
        return WORD if self.size < _GIGANTIC else _LINE

    def touch_places(self) -> list[int]:
        """Return offsets in a page by which of them is touched first it is cleared, or copied, in another order.

        The base page that is touched comes last, after what is beside it (mm/memory.c process_huge_page()). For
        gigantic pages, which take seconds, there is one order.
        """
        base, half = self._live.base_page, self.size // 2
        if self.size >= _GIGANTIC:
            return [self.size - base]
        return [0, base, half - base, half, half + base, half + half // 2, self.size - base]

    def at(self, page: int) -> int:
        """Return the address of a page."""
        return self.address + page * self.size

    def extent(self, first: int = 0, pages: int | None = None) -> tuple[int, int]:
        """Return where ``pages`` pages from ``first`` on, by default all, begin, and how many bytes they are."""
        return self.at(first), (self.pages - first if pages is None else pages) * self.size

    def part(self, first: int, pages: int = 1) -> "Memory":
        """Return ``pages`` pages of it from ``first`` on."""
        return Memory(self._live, self.actor, self.at(first), pages, self.size)

    def seen_by(self, actor: Actor) -> "Memory":
        """Return the same memory as a forked actor sees it."""
        return Memory(self._live, actor, self.address, self.pages, self.size)

    def fork(self) -> "Memory":
        """Fork who has mapped it, and return the same memory as the child sees it. Raises KnownBug, Refused."""
        return self.seen_by(self._live.fork(self.actor))

    def touch(self, page: int = 0, value: int = 1) -> None:
        """Store ``value`` in one page. Raises Fault."""
        self.actor.write(self.at(page), value)

    def read(self, page: int = 0) -> int:
        """Return what is stored at the start of a page. Raises Fault."""
        return self.actor.read(self.at(page))

    def fill(self, value: int = 1) -> None:
        """Write the words of all pages: ``value`` plus how many bytes each is from the start. Raises Fault."""
        self.actor.fill(self.address, self.length, self.step, value)

    def fill_part(self, offset: int, length: int, value: int = 1) -> None:
        """Write all words of ``length`` bytes from ``offset`` on as ``fill`` would. Raises Fault."""
        self.actor.fill(self.address + offset, length, WORD, value + offset)

    def expect_filled(self, value: int = 1, first: int = 0, pages: int | None = None) -> None:
        """Expect the words of ``pages`` pages from ``first`` on (default: all) as ``fill`` left it. Raises Fault."""
        wrong = self.actor.check(*self.extent(first, pages), self.step, value + first * self.size)
        self._live.expect("words of memory that changed", 0, wrong)

    def wrong(self, offset: int, length: int, value: int = 1) -> int:
        """Return how many words of ``length`` bytes from ``offset`` on are not as ``fill`` left them. Raises Fault."""
        return self.actor.check(self.address + offset, length, WORD, value + offset) if length else 0

    def wrong_beside(self, start: int, end: int, value: int = 1) -> int:
        """Return what ``wrong`` does, of all bytes but those from ``start`` to before ``end``. Raises Fault."""
        return self.wrong(0, start, value) + self.wrong(end, self.length - end, value)

    def nonzero(self, offset: int, length: int, step: int = WORD) -> int:
        """Return how many words of ``length`` bytes from ``offset`` on, ``step`` apart, are not zero. Raises Fault."""
        return self.actor.nonzero(self.address + offset, length, step) if length else 0

    def moved_to(self, address: int) -> "Memory":
        """Move all of it to ``address``, whatever is mapped there (mremap(2)). Raises Refused."""
        flags = MREMAP_MAYMOVE | MREMAP_FIXED
        self.actor.call("mremap", self.address, self.length, self.length, flags, address)
        return Memory(self._live, self.actor, address, self.pages, self.size)

    def expect_zero(self, first: int = 0, pages: int = 1) -> None:
        """Expect the words of ``pages`` pages from ``first`` on, never written, to be zero. Raises Fault."""
        dirty = self.actor.nonzero(self.at(first), pages * self.size, self.step)
        self._live.expect("words of fresh pages that are not zero", 0, dirty)

    def expect_huge(self, pages: int | None = None, *, about: str = "") -> None:
        """Expect smaps to show ``pages`` of its pages, by default all, as anonymous huge pages.

        A difference tells what it is ``about``.
        """
        expected = self.length if pages is None else pages * self.size
        self._live.expect(f"AnonHugePages {about}".rstrip(), expected, self.smaps().anon_huge_pages)

    def frames(self) -> set[int]:
        """Return the frame at the start of each page (Documentation/admin-guide/mm/pagemap.rst). Raises Refused."""
        return {entry & FRAME for entry in self.pagemap(self.at(page) for page in range(self.pages))}

    def frame(self, offset: int = 0) -> int:
        """Return the frame of the base page that is ``offset`` bytes from the start. Raises Refused."""
        return self.pagemap([self.address + offset])[0] & FRAME

    def pagemap(self, addresses: Iterable[int]) -> list[int]:
        """Return the entries of the base pages at ``addresses``. Raises Refused."""
        pagemap = self._live.open(self.actor, PAGEMAP, os.O_RDONLY)
        pages = (address // self._live.base_page for address in addresses)
        entries = [read_entries(self.actor, pagemap, page, 1)[0] for page in pages]
        self.actor.call("close", pagemap)
        return entries

    def whole_pagemap(self, pages: int | None = None) -> list[int]:
        """Return the entries of all base pages of the first ``pages`` pages, by default of all. Raises Refused."""
        pagemap = self._live.open(self.actor, PAGEMAP, os.O_RDONLY)
        base_page, found = self._live.base_page, list[int]()
        # as many as a request of the actor holds
        step = min(self.size, _ENTRIES * base_page)
        end = self.address + (self.pages if pages is None else pages) * self.size
        for address in range(self.address, end, step):
            found += read_entries(self.actor, pagemap, address // base_page, step // base_page)
        self.actor.call("close", pagemap)
        return found

    def present_frames(self, pages: int) -> list[int]:
        """Return the frames of the base pages that are there in the first ``pages`` pages. Raises Refused."""
        return [entry & FRAME for entry in self.whole_pagemap(pages) if entry & PRESENT]

    def unmap(self, first: int = 0, pages: int | None = None) -> None:
        """Unmap ``pages`` pages from ``first`` on, by default all. Raises OSError."""
        self.actor.call("munmap", *self.extent(first, pages))

    def advise(self, advice: int, first: int = 0, pages: int | None = None) -> None:
        """Give ``advice`` (MADV_*) on ``pages`` pages from ``first`` on, by default all. Raises OSError."""
        self.actor.call("madvise", *self.extent(first, pages), advice)

    def advised_by(self, actor: Actor, advice: int) -> int:
        """Have ``actor``, another process, give ``advice`` on all of it (process_madvise(2)), and return for how much.

        Raises Refused.
        """
        process = actor.call("pidfd_open", self.actor.pid, 0)
        try:
            return actor.call(
                "process_madvise", process, actor.uapi.pack("2Q", self.address, self.length), 1, advice, 0
            )
        finally:
            actor.call("close", process)

    def lock(self) -> None:
        """Lock all of it in memory, and have what is not there yet come (mlock(2)). Raises Refused."""
        self.actor.call("mlock", self.address, self.length)

    def lock_on_fault(self) -> None:
        """Lock all of it in memory, and what is not there yet when it comes (mlock2(2)). Raises Refused."""
        self.actor.call("mlock2", self.address, self.length, MLOCK_ONFAULT)

    def unlock(self) -> None:
        """Unlock all of it (munlock(2)). Raises Refused."""
        self.actor.call("munlock", self.address, self.length)

    def protect(self, prot: int, first: int = 0, pages: int | None = None) -> None:
        """Change the protection of ``pages`` pages from ``first`` on, by default all. Raises OSError."""
        self.actor.call("mprotect", *self.extent(first, pages), prot)

    def smaps(self, page: int = 0) -> MemoryMapping:
        """Return what /proc/PID/smaps shows of the mapping with a page. Raises Failed where it shows none."""
        mappings = read_smaps(ObservedTree(self._live.host), self.actor.pid) or ()
        found = [mapping for mapping in mappings if mapping.start <= self.at(page) < mapping.end]
        if not found:
            self._live.fail(f"/proc/{self.actor.pid}/smaps", f"a mapping at {self.at(page):#x}", "none")
        return found[0]

    def mappings(self) -> list[MemoryMapping]:
        """Return what /proc/PID/smaps shows of each mapping that has one of its pages. Raises Failed as ``smaps``."""
        return list({found.start: found for found in map(self.smaps, range(self.pages))}.values())

    def all_mappings(self) -> list[MemoryMapping]:
        """Return what smaps shows of each mapping that has any byte of it, also where some is mapped no more."""
        found = read_smaps(ObservedTree(self._live.host), self.actor.pid) or ()
        return [mapping for mapping in found if mapping.start < self.at(self.pages) and self.address < mapping.end]

    def numa_maps(self) -> NumaMapping:
        """Return what /proc/PID/numa_maps shows of the mapping. Raises Failed where it shows none."""
        mappings = read_numa_maps(ObservedTree(self._live.host), self.actor.pid) or ()
        below = [mapping for mapping in mappings if mapping.start <= self.address]
        if not below:
            self._live.fail(f"/proc/{self.actor.pid}/numa_maps", f"a mapping at {self.address:#x}", "none")
        return below[-1]


def read_entries(actor: Actor, descriptor: int, first: int, count: int) -> tuple[int, ...]:
    """Return up to ``count`` entries from number ``first`` on of a file with one for each page. Raises Refused."""
    size = count * WORD
    length, (read,) = actor.call_with_buffers("pread64", descriptor, bytes(size), size, first * WORD)
    return actor.uapi.unpack(f"{length // WORD}Q", read[:length])


def runs(pages: Set[int]) -> list[range]:
    """Return ``pages`` that lie side by side, as ranges in ascending order."""
    starts = sorted(page for page in pages if page - 1 not in pages)
    ends = sorted(page + 1 for page in pages if page + 1 not in pages)
    return [range(start, end) for start, end in zip(starts, ends, strict=True)]


def value_or_signal(access: Callable[[], Value]) -> Value | str:
    """Return what ``access`` to memory returns, or the name of the signal that ends it: no number may be one."""
    try:
        return access()
    except Fault as fault:
        return fault.signal.name
