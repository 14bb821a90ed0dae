"""What the kernel counts of transparent huge pages of each size below that of a PMD."""

from functools import partial

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.fragmentation import expect_no_shortage
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.thp_memory import expect_change, map_aligned, pmd_size
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.tree import read_integer, size_directories, size_name
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.oracle.rules import THP_DOC
from hugepage_qa.plugins.avocado_test import LiveTest

SMALLER = Area("accounting/transparent-sizes", sizes=Sizes.ONCE)


@SMALLER.case(
    "each size of transparent huge pages counts the pages that faults take, and those that there are now, for itself",
    f"{THP_DOC} anon_fault_alloc, nr_anon; mm/huge_memory.c count_mthp_stat()",
    since="6.10",
)
def each_size_is_counted_for_itself(live: Live) -> None:
    for size in _small_sizes(live):
        _allow_only(live, size)
        taken = dict.fromkeys(_read_size_counters(live), 0)
        taken |= {_counter(size, "anon_fault_alloc"): 3, _counter(size, "nr_anon"): 3}
        touch = partial(_touch_where_there_are_blocks, live)
        memory = expect_change(live, taken, partial(_three, live, size), touch, _read_size_counters)
        live.expect(f"Rss with pages of {size} bytes", 3 * size, memory.smaps().rss)
        live.expect("AnonHugePages, which is for PMD-sized ones", 0, memory.smaps().anon_huge_pages)
        given = {_counter(size, "anon_fault_alloc"): 0, _counter(size, "nr_anon"): -3}
        expect_change(live, given, partial(_three_touched, live, size), Memory.unmap, _read_size_counters)


@SMALLER.case(
    "a smaller huge page that is unmapped in part is counted as one that waits to be split",
    f"{THP_DOC} split_deferred; mm/huge_memory.c deferred_split_folio()",
    since="6.10",
)
def a_smaller_page_unmapped_in_part(live: Live) -> None:
    size = max(_small_sizes(live))
    _allow_only(live, size)
    waiting = {_counter(size, "split_deferred"): 1, _counter(size, "anon_fault_alloc"): 0}
    prepare = partial(_three_touched, live, size)
    memory = expect_change(live, waiting, prepare, _unmap_half_of_the_last, _read_size_counters)
    live.expect("Rss", 5 * size // 2, memory.smaps().rss)


def _three(live: Live, size: int) -> Memory:
    """Return three pages, too few for the next larger size."""
    return map_aligned(live, 3, size, advice=MADV_HUGEPAGE)


def _three_touched(live: Live, size: int) -> Memory:
    memory = _three(live, size)
    _touch_all(memory)
    return memory


def _touch_where_there_are_blocks(live: Live, memory: Memory) -> None:
    """Touch all pages. Raises CannotRun where memory is too fragmented for them."""
    _touch_all(memory)
    expect_no_shortage(live, memory.size, memory.pages)


def _touch_all(memory: Memory) -> None:
    for page in range(memory.pages):
        memory.touch(page)


def _unmap_half_of_the_last(memory: Memory) -> None:
    memory.actor.call("munmap", memory.at(memory.pages - 1) + memory.size // 2, memory.size // 2)


def _small_sizes(live: Live) -> dict[int, str]:
    """Return size in bytes -> directory of the sizes below the PMD's that anonymous memory can have."""
    directories = size_directories(live.host, DIRECTORY).items()
    sizes = {
        size: path
        for size, path in directories
        if size < pmd_size(live) and "enabled" in live.host.names(path) and "stats" in live.host.names(path)
    }
    if not sizes:
        raise CannotRun("this kernel counts no sizes below that of a PMD")
    return sizes


def _allow_only(live: Live, size: int) -> None:
    """Have advised memory get pages of ``size`` bytes and of no other, until the case ends."""
    directory = f"{DIRECTORY}/{size_name(pmd_size(live))}"
    for other, path in {**_small_sizes(live), pmd_size(live): directory}.items():
        live.set_knob(f"{path}/enabled", "madvise" if other == size else "never")


def _read_size_counters(live: Live) -> dict[str, int]:
    """Return the counters of all sizes, their names with the size in front."""
    tree = ObservedTree(live.host)
    return {
        _counter(size, name): read_integer(tree, f"{path}/stats/{name}") or 0
        for size, path in size_directories(live.host, DIRECTORY).items()
        for name in ("anon_fault_alloc", "nr_anon", "split_deferred")
        if live.host.read(f"{path}/stats/{name}") is not None
    }


def _counter(size: int, name: str) -> str:
    return f"{size // 1024}kB/{name}"


class SizesAccounting(LiveTest):
    """What the kernel counts of transparent huge pages of smaller sizes.

    :avocado: enable
    """

    def test_sizes(self) -> None:
        """Every case, once for the machine."""
        self.run_area(SMALLER)
