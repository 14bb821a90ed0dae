"""What is counted of files in large folios, and for whom: no more than is in memory, whatever takes them out of it."""

import errno
from collections.abc import Callable
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.changed_counters import expect_change
from hugepage_qa.cases.control_group import ControlGroup, Version, new_group
from hugepage_qa.cases.file_contents import Brought, KnownFile, bring
from hugepage_qa.cases.fragmentation import with_blocks
from hugepage_qa.cases.group_statistics import read_statistics
from hugepage_qa.cases.khugepaged_clock import let_rest
from hugepage_qa.cases.large_folios import DISKS, block_size, file_case, has_huge_folios
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.madv_collapse import collapse_memory
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.pages_in_memory import base_pages_in_memory
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Refused

COUNTED_FOLIOS = Area("files/counted-folios", sizes=Sizes.ONCE)

_STATEMENT = (
    "file, file_mapped and file_thp of a group are what its processes have in memory of a file, in folios of any size"
    " that were written, read, brought by MADV_HUGEPAGE or made by MADV_COLLAPSE, and no more of it when the file gets"
    " shorter or a hole, is evicted, or is gone, mapped or not; FileHugePages and FilePmdMapped are as before then"
)
_SOURCE = (
    "Documentation/admin-guide/cgroup-v2.rst memory.stat file, file_mapped, file_thp;"
    " Documentation/filesystems/proc.rst FileHugePages, FilePmdMapped; mm/filemap.c filemap_unaccount_folio(),"
    " delete_from_page_cache_batch()"
)
_SINCE = "5.13"  # 2d146aa3aa84: before, memory.stat lacks what each CPU has not added up
_HUGE_PAGES = 2
#: of the whole machine, in bytes and in huge pages
_AS_BEFORE = dict.fromkeys(("FileHugePages", "FilePmdMapped", "nr_file_hugepages", "nr_file_pmdmapped"), 0)
#: statistics are added up every two seconds, and btrfs forgets a file that is gone in the background
_SECONDS = 60.0

_KEPT = "others keep pages of the file in memory"

#: first byte and length of what stays of a file
Left = tuple[int, int]


class _Charged:
    """A file of some huge pages and a quarter of one, which a process that is alone in a group has mapped."""

    def __init__(self, live: Live, group: ControlGroup, directory: str) -> None:
        """Make one there that has no page in memory. Raises CannotRun where somebody keeps one."""
        self.live = live
        self.group = group
        self.size = pmd_size(live)
        self.file = KnownFile(live, live.actor(), directory, (_HUGE_PAGES + 1) * self.size)
        # who brings it again needs nothing that the file system keeps of its disk, and that would outlive the file
        self.file.write(0, _HUGE_PAGES * self.size + self.size // 4)
        self.length = self.file.contents.length
        if self.evict():
            raise CannotRun(_KEPT)
        group.add(self.file.actor)
        self.memory = self.file.map()

    def evict(self) -> int:
        """Have no page of it in memory, and return how many base pages are there nevertheless."""
        memory = self.file.map()

        def left() -> int:
            self.file.evict()
            pages = range(self.length // self.live.base_page)
            return len(base_pages_in_memory(self.live, memory.actor, memory.address, pages))

        kept = self.live.host.last_look(left, lambda pages: not pages)
        memory.unmap()
        return kept

    def expect(self, left: Left) -> None:
        """Expect the group to have these bytes in memory, and mapped, and no more of them in huge pages.

        Each group may have some other base pages of files: less than half a huge page. Raises Failed.
        """
        first, length = left
        pages = length // self.size

        def found() -> tuple[int, int, int]:
            if length:
                # the machine may be short of memory, and have taken some of it
                self.file.actor.sum(self.memory.address + first, length)
            shown = read_statistics(self.group)
            in_memory, mapped = ((shown[name] + self.size // 2) // self.size for name in ("file", "file_mapped"))
            return in_memory, mapped, shown["file_thp"]

        def is_right(now: tuple[int, int, int]) -> bool:
            return now[:2] == (pages, pages) and now[2] <= pages * self.size

        now = self.live.host.last_look(found, is_right, _SECONDS)
        if not is_right(now):
            expected = (pages, pages, f"at most {pages * self.size}")
            self.live.fail("huge pages in file and in file_mapped, file_thp", expected, now)


# --- what brings a file into memory ----------------------------------------------------------------------------------


def _brought(brought: Brought, charged: _Charged) -> None:
    bring(charged.file, brought)


def _collapsed(charged: _Charged) -> None:
    charged.file.read(charged.length)
    for page in range(_HUGE_PAGES):
        _collapse(charged.live, charged.memory.part(page))


def _collapse(live: Live, memory: Memory) -> None:
    with_blocks(live, memory.size, memory.pages)
    collapse_memory(live, memory)


def _ways(live: Live, file: KnownFile) -> dict[str, Callable[[_Charged], None]]:
    """Return what brings files into memory where ``file`` is, by what is said of it, and end the file.

    MADV_COLLAPSE is not among it where it is refused as it may be. Raises Refused where it must not be.
    """
    ways: dict[str, Callable[[_Charged], None]] = {each.value: partial(_brought, each) for each in Brought}
    try:
        _collapse(live, file.map().part(0))
    except Refused as refusal:
        # of a file that is open for writing, as this one is, or on a file system without folios of that size
        if refusal.errno != errno.EINVAL or has_huge_folios(live, file.directory):
            raise
    else:
        ways["as it was collapsed"] = _collapsed
    file.actor.end()
    return ways


# --- what takes it out of memory, and returns what stays -------------------------------------------------------------


def _emptied(charged: _Charged) -> Left:
    charged.file.truncate(0)
    return 0, 0


def _emptied_unmapped(charged: _Charged) -> Left:
    charged.memory.unmap()
    return _emptied(charged)


def _shortened(charged: _Charged) -> Left:
    charged.file.truncate(charged.size)
    return 0, charged.size


def _hole_at_the_start(charged: _Charged) -> Left:
    charged.file.punch(0, charged.size)
    return charged.size, charged.length - charged.size


def _hole_of_all(charged: _Charged) -> Left:
    charged.file.punch(0, charged.length)
    return 0, 0


def _evicted(charged: _Charged) -> Left:
    charged.memory.unmap()
    kept = charged.evict()
    if kept and charged.live.host.has_others:
        raise CannotRun(_KEPT)
    charged.live.expect("base pages in memory of a file that was evicted", 0, kept)
    return 0, 0


def _gone(charged: _Charged) -> Left:
    charged.file.actor.end()
    return 0, 0


_TAKEN: tuple[Callable[[_Charged], Left], ...] = (
    _emptied,
    _emptied_unmapped,
    _shortened,
    _hole_at_the_start,
    _hole_of_all,
    _evicted,
    _gone,
)


# what was read is clean, and can be collapsed at once
@file_case(COUNTED_FOLIOS, _STATEMENT, _SOURCE, on=DISKS, by=(Brought.READ,), since=_SINCE)
def counted(live: Live, file: KnownFile) -> None:
    if pmd_size(live) > block_size(live):
        raise CannotRun(f"huge pages are of {pmd_size(live) >> 20} MiB here: too much of a file for a case")
    let_rest(live)
    group = new_group(live, "memory", Version.TWO)
    for (way, brought), take in product(_ways(live, file).items(), _TAKEN):
        with live.about(f"{way}, {take.__name__[1:].replace('_', ' ')}"):
            expect_change(
                live,
                _AS_BEFORE,
                lambda: _Charged(live, group.child("file"), file.directory),
                partial(_expect_counted, brought, take),
            )


def _expect_counted(brought: Callable[[_Charged], None], take: Callable[[_Charged], Left], charged: _Charged) -> None:
    brought(charged)
    charged.expect((0, charged.length))
    charged.expect(take(charged))
    charged.file.actor.end()
    charged.expect((0, 0))
    charged.group.remove()


class FilesCountedFolios(LiveTest):
    def test_counted_folios(self) -> None:
        self.run_area(COUNTED_FOLIOS)
