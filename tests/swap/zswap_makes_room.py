"""What zswap writes back to make room is what was swapped out last, also of memory that came back meanwhile.

A page that somebody reads while zswap takes it stays in memory, and zswap keeps what it has taken until the page is
swapped out again.
"""

import os
from collections.abc import Callable

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.changed_counters import read_counters
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.swapped import only_swap, page_all_out, swap_to_a_device, turn_zswap_on, zswap_knob
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.cases.thp_policy import base_pages, huge_pages
from hugepage_qa.cases.thp_shared_memory import let_only_pmd_inherit
from hugepage_qa.kernel.uapi import MADV_PAGEOUT
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor_threads import Came

ZSWAP_MAKES_ROOM = Area("swap/zswap-makes-room", sizes=Sizes.ONCE)

_ROOM = 16
#: what is written into memory after it came back: zeroes go neither to zswap nor to a device since Linux 6.12
_ZEROES, _NEW_VALUE = 0, 5
#: some ten are enough on a machine that has two processors for it
_TRIES = 400
#: base pages that come back one by one
_FEW = 4
_SECONDS = 20

_RULE = "mm/zswap.c zswap_store(), zswap_writeback_entry(); mm/page_io.c swap_writeout()"


@ZSWAP_MAKES_ROOM.case(
    "base pages that came back while zswap took them, and were swapped out again as zeroes or with other contents, hold"
    " these when zswap has made room",
    _RULE,
    since="6.12",  # 0ca0c24e3211: before, zswap keeps pages of zeroes itself, and never writes them back
)
def of_base_pages(live: Live) -> None:
    only_swap(live, _ROOM * pmd_size(live))

    def few() -> Memory:
        memory, base = base_pages(live), live.base_page
        # what is behind them would be swapped out and come back with them
        memory.actor.call("munmap", memory.address + _FEW * base, memory.length - _FEW * base)
        return Memory(live, memory.actor, memory.address, _FEW, base)

    _expect_latest(live, few)


@ZSWAP_MAKES_ROOM.case(
    "a huge page that came back while zswap took it as a whole, and was swapped out again as zeroes or with other"
    " contents, holds these when zswap has made room",
    _RULE,
    since="6.13",  # before, zswap takes no huge pages
)
def of_a_huge_page(live: Live) -> None:
    let_only_pmd_inherit(live)
    swap_to_a_device(live, _ROOM * pmd_size(live))
    _expect_latest(live, lambda: huge_pages(live))


def _expect_latest(live: Live, make: Callable[[], Memory]) -> None:
    """Expect memory that comes back while zswap takes it, and is then written, to hold what was written last."""
    turn_zswap_on(live)
    usual = live.host.read(zswap_knob("max_pool_percent"))
    if usual is None:
        raise CannotRun("zswap of this kernel cannot be made to give memory back")
    for value in (_NEW_VALUE, _ZEROES):
        with live.about(f"written anew: {'words that differ' if value else 'zeroes'}"):
            memory, before = make(), read_counters(live)["Zswapped"]
            _bring_back_early(live, memory, before)
            _write(live, memory, value)
            page_all_out(live, memory)
            live.set_knob(zswap_knob("max_pool_percent"), "0")
            _let_zswap_make_room(live, before)
            live.host.write(zswap_knob("max_pool_percent"), usual)
            _expect_written(live, memory, value)
            memory.actor.end()


def _bring_back_early(live: Live, memory: Memory, before: int) -> None:
    """Swap ``memory`` out and have it read meanwhile, until zswap keeps what is in memory, too. Raises CannotRun."""
    memory.actor.threads.watch(memory.address, memory.size, live.base_page, 1)
    for _try in range(_TRIES):
        memory.fill()
        memory.actor.call("madvise", memory.address, memory.length, MADV_PAGEOUT)
        memory.expect_filled()
        if read_counters(live)["Zswapped"] > before:
            break
    (looks,) = memory.actor.threads.stop(0)
    live.expect("what came of looks at it meanwhile", Came.DONE, looks.came)
    memory.expect_filled()
    if read_counters(live)["Zswapped"] <= before:
        raise CannotRun(f"no page came back while zswap took it, in {_TRIES} tries")


def _write(live: Live, memory: Memory, value: int) -> None:
    if value:
        memory.fill(value)
    else:
        zeroes = live.open(memory.actor, "/dev/zero", os.O_RDONLY)
        memory.actor.call("read", zeroes, memory.address, memory.length)


def _let_zswap_make_room(live: Live, left: int) -> None:
    """Swap other memory out, which has zswap write back what it has, until it has ``left`` alone."""
    other = base_pages(live)

    def is_left() -> bool:
        other.fill()
        other.advise(MADV_PAGEOUT)
        return read_counters(live)["Zswapped"] <= left

    live.host.wait_until(is_left, _SECONDS)
    if read_counters(live)["Zswapped"] > left:
        raise CannotRun("zswap gives nothing back, however much it is asked for")
    other.actor.end()


def _expect_written(live: Live, memory: Memory, value: int) -> None:
    if value:
        memory.expect_filled(value)
        return
    wrong = memory.actor.nonzero(memory.address, memory.length)
    base = live.base_page
    old = [place for place in range(0, memory.length, base) if not memory.wrong(place, base)] if wrong else []
    words = len(old) * base // memory.step
    live.expect("words that are neither zero nor what was there before", 0, wrong - words)
    live.expect(
        "whether what was there before it was zeroed is there again",
        False,
        bool(old),
        {Quirk.ZEROED_MEMORY_COMES_BACK: True},
    )


class ThpZswapMakesRoom(LiveTest):
    def test_zswap_makes_room(self) -> None:
        self.run_area(ZSWAP_MAKES_ROOM)
