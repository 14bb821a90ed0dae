"""Where huge pages are mapped: what becomes of addresses, lengths and offsets that are asked for."""

import errno
import mmap
import signal
from itertools import product

from hugepage_qa.cases.case import Area
from hugepage_qa.cases.hugetlb_files import new_memfd
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.places import (
    end_of_addresses,
    expect_random,
    free_place,
    need_places_of_any_size,
    ordinary_memory,
)
from hugepage_qa.kernel.smaps import read_smaps
from hugepage_qa.kernel.uapi import MAP_FIXED, MAP_FIXED_NOREPLACE, MAP_HUGETLB
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor, Refused

ADDRESSES = Area("memory/addresses")
HINT = "mmap(2) addr; fs/hugetlbfs/inode.c hugetlb_get_unmapped_area()"
REPLACE = "mmap(2) MAP_FIXED; mm/mmap.c ksys_mmap_pgoff(), fs/hugetlbfs/inode.c hugetlbfs_file_mmap()"
END = "mmap(2) ENOMEM; mm/mmap.c get_unmapped_area()"
WINDOW = "Documentation/arch/x86/x86_64/5level-paging.rst; fs/hugetlbfs/inode.c hugetlb_get_unmapped_area()"
#: in one of them the stack, which has a random place near the end, does not lie on its last page
_PROGRAMS = 8
#: what memory beside huge pages holds
_OTHER = 77
#: an address that 32 bits hold, and where programs of 64 bits have nothing
LOW = 1 << 30
#: a base page of 64 KiB before what 64 bits hold
LAST = (1 << 64) - (1 << 16)


@ADDRESSES.case(
    "an address that is asked for is given where it is free, and another one where it is not", HINT, pages=2
)
def hints(live: Live) -> None:
    actor = live.actor()
    place = free_place(live, actor, 2)
    first = live.map(1, actor, at=place)
    live.expect("the address", f"{place:#x}", f"{first.address:#x}")
    first.fill(1)
    second = live.map(1, actor, at=place)
    live.expect("mappings at the address", 1, (first.address, second.address).count(place))
    second.fill(2)
    live.expect_pool(nr=2, free=0)
    first.expect_filled(1)


@ADDRESSES.case(
    "an address that is asked for is given if nothing lies on all of the pages, and whatever lies on one of them, be it"
    " a base page at their end, is as it was",
    HINT,
    pages=3,
)
def hints_beside_others(live: Live) -> None:
    need_places_of_any_size(live)
    base, length = live.base_page, 3 * live.size
    for offset in (-base, 0, live.size - base, live.size, 2 * live.size, length - base, length):
        actor = live.actor()
        place = free_place(live, actor, 5) + live.size
        other = ordinary_memory(live, actor, 1, place + offset)
        other.fill(_OTHER)
        memory = live.map(3, actor, at=place)
        with live.about(f"a base page at {offset} of {length} bytes"):
            if not 0 <= offset < length:
                live.expect("the address", f"{place:#x}", f"{memory.address:#x}")
            memory.fill()
            memory.expect_filled(pages=3)
            other.expect_filled(_OTHER)
        actor.end()
    live.expect_pool(nr=3, free=3)


@ADDRESSES.case(
    "an address that is no multiple of the page size is a hint, and no more: the mapping is aligned", HINT, pages=1
)
def misaligned_hints(live: Live) -> None:
    actor = live.actor()
    place = free_place(live, actor, 2)
    for offset in (1, live.base_page, live.size // 2, live.size - live.base_page):
        memory = live.map(1, actor, at=place + offset)
        live.expect(f"alignment of the address for a hint {offset} bytes off", 0, memory.address % live.size)
        memory.touch(value=offset)
        actor.write(memory.at(1) - 8, offset)
        live.expect("what the page holds", offset, memory.read())
        live.expect_pool(nr=1, free=0)
        memory.unmap()
        live.expect_pool(nr=1, free=1)


@ADDRESSES.case(
    "MAP_FIXED with a part of a page, of a file, too, replaces the whole page, and nothing else", REPLACE, pages=3
)
def short_lengths_replace_whole_pages(live: Live) -> None:
    file = new_memfd(live)
    anonymous = mmap.MAP_ANONYMOUS | MAP_HUGETLB | live.size_flag, -1
    for (kind, descriptor), length in product((anonymous, (0, file.descriptor)), (1, live.base_page, live.size - 1)):
        memory = live.map(2, file.actor)
        memory.fill(5)
        flags = mmap.MAP_PRIVATE | MAP_FIXED | kind
        address = memory.actor.mmap(length, READ_WRITE, flags, descriptor, address=memory.address)
        live.expect("the address", memory.address, address)
        live.expect_pool(nr=3, free=2, resv=1)
        memory.expect_zero(0)
        memory.expect_filled(5, first=1)
        live.expect_pool(nr=3, free=1)
        memory.unmap()
        live.expect_pool(nr=3, free=3)


@ADDRESSES.case(
    "MAP_FIXED that is refused for its offset leaves the page beside it as it was, and loses none",
    f"{REPLACE} must be huge page aligned",
    pages=4,
)
def refused_offsets_leave_the_neighbour(live: Live) -> None:
    for shared in (False, True):
        file = new_memfd(live)
        memory = file.map(2, shared=shared)
        memory.fill(5)
        live.expect_pool(nr=4, free=2)
        # the page tables are read anew
        memory.protect(mmap.PROT_READ, 0, 1)
        kind = MAP_FIXED | (mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE)
        words = live.size, READ_WRITE, kind, file.descriptor, live.base_page, memory.at(1)
        live.expect_errno(errno.EINVAL, file.actor.mmap, *words)
        memory.expect_filled(5, pages=1)
        memory.protect(READ_WRITE, 0, 1)
        memory.touch(0, 6)
        live.expect("the page beside", 6, memory.read(0))
        memory.unmap()
        file.close()
        live.expect_pool(nr=4, free=4)


# --- the end of the address space ------------------------------------------------------------------------------------


@ADDRESSES.case("no page is mapped across the end of the address space, nor beyond it", END, pages=2)
def across_the_end(live: Live) -> None:
    actor = live.actor()
    end = end_of_addresses(live, actor)
    last = (end - live.base_page) // live.size * live.size
    pages = 1 if last + live.size > end else 2
    for flags in (MAP_FIXED, MAP_FIXED_NOREPLACE):
        live.expect_errno(errno.ENOMEM, live.map, pages, actor, flags=flags, at=last)
        live.expect_errno(errno.ENOMEM, live.map, 1, actor, flags=flags, at=last + (pages - 1) * live.size)
        live.expect_pool(nr=2, free=2)
    memory = live.map(pages, actor, at=last)
    live.expect("whether it ends below the end", True, memory.at(pages) <= end)
    memory.touch(pages - 1)
    live.expect_pool(nr=2, free=1, resv=pages - 1)


@ADDRESSES.case("an address that cannot be is a hint that leads nowhere, and not to address 0", HINT, pages=1)
def impossible_hints(live: Live) -> None:
    actor = live.actor()
    for hint in (end_of_addresses(live, actor), LAST):
        memory = live.map(1, actor, at=hint)
        known = {Quirk.HINT_ROUNDED_TO_ZERO: False} if hint == LAST else None
        live.expect(f"whether an address was found for the hint {hint:#x}", True, memory.address > 0, known)
        memory.touch()
        live.expect_pool(nr=1, free=0)
        memory.unmap()
        live.expect_pool(nr=1, free=1)


def window_of_addresses(live: Live) -> int:
    """Return where the addresses end that are given to those who ask for none. Raises CannotRun without others."""
    window = live.host.uapi.map_window
    if window is None:
        raise CannotRun(f"{live.host.architecture} has no addresses that are for those who ask for them alone")
    end = end_of_addresses(live, live.actor())
    if end <= window:
        raise CannotRun(f"addresses end at {end:#x}: page tables have no level for more")
    return window


def expect_below(live: Live, window: int, memory: Memory) -> None:
    """Expect ``memory`` to lie below ``window``, and use it."""
    live.expect(f"whether it ends below {window:#x}", True, memory.at(memory.pages) <= window)
    memory.touch(memory.pages - 1)
    memory.unmap()


@ADDRESSES.case(
    "without an address, and with a low one, pages are mapped where every program can use them", WINDOW, pages=2
)
def low_addresses(live: Live) -> None:
    window = window_of_addresses(live)
    actor = live.actor()
    for hint in (0, LOW, window - live.size):
        # two pages from the last one on would lie across
        expect_below(live, window, live.map(2, actor, at=hint))
        live.expect_pool(nr=2, free=2)


@ADDRESSES.case("an address beyond those that every program can use is given to who asks for it", WINDOW, pages=2)
def high_addresses(live: Live) -> None:
    window = window_of_addresses(live)
    actor = live.actor()
    for flags in (0, MAP_FIXED):
        memory = live.map(1, actor, at=2 * window, flags=flags)
        live.expect("the address", f"{2 * window:#x}", f"{memory.address:#x}")
        memory.fill(5)
        memory.expect_filled(5)
        live.expect_pool(nr=2, free=1)
        if not flags:
            beside = live.map(1, actor, at=2 * window)
            live.expect("whether what is mapped for the same address lies beyond, too", True, beside.address > window)
            beside.fill(6)
            memory.expect_filled(5)
            live.expect_pool(nr=2, free=0)
            beside.unmap()
        memory.unmap()
        live.expect_pool(nr=2, free=2)
        # it is for one mapping alone
        expect_below(live, window, live.map(1, actor))


@ADDRESSES.case(
    "a mapping across the last address that every program can use is made where it is fixed", WINDOW, pages=2
)
def across_the_window(live: Live) -> None:
    window = window_of_addresses(live)
    memory = _mapped_across(live, window)
    live.expect("the address", f"{window - live.size:#x}", f"{memory.address:#x}")
    memory.fill(5)
    memory.expect_filled(5)
    live.expect_pool(nr=2, free=0)
    memory.unmap()
    live.expect_pool(nr=2, free=2)
    live.expect_signal(signal.SIGSEGV, memory.read)


def _mapped_across(live: Live, window: int) -> Memory:
    """Map two pages, one below ``window`` and one beyond, where a program has nothing. Raises CannotRun, Refused."""
    for _program in range(_PROGRAMS):
        actor = live.actor()
        try:
            return live.map(2, actor, at=window - live.size, flags=MAP_FIXED_NOREPLACE)
        except Refused as refusal:
            if refusal.errno != errno.EEXIST:
                raise
        actor.end()
    raise CannotRun(f"each of {_PROGRAMS} programs has its stack, or the kernel's code for it, below {window:#x}")


# --- many places, and places that nobody can foretell ---------------------------------------------------------------


@ADDRESSES.case(
    "pages are mapped at each place of the address space, beside base pages, and neither changes what the other holds",
    f"{HINT}; MAP_FIXED_NOREPLACE",
    pages=2,
)
def many_places(live: Live) -> None:
    need_places_of_any_size(live)
    file = new_memfd(live, pages=2)
    mapped, beside = [], []
    for place in _places(live, file.actor):
        memory = file.map(2, at=place, flags=MAP_FIXED_NOREPLACE)
        live.expect("the address", f"{place:#x}", f"{memory.address:#x}")
        mapped.append(memory)
        beside += [ordinary_memory(live, file.actor, 1, at) for at in (place - live.base_page, memory.at(2))]
    mapped[0].fill(5)
    for number, one in enumerate(beside):
        one.fill(number)
    for memory in mapped:
        memory.expect_filled(5)
    live.expect_pool(nr=2, free=0)
    for memory in mapped:
        memory.unmap()
    for number, one in enumerate(beside):
        one.expect_filled(number)
    file.close()
    live.expect_pool(nr=2, free=2)


def _places(live: Live, actor: Actor) -> list[int]:
    """Return addresses that are free with a huge page on each side: one for each bit that an address can have."""
    end = end_of_addresses(live, actor)
    ours = read_smaps(live.host, actor.pid) or ()
    # four pages: two, and one on each side
    bits = range((4 * live.size).bit_length(), (end - 1).bit_length())
    ranges = {1 << bit: (((1 << bit) - live.size), ((1 << bit) + 3 * live.size)) for bit in bits}
    return [at for at, (low, high) in ranges.items() if all(one.end <= low or high <= one.start for one in ours)]


@ADDRESSES.case(
    "each program has its mappings at another place: of an address every bit is random that vm.mmap_rnd_bits says and "
    "alignment leaves",
    "Documentation/admin-guide/sysctl/vm.rst mmap_rnd_bits; mm/util.c arch_pick_mmap_layout()",
    pages=1,
)
def random_addresses(live: Live) -> None:
    need_places_of_any_size(live)
    actor = live.actor()
    expect_random(live, actor, lambda: live.map(1, actor, noreserve=True), live.size)


@ADDRESSES.case(
    "with vm.legacy_va_layout each mapping lies above the one before it, and what is free again is taken first",
    "Documentation/admin-guide/sysctl/vm.rst legacy_va_layout; fs/hugetlbfs/inode.c hugetlb_get_unmapped_area()",
    pages=3,
)
def from_the_bottom_up(live: Live) -> None:
    if live.mmu.has_slices:
        # hugetlb_get_unmapped_area() in arch/powerpc/mm/book3s64/slice.c
        raise CannotRun("hugetlb pages have ranges of addresses of their own, which are always searched from the top")
    live.set_knob("proc/sys/vm/legacy_va_layout", "1")
    # the layout of a program is chosen when it starts
    actor = live.actor()
    mapped = [live.map(1, actor) for _page in range(3)]
    for number, memory in enumerate(mapped):
        live.expect("alignment of the address", 0, memory.address % live.size)
        memory.touch(value=number)
    places = [memory.address for memory in mapped]
    live.expect("addresses in the order in which they were mapped", sorted(places), places)
    live.expect("what the pages hold", [0, 1, 2], [memory.read() for memory in mapped])
    # a gap has to have room for a page at any alignment (vm_unmapped_area())
    for memory in mapped[:2]:
        memory.unmap()
    again = live.map(1, actor)
    live.expect("whether it lies below what was mapped last", True, again.address < places[-1])
    live.expect("what the new page and the last one hold", (0, 2), (again.read(), mapped[2].read()))
    live.expect_pool(nr=3, free=1)


class Addresses(LiveTest):
    def test_addresses(self) -> None:
        self.run_area(ADDRESSES)
