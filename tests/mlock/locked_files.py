"""Files of a tmpfs in huge pages that processes have locked in memory, and what a hole, or a new end, gives back."""

import mmap
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from operator import eq

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.hugetlb_files import HugeFile, open_file
from hugepage_qa.cases.khugepaged_clock import let_nobody_else_act
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.locked_bytes import expect_locked
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.thp_memory import mapped_huge, pmd_size, room_for
from hugepage_qa.cases.thp_shared_memory import filled_file, mount_tmpfs
from hugepage_qa.kernel.uapi import MAP_FIXED
from hugepage_qa.plugins.avocado_test import LiveTest

LOCKED_FILES = Area("mlock/locked-files", sizes=Sizes.ONCE)

#: for how long somebody else may have a hold of a page
_SECONDS = 30.0


@dataclass(frozen=True)
class _Mapping:
    """What of a huge page is mapped, and how many bytes behind a place where a huge page fits."""

    name: str
    start: int
    length: int
    beyond: int


#: gives bytes of a file back: it gets who maps the file and has not locked it, an offset, and an end
_Way = Callable[[HugeFile, Memory, int, int], object]


def _punch(file: HugeFile, _memory: Memory, start: int, end: int) -> None:
    file.punch_bytes(start, end - start)


def _remove(_file: HugeFile, memory: Memory, start: int, end: int) -> None:
    memory.actor.call("madvise", memory.address + start, end - start, mmap.MADV_REMOVE)


def _cut(file: HugeFile, _memory: Memory, start: int, _end: int) -> None:
    file.actor.call("ftruncate", file.descriptor, start)


#: with how many processes have locked the page
_WAYS: tuple[tuple[str, _Way, int], ...] = (
    ("fallocate()", _punch, 1),
    ("MADV_REMOVE", _remove, 2),
    ("ftruncate()", _cut, 1),
    ("ftruncate()", _cut, 2),
)


@LOCKED_FILES.case(
    "a huge page of a tmpfs that one or two processes have locked, mapped as a whole, as base pages, or a part of it,"
    " is split for a hole and for a new end of its file: the file has no room of what was given back, which is zero to"
    " all of them, the rest is as it was, and each has locked as much as before",
    "fallocate(2) FALLOC_FL_PUNCH_HOLE; ftruncate(2); madvise(2) MADV_REMOVE; mlock(2); mm/truncate.c"
    " truncate_inode_partial_folio(); mm/huge_memory.c unmap_folio()",
    since="5.15",
)
def given_back(live: Live) -> None:
    let_nobody_else_act(live)
    size, base = pmd_size(live), live.base_page
    path = f"{mount_tmpfs(live, 'always')}/file"
    for mapping, (name, way, lockers) in product(_mappings(size, base), _WAYS):
        for start, end in _ends(size, base) if way is _cut else _holes(size, base):
            with live.about(f"{mapping.name}, locked by {lockers}, {name} from {start} to {end} of {size}"):
                _expect_given_back(live, path, mapping, lockers, way, start, end)


def _mappings(size: int, base: int) -> tuple[_Mapping, ...]:
    return (
        _Mapping("mapped as a whole", 0, size, 0),
        _Mapping("mapped as base pages", 0, size, base),
        _Mapping("a half that is mapped", size // 4, size // 2, size // 4),
    )


def _holes(size: int, base: int) -> tuple[tuple[int, int], ...]:
    return (0, base), (base, 3 * base), (size // 2, size), (0, size - base), (size - base, size)


def _ends(size: int, base: int) -> tuple[tuple[int, int], ...]:
    return tuple((end, size) for end in (base, size // 2, size - base))


def _expect_given_back(live: Live, path: str, mapping: _Mapping, lockers: int, way: _Way, start: int, end: int) -> None:
    """Lock a huge page of a new file, and expect ``way`` to give back what is from ``start`` to ``end``. Raises Failed.

    Raises CannotRun where memory is too fragmented for a huge page.
    """
    owner = filled_file(live, path, 1)
    file = open_file(live, path, owner.actor)
    locked = _locked(live, path, mapping, lockers)
    whole = mapping.length if mapping.length == owner.size and not mapping.beyond else 0
    live.expect("huge pages of each", [whole] * lockers, [mapped_huge(each) for each in locked])

    def left() -> int:
        way(file, owner, start, end)
        return file.blocks

    expected = owner.size - (end - start)
    # a page that somebody has a hold of cannot be split, and stays whole, until he has none
    if (found := live.host.last_look(left, partial(eq, expected), _SECONDS)) != expected:
        # each of the others would be waited for as long
        live.fail("st_blocks", expected, found)
    for each in locked:
        expect_locked(live, each.actor, each.length)
    file.actor.call("ftruncate", file.descriptor, owner.size)
    wrong = owner.wrong(0, start) + owner.wrong(end, owner.size - end)
    live.expect("words beside it that changed", 0, wrong)
    first, last = max(start, mapping.start), min(end, mapping.start + mapping.length)
    for each in locked if first < last else ():
        of_hole = each.nonzero(first - mapping.start, last - first)
        live.expect("words of it that are not zero to who has locked it", 0, of_hole)
    live.expect("words of it that are not zero", 0, owner.nonzero(start, end - start))
    file.actor.call("ftruncate", file.descriptor, 0)
    for each in (*reversed(locked), owner):
        each.actor.end()


def _locked(live: Live, path: str, mapping: _Mapping, lockers: int) -> list[Memory]:
    """Return a mapping of a file as each of so many processes has it, the first one and a child, which locked it."""
    actor, size = live.actor(), pmd_size(live)
    address = room_for(actor, 2, size) + mapping.beyond
    descriptor = live.open(actor, path)
    actor.mmap(mapping.length, READ_WRITE, mmap.MAP_SHARED | MAP_FIXED, descriptor, mapping.start, address)
    first = Memory(live, actor, address, 1, mapping.length)
    first.lock()
    if lockers == 1:
        return [first]
    child = first.seen_by(actor.fork())
    live.expect("words that changed", 0, child.wrong(0, child.length, 1 + mapping.start))
    child.lock_on_fault()
    return [first, child]


class ThpLockedFiles(LiveTest):
    def test_locked_files(self) -> None:
        self.run_area(LOCKED_FILES)
