"""Mappings of parts of files of a tmpfs: where they end, what is told of their swap, and the node of each part."""

import mmap
import signal

from hugepage_qa.cases import memory_policy
from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.fragmentation import with_blocks
from hugepage_qa.cases.hugetlb_files import HugeFile, open_file
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.pages_of_a_node import need_memory
from hugepage_qa.cases.swapped import need_swap, page_all_out, swap_to_a_device, swapped
from hugepage_qa.cases.thp_memory import pmd_size, room_for
from hugepage_qa.cases.thp_shared_memory import (
    expect_mapped_whole,
    expect_shared,
    let_only_pmd_inherit,
    map_file,
    map_start,
    mount_tmpfs,
)
from hugepage_qa.kernel.uapi import MAP_FIXED
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest

PARTS_OF_FILES = Area("files/parts-of-files", sizes=Sizes.ONCE)

SWAP = "Documentation/filesystems/proc.rst Swap; mm/shmem.c shmem_swap_usage(), shmem_partial_swap_usage()"
_PAGES = 2
_VALUE = 77
#: of a file that is read through a mapping so many base pages are mapped at once (mm/memory.c do_fault_around())
_AROUND = 16


@PARTS_OF_FILES.case(
    "a mapping of a file that is mapped as base pages ends with the last of the file, also where a huge page goes on:"
    " who reads or writes behind that gets SIGBUS, whatever was read before, and the rest of the last one is zero",
    "mmap(2) SIGBUS; mm/filemap.c filemap_map_pages(), mm/shmem.c shmem_fault()",
)
def end_of_the_file(live: Live) -> None:
    let_only_pmd_inherit(live)
    size, page = pmd_size(live), live.base_page
    point = mount_tmpfs(live, "always")
    for end in (page, 3 * page, 3 * page + WORD, size // 2, size - page, size + 5 * page):
        file = _file(live, point, end)
        for start in range(0, end, size):
            file.actor.call("pwrite64", file.descriptor, live.host.uapi.pack("Q", _VALUE), WORD, start)
        # the last one that the file has, and so many behind it as may be mapped with it
        last = (end - 1) // page
        first = max(last - 2, 0)
        memory = _map(live, file, first, last + _AROUND - first, beyond=1)
        with live.about(f"a file of {end} bytes"):
            behind = end % page
            for number in range(last - first + 1):
                value = _VALUE if (first + number) * page % size == 0 else 0
                live.expect(f"the first word of base page {first + number}", value, memory.read(number))
            if behind:
                rest = memory.nonzero((last - first) * memory.size + behind, page - behind)
                live.expect("words behind the end that are not zero", 0, rest)
            for number in range(last - first + 1, memory.pages):
                live.expect_signal(signal.SIGBUS, memory.read, number)
                live.expect_signal(signal.SIGBUS, memory.touch, number, _VALUE)
            mapping, there = memory.smaps(), (last - first + 1) * page
            live.expect("Rss, ShmemPmdMapped", (there, 0), (mapping.rss, mapping.shmem_pmd_mapped))


@PARTS_OF_FILES.case(
    "Swap of a mapping of a part of a file is what of that part is in swap, wherever it is and whoever maps it how",
    SWAP,
    since="5.4",  # MADV_PAGEOUT
)
def swap_of_a_part(live: Live) -> None:
    need_swap(live, _PAGES * pmd_size(live))
    _expect_swap_of_parts(live)


@PARTS_OF_FILES.case(
    "Swap of a mapping of a part of a file that was swapped to a device, as whole huge pages where these can be, is"
    " what of that part is in swap",
    SWAP,
    since="5.4",
)
def swap_of_a_part_on_a_device(live: Live) -> None:
    swap_to_a_device(live, 4 * _PAGES * pmd_size(live))
    _expect_swap_of_parts(live)


@PARTS_OF_FILES.case(
    "each page of a file comes from the node that mbind(2) has chosen for its part, huge or not, whichever mapping of"
    " it is touched and by whom, and what no part was chosen for from the node of who touches it",
    "mbind(2); mm/shmem.c shmem_set_policy(), shmem_pseudo_vma_init()",
    nodes=2,
)
def policy_of_a_part(live: Live) -> None:
    let_only_pmd_inherit(live)
    size, nodes = pmd_size(live), live.nodes[:2]
    need_memory(live, nodes, 3 * size)
    for huge in ("always", "never"):
        for first, second in (nodes, nodes[::-1]):
            with_blocks(live, size, 3)
            file = _file(live, mount_tmpfs(live, huge), 3 * size)
            memory = map_file(live, file.actor, file.descriptor, 3)
            # the first page has no policy of its own, but that of its process
            memory_policy.set_policy(file.actor, memory_policy.Mode.BIND, [second])
            for page, node in ((1, first), (2, second)):
                memory_policy.bind(memory.part(page), [node])
            with live.about(f"huge={huge}, parts bound to nodes {first} and {second}"):
                last = _map(live, file, 2 * size // live.base_page, size // live.base_page)
                last.touch()
                memory.fill()
                for page in range(3):
                    part = memory.part(page)
                    expect_mapped_whole(live, part, int(huge == "always"), f"huge={huge}")
                wanted = [second, first, second]
                live.expect("nodes of the parts", wanted, [memory_policy.node_of(memory, page) for page in range(3)])
                live.expect("node of the other mapping", second, memory_policy.node_of(last))
                memory.expect_filled()
            file.actor.end()


def _expect_swap_of_parts(live: Live) -> None:
    """Expect what smaps shows of parts of a file in swap. Raises KnownBug."""
    let_only_pmd_inherit(live)
    every = pmd_size(live) // live.base_page
    for huge in ("never", "always"):
        file = _file(live, mount_tmpfs(live, huge))
        memory = map_start(live, file.actor, file.descriptor, _PAGES)
        expect_shared(live, memory, huge == "always", f"huge={huge}")
        page_all_out(live, memory)
        live.expect("Swap of all", memory.length, swapped(memory))
        for first, count in ((0, 2), (0, every), (3, 5), (every - 1, 2), (every, every), (2 * every - 1, 1)):
            with live.about(f"huge={huge}, {count} pages from {first} on"):
                for shared in (True, False):
                    part = _map(live, file, first, count, shared=shared)
                    all_of_them = ((first + count - 1) // every - first // every + 1) * memory.size
                    # whole huge pages go to swap that is a block device, of whoever it is (since Linux 6.12)
                    may_differ = huge == "always" and all_of_them != part.length
                    known = {Quirk.SWAP_OF_A_PART_COUNTS_ALL: all_of_them} if may_differ else {}
                    if not shared:
                        known |= {Quirk.PRIVATE_SWAP_UNTOLD: 0}
                    live.expect(f"Swap, shared: {shared}", part.length, swapped(part), known)
                    part.unmap()
        part = _map(live, file, every - 1, 2)
        live.expect("the first word", 1 + (every - 1) * live.base_page, part.read())
        live.expect("Swap of two pages of which one was read", live.base_page, swapped(part))
        memory.expect_filled()
        live.expect("Swap of all after it was read", 0, swapped(memory))
        memory.actor.end()


def _file(live: Live, point: str, length: int | None = None) -> HugeFile:
    """Return a new file below ``point`` of ``length`` bytes, by default of two huge pages."""
    actor = live.actor()
    length = _PAGES * pmd_size(live) if length is None else length
    file = open_file(live, f"{point}/{length}", actor)
    actor.call("ftruncate", file.descriptor, length)
    return file


def _map(live: Live, file: HugeFile, first: int, count: int, *, beyond: int = 0, shared: bool = True) -> Memory:
    """Map ``count`` base pages of ``file`` from ``first`` on, ``beyond`` base pages behind where a huge page begins."""
    page, size = live.base_page, pmd_size(live)
    address = room_for(file.actor, -(-(count + beyond) * page // size), size) + beyond * page
    kind = mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE
    file.actor.mmap(count * page, READ_WRITE, kind | MAP_FIXED, file.descriptor, first * page, address)
    return Memory(live, file.actor, address, count, page)


class ThpPartsOfFiles(LiveTest):
    def test_parts_of_files(self) -> None:
        self.run_area(PARTS_OF_FILES)
