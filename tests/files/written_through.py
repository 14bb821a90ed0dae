"""What was written through a mapping alone, when that goes before the memory is reclaimed: it is dirty all the same."""

import mmap
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.fragmentation import with_blocks
from hugepage_qa.cases.khugepaged_clock import let_nobody_else_act, let_rest
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.swapped import need_swap, page_out, parts_out
from hugepage_qa.cases.thp_memory import free_lazily, pmd_size, room_for
from hugepage_qa.cases.thp_policy import huge_pages
from hugepage_qa.cases.thp_shared_memory import expect_mapped_whole, map_file, map_start, mount_tmpfs
from hugepage_qa.kernel.uapi import MADV_COLD, MADV_DONTNEED, MAP_FIXED, MREMAP_FIXED, MREMAP_MAYMOVE
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest

WRITTEN_THROUGH = Area("files/written-through", sizes=Sizes.ONCE)

SPLIT = "mm/huge_memory.c __split_huge_pmd_locked()"
SINCE = "5.4"  # MADV_PAGEOUT
_NEW_VALUE = 77
_ANONYMOUS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


class Way(NamedTuple):
    """What is done to ``length`` bytes of a mapping from ``start`` on, and whether it ``takes`` them out of it."""

    name: str
    act: Callable[[Memory, int, int], object]
    takes: bool
    start: int
    length: int

    def __str__(self) -> str:
        return f"{self.name} of {self.length} bytes at {self.start}"

    def go(self, memory: Memory) -> None:
        """Do it."""
        self.act(memory, memory.address + self.start, self.length)

    def rest(self, length: int) -> list[tuple[int, int]]:
        """Return where, and how long, what is left of a mapping of ``length`` bytes is."""
        end = self.start + self.length
        parts = (0, self.start), (end, length - end)
        return [part for part in (parts if self.takes else [(0, length)]) if part[1]]


@WRITTEN_THROUGH.case(
    "what is written to a file through a mapping that was read first is kept under reclaim, whatever becomes of that as"
    " a whole or of a part of it: given back, unmapped, replaced, protected, moved, locked, left with its process",
    f"madvise(2) MADV_DONTNEED, MADV_PAGEOUT; {SPLIT}, zap_huge_pmd(), move_huge_pmd(); mm/memory.c zap_pte_range();"
    " CVE-2026-89987",
    since=SINCE,
)
def shared(live: Live) -> None:
    let_nobody_else_act(live)
    size = pmd_size(live)
    need_swap(live, size)
    # what some kernels lose, where it goes as a whole, comes last
    for huge in ("never", "always"):
        point = mount_tmpfs(live, huge)
        for number, way in enumerate(_ways(live)):
            with_blocks(live, size, int(huge == "always"))
            path, actor = f"{point}/{number}", live.actor()
            memory = map_start(live, actor, live.open(actor, path))
            live.expect("words that are not zero at first", 0, actor.nonzero(memory.address, size))
            expect_mapped_whole(live, memory, int(huge == "always"), f"huge={huge}")
            memory.fill()
            with live.about(f"huge={huge}, {way}"):
                way.go(memory)
                # MADV_PAGEOUT passes over what others have mapped
                actor.end()
                reader = live.actor()
                file = live.open(reader, path)
                again = map_file(live, reader, file, 1)
                live.expect("words that changed", 0, again.wrong(0, size))
                live.host.wait_until(partial(page_out, live, again))
                mapping = again.smaps()
                out = (mapping.rss, mapping.shmem_pmd_mapped)
                live.expect("Rss, ShmemPmdMapped after it was swapped out", (0, 0), out)
                # all is lost where the mapping was as a whole what knew of it
                known = {Quirk.DIRTY_LOST_AT_UNMAP: size // WORD} if huge == "always" else None
                live.expect("words that changed under reclaim", 0, again.wrong(0, size), known)
            # the mount has no room for all files
            reader.call("ftruncate", file, 0)
            reader.end()


@WRITTEN_THROUGH.case(
    "what is written to a huge page after MADV_FREE is kept under reclaim, whatever becomes of a part of it",
    f"madvise(2) MADV_FREE; {SPLIT}, madvise_free_huge_pmd(); mm/rmap.c try_to_unmap_one()",
    since=SINCE,
)
def lazily_freed(live: Live) -> None:
    let_rest(live)
    need_swap(live, pmd_size(live))
    for way in _ways(live):
        rest = way.rest(pmd_size(live))
        if not rest:
            continue
        memory = huge_pages(live)
        with live.about(str(way)):
            live.host.wait_until(partial(free_lazily, live, memory))
            live.expect("LazyFree", memory.length, memory.smaps().fields["LazyFree"])
            memory.fill(_NEW_VALUE)
            way.go(memory)
            live.host.wait_until(partial(parts_out, live, memory, rest, partial(_is_gone, memory)))
            live.expect("Rss after it was swapped out", 0, _resident(memory))
            wrong = sum(memory.wrong(*part, _NEW_VALUE) for part in rest)
            live.expect("words that changed under reclaim", 0, wrong)
        memory.actor.end()


def _ways(live: Live) -> list[Way]:
    """Return each thing that is done to a mapping, on its first and last base page, on a half, and on all."""
    size, base = pmd_size(live), live.base_page
    places = (0, base), (size - base, base), (size // 2, size // 2), (0, size)
    acts: tuple[tuple[str, Callable[[Memory, int, int], object], bool], ...] = (
        ("MADV_DONTNEED", lambda memory, at, length: memory.actor.call("madvise", at, length, MADV_DONTNEED), True),
        ("munmap(2)", lambda memory, at, length: memory.actor.call("munmap", at, length), True),
        ("a mapping in place", _replace, True),
        ("mremap(2)", _move, True),
        ("mprotect(2)", lambda memory, at, length: memory.actor.call("mprotect", at, length, mmap.PROT_READ), False),
        ("mlock(2)", _lock_and_unlock, False),
        ("MADV_COLD", lambda memory, at, length: memory.actor.call("madvise", at, length, MADV_COLD), False),
    )
    end = Way("the end of its process", lambda _memory, _at, _length: None, False, *places[-1])
    return [Way(name, act, takes, *place) for place in places for name, act, takes in acts] + [end]


def _replace(memory: Memory, at: int, length: int) -> None:
    memory.actor.mmap(length, READ_WRITE, _ANONYMOUS | MAP_FIXED, address=at)


def _move(memory: Memory, at: int, length: int) -> None:
    # where a huge page can be moved to as a whole
    to = room_for(memory.actor, 1, memory.size) + at - memory.address
    memory.actor.call("mremap", at, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, to)


def _lock_and_unlock(memory: Memory, at: int, length: int) -> None:
    for name in ("mlock", "munlock"):
        memory.actor.call(name, at, length)


def _is_gone(memory: Memory) -> bool:
    return _resident(memory) == 0


def _resident(memory: Memory) -> int:
    """Return the Rss of all that is mapped where ``memory`` was: what is in place of a part of it has none."""
    return sum(mapping.rss for mapping in memory.all_mappings())


class ThpWrittenThrough(LiveTest):
    def test_written_through(self) -> None:
        self.run_area(WRITTEN_THROUGH)
