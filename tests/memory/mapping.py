"""mmap(2), munmap(2), mprotect(2) and mlock(2) on huge pages."""

import errno
import mmap
import signal
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.hugetlb_files import HugeFile, new_memfd, open_again
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import OF_A_FILE, PRESENT, Memory
from hugepage_qa.cases.pages_in_memory import in_memory
from hugepage_qa.cases.process_counters import process_status
from hugepage_qa.kernel.uapi import (
    HUGE_SHIFT,
    MADV_POPULATE_READ,
    MADV_POPULATE_WRITE,
    MAP_FIXED,
    MAP_FIXED_NOREPLACE,
    MAP_HUGETLB,
    MAP_POPULATE,
)
from hugepage_qa.oracle.rules import HUGETLB_DOC
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.sizes import format_size

MAPPING = Area("memory/mapping", uncleared=True)
ANONYMOUS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_HUGETLB
MAP = f"{HUGETLB_DOC} MAP_HUGETLB; mmap(2) MAP_HUGE_*; mm/mmap.c ksys_mmap_pgoff()"
ALIGNED = "mmap(2), munmap(2) Huge page mappings; mm/hugetlb.c hugetlb_vm_op_split()"


@MAPPING.case("MAP_HUGE_* takes pages of that size, and none of another", MAP, pages=1)
def pages_of_a_size(live: Live) -> None:
    others = [live.of_size(size) for size in live.sizes if size != live.size]
    memory = live.map(1)
    live.expect("alignment of the address", 0, memory.address % live.size)
    memory.touch()
    live.expect_pool(nr=1, free=0)
    for other in others:
        other.expect_pool(nr=0, free=0)
    found = memory.smaps()
    live.expect("sizes of its pages", (live.size, live.size), (found.kernel_page_size, found.mmu_page_size))


@MAPPING.case("MAP_HUGE_* maps pages of that size, also where none can be had: a mapping that reserves none", MAP)
def size_of_a_mapping_without_pages(live: Live) -> None:
    memory = live.map(1, noreserve=True)
    live.expect("alignment of the address", 0, memory.address % live.size)
    found = memory.smaps()
    size = format_size(live.size)
    live.expect(f"KernelPageSize of a mapping with MAP_HUGE_* of {size}", size, format_size(found.kernel_page_size))
    live.expect(f"MMUPageSize of a mapping with MAP_HUGE_* of {size}", size, format_size(found.mmu_page_size))
    live.expect_pool(nr=0, free=0)


@MAPPING.case("MAP_HUGETLB alone takes pages of the default size", MAP, sizes=Sizes.DEFAULT, pages=1)
def pages_of_the_default_size(live: Live) -> None:
    actor = live.actor()
    actor.mmap(live.size, READ_WRITE, ANONYMOUS)
    live.expect_pool(nr=1, free=1, resv=1)


@MAPPING.case("a page size that the machine does not have is refused", MAP, sizes=Sizes.DEFAULT)
def sizes_that_are_none(live: Live) -> None:
    actor = live.actor()
    for shift in range(1, 64):
        if 1 << shift not in live.sizes:
            flags = ANONYMOUS | shift << HUGE_SHIFT
            live.expect_errno(errno.EINVAL, actor.mmap, 1 << 30, READ_WRITE, flags)
    live.expect_pool(nr=0, free=0)


@MAPPING.case("a page belongs to a mapping from its first byte to its last, and is zero at first", MAP, pages=2)
def whole_pages(live: Live) -> None:
    memory = live.map(2)
    memory.expect_zero(0, 2)
    memory.fill(3)
    memory.expect_filled(3)
    live.expect_pool(nr=2, free=0)


@MAPPING.case(
    "the next user of a page does not see what was in it, wherever it is touched first, private or shared",
    f"{MAP}; mm/memory.c process_huge_page()",
    pages=1,
)
def pages_are_cleared(live: Live) -> None:
    memory = live.map(1)
    for shared, place in product((False, True), memory.touch_places()):
        memory.fill(7)
        memory.actor.end()
        live.expect_pool(nr=1, free=1)
        memory = live.map(1, shared=shared)
        memory.actor.write(memory.address + place, 0)
        with live.about(f"shared: {shared}, touched first at {place}"):
            memory.expect_zero()


@MAPPING.case("a length is rounded up to whole pages, of a file, too", f"{ALIGNED}; {MAP}", pages=2)
def lengths_are_rounded_up(live: Live) -> None:
    file = new_memfd(live)
    actor = file.actor
    for flags, descriptor in ((ANONYMOUS | live.size_flag, -1), (mmap.MAP_PRIVATE, file.descriptor)):
        for length, pages in ((1, 1), (live.size - 1, 1), (live.size + 1, 2)):
            address = actor.mmap(length, READ_WRITE, flags, descriptor)
            live.expect_pool(nr=2, free=2, resv=pages)
            actor.write(address + pages * live.size - 8, 1)
            live.expect_pool(nr=2, free=1, resv=pages - 1)
            actor.call("munmap", address, pages * live.size)
        live.expect_errno(errno.EINVAL, actor.mmap, 0, READ_WRITE, flags, descriptor)
        live.expect_pool(nr=2, free=2)


@MAPPING.case("addresses and offsets that are not a multiple of the page size are refused", ALIGNED, pages=2)
def misaligned_mappings(live: Live) -> None:
    file = new_memfd(live)
    memory = file.map(2)
    for offset in (live.base_page, live.size - live.base_page):
        live.expect_errno(
            errno.EINVAL, file.actor.mmap, live.size, READ_WRITE, mmap.MAP_SHARED, file.descriptor, offset
        )
        fixed = mmap.MAP_SHARED | MAP_FIXED
        place = memory.address + offset
        live.expect_errno(errno.EINVAL, file.actor.mmap, live.size, READ_WRITE, fixed, file.descriptor, 0, place)
    live.expect_pool(nr=2, free=2, resv=2)


@MAPPING.case("no part of a page is unmapped or protected alone", ALIGNED, pages=2)
def parts_of_pages(live: Live) -> None:
    memory = live.map(2)
    memory.touch(0, 1)
    memory.touch(1, 2)
    part = live.base_page
    for address, length in ((memory.address, part), (memory.address + part, live.size), (memory.at(1), part)):
        live.expect_errno(errno.EINVAL, memory.actor.call, "munmap", address, length)
        live.expect_errno(errno.EINVAL, memory.actor.call, "mprotect", address, length, mmap.PROT_READ)
    live.expect_pool(nr=2, free=0)
    memory.touch(0, 3)
    live.expect("what the pages hold", (3, 2), (memory.read(0), memory.read(1)))


@MAPPING.case("MAP_FIXED_NOREPLACE does not replace", "mmap(2) MAP_FIXED_NOREPLACE", pages=2)
def no_replacement(live: Live) -> None:
    memory = live.map(1)
    memory.touch(value=1)
    actor = memory.actor
    live.expect_errno(errno.EEXIST, live.map, 1, actor, flags=MAP_FIXED_NOREPLACE, at=memory.address)
    live.expect_pool(nr=2, free=1)
    live.expect("what the page holds", 1, memory.read())


@MAPPING.case(
    "MAP_POPULATE, MAP_LOCKED and mlock(2) take the pages at once, and count none as locked",
    "mmap(2) MAP_POPULATE; mlock(2); mm/mlock.c mlock_fixup()",
    pages=2,
)
def pages_at_once(live: Live) -> None:
    for shared, flags in product((False, True), (MAP_POPULATE, live.host.uapi.map_locked)):
        memory = live.map(2, shared=shared, flags=flags)
        live.expect_pool(nr=2, free=0)
        expect_nothing_locked(live, memory)
        for call in ("mlock", "munlock"):
            memory.actor.call(call, memory.address, memory.length)
            live.expect_pool(nr=2, free=0)
            expect_nothing_locked(live, memory)
        memory.unmap()
        live.expect_pool(nr=2, free=2)
    for shared in (False, True):
        memory = live.map(2, shared=shared)
        memory.actor.call("mlock", memory.at(1), live.size)
        live.expect_pool(nr=2, free=1, resv=1)
        expect_nothing_locked(live, memory)
        memory.actor.call("munlock", memory.at(1), live.size)
        live.expect_pool(nr=2, free=1, resv=1)
        memory.unmap()
        live.expect_pool(nr=2, free=2)


@MAPPING.case(
    "what takes the pages of a mapping at once copies those of a file for a private mapping that can be written, which"
    " has all that it reserved then; one that can only be read has what the file has, as shared ones have, and so has"
    " what MADV_POPULATE_READ takes",
    "mmap(2) MAP_POPULATE, MAP_LOCKED; mlock(2); mlockall(2); madvise(2) MADV_POPULATE_READ, MADV_POPULATE_WRITE;"
    " mm/gup.c populate_vma_page_range(), faultin_page_range()",
    since="5.14",  # MADV_POPULATE_*
    pages=3,
)
def pages_of_a_file_at_once(live: Live) -> None:
    # gigantic pages take seconds each
    ways = ("MAP_POPULATE",) if live.is_gigantic else _AT_ONCE
    for way, shared, prot in product(ways, (True, False), (READ_WRITE, mmap.PROT_READ)):
        if way == "MADV_POPULATE_WRITE" and not prot & mmap.PROT_WRITE:
            continue  # it is refused (madvise(2) EINVAL)
        file = new_memfd(live, pages=2)
        file.map(1).touch(value=7)
        memory = _taken_at_once(live, open_again(live, file), way, shared=shared, prot=prot)
        copies = not shared and way != "MADV_POPULATE_READ" and bool(prot & mmap.PROT_WRITE)
        with live.about(f"{way}, shared {shared}, can be written {bool(prot & mmap.PROT_WRITE)}"):
            live.expect_pool(nr=3, free=0 if copies else 1, resv=0 if copies or shared else 1)
            entries = memory.pagemap(map(memory.at, range(2)))
            live.expect("pages that are there", [True, True], [bool(entry & PRESENT) for entry in entries])
            found = [bool(entry & OF_A_FILE) for entry in entries]
            live.expect("pages that are those of the file", [not copies, shared], found)
            live.expect("pages that the file has", 2 if shared else 1, file.blocks // live.size)
            memory.protect(READ_WRITE)
            live.expect("what is there", (7, 0), (memory.read(0), memory.read(1)))
            memory.touch(0, 8)
            live.expect_pool(nr=3, free=1 if shared else 0)
            live.expect("what the file holds", 8 if shared else 7, file.map(1).read())
        memory.actor.end()
        file.actor.end()
        live.expect_pool(nr=3, free=3)


_AT_ONCE = (
    *("MAP_POPULATE", "MAP_LOCKED", "mlock", "mlock2", "MCL_CURRENT", "MCL_FUTURE"),
    *("MADV_POPULATE_READ", "MADV_POPULATE_WRITE"),
)


def _taken_at_once(live: Live, file: HugeFile, way: str, *, shared: bool, prot: int) -> Memory:
    """Map two pages of ``file`` in a ``way`` that takes them at once."""
    uapi = live.host.uapi
    if way == "MCL_FUTURE":
        file.actor.call("mlockall", uapi.mcl_future)
    flags = {"MAP_POPULATE": MAP_POPULATE, "MAP_LOCKED": uapi.map_locked}.get(way, 0)
    memory = file.map(2, shared=shared, prot=prot, flags=flags)
    match way:
        case "mlock":
            memory.lock()
        case "mlock2":
            memory.actor.call("mlock2", memory.address, memory.length, 0)
        case "MCL_CURRENT":
            memory.actor.call("mlockall", uapi.mcl_current)
        case "MADV_POPULATE_READ":
            memory.advise(MADV_POPULATE_READ)
        case "MADV_POPULATE_WRITE":
            memory.advise(MADV_POPULATE_WRITE)
    return memory


def expect_nothing_locked(live: Live, memory: Memory) -> None:
    """Expect that no limit of locked memory counts huge pages, which are in memory anyway."""
    live.expect("VmLck", 0, process_status(live, memory.actor).locked)


@MAPPING.case(
    "mincore(2) tells of the pages that are there, whole ones, and of no other",
    "mincore(2); mm/mincore.c mincore_hugetlb()",
    pages=3,
)
def pages_that_are_there(live: Live) -> None:
    file = new_memfd(live)
    memory = file.map(3)
    for there in ((), (1,), (0, 1), (0, 1, 2)):
        for page in there:
            memory.touch(page)
        live.expect("pages in memory", there, in_memory(live, memory))
    file.punch(1, first=1)
    live.expect("pages in memory, less the one that was punched out", (0, 2), in_memory(live, memory))
    live.expect_pool(nr=3, free=1)
    memory.unmap()
    file.close()
    private = live.map(3)
    live.expect("private pages in memory", (), in_memory(live, private))
    private.touch(1)
    live.expect("private pages in memory", (1,), in_memory(live, private))


@MAPPING.case("MAP_POPULATE without enough pages takes those that there are, and mmap(2) succeeds", MAP, pages=1)
def populate_without_pages(live: Live) -> None:
    memory = live.map(2, noreserve=True, flags=MAP_POPULATE)
    live.expect_pool(nr=1, free=0)
    live.expect_signal(signal.SIGBUS, memory.touch, 1)
    memory.unmap()
    live.expect_pool(nr=1, free=1)


@MAPPING.case(
    "a page obeys its protection, and holds what it held; SIGSEGV tells the address, wherever in the page it is",
    "mprotect(2); sigaction(2) si_addr; mm/hugetlb.c hugetlb_change_protection()",
    pages=2,
)
def protection(live: Live) -> None:
    for shared in (False, True):
        memory = live.map(2, shared=shared)
        memory.touch(0, 1)
        memory.touch(1, 2)
        memory.protect(mmap.PROT_READ, 0, 1)
        # s390x tells the base page alone
        for place in (memory.address, memory.address + live.base_page, memory.at(1) - live.base_page):
            live.expect_signal(signal.SIGSEGV, memory.actor.write, place, 9, at=place)
        live.expect("the page to read", 1, memory.read(0))
        memory.touch(1, 3)
        memory.protect(mmap.PROT_READ)
        memory.protect(READ_WRITE, 0, 1)
        memory.touch(0, 5)
        live.expect_signal(signal.SIGSEGV, memory.touch, 1, 9, at=memory.at(1))
        memory.protect(0)
        for page in (0, 1):
            live.expect_signal(signal.SIGSEGV, memory.read, page, at=memory.at(page))
        live.expect_pool(nr=2, free=0)
        memory.protect(READ_WRITE)
        live.expect("what the pages hold", (5, 3), (memory.read(0), memory.read(1)))
        memory.touch(0, 4)
        live.expect_pool(nr=2, free=0)
        memory.unmap()
        live.expect_pool(nr=2, free=2)


@MAPPING.case("a page that may not be accessed is not taken by the attempt", "mprotect(2); mm/hugetlb.c", pages=1)
def protected_page_is_not_taken(live: Live) -> None:
    memory = live.map(1, prot=0)
    live.expect_signal(signal.SIGSEGV, memory.read)
    memory.protect(mmap.PROT_READ)
    live.expect_signal(signal.SIGSEGV, memory.touch)
    live.expect_pool(nr=1, free=1, resv=1)
    memory.protect(READ_WRITE)
    memory.touch()
    live.expect_pool(nr=1, free=0)


class Mapping(LiveTest):
    def test_mapping(self) -> None:
        self.run_area(MAPPING)
