"""Private memory that several processes have when it comes back from swap: what one does with it is no other's."""

import mmap
from collections.abc import Callable
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.khugepaged_clock import let_rest
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.swapped import need_swap, only_swap, page_all_out, swapped
from hugepage_qa.cases.thp_memory import map_aligned, pmd_size
from hugepage_qa.cases.thp_policy import huge_pages
from hugepage_qa.kernel.uapi import MADV_NOHUGEPAGE, MADV_PAGEOUT, MADV_WILLNEED
from hugepage_qa.plugins.avocado_test import LiveTest

SHARED_WHEN_BACK = Area("swap/shared-when-back", sizes=Sizes.ONCE)

DOC = "fork(2); madvise(2) MADV_FREE, MADV_DONTNEED, MADV_PAGEOUT; mprotect(2)"
SINCE = "5.4"  # MADV_PAGEOUT
#: huge pages of swap, and base pages where it matters what each of them is
_ROOM, _FEW = 4, 64
_ONES_VALUE, _OTHERS_VALUE = 77, 99
#: what is seen as used is passed over the first time
_RECLAIMS = 2


def _write(memory: Memory) -> None:
    memory.fill(_ONES_VALUE)


def _forbid_and_write(memory: Memory) -> None:
    for prot in (mmap.PROT_READ, READ_WRITE):
        memory.protect(prot)
    memory.fill(_ONES_VALUE)


def _let_it_be_taken(memory: Memory) -> None:
    for advice in (mmap.MADV_FREE, MADV_PAGEOUT):
        memory.advise(advice)


_ACTS: dict[str, Callable[[Memory], None]] = {
    "writes it": _write,
    "forbids it to be written, allows that again and writes it": _forbid_and_write,
    "lets the kernel take it": partial(Memory.advise, advice=mmap.MADV_FREE),
    "lets the kernel take it and swaps it out": _let_it_be_taken,
    "swaps it out": partial(Memory.advise, advice=MADV_PAGEOUT),
    "gives it back": partial(Memory.advise, advice=mmap.MADV_DONTNEED),
    "unmaps it": Memory.unmap,
    "ends": lambda _memory: None,
}
_WRITES = _write, _forbid_and_write


def _touch_nothing(_parent: Memory, _child: Memory) -> None:
    pass


def _want(parent: Memory, _child: Memory) -> None:
    parent.advise(MADV_WILLNEED)


def _read_by(*numbers: int) -> Callable[[Memory, Memory], None]:
    def read(*both: Memory) -> None:
        for number in numbers:
            both[number].expect_filled()

    return read


_WAYS: dict[str, Callable[[Memory, Memory], None]] = {
    "still in swap": _touch_nothing,
    "wanted soon by the parent": _want,
    "read by the parent": _read_by(0),
    "read by the child": _read_by(1),
    "read by both": _read_by(0, 1),
}


@SHARED_WHEN_BACK.case(
    "what one of a parent and its child does with memory that was in swap when the child was made changes nothing of it"
    " for the other, also when that has it alone and it is reclaimed: it writes it, lets the kernel take it, swaps it"
    " out, gives it back, unmaps it, or ends, whoever of them has read it before; base pages, and a huge page before",
    f"{DOC}; mm/memory.c do_swap_page(); mm/madvise.c madvise_free_pte_range()",
    since=SINCE,
)
def forked_in_swap(live: Live) -> None:
    let_rest(live)
    need_swap(live, _ROOM * pmd_size(live))
    # a huge page comes back as base pages, whoever wants it
    kinds = [*product((_few_base_pages,), _WAYS), (huge_pages, "read by both")]
    for (make, way), name, is_parent in product(kinds, _ACTS, (True, False)):
        with live.about(f"{make.__name__.strip('_')}, {way}, the {'parent' if is_parent else 'child'} {name}"):
            parent = make(live)
            page_all_out(live, parent)
            child = parent.fork()
            _WAYS[way](parent, child)
            _expect_kept_apart((parent, child) if is_parent else (child, parent), _ACTS[name])


@SHARED_WHEN_BACK.case(
    "what one of a parent and its child does with memory that came back from swap before the child was made changes"
    " nothing of it for the other, also when that has it alone and it is reclaimed",
    f"{DOC}; mm/memory.c copy_present_ptes(); mm/madvise.c madvise_free_pte_range()",
    since=SINCE,
)
def forked_when_back(live: Live) -> None:
    let_rest(live)
    need_swap(live, _ROOM * pmd_size(live))
    for make, name, is_parent in product((_few_base_pages, huge_pages), _ACTS, (True, False)):
        with live.about(f"{make.__name__.strip('_')}, the {'parent' if is_parent else 'child'} {name}"):
            parent = make(live)
            page_all_out(live, parent)
            parent.expect_filled()
            child = parent.fork()
            _expect_kept_apart((parent, child) if is_parent else (child, parent), _ACTS[name])


@SHARED_WHEN_BACK.case(
    "what one of a parent, its child and its grandchild does with memory that swapoff(2) has brought back for all of"
    " them changes nothing of it for the others, also when one has it alone and it is reclaimed",
    f"{DOC}; swapoff(2); mm/swapfile.c unuse_pte()",
    since=SINCE,
)
def brought_back_by_swapoff(live: Live) -> None:
    let_rest(live)
    for name, who in product(_ACTS, ("parent", "child", "grandchild")):
        with live.about(f"the {who} {name}"):
            swap_off = only_swap(live, _ROOM * pmd_size(live))
            parent = _few_base_pages(live)
            page_all_out(live, parent)
            child = parent.fork()
            grandchild = child.fork()
            swap_off()
            live.expect("memory in swap after swapoff(2)", [0, 0, 0], [*map(swapped, (parent, child, grandchild))])
            every = {"parent": parent, "child": child, "grandchild": grandchild}
            one = every.pop(who)
            other, third = every.values()
            _expect_kept_apart((one, other), _ACTS[name], third)


def _few_base_pages(live: Live) -> Memory:
    memory = map_aligned(live, _FEW, live.base_page, advice=MADV_NOHUGEPAGE)
    memory.fill()
    return memory


def _expect_kept_apart(both: tuple[Memory, Memory], act: Callable[[Memory], None], third: Memory | None = None) -> None:
    """Have the first of two act, and expect the other, and a third, to have what they had, also under reclaim."""
    one, other = both
    act(one)
    others = [other] if third is None else [other, third]
    for each in others:
        each.expect_filled()
    if act in _WRITES:
        one.expect_filled(_ONES_VALUE)
        if third is not None:
            third.fill(_OTHERS_VALUE)
            one.expect_filled(_ONES_VALUE)
            other.expect_filled()
            third.expect_filled(_OTHERS_VALUE)
    for each in (one, *others[1:]):
        # its children go on
        each.actor.exit()
    for _time in range(_RECLAIMS):
        other.advise(MADV_PAGEOUT)
    other.expect_filled()
    other.actor.end()


class SharedWhenBack(LiveTest):
    def test_shared_when_back(self) -> None:
        self.run_area(SHARED_WHEN_BACK)
