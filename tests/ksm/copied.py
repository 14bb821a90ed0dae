"""Copies of base pages that KSM has merged: who writes to one, or pins one, has his own again, and it is counted."""

from collections.abc import Callable
from functools import partial

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.changed_counters import expect_change
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.merged_pages import KSM_DOC, base_page_count, merged_pair, pages_with_one_frame
from hugepage_qa.cases.reached_from_outside import word_read_by
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.kernel.ksm import DIRECTORY
from hugepage_qa.plugins.avocado_test import LiveTest

COPIED = Area("ksm/copied", sizes=Sizes.ONCE)

#: acts on the base page of memory that is so many bytes behind its start
_Act = Callable[[Live, Memory, int], object]


@COPIED.case(
    "each merged base page that its process writes to, or pins to have it read from outside, is its own again, in a"
    " frame of its own with what it held, and is counted by cow_ksm; no other one is, nor one that is only read",
    f"{KSM_DOC} cow_ksm; mm/memory.c do_wp_page(); mm/gup.c gup_must_unshare() (a7f226604170)",
    since="5.19",
)
def counted(live: Live) -> None:
    for act, copies in ((_read, False), (_write, True), (_pin, True)):
        with live.about(act.__name__.strip("_")):
            places = _places(live)
            expected = {"cow_ksm": len(places) if copies else 0}
            memory, equal = expect_change(live, expected, partial(_merged, live), partial(_act_on_each, live, act))
            own = set(places) if copies else set[int]()
            merged = set(range(base_page_count(live, memory))) - own
            # what compaction moves between two looks has one frame for both again
            found = live.host.last_look(partial(pages_with_one_frame, memory, equal), merged.__eq__)
            live.expect("base pages that are merged", merged, found)
            for each in (memory, equal):
                each.expect_filled()
                each.actor.end()


def _merged(live: Live) -> tuple[Memory, Memory]:
    """Return two memories that are merged, and have ksmd rest: it would merge copies again."""
    both = merged_pair(live)
    live.set_knob(f"{DIRECTORY}/run", "0")
    return both


def _places(live: Live) -> list[int]:
    """Return base pages of huge ones: the first, the last, and some within."""
    count = pmd_size(live) // live.base_page
    return [0, 1, count // 2, count - 1, count]


def _act_on_each(live: Live, act: _Act, both: tuple[Memory, Memory]) -> None:
    for page in _places(live):
        act(live, both[0], page * live.base_page)


def _read(live: Live, memory: Memory, offset: int) -> None:
    live.expect("word that is read", 1 + offset, memory.actor.read(memory.address + offset))


def _write(_live: Live, memory: Memory, offset: int) -> None:
    memory.actor.write(memory.address + offset, 1 + offset)


def _pin(live: Live, memory: Memory, offset: int) -> None:
    live.expect("word that is read from outside", 1 + offset, word_read_by(live, memory.actor, memory, offset))


class KsmCopied(LiveTest):
    def test_copied(self) -> None:
        self.run_area(COPIED)
