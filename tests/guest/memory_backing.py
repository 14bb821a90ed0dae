"""What guests of libvirt take for every combination of what <memoryBacking> can say."""

import re

from hugepage_qa.cases.case import Sizes
from hugepage_qa.cases.guest import guest_machine as drivers
from hugepage_qa.cases.guest.guest import Guest
from hugepage_qa.cases.guest.guests import GuestArea, Guests, guest_case, needs
from hugepage_qa.cases.guest.memory_backing import (
    MemoryBacking,
    every_backing_of_a_cell,
    every_backing_with_huge_pages,
    every_backing_with_ordinary_pages,
)
from hugepage_qa.cases.guest.refusal import Meaning
from hugepage_qa.cases.live import Live
from hugepage_qa.plugins.guest_test import GuestTest
from hugepage_qa.qemu.guest.driver import State
from hugepage_qa.qemu.guest.guest_description import Cell
from hugepage_qa.sizes import KIB, MIB

LIBVIRT = GuestArea("guest/memory-backing", drivers.LIBVIRT, sizes=Sizes.DEFAULT)
case = guest_case(LIBVIRT)

BACKING = "libvirt.org/formatdomain.html memoryBacking; libvirt src/qemu/qemu_validate.c qemuValidateDomainDefMemory()"
CELL = "libvirt.org/formatdomain.html cell memAccess, discard; libvirt src/qemu/qemu_command.c"
NODESET = "libvirt.org/formatdomain.html hugepages page nodeset; libvirt src/conf/domain_conf.c"
MERGED = "libvirt.org/formatdomain.html nosharepages; QEMU -machine mem-merge=; madvise(2) MADV_MERGEABLE"

#: of a guest on ordinary pages: as much as nothing else in a QEMU has
_MEMORY = 70 * MIB
_DISCARDS = re.compile(r"discard-data\W+(?:true|yes|on)\b")


def expect_backing(live: Live, guests: Guests, guest: Guest, backing: MemoryBacking, pages: int) -> None:
    """Expect a guest with ``backing`` to be refused, or to have all its memory as that says; the pool has ``pages``."""
    outcome = backing.outcome()
    definition = backing.put_into(guest.definition)
    if outcome.refusal is not None:
        guests.expect_refused(outcome.refusal, guest.define_and_start, definition)
        guest.expect_state(State.OFF)
        live.expect_pool(nr=pages, free=pages)
        return
    guest.define_and_start(definition)
    guest.expect_state(State.PAUSED)
    live.expect_pool(nr=pages, free=0 if outcome.is_huge else pages)
    memory = guest.mapped_memory
    live.expect("memory as shared as its access says", [outcome.is_shared], [one.is_shared for one in memory])
    live.expect("memory in pages of the pool", [outcome.is_huge], [one.is_hugetlb for one in memory])
    there = [one.hugetlb + one.rss == one.size for one in memory]
    live.expect("whether all memory is there", [outcome.is_there], there)
    told = live.host.observe(f"proc/{guest.pid}/cmdline") or ""
    live.expect("whether QEMU discards", outcome.is_discarded, bool(_DISCARDS.search(told)))
    guest.destroy()
    guest.expect_state(State.OFF)
    guests.expect_all_free(pages)


@case("a guest has huge pages as its source, access and discard say, or is refused with what they exclude", BACKING)
def each_combination(live: Live, guests: Guests) -> None:
    guest = guests.new_with_pages()
    for backing in every_backing_with_huge_pages(live.size):
        with live.about(str(backing)):
            expect_backing(live, guests, guest, backing, guest.pages)


@case("access and discard of a cell count, whatever the guest says of them", CELL)
def each_combination_of_a_cell(live: Live, guests: Guests) -> None:
    memory = guests.pages * live.size
    # a guest without room for more spells out no cells
    guest = guests.new_with_pages(max_memory=2 * memory)
    for backing in every_backing_of_a_cell(live.size):
        with live.about(str(backing)):
            expect_backing(live, guests, guest, backing, guest.pages)


@case("a guest on ordinary pages has its memory as source, allocation and access say, and no page of the pool", BACKING)
def each_combination_without_huge_pages(live: Live, guests: Guests) -> None:
    guest = guests.new(Cell(_MEMORY, None))
    live.reserve(guests.pages)
    for backing in every_backing_with_ordinary_pages():
        with live.about(str(backing)):
            expect_backing(live, guests, guest, backing, guests.pages)


@case(
    "huge pages of which no size is said are those of the default size, and one page short is short of these", BACKING
)
def no_size(live: Live, configured: Guests) -> None:
    # of several mounts in qemu.conf libvirt takes the second one for that of the default size
    guests = Guests(live, drivers.LIBVIRT_LOOKING_FOR_MOUNTS)
    guest = guests.new(Cell(configured.pages * live.size, live.size))
    definition = MemoryBacking(0).put_into(guest.definition)
    live.reserve(guest.pages - 1)
    guests.expect_refused(Meaning.SHORT_OF_PAGES, guest.define_and_start, definition)
    guest.expect_state(State.OFF)
    live.expect_pool(nr=guest.pages - 1, free=guest.pages - 1)
    live.reserve(guest.pages)
    guest.define_and_start(definition)
    guest.expect_all_taken()
    guest.expect_in(guests.site.mounts[live.size])
    guest.destroy()
    guests.expect_all_back(guest)


@case(
    "the cells that a nodeset names have huge pages, the others none, and cells that are not there are refused", NODESET
)
def each_nodeset(live: Live, guests: Guests) -> None:
    cell = Cell(guests.pages * live.size // 2, live.size)
    guest = guests.new(cell, cell)
    pages = guest.pages
    live.reserve(pages)
    page = f'<page size="{live.size // KIB}" unit="KiB"'
    in_cells = f'{page} nodeset="0" />{page} nodeset="1" />'
    for nodeset, named in (("0", 1), ("1", 1), ("0-1", 2), ("0-1,^0", 1), ("2", None), ("0,2", None), ("1-3", None)):
        definition = guest.definition.replace(in_cells, f'{page} nodeset="{nodeset}" />')
        with live.about(f"nodeset={nodeset}"):
            if named is None:
                guests.expect_refused(Meaning.NO_SUCH_NODE, guest.define_and_start, definition)
                guest.expect_state(State.OFF)
            else:
                guest.define_and_start(definition)
                live.expect_pool(nr=pages, free=pages - named * pages // 2)
                live.expect("pages that its QEMU maps", named * pages // 2, guest.mapped)
                guest.destroy()
            live.expect_pool(nr=pages, free=pages)


@case("memory of a guest may be merged with that of others, unless it says nosharepages", MERGED)
def nosharepages(live: Live, guests: Guests) -> None:
    needs(bool(live.host.names("sys/kernel/mm/ksm")), "this kernel merges no pages (CONFIG_KSM)")
    guest = guests.new(Cell(_MEMORY, None))
    live.reserve(guests.pages)
    for backing in (MemoryBacking(), MemoryBacking(nosharepages=True)):
        with live.about(str(backing)):
            guest.define_and_start(backing.put_into(guest.definition))
            mergeable = ["mg" in one.flags for one in guest.mapped_memory]
            live.expect("whether memory may be merged", [not backing.nosharepages], mergeable)
            live.expect_pool(nr=guests.pages, free=guests.pages)
            guest.destroy()
    # of huge pages the kernel merges none, whatever it is told
    guest = guests.new(name="huge")
    guest.define_and_start(MemoryBacking(live.size, nosharepages=True).put_into(guest.definition))
    guest.expect_all_taken()
    live.expect("whether huge pages may be merged", [False], ["mg" in one.flags for one in guest.mapped_memory])


class Backing(GuestTest):
    def test_libvirt(self) -> None:
        self.run_area(LIBVIRT)
