"""Huge pages that zswap has taken: all that it keeps in a way of its own comes back, in whichever way it is asked for.

A file that is swapped to gets huge pages in pieces, which zswap takes. A device gets them as a whole: before Linux 6.13
zswap leaves these to it, since then it takes them page by page.
"""

import mmap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from functools import partial
from hashlib import shake_128

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.changed_counters import expect_change, read_counters
from hugepage_qa.cases.hugetlb_files import HugeFile
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.swapped import only_swap, page_all_out, swap_to_a_device, swapped, turn_zswap_on, zswap_knob
from hugepage_qa.cases.thp_memory import mapped_huge, pmd_size
from hugepage_qa.cases.thp_policy import base_pages, huge_pages
from hugepage_qa.cases.thp_shared_memory import let_only_pmd_inherit, shared_huge_pages
from hugepage_qa.kernel.counters import read_meminfo
from hugepage_qa.kernel.uapi import MADV_PAGEOUT
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor
from hugepage_qa.version import KernelVersion

ZSWAPPED = Area("swap/zswapped", sizes=Sizes.ONCE)

ZSWAP_DOC = "Documentation/admin-guide/mm/zswap.rst"
SINCE = "5.4"  # MADV_PAGEOUT
_TAKEN_FROM_DEVICES_SINCE = KernelVersion(6, 13)
_PAGES = 2
_ROOM = 8
#: a word whose bytes differ, and are not those of a page that is filled
_REPEATED, _OTHER = b"repeated", b"anything"

#: as much of a base page is carried at once
_CHUNK = 4096

SwapOff = Callable[[], None]
Back = Callable[[Live, "Contents"], None]
Settings = Mapping[str, str]
#: what can be set when memory goes to zswap, and what is set when it is there
_SETTINGS: tuple[tuple[Settings, Settings], ...] = (
    # both are gone since Linux 6.12 and 6.10; each keeps some pages out of zswap, or the other kind
    ({"same_filled_pages_enabled": "N"}, {}),
    ({"non_same_filled_pages_enabled": "N"}, {}),
    ({}, {"same_filled_pages_enabled": "N"}),
    # what is there stays, and is found
    ({}, {"enabled": "N"}),
    # none is taken, or what is there has to make room
    ({"max_pool_percent": "0"}, {}),
    ({}, {"max_pool_percent": "0"}),
)


@ZSWAPPED.case(
    "memory of huge and base pages that zswap has taken comes back as it was: words that differ, one word that is"
    " repeated, with another one at an end, zeroes, and what cannot be compressed; to who reads, writes, advises or"
    " inherits it, or turns swap off",
    f"{ZSWAP_DOC}; mm/zswap.c zswap_is_page_same_filled(), zswap_load()",
    since=SINCE,
)
def comes_back(live: Live) -> None:
    let_only_pmd_inherit(live)
    swap_off = _file_behind_zswap(live)
    for make, back in _WAYS:
        _expect_back(live, make, back)
    for make in (huge_pages, shared_huge_pages):
        _expect_back(live, make, _turning_off(swap_off))
        swap_off = _file_behind_zswap(live)


@ZSWAPPED.case(
    "huge pages that go to a device as a whole while zswap is on come back as they were, all their base pages: to who"
    " reads, writes, advises or inherits them, or turns swap off",
    f"{ZSWAP_DOC}; mm/zswap.c zswap_store(), zswap_load(); mm/page_io.c swap_writeout()",
    since=SINCE,
)
def on_a_device(live: Live) -> None:
    let_only_pmd_inherit(live)
    swap_off = swap_to_a_device(live, _ROOM * pmd_size(live))
    turn_zswap_on(live)
    is_taken = live.kernel_version >= _TAKEN_FROM_DEVICES_SINCE
    for make, back in _WAYS:
        _expect_back(live, make, back, is_taken=is_taken)
    _expect_back(live, huge_pages, _turning_off(swap_off), is_taken=is_taken)


@ZSWAPPED.case(
    "memory comes back as it was, whatever of it zswap is set to take, and also when zswap was turned off or set"
    " otherwise meanwhile",
    f"{ZSWAP_DOC} same_filled_pages_enabled, non_same_filled_pages_enabled, max_pool_percent, enabled",
    since=SINCE,
)
def set_otherwise(live: Live) -> None:
    let_only_pmd_inherit(live)
    _file_behind_zswap(live)
    for before, meanwhile in _SETTINGS:
        with live.about(f"set before: {dict(before)}, meanwhile: {dict(meanwhile)}"):
            _expect_back(live, huge_pages, _read, before, meanwhile)


@ZSWAPPED.case(
    "Zswapped of /proc/meminfo is all memory that zswap has taken, as large as it was, and none when swap is off",
    "Documentation/filesystems/proc.rst Zswapped; mm/zswap.c zswap_store()",
    since="5.19",  # f6498b776d28
)
def counted(live: Live) -> None:
    swap_off = _file_behind_zswap(live)
    length = _PAGES * pmd_size(live)
    out = partial(page_all_out, live)
    memory = expect_change(live, {"Zswapped": length}, partial(huge_pages, live, _PAGES), out)
    live.expect("memory in swap and in huge pages", (length, 0), (swapped(memory), mapped_huge(memory)))
    swap_off()
    live.expect("Zswapped when swap is off", 0, read_counters(live)["Zswapped"])
    memory.expect_filled()


def _file_behind_zswap(live: Live) -> SwapOff:
    """Have the machine swap to a file, and zswap take what goes there, until the case ends. Raises CannotRun."""
    swap_off = only_swap(live, 4 * _ROOM * pmd_size(live))
    turn_zswap_on(live)
    return swap_off


def _expect_back(
    live: Live,
    make: Callable[[Live, int], Memory],
    back: Back,
    before: Settings | None = None,
    meanwhile: Settings | None = None,
    *,
    is_taken: bool = True,
) -> None:
    """Swap memory that has contents of each kind out, and expect it to be as it was when it comes ``back``, twice.

    ``is_taken`` tells whether zswap takes most of it, which is looked for, unless something else is set ``before``.
    """
    with live.about(f"{make.__name__.replace('_', ' ')}, {back.__name__.strip('_')}"):
        contents = Contents(live, make(live, _PAGES))
        stored = _stored(live)
        with _set(live, before or {}):
            page_all_out(live, contents.memory)
        if is_taken and not before and stored is not None:
            _expect_taken(live, contents.memory, stored)
        live.expect("memory in huge pages when it is in swap", 0, mapped_huge(contents.memory))
        with _set(live, meanwhile or {}):
            back(live, contents)
            contents.expect_as_they_were()
        # what was read alone is in swap as well as in memory
        contents.memory.advise(MADV_PAGEOUT)
        contents.expect_as_they_were()
        contents.memory.actor.end()


def _stored(live: Live) -> int | None:
    """Return how many bytes zswap has taken, None before Linux 5.19, which does not tell."""
    return read_meminfo(ObservedTree(live.host)).get("Zswapped")


def _expect_taken(live: Live, memory: Memory, before: int) -> None:
    """Expect zswap to have most of ``memory``. Raises CannotRun where others may have filled it."""
    found = (_stored(live) or 0) - before > memory.length // 2
    if not found and live.host.has_others:
        raise CannotRun("zswap has left memory to the swap file: others may have filled it")
    live.expect("whether zswap has taken most of it", True, found)


@contextmanager
def _set(live: Live, settings: Settings) -> Iterator[None]:
    """Set what zswap of this kernel has of ``settings``, and put it back."""
    usual = {name: value for name in settings if (value := live.host.read(zswap_knob(name))) is not None}
    for name in usual:
        live.set_knob(zswap_knob(name), settings[name])
    yield
    for name, value in usual.items():
        live.host.write(zswap_knob(name), value)


class Contents:
    """Memory that was filled, and base pages of it that hold something else.

    Of each kind one is among those in the middle; a huge page begins and ends with pages of one word.
    """

    def __init__(self, live: Live, memory: Memory) -> None:
        self._live = live
        self.memory = memory
        self._copies = HugeFile(live, memory.actor, memory.actor.call("memfd_create", "copies", 0))
        base = live.base_page
        every, words = memory.size // base, base // WORD
        kinds = (
            _REPEATED * words,
            _REPEATED * (words - 1) + _OTHER,
            _OTHER + _REPEATED * (words - 1),
            bytes(base),
            _REPEATED * (words // 2) + _OTHER + _REPEATED * (words - words // 2 - 1),
            shake_128(_OTHER).digest(base),
        )
        middle = every // 2 - len(kinds) // 2
        #: number of a base page -> what it holds
        self._kept = {middle + number: kind for number, kind in enumerate(kinds)}
        self._kept |= dict.fromkeys((0, every - 1, every, 2 * every - 1), kinds[0])
        for number, kept in self._kept.items():
            for offset in range(0, base, _CHUNK):
                chunk = kept[offset : offset + _CHUNK]
                memory.actor.call("pwrite64", self._copies.descriptor, chunk, len(chunk), 0)
                self._copy("pread64", number * base + offset, len(chunk))

    def seen_by(self, child: Actor) -> "Contents":
        """Return the same as a forked actor has it."""
        seen = copy(self)
        seen.memory = self.memory.seen_by(child)
        return seen

    def write_a_word_of_each(self) -> None:
        """Write the first word of each base page as it is already: what is not read before it is written."""
        actor, base = self.memory.actor, self._live.base_page
        actor.fill(self.memory.address, self.memory.length, base, 1)
        for number, kept in self._kept.items():
            actor.write(self.memory.address + number * base, *self._live.host.uapi.unpack("Q", kept[:WORD]))

    def expect_as_they_were(self) -> None:
        """Expect each byte to be as it was made."""
        base, wrong, behind = self._live.base_page, 0, 0
        for number in sorted(self._kept):
            wrong += self.memory.wrong(behind, number * base - behind)
            behind = (number + 1) * base
        wrong += self.memory.wrong(behind, self.memory.length - behind)
        self._live.expect("words that differ and changed", 0, wrong)
        for number, kept in self._kept.items():
            found = b"".join(self._chunk(number * base + offset) for offset in range(0, base, _CHUNK))
            self._live.expect(f"bytes of base page {number} that changed", 0, _different(kept, found))

    def _chunk(self, offset: int) -> bytes:
        """Return what is at ``offset``."""
        length = min(_CHUNK, self._live.base_page)
        self._copy("pwrite64", offset, length)
        return self._copies.read(0, length)

    def _copy(self, name: str, offset: int, length: int) -> None:
        """Have the kernel read or write the memory at ``offset``, from the start of the file of copies or to it."""
        self.memory.actor.call(name, self._copies.descriptor, self.memory.address + offset, length, 0)


def _different(some: bytes, others: bytes) -> int:
    # one after the other, megabytes of them take seconds
    return 0 if some == others else sum(one != other for one, other in zip(some, others, strict=True))


def _read(_live: Live, _contents: Contents) -> None:
    """What is looked at is read."""


def _write(_live: Live, contents: Contents) -> None:
    contents.write_a_word_of_each()


def _prefetch(_live: Live, contents: Contents) -> None:
    contents.memory.advise(mmap.MADV_WILLNEED)


def _inherit(_live: Live, contents: Contents) -> None:
    child = contents.memory.actor.fork()
    contents.seen_by(child).expect_as_they_were()
    child.end()


def _turning_off(swap_off: SwapOff) -> Back:
    def turned_off(live: Live, contents: Contents) -> None:
        swap_off()
        live.expect("memory in swap when it is off", 0, swapped(contents.memory))

    return turned_off


#: huge pages in each way, and of other memory what can differ: how it is read, and shared memory how it is written
_WAYS: tuple[tuple[Callable[[Live, int], Memory], Back], ...] = (
    (huge_pages, _read),
    (huge_pages, _write),
    (huge_pages, _prefetch),
    (huge_pages, _inherit),
    (base_pages, _read),
    (shared_huge_pages, _read),
    (shared_huge_pages, _write),
)


class ThpZswapped(LiveTest):
    def test_zswapped(self) -> None:
        self.run_area(ZSWAPPED)
