"""Huge pages that mremap(2) takes out of a mapping, and puts back to where they were, or beside others like them.

There they become part of the mapping that is beside them, whose rmap locks are held meanwhile (need_rmap_locks in
copy_vma()); in a mapping of their own none are.
"""

import mmap
import signal
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.khugepaged_clock import let_nobody_else_act
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.thp_memory import mapped_huge, room_for
from hugepage_qa.cases.thp_policy import huge_pages
from hugepage_qa.cases.thp_shared_memory import shared_huge_pages
from hugepage_qa.plugins.avocado_test import LiveTest

MOVED_BACK = Area("thp/moved-back", sizes=Sizes.ONCE)

_SOURCE = "mremap(2); mm/mremap.c move_page_tables(), move_pgt_entry(); mm/huge_memory.c move_huge_pmd()"
_PAGES, _NEW_VALUE = 4, 77
#: the first page that is taken out, and how many
_PARTS = (0, 1), (1, 1), (_PAGES - 1, 1), (1, 2), (0, _PAGES - 1), (1, _PAGES - 1), (0, _PAGES)


@MOVED_BACK.case(
    "huge pages that are moved out of a mapping, from its start, amid it or from its end, and back to where they were,"
    " stay mapped each as a whole there and here, as do those beside them, and all hold what they held",
    _SOURCE,
)
def to_their_mapping(live: Live) -> None:
    let_nobody_else_act(live)
    for make, (first, pages) in product((huge_pages, shared_huge_pages), _PARTS):
        with live.about(f"{make.__name__}, {pages} from number {first} on"):
            memory = make(live, _PAGES)
            part = memory.part(first, pages)
            moved = part.moved_to(room_for(memory.actor, pages, memory.size))
            _expect_whole(live, moved, "at the other place")
            moved.expect_filled(1 + first * memory.size)
            live.expect_signal(signal.SIGSEGV, part.read)
            moved.moved_to(part.address)
            _expect_held(live, memory)


@MOVED_BACK.case(
    "huge pages of which each is moved alone, the last first or the first one, to its place among the others in new"
    " addresses stay mapped as a whole each, and hold what they held",
    _SOURCE,
)
def beside_each_other(live: Live) -> None:
    let_nobody_else_act(live)
    for make, is_backwards in product((huge_pages, shared_huge_pages), (False, True)):
        with live.about(f"{make.__name__}, the last first {is_backwards}"):
            memory = make(live, _PAGES)
            room = room_for(memory.actor, _PAGES, memory.size)
            moved = Memory(live, memory.actor, room, _PAGES, memory.size)
            for page in sorted(range(_PAGES), reverse=is_backwards):
                memory.part(page).moved_to(moved.at(page))
                _expect_whole(live, moved.part(page), f"page {page} where it was moved")
            _expect_held(live, moved)


def _expect_held(live: Live, memory: Memory) -> None:
    """Expect all of ``memory`` to be mapped by huge pages, before it is touched again, and to hold what it held."""
    for when in ("before it is touched", "when it may be written again"):
        _expect_whole(live, memory, when)
        memory.expect_filled()
        for prot in (mmap.PROT_READ, READ_WRITE):
            memory.protect(prot)
    memory.fill(_NEW_VALUE)
    memory.expect_filled(_NEW_VALUE)
    memory.actor.end()


def _expect_whole(live: Live, memory: Memory, where: str) -> None:
    """Expect the mapping of ``memory``, which may have more than that, to be mapped by huge pages all of it."""
    mapped = sum(mapping.end - mapping.start for mapping in memory.mappings())
    live.expect(f"bytes that huge pages map, {where}", mapped, mapped_huge(memory))


class ThpMovedBack(LiveTest):
    def test_moved_back(self) -> None:
        self.run_area(MOVED_BACK)
