"""Places in the address space of an actor: free ones, its end, random ones, and ordinary memory that is put there."""

import errno
import mmap
from collections.abc import Callable

from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.kernel.tree import read_integer
from hugepage_qa.kernel.uapi import MAP_FIXED_NOREPLACE
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.process.actor import Actor, Refused

#: more than any address has
_ADDRESS_BITS = 64
#: more than there are between programs, libraries and stacks, none of which has room for twice as much
_MOST_PLACES = 100

# Documentation/admin-guide/sysctl/kernel.rst, vm.rst
_RANDOMIZE, _RANDOM_BITS = "proc/sys/kernel/randomize_va_space", "proc/sys/vm/mmap_rnd_bits"
#: programs: a bit that is random is the same in all of them once in 16 million runs
_PROGRAMS = 25


def free_place(live: Live, actor: Actor, pages: int) -> int:
    """Return an address, aligned to huge pages, where ``actor`` has nothing mapped on ``pages`` huge pages.

    What is mapped next without an address may lie there: mmap(2) takes the highest place that is free.
    """
    place = live.map(pages, actor, noreserve=True)
    place.unmap()
    return place.address


def need_places_of_any_size(live: Live) -> None:
    """Raise CannotRun where base pages and hugetlb pages have no addresses in common: they are not side by side there.

    A range for pages of one size begins at its end, whatever of the addresses is random.
    """
    if live.mmu.has_slices:
        raise CannotRun("hugetlb pages have ranges of addresses of their own, in which there are no base pages")


def memory_of_one_table(
    live: Live, actor: Actor | None = None, fd: int | None = None, prot: int = READ_WRITE
) -> Memory:
    """Map shared memory, none of it reserved, that has a page table to itself: processes that are forked may share it.

    It is the start of file ``fd`` of ``actor``, or anonymous. Only a table that a mapping covers as a whole is shared
    (mm/hugetlb.c huge_pmd_share()). Raises CannotRun for pages whose entries are not of the PMD level, and OSError.
    """
    if not live.mmu.has_pmd_entries(live.size):
        raise CannotRun("processes share page tables of the PMD level alone")
    pages, actor = live.mmu.table(live.size) // live.size, actor or live.actor()
    place, flags = place_of_a_table(live, actor), MAP_FIXED_NOREPLACE
    return live.map(pages, actor, shared=True, noreserve=True, fd=fd, prot=prot, at=place, flags=flags)


def place_of_a_table(live: Live, actor: Actor) -> int:
    """Return where ``actor`` has nothing mapped and what is mapped has a page table to itself.

    Raises CannotRun as ``place_of_tables`` does, and OSError.
    """
    table = live.mmu.table(live.size)
    return place_of_tables(live, actor, table, table)


def place_of_tables(live: Live, actor: Actor, length: int, alignment: int) -> int:
    """Return a multiple of ``alignment`` from which on ``actor`` has nothing mapped on ``length`` bytes.

    Raises CannotRun where no address space has room for that: one of 39 bits, as arm64 may have, is a single table of
    pages of 1 GiB. Raises OSError where one has.
    """
    whole = length + alignment
    try:
        room = live.map(whole // live.size, actor, noreserve=True)
    except Refused as refusal:
        if refusal.errno != errno.ENOMEM or (end := end_of_addresses(live, actor)) > 2 * whole:
            raise
        raise CannotRun(f"addresses end at {end:#x}: {whole >> 30} GiB of page tables have no place") from refusal
    room.unmap()
    return -(-room.address // alignment) * alignment


def ordinary_memory(live: Live, actor: Actor, pages: int, at: int = 0) -> Memory:
    """Map ``pages`` base pages, at an address where nothing is mapped if one is given.

    Raises Refused, and Failed where they are mapped elsewhere.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | (MAP_FIXED_NOREPLACE if at else 0)
    address = actor.mmap(pages * live.base_page, READ_WRITE, flags, address=at)
    if at and address != at:
        live.fail("the address of MAP_FIXED_NOREPLACE", f"{at:#x}", f"{address:#x}")
    return Memory(live, actor, address, pages, live.base_page)


def end_of_addresses(live: Live, actor: Actor) -> int:
    """Return where the address space ends (TASK_SIZE): no base page can be mapped from there on."""
    low, high = 0, (1 << _ADDRESS_BITS) // live.base_page
    while low < high:
        middle = (low + high) // 2
        if _is_address(live, actor, middle * live.base_page):
            low = middle + 1
        else:
            high = middle
    return low * live.base_page


def take_all_addresses(live: Live, actor: Actor) -> list[int]:
    """Map what no huge page fits into any more, nothing of which is touched; return where at least two would fit.

    Raises Refused for another reason than that no address is left.
    """
    taken = list[int]()
    length, places = 1 << _ADDRESS_BITS - 1, 0
    # a kernel that never refuses would be asked for ever
    while length >= live.base_page and places <= _MOST_PLACES:
        try:
            start = take_addresses(live, actor, length)
        except Refused as refusal:
            if refusal.errno != errno.ENOMEM:
                raise
            length, places = length // 2, 0
        else:
            places += 1
            if length >= 2 * live.size:
                taken.append(start)
    live.expect(f"whether {length} bytes have more than {_MOST_PLACES} places", False, places > _MOST_PLACES)
    return taken


def take_addresses(live: Live, actor: Actor, length: int, at: int = 0) -> int:
    """Map ``length`` bytes that nobody may use, ``at`` an address if one is given; return where. Raises Refused."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | live.host.uapi.map_noreserve
    return actor.mmap(length, 0, flags | (MAP_FIXED_NOREPLACE if at else 0), address=at)


def _is_address(live: Live, actor: Actor, address: int) -> bool:
    try:
        ordinary_memory(live, actor, 1, address).unmap()
    except Refused as refusal:
        # EEXIST: something is mapped there; EPERM: below vm.mmap_min_addr, for those without rights
        return refusal.errno in (errno.EEXIST, errno.EPERM)
    return True


def expect_random(live: Live, actor: Actor, place: Callable[[], Memory], alignment: int) -> None:
    """Expect what ``place`` maps, aligned to ``alignment`` bytes, to be where ``actor`` did not have it before.

    The actor executes its program anew each time. Raises CannotRun where the kernel places nothing at random, or is
    asked for so little that alignment leaves none of it.
    """
    bits = read_integer(live.host, _RANDOM_BITS)
    if bits is None or (live.host.read(_RANDOMIZE) or "0").strip() == "0":
        raise CannotRun(f"this kernel places nothing at random: /{_RANDOM_BITS}, /{_RANDOMIZE}")
    expected = live.base_page << bits
    if expected <= alignment:
        raise CannotRun(f"{alignment} bytes are aligned to more than the {bits} bits of /{_RANDOM_BITS}")
    found = []
    for _program in range(_PROGRAMS):
        actor.exec()
        found.append(place().address)
    varied = 0
    for address in found:
        varied |= address ^ found[0]
    random = expected - alignment
    live.expect("bits of the address that are random", f"{random:#x}", f"{varied & random:#x}")
