"""Which huge pages mincore(2) says are in memory."""

from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.oracle.known_issues import Quirk

#: base pages that an actor can be asked for at once
_ASKED = 2048


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
