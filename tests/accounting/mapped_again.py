"""Pages of a huge page of a file that are mapped again and again while some of them are mapped anyway: Mapped."""

import mmap
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.changed_counters import read_counters
from hugepage_qa.cases.khugepaged_clock import let_nobody_else_act
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.thp_memory import pmd_size, room_for
from hugepage_qa.cases.thp_shared_memory import filled_file, mount_tmpfs
from hugepage_qa.kernel.uapi import MAP_FIXED
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.plugins.avocado_test import LiveTest

MAPPED_AGAIN = Area("accounting/mapped-again", sizes=Sizes.ONCE)

_COUNTER = "nr_mapped"
#: base pages, from which one on and how many, None for all
_Part = tuple[int, int | None]
_HELD: tuple[_Part, ...] = ((0, 1), (3, 2), (8, 64), (0, None))
_AGAIN: tuple[_Part, ...] = ((0, 1), (0, 16), (2, 12), (0, None))
#: what is counted once too often, or not at all, shows as often in the counter of the machine
_TIMES = 64


@MAPPED_AGAIN.case(
    "each base page of a huge page of a tmpfs counts once in Mapped of /proc/meminfo, however many map it: who maps a"
    " part of it or all, by itself or with what lies around it, beside what is mapped there already, again and again,"
    " leaves nothing there and takes nothing away",
    "Documentation/filesystems/proc.rst Mapped; mm/rmap.c __folio_add_rmap(), folio_remove_rmap_ptes(); mm/filemap.c"
    " filemap_map_pages()",
)
def parts_and_all(live: Live) -> None:
    let_nobody_else_act(live)
    path = f"{mount_tmpfs(live, 'always')}/file"
    file = filled_file(live, path, 1)
    descriptor = live.open(file.actor, path)
    file.unmap()
    for held, again in product(_HELD, _AGAIN):
        with live.about(f"base pages {_told(held)} are mapped, {_told(again)} {_TIMES} times besides"):
            there = _map(live, file, descriptor, held, room_for(file.actor, 1, pmd_size(live)))
            changes = [_change(live, file, descriptor, again)]
            # others map files, too, but not each time
            while abs(changes[-1]) >= _TIMES // 2 and len(changes) < 3:
                changes.append(_change(live, file, descriptor, again))
            if abs(changes[-1]) >= _TIMES // 2 and live.host.has_others and min(changes) < 0 < max(changes):
                raise CannotRun("others map and unmap files all the time")
            live.expect(f"times that {_COUNTER} changed by", 0, round(changes[-1] / _TIMES))
            there.unmap()


def _change(live: Live, file: Memory, descriptor: int, part: _Part) -> int:
    """Map ``part`` and unmap it, again and again, and return by how much the counter of the machine is another one."""
    before, room = read_counters(live)[_COUNTER], room_for(file.actor, 1, pmd_size(live))
    for _time in range(_TIMES):
        _map(live, file, descriptor, part, room).unmap()
    return read_counters(live)[_COUNTER] - before


def _map(live: Live, file: Memory, descriptor: int, part: _Part, room: int) -> Memory:
    """Map ``part`` of the file where a huge page fits, and read its first word: the kernel maps what is around it."""
    first, count = part
    base, start = live.base_page, room + first * live.base_page
    length = pmd_size(live) if count is None else count * base
    flags = mmap.MAP_SHARED | MAP_FIXED
    address = file.actor.mmap(length, mmap.PROT_READ, flags, descriptor, first * base, start)
    memory = Memory(live, file.actor, address, 1, length)
    live.expect("the first word there", 1 + first * base, memory.read())
    return memory


def _told(part: _Part) -> str:
    first, count = part
    return "all" if count is None else f"{first} to {first + count - 1}"


class MappedAgain(LiveTest):
    def test_mapped_again(self) -> None:
        self.run_area(MAPPED_AGAIN)
