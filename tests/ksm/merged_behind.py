"""Memory that KSM merges behind what it passes over: nothing that it cannot merge ends its look at a mapping.

For the next page that it may merge it walks over the page tables of the mapping (scan_get_next_rmap_item() in
mm/ksm.c): holes, pages of zeroes, of a file, in swap and such as are huge lie between.
"""

from collections.abc import Callable

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.fragmentation import expect_no_shortage
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.merged_pages import KSM_DOC, await_merged, base_page_count, shared_frames, start_merging
from hugepage_qa.cases.swapped import need_swap, page_all_out
from hugepage_qa.cases.thp_memory import mapped_huge
from hugepage_qa.cases.thp_policy import advised, expect_huge_zeroes, set_policy
from hugepage_qa.cases.thp_shared_memory import let_only_pmd_inherit, map_file, map_filled_file, mount_tmpfs
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.uapi import MADV_DONTNEED, MADV_HUGEPAGE, MADV_MERGEABLE, MADV_NOHUGEPAGE
from hugepage_qa.plugins.avocado_test import LiveTest

BEHIND = Area("ksm/merged-behind", sizes=Sizes.ONCE)

#: huge ranges of a mapping: what is passed over, and equal pages behind it, twice
_RANGES, _PASSED_OVER, _EQUAL = 4, (0, 2), (1, 3)
#: what pages of one process hold, and one more of the other: where values differ by less than a word no page is equal
_UNEQUAL = 5


@BEHIND.case(
    "KSM merges all equal pages of a mapping, those behind a huge page of zeroes, zero pages, memory that nobody has"
    " touched or that was given back, huge pages equal to no other, pages in swap and huge pages of a file, too, and"
    " these huge pages stay whole",
    f"{KSM_DOC}; mm/ksm.c scan_get_next_rmap_item()",
)
def behind_what_is_passed_over(live: Live) -> None:
    start_merging(live)
    # to switch huge pages off for some of it would wake khugepaged when they are switched on again
    set_policy(live, "madvise")
    let_only_pmd_inherit(live)
    need_swap(live, 2 * _RANGES * advised(live).size)
    pairs = {make.__name__.strip("_"): _pair(live, make, number) for number, make in enumerate(_KINDS)}
    each = [side for pair in pairs.values() for side in pair]
    huge = list(map(mapped_huge, each))
    for side in each:
        side.advise(MADV_MERGEABLE)
    count = len(_EQUAL) * base_page_count(live, each[0].part(0))

    def merged(name: str) -> int:
        one, other = pairs[name]
        return sum(shared_frames(one.part(page), other.part(page)) for page in _EQUAL)

    await_merged(live, each[0], lambda: sum(map(merged, pairs)), len(pairs) * count)
    for number, name in enumerate(pairs):
        with live.about(f"behind {name.replace('_', ' ')}"):
            live.expect("base pages with one frame for both", count, merged(name))
            for side in pairs[name]:
                wrong = sum(side.wrong(page * side.size, side.size, 1 + number) for page in _EQUAL)
                live.expect("words that changed", 0, wrong)
    live.expect("bytes that huge pages map, of each process, as before", huge, list(map(mapped_huge, each)))


def _pair(live: Live, make: Callable[[Live, int], Memory], number: int) -> tuple[Memory, Memory]:
    """Return memory of two processes, equal where it is not passed over, and there unlike the memory of other pairs."""
    sides = make(live, _UNEQUAL), make(live, _UNEQUAL + 1)
    for side in sides:
        side.advise(MADV_NOHUGEPAGE)
        for page in _EQUAL:
            side.fill_part(page * side.size, side.size, 1 + number)
    return sides


def _huge_zeroes(live: Live, _value: int) -> Memory:
    live.set_knob(f"{DIRECTORY}/use_zero_page", "1")
    memory = advised(live, _RANGES)
    for page in _PASSED_OVER:
        expect_huge_zeroes(live, memory, page)
    return memory


def _zeroes(live: Live, _value: int) -> Memory:
    memory = advised(live, _RANGES, MADV_NOHUGEPAGE)
    for page in _PASSED_OVER:
        live.expect("words that are not zero", 0, memory.nonzero(page * memory.size, memory.size, live.base_page))
    return memory


def _untouched(live: Live, _value: int) -> Memory:
    return advised(live, _RANGES)


def _given_back(live: Live, value: int) -> Memory:
    memory = _unequal(live, value, MADV_NOHUGEPAGE)
    for page in _PASSED_OVER:
        memory.advise(MADV_DONTNEED, page, 1)
    return memory


def _huge_pages(live: Live, value: int) -> Memory:
    memory = _unequal(live, value, MADV_HUGEPAGE)
    wanted, found = len(_PASSED_OVER) * memory.size, mapped_huge(memory)
    if found != wanted:
        expect_no_shortage(live, memory.size, len(_PASSED_OVER))
    live.expect("bytes that huge pages map before", wanted, found)
    return memory


def _in_swap(live: Live, value: int) -> Memory:
    memory = _huge_pages(live, value)
    page_all_out(live, memory)
    return memory


def _of_a_file(live: Live, _value: int) -> Memory:
    file, _shared = map_filled_file(live, mount_tmpfs(live, "always"), "always", _RANGES)
    memory = map_file(live, file.actor, file.descriptor, _RANGES, shared=False)
    for page in _PASSED_OVER:
        live.expect("the word of the file", 1 + page * memory.size, memory.read(page))
    return memory


def _unequal(live: Live, value: int, advice: int) -> Memory:
    memory = advised(live, _RANGES, advice)
    for page in _PASSED_OVER:
        memory.fill_part(page * memory.size, memory.size, value)
    return memory


#: what makes memory of so many ranges, and what is passed over in it
_KINDS = (_huge_zeroes, _zeroes, _untouched, _given_back, _huge_pages, _in_swap, _of_a_file)


class KsmMergedBehind(LiveTest):
    def test_merged_behind(self) -> None:
        self.run_area(BEHIND)
