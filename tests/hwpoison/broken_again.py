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
    break_in_use,
    hard_offline,
    mended_at_the_end,
    need_mending,
    out_of_use,
    told_of,
)
from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.pinned_pages import pipe_with
from hugepage_qa.cases.thp_policy import huge_pages, unadvised_base_pages
from hugepage_qa.cases.thp_shared_memory import let_only_pmd_inherit, shared_base_pages, shared_huge_pages
from hugepage_qa.kernel.nodes import node_directories
from hugepage_qa.kernel.tree import read_integer
from hugepage_qa.machine.host import ObservedTree
from hugepage_qa.plugins.avocado_test import LiveTest

BROKEN_AGAIN = Area("hwpoison/broken-again", sizes=Sizes.BUDDY)

HARD = (
    "Documentation/ABI/testing/sysfs-memory-page-offline, sysfs-devices-node memory_failure; mm/memory-failure.c"
    " action_page_types[], action_name[]"
)
# mm/memory-failure.c memory_failure(): an action that is told like others since 6.11 (b8b9488d50b7), for pages of a
# pool since a148a2040191, which older series have, too, and which tells whether the same base page broke before
_THE_SAME = {ALREADY, f"{ACTION}already poisoned page: Failed"}
_BESIDE_IT = {ALREADY, f"{ACTION}huge page: Failed"}
_STATS = "memory_failure"
_PAGES_OF_A_FILE = 4


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
                before, stats = out_of_use(live), _stats(live)
                _expect_break(live, frame + place, {f"{ACTION}{state.words}"}, state.error)
                with mended_at_the_end(live, frame if state.stays else frame + place, give_up):
                    _expect_break(live, frame + place, _THE_SAME, EHWPOISON)
                    live.expect("base pages out of use", 1, out_of_use(live) - before)
                    _expect_stats(live, stats, "failed" if state.stays else "recovered")
                    if state.stays:
                        beside = (place + 1) % (last + 1)
                        _expect_break(live, frame + beside, _BESIDE_IT, EHWPOISON)
                        live.expect("base pages out of use after one beside it", 2, out_of_use(live) - before)
                        for again in (beside, place):
                            _expect_break(live, frame + again, _THE_SAME, EHWPOISON)
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
    "the log tells of memory of no pool that breaks, a base page, one of a huge page, a locked one, whether it was"
    " written or is as on the disk; that base page goes, and no other; that it breaks again is EHWPOISON, told and not"
    " counted; the one beside it is as the first one",
    f"{HARD}, memory_failure(), error_states[], hwpoison_user_mappings()",
    sizes=Sizes.ONCE,
)
def other_memory(live: Live) -> None:
    let_only_pmd_inherit(live)
    base = live.base_page
    for make, kind in (
        (unadvised_base_pages, "dirty"),
        (shared_base_pages, "dirty"),
        (huge_pages, "dirty"),
        (shared_huge_pages, "dirty"),
        # what breaks is unmapped first, which unlocks it: not as mlocked
        (_locked_base_pages, "dirty"),
        (_locked_huge_pages, "dirty"),
        (_written_file, "dirty"),
        (_file_as_on_the_disk, "clean"),
    ):
        with live.about(make.__name__.removeprefix("_")):
            words = {f"{ACTION}{kind} LRU page: Recovered"}
            memory, before, frame = _broken(live, make, words)
            stats = _stats(live)
            _expect_break(live, frame, _THE_SAME, EHWPOISON)
            live.expect("base pages out of use", 1, out_of_use(live) - before)
            last = memory.length - base
            # where a huge page of a file was split all of it is mapped anew
            live.expect("the first word of the one beside it", 1 + last, memory.actor.read(memory.address + last))
            beside = memory.frame(last)
            _expect_break(live, beside, words)
            for again in (frame, beside):
                _expect_break(live, again, _THE_SAME, EHWPOISON)
            _expect_stats(live, stats, "recovered")
            live.expect("base pages out of use after one beside it", 2, out_of_use(live) - before)
            left = memory.length - 2 * base
            live.expect("words of the rest that changed", 0, memory.wrong(0, left))
            live.expect("base pages that are there", left // base, len(memory.present_frames(memory.pages)))
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
    _expect_told(live, frame, words)
    return memory, before, frame


def _expect_break(live: Live, frame: int, words: Collection[str], error: int = 0) -> None:
    """Break a frame and expect ``error``, 0 for none, and one of ``words`` in the log, once, and no other of it."""
    live.host.skip_kernel_log()
    if error:
        live.expect_errno(error, hard_offline, live, frame)
    else:
        hard_offline(live, frame)
    _expect_told(live, frame, words)


def _expect_told(live: Live, frame: int, words: Collection[str]) -> None:
    """Expect the log to tell one of ``words`` of a frame, once, and nothing else."""
    told = told_of(live, frame)
    is_right = len(told) == 1 and told[0] in words
    live.expect("what the log tells", told if is_right else sorted(words), told)


def _stats(live: Live) -> dict[str, int]:
    """Return what all nodes together have counted; before Linux 6.4, and without nodes, nothing."""
    directories = [f"{path}/{_STATS}" for path in node_directories(live.host).values()]
    names = {name for directory in directories for name in live.host.names(directory)}
    tree = ObservedTree(live.host)
    return {name: sum(read_integer(tree, f"{directory}/{name}") or 0 for directory in directories) for name in names}


def _expect_stats(live: Live, before: dict[str, int], outcome: str) -> None:
    """Expect one base page more to have been counted, among those with ``outcome``, and no other."""
    found = {name: count - before[name] for name, count in _stats(live).items()}
    live.expect("memory_failure of the nodes", {name: int(name in ("total", outcome)) for name in before}, found)


class BrokenAgain(LiveTest):
    def test_broken_again(self) -> None:
        self.run_area(BROKEN_AGAIN)
