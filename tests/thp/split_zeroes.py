"""Base pages of zeroes of a huge page that is split: what was kept of them before is kept, though they are no page."""

import os
import signal
from collections.abc import Callable
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.clear_refs import clear_refs, need_soft_dirty, soft_dirty_pages, while_nothing_moves
from hugepage_qa.cases.debugfs import expect_split
from hugepage_qa.cases.khugepaged_clock import let_rest
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory, runs
from hugepage_qa.cases.thp_policy import huge_pages, mapped_in_parts
from hugepage_qa.cases.userfaultfd import Feature, Mode, Userfault, protected_pages
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest

SPLIT_ZEROES = Area("thp/split-zeroes", sizes=Sizes.ONCE)

SPLIT = "mm/migrate.c try_to_map_unused_to_zeropage(), remove_migration_pte()"
_NEW_VALUE = 1000


@SPLIT_ZEROES.case(
    "base pages of zeroes of a huge page that is split, mapped as a whole or in parts, are soft-dirty if they were"
    " written since clear_refs was, and else not",
    f"Documentation/admin-guide/mm/soft-dirty.rst; {SPLIT}",
    since="6.12",
)
def written(live: Live) -> None:
    let_rest(live)
    for make, is_written in product((huge_pages, mapped_in_parts), (False, True)):
        with live.about(f"{make.__name__}, written {is_written}"):
            memory, zeroes, expected = _written(live, make, is_written)
            _split(live, memory, zeroes)
            known: dict[Quirk, list[range]] = {Quirk.ZEROES_LOSE_MARKS: []}
            live.expect("soft-dirty when split", runs(expected), runs(zeroes & set(soft_dirty_pages(memory))), known)
            memory.actor.end()


def _written(live: Live, make: Callable[[Live], Memory], is_written: bool) -> tuple[Memory, set[int], set[int]]:
    """Return memory as ``_with_zeroes`` does, and which of its zeroes are soft-dirty. Raises CannotRun."""

    def attempt() -> tuple[tuple[Memory, set[int], set[int], set[int]], bool]:
        memory, zeroes = _with_zeroes(live, make)
        need_soft_dirty(live, memory)
        clear_refs(live, memory)
        # some of zeroes and some of words; what is mapped as a whole is soft-dirty as a whole
        parts = {*sorted(zeroes)[::3], memory.size // live.base_page // 2} if is_written else set()
        for number in parts:
            memory.actor.write(memory.address + number * live.base_page, 0 if number in zeroes else _NEW_VALUE)
        expected = zeroes if is_written and make is huge_pages else zeroes & parts
        found = zeroes & set(soft_dirty_pages(memory))
        return (memory, zeroes, expected, found), found == expected

    memory, zeroes, expected, found = while_nothing_moves(live, attempt)
    live.expect("soft-dirty before", runs(expected), runs(found))
    return memory, zeroes, expected


@SPLIT_ZEROES.case(
    "base pages of zeroes of a huge page that is split, mapped as a whole or in parts, stay protected by userfaultfd if"
    " they were, and are read and not written; others are written",
    f"Documentation/admin-guide/mm/userfaultfd.rst Write Protect Notifications; {SPLIT}",
    since="6.12",
)
def protected(live: Live) -> None:
    let_rest(live)
    for make in (huge_pages, mapped_in_parts):
        with live.about(make.__name__):
            memory, zeroes = _with_zeroes(live, make)
            fault = Userfault(memory, Mode.WRITE_PROTECTED, Feature.PAGEFAULT_FLAG_WP)
            count, base = memory.size // live.base_page, live.base_page
            # a part of what is mapped as a whole would have it mapped in parts
            expected = {*range(count)} if make is huge_pages else {*range(0, count, 3)}
            if make is huge_pages:
                fault.write_protect()
            else:
                for number in sorted(expected):
                    fault.write_protect(offset=number * base, length=base)
            _split(live, memory, zeroes)
            found, lost = set(protected_pages(memory)), expected - zeroes
            known = {Quirk.ZEROES_LOSE_MARKS: runs(lost)}
            live.expect("protected when split", runs(expected), runs(found), known)
            if found == lost:
                continue
            for number in sorted(zeroes)[::5]:
                address = memory.address + number * base
                live.expect(f"base page {number} of zeroes", 0, memory.actor.read(address))
                if number in expected:
                    live.expect_signal(signal.SIGBUS, memory.actor.write, address, _NEW_VALUE)
                else:
                    memory.actor.write(address, _NEW_VALUE)
                    live.expect(f"what was written to base page {number}", _NEW_VALUE, memory.actor.read(address))
            memory.actor.end()


def _with_zeroes(live: Live, make: Callable[[Live], Memory]) -> tuple[Memory, set[int]]:
    """Return a huge page of which each second base page of the second half is of zeroes, and their numbers."""
    memory, base = make(live), live.base_page
    count = memory.size // base
    zeroes = {*range(count // 2 + 1, count, 2)}
    zero = live.open(memory.actor, "/dev/zero", os.O_RDONLY)
    for number in zeroes:
        memory.actor.call("read", zero, memory.address + number * base, base)
    return memory, zeroes


def _split(live: Live, memory: Memory, zeroes: set[int]) -> None:
    """Split a huge page, of which the base pages of ``zeroes`` are no memory of their process then."""
    expect_split(live, f"{memory.actor.pid},{memory.address:#x},{memory.at(1):#x}", 1)
    rest = memory.size - len(zeroes) * live.base_page
    live.expect("Rss of what was split", rest, memory.smaps().rss)


class ThpSplitZeroes(LiveTest):
    def test_split_zeroes(self) -> None:
        self.run_area(SPLIT_ZEROES)
