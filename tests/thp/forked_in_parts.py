"""What processes have of memory in base pages, and in huge pages that are mapped so, after fork()."""

import mmap
from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate, count, pairwise, product, takewhile

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.khugepaged_clock import let_nobody_else_act
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.swapped import need_swap, page_all_out
from hugepage_qa.cases.thp_memory import free_lazily, pmd_size
from hugepage_qa.cases.thp_policy import advised, base_pages, mapped_in_parts, set_policy, some_smaller_sizes
from hugepage_qa.kernel.uapi import PROT_NONE
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.plugins.avocado_test import LiveTest

FORKED_PARTS = Area("thp/forked-in-parts", sizes=Sizes.ONCE)

_FIRST, _SECOND, _THIRD = 77, 1 << 20, 1 << 30
#: what mprotect(2) leaves, whether before the fork, and whether parent (0) or child (1) writes first
_FORBIDDEN = (mmap.PROT_READ, False, 0), (PROT_NONE, False, 0), (mmap.PROT_READ, True, 0), (mmap.PROT_READ, False, 1)


@FORKED_PARTS.case(
    "what one of parent, child and grandchild writes shows in no other, whoever is the first, in whichever base page:"
    " of base pages, of huge pages that are mapped as base pages, and of smaller sizes, all of it or with base"
    " pages between that are missing or hold zeroes alone",
    "fork(2); mm/memory.c copy_present_ptes(), __copy_present_ptes(), do_wp_page()",
)
def kept_apart(live: Live) -> None:
    for kind, make in _kinds(live):
        for layout, turn in ((_whole, 0), (_whole, 1), (_whole, 2), (_with_holes, 0), (_with_zeroes, 1)):
            with live.about(f"{kind}, {layout.__name__.strip('_')}, number {turn + 1} first"):
                parent = make()
                parts = layout(live, parent)
                child = parent.fork()
                every = [parent, child, parent.seen_by(child.actor.fork())]
                _expect_apart(live, every[turn:] + every[:turn], parts)
            parent.actor.end()


@FORKED_PARTS.case(
    "where a child did not inherit all of a huge page, or of pages of smaller sizes, what it did stays apart when"
    " mprotect(2) has forbidden it, to be written or at all, before the fork or after it, and allowed it again: what"
    " parent or child writes shows in the other nowhere, wherever the parts are that were inherited",
    "mprotect(2); madvise(2) MADV_DONTFORK; fork(2); mm/mprotect.c can_change_private_pte_writable()",
)
def kept_apart_when_allowed_again(live: Live) -> None:
    for kind, make in _kinds(live):
        for (name, kept), row in product(_kept_from_a_child(live).items(), _FORBIDDEN):
            prot, is_before, turn = row
            parent = make()
            with live.about(f"{kind}, {name} not inherited, protection {prot}, before the fork: {is_before}"):
                _expect_apart_when_allowed(live, parent, kept, prot, turn, is_before=is_before)
            parent.actor.end()


@FORKED_PARTS.case(
    "of what the kernel may take since MADV_FREE a child keeps under reclaim what was written again before the fork,"
    " when its parent has unmapped it: base pages before and behind those that were not, of huge pages that are mapped"
    " as base pages, and of smaller sizes",
    "madvise(2) MADV_FREE, MADV_PAGEOUT; fork(2); mm/memory.c copy_present_ptes(); mm/rmap.c try_to_unmap_one()",
    since="5.4",  # MADV_PAGEOUT
)
def kept_when_written_again(live: Live) -> None:
    let_nobody_else_act(live)
    need_swap(live, 2 * pmd_size(live))
    for kind, make in _kinds(live):
        for turn in range(2):
            with live.about(f"{kind}, every other run from number {turn + 1} on written"):
                _expect_kept(live, make(), _runs(live)[turn::2])


def _expect_kept(live: Live, parent: Memory, written: list[tuple[int, int]]) -> None:
    live.host.wait_until(partial(free_lazily, live, parent))
    lazy = parent.smaps().fields["LazyFree"]
    if lazy < parent.length and live.host.has_others:
        raise CannotRun("MADV_FREE passes over pages that somebody has a hold of, or others have taken its memory")
    live.expect("LazyFree", parent.length, lazy)
    for start, length in written:
        parent.fill_part(start, length, _SECOND)
    child = parent.fork()
    parent.unmap()
    page_all_out(live, child)
    wrong = sum(child.wrong(start, length, _SECOND) for start, length in written)
    live.expect("words that were written and changed", 0, wrong)
    parent.actor.end()


def _runs(live: Live) -> list[tuple[int, int]]:
    """Return runs of 1, 2, 3 ... base pages of a huge page, where each begins and its length."""
    size, base = pmd_size(live), live.base_page
    starts = [0, *takewhile((size // base).__gt__, accumulate(count(1)))]
    return [(start * base, (end - start) * base) for start, end in pairwise(starts)]


def _kept_from_a_child(live: Live) -> dict[str, list[tuple[int, int]]]:
    """Return parts of a huge page, where each begins and its length, by what they are together."""
    size, base = pmd_size(live), live.base_page
    return {
        "the first half": [(0, size // 2)],
        "the last half": [(size // 2, size // 2)],
        "two pages in the middle": [(size // 2, 2 * base)],
        "all but the last page": [(0, size - base)],
        "every other run": _runs(live)[::2],
    }


def _expect_apart_when_allowed(
    live: Live, parent: Memory, kept: list[tuple[int, int]], prot: int, turn: int, *, is_before: bool
) -> None:
    """Expect ``parent`` and a child without the parts ``kept`` to keep what they have; number ``turn`` writes first."""
    if is_before:
        parent.protect(prot)
    _advise(parent, kept, mmap.MADV_DONTFORK)
    child = parent.fork()
    _advise(parent, kept, mmap.MADV_DOFORK)
    ends = [0, *(end for start, length in kept for end in (start, start + length)), parent.length]
    inherited = [(start, end - start) for start, end in zip(ends[::2], ends[1::2], strict=True) if end > start]
    every = [(parent, [(0, parent.length)], 1), (child, inherited, 1)]
    for memory, parts, _value in every:
        for protection in (READ_WRITE,) if is_before else (prot, READ_WRITE):
            for start, length in parts:
                memory.actor.call("mprotect", memory.address + start, length, protection)
    for writer in (turn, 1 - turn):
        memory, parts, _value = every[writer]
        value = (_FIRST, _SECOND)[writer]
        every[writer] = memory, parts, value
        for start, length in parts:
            memory.fill_part(start, length, value)
        for number, (reader, own_parts, own) in enumerate(every):
            wrong = sum(reader.wrong(start, length, own) for start, length in own_parts)
            live.expect(f"words of number {number + 1} that changed when number {writer + 1} had written", 0, wrong)


def _advise(memory: Memory, parts: list[tuple[int, int]], advice: int) -> None:
    for start, length in parts:
        memory.actor.call("madvise", memory.address + start, length, advice)


def _kinds(live: Live) -> Iterator[tuple[str, Callable[[], Memory]]]:
    """Yield what makes filled memory of each kind, and its name."""
    yield "base pages", partial(base_pages, live)
    yield "a huge page in parts", partial(mapped_in_parts, live)
    for size, path in some_smaller_sizes(live):
        set_policy(live, "madvise", pmd="never")
        live.set_knob(f"{path}/enabled", "always")
        yield f"pages of {size >> 10} kB", partial(_filled, live)
        live.set_knob(f"{path}/enabled", "never")


def _filled(live: Live) -> Memory:
    memory = advised(live)
    memory.fill()
    return memory


def _whole(_live: Live, memory: Memory) -> list[tuple[int, int]]:
    return [(0, memory.length)]


def _with_holes(live: Live, memory: Memory) -> list[tuple[int, int]]:
    """Give base pages back, and return where the runs of 1, 2, 3 ... others between them begin, and their lengths."""
    base = live.base_page
    holes = [0, *takewhile((memory.length // base).__gt__, accumulate(count(2)))]
    for hole in holes:
        memory.actor.call("madvise", memory.address + hole * base, base, mmap.MADV_DONTNEED)
    ends = [*holes[1:], memory.length // base]
    return [
        ((hole + 1) * base, (end - hole - 1) * base) for hole, end in zip(holes, ends, strict=True) if end > hole + 1
    ]


def _with_zeroes(live: Live, memory: Memory) -> list[tuple[int, int]]:
    parts = _with_holes(live, memory)
    for start, _length in parts:
        found = memory.actor.read(memory.address + start - WORD)
        live.expect("what is read of a base page that was given back", 0, found)
    return parts


def _expect_apart(live: Live, every: list[Memory], parts: list[tuple[int, int]]) -> None:
    """Expect each of ``every`` process to keep what it has when another one writes all of it."""
    values = [1] * len(every)
    for writer, value in enumerate((_FIRST, _SECOND, _THIRD)):
        every[writer].fill(value)
        values[writer] = value
        for memory, own in zip(every, values, strict=True):
            wrong = sum(memory.wrong(start, length, own) for start, length in parts)
            live.expect(f"words that changed when number {writer + 1} of them had written", 0, wrong)
    for memory, own in zip(every, values, strict=True):
        memory.expect_filled(own)


class ThpForkedInParts(LiveTest):
    def test_forked_in_parts(self) -> None:
        self.run_area(FORKED_PARTS)
