"""What the kernel says and counts when memory breaks, breaks once more, and breaks beside where it broke, by state."""

import errno
import mmap
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial

from hugepage_qa.cases.broken_memory import (
    ACTION,
    ALREADY,
    EHWPOISON,
    THE_SAME,
    break_in_use,
    expect_break,
    expect_stats,
    expect_told,
    failure_stats,
    mended_at_the_end,
    need_mending,
    out_of_use,
)
from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.pinned_pages import pipe_with
from hugepage_qa.cases.thp_policy import huge_pages, unadvised_base_pages
from hugepage_qa.cases.thp_shared_memory import let_only_pmd_inherit, shared_base_pages, shared_huge_pages
from hugepage_qa.plugins.avocado_test import LiveTest

BROKEN_AGAIN = Area("hwpoison/broken-again", sizes=Sizes.BUDDY)

HARD = (
    "Documentation/ABI/testing/sysfs-memory-page-offline, sysfs-devices-node memory_failure; mm/memory-failure.c"
    " action_page_types[], action_name[]"
)
_OTHER = f"{HARD}, memory_failure(), error_states[], hwpoison_user_mappings()"
# of a page of a pool that stayed there since a148a2040191: it tells whether the same base page broke before
_BESIDE_IT = {ALREADY, f"{ACTION}huge page: Failed"}
_PAGES_OF_A_FILE = 4
#: what compaction moves is there again
_MOVED_SECONDS = 5.0


@dataclass(frozen=True)
class _State:
    """What ``make`` gives: the first frame of a page of a pool, and how to give up what it is held by.

    ``error`` is that of the first break, which the log has ``words`` for; with one the page ``stays`` in the pool.
    """

    make: Callable[[Live], tuple[int, Callable[[], None]]]
    words: str
    error: int = 0

    @property
    def stays(self) -> bool:
        return self.error != 0


@BROKEN_AGAIN.case(
    "the log tells of a page of a pool that breaks whether it was free or used, and whether it could be taken away;"
    " that the same base page breaks again is EHWPOISON, told and not counted; that another one of a page that stayed"
    " breaks is EHWPOISON, told, and counted once",
    f"{HARD}, try_memory_failure_hugetlb(), hugetlb_update_hwpoison(), me_huge_page()",
    since="6.1",  # 161df60e9e89: base pages of one page are told apart
)
def pages_of_a_pool(live: Live) -> None:
    # one that stays in the pool with two broken base pages would be free memory in the end, and somebody's
    need_mending(live)
    last = live.size // live.base_page - 1
    for state in (
        _State(_free, "free huge page: Recovered"),
        _State(_reserved, "free huge page: Failed", errno.EBUSY),
        _State(_used, "huge page: Recovered"),
        _State(_used_and_held, "huge page: Failed", errno.EBUSY),
    ):
        for place in (0, last // 2, last):
            with live.about(f"{state.make.__name__[1:]}, base page {place}"):
                live.reserve(1)
                frame, give_up = state.make(live)
                before, stats = out_of_use(live), failure_stats(live)
                expect_break(live, frame + place, {f"{ACTION}{state.words}"}, state.error)
                with mended_at_the_end(live, frame if state.stays else frame + place, give_up):
                    expect_break(live, frame + place, THE_SAME, EHWPOISON)
                    live.expect("base pages out of use", 1, out_of_use(live) - before)
                    expect_stats(live, stats, "failed" if state.stays else "recovered")
                    if state.stays:
                        beside = (place + 1) % (last + 1)
                        expect_break(live, frame + beside, _BESIDE_IT, EHWPOISON)
                        live.expect("base pages out of use after one beside it", 2, out_of_use(live) - before)
                        for again in (beside, place):
                            expect_break(live, frame + again, THE_SAME, EHWPOISON)
                        live.expect("base pages out of use after all of it", 2, out_of_use(live) - before)
                live.expect_pool(nr=int(state.stays), free=int(state.stays))
                live.expect("base pages out of use after mending", 0, out_of_use(live) - before)
                live.set_nr(0)
                live.expect_pool(nr=0, free=0)


def _free(live: Live) -> tuple[int, Callable[[], None]]:
    memory, frame = _filled(live)
    memory.actor.end()
    return frame, lambda: None


def _reserved(live: Live) -> tuple[int, Callable[[], None]]:
    memory, frame = _filled(live)
    memory.unmap()
    live.map(1, memory.actor)
    return frame, memory.actor.end


def _used(live: Live) -> tuple[int, Callable[[], None]]:
    memory, frame = _filled(live)
    return frame, memory.actor.end


def _used_and_held(live: Live) -> tuple[int, Callable[[], None]]:
    memory, frame = _filled(live)
    pipe_with(live, memory)
    return frame, memory.actor.end


def _filled(live: Live) -> tuple[Memory, int]:
    memory = live.map(1)
    memory.fill()
    return memory, memory.frames().pop()


@BROKEN_AGAIN.case(
    "the log tells of memory of no pool that breaks, a base page, one of a huge page, a locked one, that it was in use;"
    " that base page goes, and no other; that it breaks again is EHWPOISON, told and not counted; the one beside it is"
    " as the first one",
    _OTHER,
    sizes=Sizes.ONCE,
)
def other_memory(live: Live) -> None:
    let_only_pmd_inherit(live)
    for make in (
        unadvised_base_pages,
        shared_base_pages,
        huge_pages,
        shared_huge_pages,
        # what breaks is unmapped first, which unlocks it: not as mlocked
        _locked_base_pages,
        _locked_huge_pages,
    ):
        _expect_each_told(live, make, "dirty")


@BROKEN_AGAIN.case(
    "the log tells of a base page of a file on a disk that breaks whether it was written or is as on the disk; that"
    " base page goes, and no other; that it breaks again is EHWPOISON, told and not counted; the one beside it is as"
    " the first one",
    f"{_OTHER}, me_pagecache_clean(), me_pagecache_dirty()",
    sizes=Sizes.ONCE,
)
def files_on_a_disk(live: Live) -> None:
    for make, kind in ((_written_file, "dirty"), (_file_as_on_the_disk, "clean")):
        _expect_each_told(live, make, kind)


def _expect_each_told(live: Live, make: Callable[[Live], Memory], kind: str) -> None:
    """Expect two base pages of what ``make`` gives, side by side, to be told as ``kind`` of LRU pages, and to go."""
    base = live.base_page
    with live.about(make.__name__.removeprefix("_")):
        words = {f"{ACTION}{kind} LRU page: Recovered"}
        memory, before, frame = _broken(live, make, words)
        stats = failure_stats(live)
        expect_break(live, frame, THE_SAME, EHWPOISON)
        live.expect("base pages out of use", 1, out_of_use(live) - before)
        last = memory.length - base
        # where a huge page of a file was split all of it is mapped anew
        live.expect("the first word of the one beside it", 1 + last, memory.actor.read(memory.address + last))
        beside = memory.frame(last)
        expect_break(live, beside, words)
        for again in (frame, beside):
            expect_break(live, again, THE_SAME, EHWPOISON)
        expect_stats(live, stats, "recovered")
        live.expect("base pages out of use after one beside it", 2, out_of_use(live) - before)
        left = memory.length - 2 * base
        live.expect("words of the rest that changed", 0, memory.wrong(0, left))
        live.expect("base pages that are there", left // base, _count_of_present(live, memory, left // base))
        memory.actor.end()


def _locked_base_pages(live: Live) -> Memory:
    return _locked(unadvised_base_pages(live))


def _locked_huge_pages(live: Live) -> Memory:
    return _locked(huge_pages(live))


def _locked(memory: Memory) -> Memory:
    memory.lock()
    return memory


def _written_file(live: Live) -> Memory:
    return _file(live)[0]


def _file_as_on_the_disk(live: Live) -> Memory:
    memory, file = _file(live)
    memory.actor.call("fsync", file)
    return memory


def _file(live: Live) -> tuple[Memory, int]:
    """Map base pages of a file on a disk, filled, and return them with its descriptor."""
    actor, length = live.actor(), _PAGES_OF_A_FILE * live.base_page
    file = live.open(actor, live.host.disk("ext4"), live.host.uapi.o_tmpfile | os.O_RDWR)
    actor.call("ftruncate", file, length)
    address = actor.mmap(length, READ_WRITE, mmap.MAP_SHARED, file)
    memory = Memory(live, actor, address, _PAGES_OF_A_FILE, live.base_page)
    memory.fill()
    return memory, file


def _broken(live: Live, make: Callable[[Live], Memory], words: Collection[str]) -> tuple[Memory, int, int]:
    """Break the last base page but one of what ``make`` gives, and expect ``words`` in the log.

    Returned are the memory, how many base pages were out of use before, and the frame.
    """
    memory, frame, before = break_in_use(live, partial(make, live), -2 * live.base_page, partial(out_of_use, live))
    expect_told(live, frame, words)
    return memory, before, frame


def _count_of_present(live: Live, memory: Memory, expected: int) -> int:
    """Return how many base pages are there; one that compaction moves in that moment is looked for again.

    Rss would not do: it counts what broke, as it does what moves (fs/proc/task_mmu.c smaps_pte_entry()).
    """

    def look() -> int:
        return len(memory.present_frames(memory.pages))

    return live.host.last_look(look, lambda found: found == expected, _MOVED_SECONDS)


class BrokenAgain(LiveTest):
    def test_broken_again(self) -> None:
        self.run_area(BROKEN_AGAIN)
