"""Whose base pages are, as pagemap and smaps tell one by one: of huge pages that are mapped in parts, and of others."""

from collections.abc import Callable, Set
from dataclasses import dataclass
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.khugepaged_clock import let_nobody_else_act
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import EXCLUSIVE, Memory, runs
from hugepage_qa.cases.thp_memory import room_for
from hugepage_qa.cases.thp_policy import base_pages, huge_pages, map_in_parts, need_counted_parts
from hugepage_qa.cases.thp_shared_memory import (
    expect_shared,
    map_start,
    map_start_of_file,
    nameless_file,
    shared_base_pages,
    shared_huge_pages,
)
from hugepage_qa.plugins.avocado_test import LiveTest

EXCLUSIVE_PARTS = Area("thp/exclusive-parts", sizes=Sizes.ONCE)

#: a base page that is moved is told as private alone in that moment (smaps_pte_entry()), and is not there for pagemap
_MOVED_SECONDS = 1.0


@dataclass(frozen=True)
class Kind:
    """Memory of one huge page, or of base pages, and how a huge page of it is mapped in parts.

    ``divide`` returns the memory where it is then, of which the last base page may be gone.
    """

    name: str
    make: Callable[[Live], Memory]
    divide: Callable[[Live, Memory], Memory] | None = None


def _without_the_last(live: Live, memory: Memory) -> Memory:
    memory.actor.call("munmap", memory.at(1) - live.base_page, live.base_page)
    return memory


def _in_parts(live: Live, memory: Memory) -> Memory:
    map_in_parts(live, memory)
    return memory


def _moved(live: Live, memory: Memory) -> Memory:
    return memory.moved_to(room_for(memory.actor, 2, memory.size) + live.base_page)


def _huge_page_of_a_file(live: Live) -> Memory:
    actor = live.actor()
    memory = map_start(live, actor, nameless_file(live, actor, "always"))
    expect_shared(live, memory, True, "huge=always")
    return memory


def _page_cache(live: Live) -> Memory:
    memory = map_start_of_file(live, f"{live.mount_other('mode=0700', 'ramfs')}/file")
    memory.fill()
    return memory


KINDS = (
    Kind("a huge page without its last base page", huge_pages, _without_the_last),
    Kind("a huge page of which a base page was protected", huge_pages, _in_parts),
    Kind("a huge page that was moved by a base page", huge_pages, _moved),
    Kind("base pages", base_pages),
    Kind("a huge page of shared memory without its last base page", shared_huge_pages, _without_the_last),
    Kind("shared base pages", shared_base_pages),
    Kind("a huge page of a file without its last base page", _huge_page_of_a_file, _without_the_last),
    Kind("the page cache of a file", _page_cache),
)


@EXCLUSIVE_PARTS.case(
    "pagemap tells of each base page of a huge page that is mapped in parts whether this process alone has it mapped,"
    " and smaps has so much of it as private, as of base pages and of files: mapped in parts before a child had it or"
    " afterwards, where that has unmapped some of it, and when it has ended",
    "Documentation/admin-guide/mm/pagemap.rst bit 56; Documentation/filesystems/proc.rst Private_Dirty, Shared_Dirty;"
    " fs/proc/task_mmu.c pte_to_pagemap_entry(), smaps_account()",
    since="4.2",
)
def told_one_by_one(live: Live) -> None:
    need_counted_parts(live)
    let_nobody_else_act(live)
    for kind, is_divided_late in product(KINDS, (False, True)):
        if kind.divide or not is_divided_late:
            with live.about(f"{kind.name}, divided {'after' if is_divided_late else 'before'} a fork"):
                _expect_told(live, kind, is_divided_late)


def _expect_told(live: Live, kind: Kind, is_divided_late: bool) -> None:
    """Expect base pages to be told as their process's own, or as shared with a child that unmaps some by and by."""
    memory, divide = kind.make(live), kind.divide
    if divide and not is_divided_late:
        memory = divide(live, memory)
        _expect_exclusive(live, memory, set(), "alone")
    child = memory.fork()
    if divide and is_divided_late:
        memory = divide(live, memory)
    ours = _expect_exclusive(live, memory, _read(live, child), "with a child")
    count = memory.size // live.base_page
    for first, pages in ((0, 1), (count - 2, 1), (count // 4, count // 2), (1, 1)):
        child.actor.call("munmap", child.address + first * live.base_page, pages * live.base_page)
        theirs = _expect_exclusive(live, child, ours, f"of a child without {pages} from {first} on")
        _expect_exclusive(live, memory, theirs, f"with a child without {pages} from {first} on")
    child.actor.end()
    _expect_exclusive(live, memory, set(), "when the child has ended")
    memory.actor.end()


def _expect_exclusive(live: Live, memory: Memory, others: Set[int], when: str) -> set[int]:
    """Expect what a process has mapped, and another one has not, to be told as its own; return what it has mapped.

    By then it has no huge page mapped as a whole.
    """
    mapped = _read(live, memory)
    own = mapped - others
    expected = runs(own), len(own) * live.base_page, len(mapped - own) * live.base_page, 0
    found = live.host.last_look(partial(_told, memory), expected.__eq__, _MOVED_SECONDS)
    live.expect(
        f"base pages that are exclusive, bytes private, shared and mapped by huge pages, {when}", expected, found
    )
    return mapped


def _told(memory: Memory) -> tuple[list[range], int, int, int]:
    """Return which base pages are told to be exclusive, and how much is private, shared, and mapped by huge pages."""
    exclusive = runs({number for number, entry in enumerate(memory.whole_pagemap()) if entry & EXCLUSIVE})
    mappings = memory.all_mappings()
    private, shared = (
        sum(each.fields[f"{kind}_Clean"] + each.fields[f"{kind}_Dirty"] for each in mappings)
        for kind in ("Private", "Shared")
    )
    return exclusive, private, shared, sum(each.anon_huge_pages + each.shmem_pmd_mapped for each in mappings)


def _read(live: Live, memory: Memory) -> set[int]:
    """Read all of ``memory`` that is mapped, so that it is there, and return the numbers of its base pages."""
    found = set[int]()
    for mapping in memory.all_mappings():
        start, end = max(mapping.start, memory.address), min(mapping.end, memory.at(1))
        memory.actor.nonzero(start, end - start)
        found.update(range((start - memory.address) // live.base_page, (end - memory.address) // live.base_page))
    return found


class ThpExclusiveParts(LiveTest):
    def test_exclusive_parts(self) -> None:
        self.run_area(EXCLUSIVE_PARTS)
