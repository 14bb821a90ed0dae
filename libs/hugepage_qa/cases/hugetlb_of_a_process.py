"""What a process shows of the hugetlb pages that it has mapped: its smaps, and its status, after a fork, too."""

import errno
from collections import Counter
from collections.abc import Iterable, Mapping

from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.process_counters import process_status
from hugepage_qa.kernel.uapi import MREMAP_FIXED, MREMAP_MAYMOVE
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.version import KernelVersion

#: what a hugetlb mapping is never part of (Documentation/filesystems/proc.rst smaps)
_OTHERS = ("Rss", "Pss", "Anonymous", "AnonHugePages", "ShmemPmdMapped", "Shared_Dirty", "Private_Dirty")

#: what smaps shows of a page that is not present: before, it asked how often the page is mapped
_NOT_PRESENT_IS_SHARED = KernelVersion(6, 11)


def expect_hugetlb(live: Live, memory: Memory, *, private: int = 0, shared: int = 0, apart: bool = False) -> None:
    """Expect what the only hugetlb mapping of a process shows, in pages, and that the process shows the same.

    Private ones are in one page table, or ``apart`` in one each. Raises KnownBug.
    """
    mapping = memory.smaps()
    expect_private_and_shared(live, private, shared, (mapping.private_hugetlb, mapping.shared_hugetlb), apart=apart)
    for name in _OTHERS:
        live.expect(f"{name} of a hugetlb mapping", 0, mapping.fields.get(name, 0))
    live.expect("HugetlbPages", (private + shared) * live.size, process_status(live, memory.actor).hugetlb_pages)


def expect_private_and_shared(
    live: Live,
    private: int,
    shared: int,
    found: tuple[int | None, int | None],
    *,
    broken: int = 0,
    apart: bool = False,
) -> None:
    """Expect Private_Hugetlb and Shared_Hugetlb, ``found`` in bytes, to be this many pages. Raises KnownBug.

    ``broken`` more pages were private and broke at their first base page: neither counts them. All private ones are in
    one page table, or ``apart`` in one each.
    """
    known = {}
    if private and live.mmu.may_seem_shared(live.size):
        still_private = _still_private([live.size] * private if apart else [private * live.size], found[0])
        known[Quirk.SMAPS_SHOWS_SHARED] = still_private, (private + shared + broken) * live.size - still_private
    if broken:
        as_shared = broken if live.kernel_version >= _NOT_PRESENT_IS_SHARED else 0
        pages = private + broken - as_shared, shared + as_shared
        known[Quirk.SMAPS_SHOWS_BROKEN] = pages[0] * live.size, pages[1] * live.size
    live.expect("Private_Hugetlb, Shared_Hugetlb", (private * live.size, shared * live.size), found, known)


def seeming_shared(live: Live, addresses: Iterable[int], found: int) -> Mapping[Quirk, int]:
    """Return what Private_Hugetlb, ``found`` in bytes, is with smaps-shows-shared, of private pages at addresses."""
    if not live.mmu.may_seem_shared(live.size):
        return {}
    tables = Counter(address // live.mmu.table(live.size) for address in addresses)
    return {Quirk.SMAPS_SHOWS_SHARED: _still_private([pages * live.size for pages in tables.values()], found)}


def _still_private(tables: Iterable[int], found: int | None) -> int:
    """Return what still seems private of page ``tables`` with so many bytes each: ``found``, if that is some of them.

    A table seems to be shared or not, with all that is in it. Otherwise it is 0, as if all seemed shared.
    """
    sums = {0}
    for pages in tables:
        sums |= {others + pages for others in sums}
    return found if found is not None and found in sums - {max(sums)} else 0


def forked(live: Live, memory: Memory, pages: int = 1, *, apart: bool = False) -> Memory:
    """Fork the actor of private ``memory``, and return what its child has of it: the ``pages`` that were touched.

    They are in one page table, or ``apart`` in one each. Raises KnownBug where it has none, or lacks some of these.
    """
    # not memory.fork(), which would not say how many are lacking
    child = memory.seen_by(memory.actor.fork())
    expect_inherited(live, child, pages, apart=apart)
    return child


def expect_inherited(live: Live, child: Memory, pages: int, *, apart: bool = False) -> None:
    """Expect who was forked to have the ``pages`` that were touched, as ``forked`` says. Raises KnownBug."""
    expected, found = pages * live.size, process_status(live, child.actor).hugetlb_pages
    # a table is passed over or not, with all that is in it
    lacking = found if apart and found in range(0, expected, live.size) else 0
    known = {Quirk.FORK_LOSES_PAGES: lacking} if live.mmu.may_seem_shared(live.size) else None
    live.expect("HugetlbPages of the child", expected, found, known)


def moved_whole(live: Live, memory: Memory, target: int, touched: int) -> Memory:
    """Move ``memory``, of which so many pages were touched, to ``target``, and return it there. Raises KnownBug."""
    flags = MREMAP_MAYMOVE | MREMAP_FIXED
    error = 0
    try:
        memory.actor.call("mremap", memory.address, memory.length, memory.length, flags, target)
    except OSError as refusal:
        error = refusal.errno or 0
    found = error, process_status(live, memory.actor).hugetlb_pages
    lost = {Quirk.MOVE_LENGTH_TRUNCATED: (errno.ENOMEM, 0)}
    live.expect("errno of mremap() and HugetlbPages", (0, touched * live.size), found, lost)
    return Memory(live, memory.actor, target, memory.pages, live.size)
