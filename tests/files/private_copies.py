"""Copies that private mappings have of base pages of files in huge pages, and what of them stays when files change."""

import mmap
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.hugetlb_files import HugeFile
from hugepage_qa.cases.khugepaged_clock import let_nobody_else_act
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import WORD, Memory, runs
from hugepage_qa.cases.swapped import need_swap, parts_out, swapped
from hugepage_qa.cases.thp_memory import pmd_size, room_for
from hugepage_qa.cases.thp_shared_memory import expect_shared, map_file, map_start, mount_tmpfs
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.uapi import FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, MAP_FIXED
from hugepage_qa.plugins.avocado_test import LiveTest

PRIVATE_COPIES = Area("files/private-copies", sizes=Sizes.ONCE)

SHORTER = "mmap(2) SIGBUS, MAP_PRIVATE; ftruncate(2); mm/shmem.c shmem_setattr(); mm/memory.c unmap_mapping_range()"
_PAGES = 2
_COPY, _NEW_VALUE = 1 << 40, 77


@dataclass(frozen=True)
class _Copied:
    """A file that was filled, with all of it mapped to be shared, and private mappings that have copies of parts."""

    live: Live
    file: HugeFile
    shared: Memory
    private: tuple[Memory, ...]
    #: the base pages that each private mapping has a copy of
    copied: frozenset[int]

    def is_swapped_out(self) -> bool:
        """Swap the copies of the first private mapping out, and tell whether all are: no other process has them."""
        memory, base = self.private[0], self.live.base_page
        parts = [(page * base, base) for page in sorted(self.copied)]
        return parts_out(self.live, memory, parts, lambda: swapped(memory) == len(parts) * base)

    def expect_copies(self, end: int) -> None:
        """Expect each private mapping to have its copies up to ``end`` and no others, and SIGBUS for these."""
        live, base = self.live, self.live.base_page
        kept = {page for page in self.copied if page * base < end}
        for number, memory in enumerate(self.private):
            with live.about(f"private mapping {number}"):
                mapping = memory.smaps()
                copies = mapping.fields["Anonymous"] + mapping.fields.get("Swap", 0)
                # where there is a copy, no huge page is mapped whole
                huge = mapping.anon_huge_pages + mapping.shmem_pmd_mapped
                live.expect("Anonymous and Swap, huge pages", (len(kept) * base, 0), (copies, huge))
                wrong = {page: memory.wrong(page * base, base, _COPY) for page in kept}
                live.expect("words of copies that changed", dict.fromkeys(kept, 0), wrong)
                for page in sorted(self.copied - kept):
                    live.expect_signal(signal.SIGBUS, memory.actor.read, memory.address + page * base)
                    live.expect_signal(signal.SIGBUS, memory.actor.write, memory.address + page * base, _NEW_VALUE)


@PRIVATE_COPIES.case(
    "a file that is made shorter takes the private copies behind its new end with it: who reads or writes there gets"
    " SIGBUS, in a child, too, and zeroes when the file is longer again; the copies in front of the end stay",
    SHORTER,
)
def shorter_file(live: Live) -> None:
    _expect_to_go(live, in_swap=False)


@PRIVATE_COPIES.case(
    "a file that is made shorter takes private copies behind its new end that are in swap with it, and none in front",
    f"{SHORTER}; mm/memory.c zap_pte_range()",
    since="5.4",  # MADV_PAGEOUT
)
def shorter_file_in_swap(live: Live) -> None:
    need_swap(live, _PAGES * pmd_size(live))
    _expect_to_go(live, in_swap=True)


def _expect_to_go(live: Live, *, in_swap: bool) -> None:
    size, base = pmd_size(live), live.base_page
    ends = (0, base, size // 2 + WORD, size - base, size, size + WORD, _PAGES * size - base)
    for end, way in (*((end, "ftruncate") for end in ends), (0, "O_TRUNC")):
        for each, kind in _files(live):
            with live.about(f"{kind}, {way} to {end} bytes"):
                actor, file = each.file.actor, each.file.descriptor
                if in_swap:
                    live.host.wait_until(each.is_swapped_out)
                    live.expect("copies in swap", len(each.copied) * base, swapped(each.private[0]))
                if way == "ftruncate":
                    actor.call("ftruncate", file, end)
                else:
                    live.open(actor, f"/proc/self/fd/{file}", os.O_RDWR | os.O_TRUNC)
                each.expect_copies(end)
                last = -(-end // base) * base
                live.expect("words of the file that changed", 0, each.shared.wrong(0, end // base * base))
                actor.call("ftruncate", file, each.shared.length)
                for memory in (each.shared, *each.private):
                    behind = memory.nonzero(last, memory.length - last)
                    live.expect("words behind that are not zero when it is longer again", 0, behind)


@PRIVATE_COPIES.case(
    "a hole in a file leaves private copies of what is in it: they hold what they held, and what was not copied is zero"
    " in it and as before beside it",
    "mmap(2) MAP_PRIVATE; fallocate(2) FALLOC_FL_PUNCH_HOLE; madvise(2) MADV_REMOVE; mm/shmem.c shmem_fallocate()",
)
def hole(live: Live) -> None:
    size, base = pmd_size(live), live.base_page
    holes = ((0, base), (base, size - base), (0, size), (size - 2 * base, 4 * base), (0, _PAGES * size))
    for (offset, length), way in product(holes, ("fallocate", "madvise")):
        for each, kind in _files(live):
            with live.about(f"{kind}, {way} of {length} bytes at {offset}"):
                actor, shared = each.file.actor, each.shared
                if way == "fallocate":
                    mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
                    actor.call("fallocate", each.file.descriptor, mode, offset, length)
                else:
                    actor.call("madvise", shared.address + offset, length, mmap.MADV_REMOVE)
                each.expect_copies(shared.length)
                within = set(range(offset // base, (offset + length) // base))
                for memory in (shared, *each.private):
                    others = set(range(shared.length // base)) - (set() if memory is shared else each.copied)
                    parts = [(memory.address + run.start * base, len(run) * base) for run in runs(others & within)]
                    live.expect("words in it that are not zero", 0, sum(memory.actor.nonzero(*part) for part in parts))
                    wrong = sum(memory.wrong(run.start * base, len(run) * base) for run in runs(others - within))
                    live.expect("words beside it that changed", 0, wrong)


@PRIVATE_COPIES.case(
    "what private mappings with copies of some base pages of a file in huge pages have only read beside these is the"
    " file's: it is no copy, and shows what is written to the file later; the copies do not",
    "mmap(2) MAP_PRIVATE; mm/memory.c do_read_fault(), do_fault()",
)
def read_beside_copies(live: Live) -> None:
    base = live.base_page
    for each, kind in _files(live):
        with live.about(kind):
            parts = runs(set(range(each.shared.length // base)) - each.copied)
            beside = [(run.start * base, len(run) * base) for run in parts]
            for value in (1, _NEW_VALUE):
                each.shared.fill(value)
                wrong = [sum(memory.wrong(*part, value) for part in beside) for memory in each.private]
                live.expect("words beside copies that are not the file's", [0] * len(each.private), wrong)
                each.expect_copies(each.shared.length)


@PRIVATE_COPIES.case(
    "who writes to a file in huge pages that a private mapping has as base pages gets a copy of the base page that he"
    " writes to, wherever in a huge page it lies and whether it was read before; no other one changes, nor the file",
    "mmap(2) MAP_PRIVATE; mm/memory.c wp_page_copy(), __wp_page_copy_user(), do_cow_fault()",
)
def each_base_page(live: Live) -> None:
    base = live.base_page
    ways = _one_off, _half, _written_in_part
    for file, shared, kind in _files_in_huge_pages(live):
        for make, is_read, place in product(ways, (True, False), (0, base - WORD)):
            with live.about(f"{kind}, {make.__name__.strip('_')}, read before: {is_read}, the word at {place}"):
                memory = make(live, file)
                length = memory.length
                if is_read:
                    memory.expect_filled()
                    found = memory.smaps()
                    live.expect("Rss, ShmemPmdMapped", (length, 0), (found.rss, found.shmem_pmd_mapped))
                stored = memory.address + place, length, base, _COPY
                file.actor.fill(*stored)
                live.expect("words that do not hold what was stored", 0, file.actor.check(*stored))
                live.expect("words that are not as in the file", length // base, memory.wrong(0, length))
                live.expect("Anonymous", length, memory.smaps().fields["Anonymous"])
                live.expect("words of the file that changed", 0, shared.wrong(0, shared.length))
                memory.unmap()


def _one_off(live: Live, file: HugeFile) -> Memory:
    """Map ``file`` privately a base page behind where huge pages fit."""
    size = pmd_size(live)
    return _map_private(live, file, room_for(file.actor, _PAGES + 1, size) + live.base_page, _PAGES, size)


def _half(live: Live, file: HugeFile) -> Memory:
    """Map half a huge page of ``file`` privately: it has no room for the whole one."""
    size = pmd_size(live)
    return _map_private(live, file, room_for(file.actor, 1, size), 1, size // 2)


def _written_in_part(live: Live, file: HugeFile) -> Memory:
    """Map ``file`` privately where huge pages fit, and store in a base page of each what it holds: it is a copy now."""
    memory = map_file(live, file.actor, file.descriptor, _PAGES, shared=False)
    for page in range(_PAGES):
        memory.fill_part(page * memory.size, live.base_page)
    return memory


def _map_private(live: Live, file: HugeFile, place: int, pages: int, size: int) -> Memory:
    flags = mmap.MAP_PRIVATE | MAP_FIXED
    file.actor.mmap(pages * size, READ_WRITE, flags, file.descriptor, address=place)
    return Memory(live, file.actor, place, pages, size)


def _files(live: Live) -> Iterator[tuple[_Copied, str]]:
    """Yield a new file of each kind in huge pages, of which three mappings of as many processes have copies."""
    every = pmd_size(live) // live.base_page
    copied = frozenset({0, 1, every // 2, every // 2 + 1, every - 1, every, every + 1, _PAGES * every - 1})
    for file, shared, kind in _files_in_huge_pages(live):
        # one that never reads what it writes to, one that has read all, and its child
        map_private = partial(map_file, live, descriptor=file.descriptor, pages=_PAGES, shared=False)
        first, second = map_private(file.actor), map_private(file.actor.fork())
        second.expect_filled()
        for memory, page in product((first, second), sorted(copied)):
            offset = page * live.base_page
            memory.fill_part(offset, live.base_page, _COPY)
        private = first, second, second.fork()
        yield _Copied(live, file, shared, private, copied), kind


def _files_in_huge_pages(live: Live) -> Iterator[tuple[HugeFile, Memory, str]]:
    """Yield a new file of each kind that is filled and in huge pages, and a mapping of all of it that is shared."""
    let_nobody_else_act(live)
    live.set_knob(f"{DIRECTORY}/shmem_enabled", "always")
    point = mount_tmpfs(live, "always")
    for kind in ("a file of a tmpfs", "a file without a name"):
        actor = live.actor()
        of_a_mount = kind == "a file of a tmpfs"
        file = live.open(actor, f"{point}/file") if of_a_mount else actor.call("memfd_create", "copied", 0)
        shared = map_start(live, actor, file, _PAGES)
        expect_shared(live, shared, True, kind)
        yield HugeFile(live, actor, file), shared, kind
        actor.call("ftruncate", file, 0)
        actor.end()


class ThpPrivateCopies(LiveTest):
    def test_private_copies(self) -> None:
        self.run_area(PRIVATE_COPIES)
