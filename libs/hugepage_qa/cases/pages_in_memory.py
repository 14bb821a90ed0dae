"""Which huge pages mincore(2) says are in memory, and which parts of them."""

from collections.abc import Sequence
from itertools import combinations

from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory, runs
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.process.actor import Actor

#: base pages that an actor can be asked for at once
_ASKED = 2048
#: what mincore(2) never writes: it leaves all bits of a byte but the last one to the kernel, which makes them 0
_NOT_WRITTEN = 0x5A


def in_memory(live: Live, memory: Memory) -> tuple[int, ...]:
    """Return the pages whose first and last base pages are in memory; ends the case where not all or none of a page is.

    Of a gigantic page there are more than an actor can tell at once. Raises KnownBug.
    """
    asked = min(memory.size // live.base_page, _ASKED)
    length = asked * live.base_page
    there: list[int] = []
    # from the last one on: a known bug tells of a page that is not there how many behind it are
    for page in reversed(range(memory.pages)):
        states = b""
        for address in (memory.at(page), memory.at(page + 1) - length):
            states += memory.actor.call_with_buffers("mincore", address, length, bytes(asked))[1][0]
        resident = sum(state & 1 for state in states)
        if resident not in (0, len(states)):
            subject = f"base pages of page {page} in memory"
            expected = f"none or {len(states)}"
            live.expect(subject, expected, resident, {Quirk.MINCORE_COUNTS_HUGE_PAGES: 2 * len(there)})
            live.fail(subject, expected, resident)
        if resident:
            there.insert(0, page)
    return tuple(there)


def base_pages_in_memory(live: Live, actor: Actor, address: int, pages: range) -> set[int]:
    """Return which base ``pages`` of what is mapped at ``address`` are in memory, whoever has brought them."""
    there = set[int]()
    for start in range(0, len(pages), _ASKED):
        asked = pages[start : start + _ASKED]
        first, length = address + asked.start * live.base_page, len(asked) * live.base_page
        states = actor.call_with_buffers("mincore", first, length, bytes(len(asked)))[1][0]
        there |= {page for page, state in zip(asked, states, strict=True) if state & 1}
    return there


def _ranges_about(count: int) -> list[range]:
    """Return ranges of base pages, the first of a huge page of ``count`` being 0: of it, before it and behind it."""
    ends = -1, 0, 1, count // 2, count // 2 + 1, count - 1, count, count + 1
    # one less than an actor can be asked for: a byte behind what is told is looked at, too
    return [range(first, end) for first, end in combinations(ends, 2) if end - first < _ASKED]


def expect_in_memory(live: Live, actor: Actor, address: int, there: Sequence[bool]) -> None:
    """Expect mincore(2) to tell of base pages from ``address`` on whether they are ``there``, and nothing behind them.

    A length is rounded up to whole base pages.
    """
    base, pages = live.base_page, len(there)
    for length in (pages * base, (pages - 1) * base + 1):
        vector = actor.call_with_buffers("mincore", address, length, bytes([_NOT_WRITTEN] * (pages + 1)))[1][0]
        told = [bool(state & 1) for state in vector[:pages]]
        live.expect(f"which base pages of {length} bytes are in memory", _there(there), _there(told))
        live.expect("the byte behind those of its base pages", _NOT_WRITTEN, vector[pages])


def expect_second_in_memory(live: Live, memory: Memory) -> None:
    """Expect mincore(2) to tell of the second of three huge pages alone, whichever base pages it is asked for."""
    count = memory.size // live.base_page
    for asked in _ranges_about(count):
        address = memory.at(1) + asked.start * live.base_page
        with live.about(f"{asked} of {count}"):
            expect_in_memory(live, memory.actor, address, [0 <= page < count for page in asked])


def _there(states: Sequence[bool]) -> list[range]:
    return runs({page for page, is_there in enumerate(states) if is_there})
