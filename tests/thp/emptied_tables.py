"""Page tables that MADV_DONTNEED empties: the kernel takes them back, and what is used again comes into new ones."""

import signal
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.khugepaged_clock import let_nobody_else_act, let_rest
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.process_counters import process_status
from hugepage_qa.cases.thp_memory import map_aligned, mapped_huge, pmd_size
from hugepage_qa.cases.thp_shared_memory import map_file
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.uapi import (
    MADV_DONTNEED,
    MADV_DONTNEED_LOCKED,
    MADV_GUARD_INSTALL,
    MADV_NOHUGEPAGE,
)
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.plugins.avocado_test import LiveTest

EMPTIED = Area("thp/emptied-tables", sizes=Sizes.ONCE)

SOURCE = "Documentation/filesystems/proc.rst VmPTE; mm/Kconfig PT_RECLAIM; mm/memory.c zap_pte_range()"
SINCE = "6.14"
#: that a mapping has: each has entries for as much memory as a huge page
_TABLES = 5
#: bytes of an entry of a page table, on all architectures
_ENTRY = 8

#: where a range starts, and where it ends
Part = tuple[int, int]


@dataclass(frozen=True)
class Kind:
    """Memory of base pages: how it is mapped, whether it is written, and whether it holds that when given back."""

    make: Callable[[Live], Memory]
    is_written: bool = True
    is_kept: bool = False

    def value(self, page: int, place: int) -> int:
        """Return what is held at a place in what a table covers."""
        return self.is_written * (1 + page + place)


@EMPTIED.case(
    "each page table that MADV_DONTNEED, or MADV_DONTNEED_LOCKED, empties as a whole is no memory of the process any"
    " more (VmPTE), and one of which it leaves anything is, for memory of each kind; what is not in the range holds"
    " what it held, and what is read again has its tables again",
    f"madvise(2); {SOURCE}",
    since=SINCE,
)
def taken_back(live: Live) -> None:
    _let_tables_alone(live)
    every = _ranges(live)
    for name, kind in _KINDS.items():
        memory = _touched(live, kind)
        for advice, (start, end) in (*product((MADV_DONTNEED,), every), (MADV_DONTNEED_LOCKED, every[0])):
            with live.about(f"{name}, advice {advice} from {start} to {end}"):
                _expect_taken_back(live, memory, kind, advice, (start, end))
        memory.actor.end()


@EMPTIED.case(
    "a page table of which guards are left stays when MADV_DONTNEED gives back all that it covers, and they give"
    " SIGSEGV as before; those beside it go",
    f"madvise(2) MADV_GUARD_INSTALL; {SOURCE}, zap_nonpresent_ptes()",
    since=SINCE,
)
def kept_for_guards(live: Live) -> None:
    _let_tables_alone(live)
    kind = _KINDS["anonymous"]
    # at both ends of a table, and far in it: none of these is touched
    size, base = pmd_size(live), live.base_page
    for page, offset in ((1, 2 * base), (2, size - 2 * base), (3, size // 2 + base)):
        memory = _touched(live, kind)
        guard = memory.at(page) + offset
        memory.actor.call("madvise", guard, base, MADV_GUARD_INSTALL)
        with live.about(f"a guard at {offset} of table {page}"):
            before = _tables(live, memory)
            memory.advise(MADV_DONTNEED)
            gone = before - _tables(live, memory)
            live.expect("VmPTE fell by", (_TABLES - 1) * _bytes_of_a_table(live), gone)
            live.expect_signal(signal.SIGSEGV, memory.actor.read, guard, at=guard)
            _expect_held(live, memory, kind, (0, memory.length))
        memory.actor.end()


def _let_tables_alone(live: Live) -> None:
    """Have nobody else change page tables, or make huge pages of files. Raises CannotRun where none are taken back."""
    if live.host.kernel_option("PT_RECLAIM") is not True:
        raise CannotRun("this kernel has no CONFIG_PT_RECLAIM")
    if live.host.read(f"{DIRECTORY}/shmem_enabled") is None:
        let_rest(live)
    else:
        # since Linux 6.11 each size has a policy of its own, and one that says "always" goes before the common one
        let_nobody_else_act(live)


def _anonymous(live: Live) -> Memory:
    return map_aligned(live, _TABLES, pmd_size(live), advice=MADV_NOHUGEPAGE)


def _shared(live: Live) -> Memory:
    return map_aligned(live, _TABLES, pmd_size(live), shared=True, advice=MADV_NOHUGEPAGE)


def _of_a_file(live: Live, *, shared: bool) -> Memory:
    actor = live.actor()
    file = actor.call("memfd_create", "hugepage-qa", 0)
    actor.call("ftruncate", file, _TABLES * pmd_size(live))
    return map_file(live, actor, file, _TABLES, shared=shared)


#: by name
_KINDS = {
    "anonymous": Kind(_anonymous),
    "anonymous, read alone": Kind(_anonymous, is_written=False),
    "shared": Kind(_shared, is_kept=True),
    "of a file": Kind(lambda live: _of_a_file(live, shared=True), is_kept=True),
    "of a file, private": Kind(lambda live: _of_a_file(live, shared=False)),
    "of a file, private, read alone": Kind(lambda live: _of_a_file(live, shared=False), is_written=False),
}


def _touched(live: Live, kind: Kind) -> Memory:
    memory = kind.make(live)
    _write(live, memory, kind)
    # what is mapped as a whole has no table
    live.expect("what is mapped by huge pages", 0, mapped_huge(memory))
    return memory


def _write(live: Live, memory: Memory, kind: Kind) -> None:
    if kind.is_written:
        for page, place in product(range(_TABLES), _places(live)):
            memory.actor.write(memory.at(page) + place, kind.value(page, place))


def _places(live: Live) -> list[int]:
    """Return where what a table covers is touched: at both ends, so that a range of a part leaves something."""
    size, base = pmd_size(live), live.base_page
    return [0, base, size // 2, size - base]


def _ranges(live: Live) -> list[Part]:
    """Return ranges that are one table, several and all of them, from and to within one, and of no whole one."""
    size, base = pmd_size(live), live.base_page
    half = size // 2
    return [
        (size, 2 * size),
        (0, size),
        ((_TABLES - 1) * size, _TABLES * size),
        (size, 4 * size),
        (half, 3 * size + half),
        (size - base, 2 * size + base),
        (size, 2 * size - base),
        (size + base, 2 * size),
        (half, size + half),
        (0, _TABLES * size),
    ]


def _expect_taken_back(live: Live, memory: Memory, kind: Kind, advice: int, given_back: Part) -> None:
    start, end = given_back
    whole = sum(start <= page * memory.size and (page + 1) * memory.size <= end for page in range(_TABLES))
    _write(live, memory, kind)
    _expect_held(live, memory, kind)
    before = _tables(live, memory)
    memory.actor.call("madvise", memory.address + start, end - start, advice)
    gone = before - _tables(live, memory)
    live.expect("VmPTE fell by", whole * _bytes_of_a_table(live), gone)
    _expect_held(live, memory, kind, given_back)
    live.expect("VmPTE when all has been read", before, _tables(live, memory))


def _expect_held(live: Live, memory: Memory, kind: Kind, given_back: Part = (0, 0)) -> None:
    start, end = given_back
    wanted, found = {}, {}
    for page, place in product(range(_TABLES), _places(live)):
        at = page * memory.size + place
        wanted[at] = 0 if start <= at < end and not kind.is_kept else kind.value(page, place)
        found[at] = memory.actor.read(memory.address + at)
    live.expect("what is held", wanted, found)


def _tables(live: Live, memory: Memory) -> int:
    return process_status(live, memory.actor).page_tables


def _bytes_of_a_table(live: Live) -> int:
    return pmd_size(live) // live.base_page * _ENTRY


class EmptiedTables(LiveTest):
    def test_emptied_tables(self) -> None:
        self.run_area(EMPTIED)
