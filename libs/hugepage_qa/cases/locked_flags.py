"""Which base pages are locked, whatever kind of pages they are in, as kpageflags and numa_maps tell."""

from hugepage_qa.cases.frames import MLOCKED, UNEVICTABLE, kpageflags
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.lru_batches import drain_lru_batches
from hugepage_qa.cases.mapped_memory import FRAME, Memory
from hugepage_qa.cases.thp_memory import mapped_huge


def expect_locked_pages(live: Live, what: str, memory: Memory, locked: int) -> None:
    """Expect the first, the last and some other base pages of each huge one to have the flags ``locked``, and no more.

    What is part of a huge page has the flags of its first base page.
    """
    found = read_locked_flags(live, memory, locked)
    if found != {hex(locked)}:
        # each of the others would be waited for as long
        live.fail(f"MLOCKED and UNEVICTABLE of base pages {what}", {hex(locked)}, found)
    if locked & UNEVICTABLE and "numa_maps" in live.host.names("proc/self"):
        _expect_active(live, what, memory)


def read_locked_flags(live: Live, memory: Memory, *right: int) -> set[str]:
    """Return which of MLOCKED and UNEVICTABLE some base pages have, as soon as all have the same, which are ``right``.

    These are the first, the last and some others of each huge page, or the first one where it is whole.
    """
    count = memory.size // live.base_page
    is_huge = mapped_huge(memory) > 0
    places = (0,) if is_huge else (0, 1, count // 2, count - 1)

    def shown() -> set[str]:
        if not is_huge:
            drain_lru_batches(live, memory.actor)
        entries = memory.whole_pagemap()
        frames = [entries[page * count + place] & FRAME for page in range(memory.pages) for place in places]
        return {hex(flags & (MLOCKED | UNEVICTABLE)) for flags in kpageflags(live, memory.actor, frames)}

    # base pages may move between both looks, locked ones, too, and somebody may have them off their list for a moment
    return shown() if is_huge else live.host.last_look(shown, [{hex(flags)} for flags in right].__contains__)


def _expect_active(live: Live, what: str, memory: Memory) -> None:
    """Expect numa_maps to tell of no page that may be removed from memory: active= is shown where there are some."""

    def counted() -> int | None:
        active = memory.numa_maps().counts.get("active")
        if active is not None:
            # of base pages those that somebody has taken off their list, or that no list has yet
            drain_lru_batches(live, memory.actor)
        return active

    found = live.host.last_look(counted, lambda active: active is None)
    if found is not None:
        # each of the others would be waited for as long
        live.fail(f"active= of pages {what}", "none: all are", found)
