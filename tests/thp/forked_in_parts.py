"""What processes have of memory in base pages, and in huge pages that are mapped so, after fork()."""

import mmap
from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate, count, takewhile

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.thp_policy import advised, base_pages, mapped_in_parts, set_policy, some_smaller_sizes
from hugepage_qa.plugins.avocado_test import LiveTest

FORKED_PARTS = Area("thp/forked-in-parts", sizes=Sizes.ONCE)

_FIRST, _SECOND, _THIRD = 77, 1 << 20, 1 << 30


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
                child = parent.seen_by(parent.actor.fork())
                every = [parent, child, parent.seen_by(child.actor.fork())]
                _expect_apart(live, every[turn:] + every[:turn], parts)
            parent.actor.end()


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
