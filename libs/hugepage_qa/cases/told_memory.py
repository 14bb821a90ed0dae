"""What smaps and numa_maps tell of memory, whatever was done to it: it is what its page table has."""

from collections.abc import Mapping, Sequence

from hugepage_qa.cases.frames import zeroes_among
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import FRAME, PRESENT, SWAPPED, Memory
from hugepage_qa.kernel.numa_maps import read_numa_maps
from hugepage_qa.machine.host import ObservedTree

#: of smaps: each byte in memory is one of them
_PARTS = "Private_Clean", "Private_Dirty", "Shared_Clean", "Shared_Dirty"
#: name of what is told -> bytes
_Told = Mapping[str, int]


def expect_told_alike(live: Live, memory: Memory) -> None:
    """Expect what is told of each mapping of ``memory``, anonymous or shared, to be what its page table has.

    Somebody may move or swap out a page while one is read after the other: they have to agree in the end. What nobody
    may access is left out: Linux 6.1 leaves huge pages of it out of smaps (balanced-pages-missed).
    """

    def look() -> list[tuple[int, _Told, _Told]]:
        return _look(live, memory)

    for start, expected, found in live.host.last_look(look, _agree):
        live.expect(f"what is told of the mapping at {start - memory.address:#x}", expected, found)


def permissions(live: Live, memory: Memory) -> list[str]:
    """Return how each base page of ``memory`` is mapped, as smaps shows it: ``rw``; empty where nothing is mapped."""
    found = [""] * (memory.length // live.base_page)
    for mapping in memory.all_mappings():
        first = max(mapping.start - memory.address, 0) // live.base_page
        end = min(mapping.end - memory.address, memory.length) // live.base_page
        found[first:end] = [mapping.permissions[:2]] * (end - first)
    return found


def _agree(seen: list[tuple[int, _Told, _Told]]) -> bool:
    return all(expected == found for _start, expected, found in seen)


def _look(live: Live, memory: Memory) -> list[tuple[int, _Told, _Told]]:
    """Return start, what the page table has, and what is told of each mapping."""
    entries, base = memory.whole_pagemap(), live.base_page
    zeroes = zeroes_among(live, memory.actor, (entry & FRAME for entry in entries if entry & PRESENT))
    # None without CONFIG_NUMA
    on_nodes = read_numa_maps(ObservedTree(live.host), memory.actor.pid)
    pages = {mapping.start: sum(mapping.nodes.values()) * (mapping.page_size or 0) for mapping in on_nodes or ()}
    seen: list[tuple[int, _Told, _Told]] = []
    for mapping in memory.all_mappings():
        if mapping.start < memory.address or mapping.end > memory.at(memory.pages) or "r" not in mapping.permissions:
            continue
        first, end = ((place - memory.address) // base for place in (mapping.start, mapping.end))
        # zeroes are no memory of the process
        present = sum(bool(entry & PRESENT) and entry & FRAME not in zeroes for entry in entries[first:end])
        swapped = sum(bool(entry & SWAPPED) for entry in entries[first:end])
        expected = {"Rss": present * base, "parts of Rss": present * base}
        found = {"Rss": mapping.rss, "parts of Rss": sum(mapping.fields[part] for part in _PARTS)}
        # not each whole one has to be mapped as such
        told, whole = mapping.anon_huge_pages + mapping.shmem_pmd_mapped, _in_whole_pages(memory, entries, first, end)
        expected |= {"in huge pages": min(told, whole)}
        found |= {"in huge pages": told}
        if on_nodes is not None:
            expected |= {"numa_maps": present * base}
            found |= {"numa_maps": pages.get(mapping.start, 0)}
        expected |= {"Anonymous": 0 if mapping.is_shared else present * base}
        found |= {"Anonymous": mapping.fields["Anonymous"]}
        if not mapping.is_shared:
            # of shared memory no entry of the page table tells what is in swap
            expected |= {"Swap": swapped * base}
            found |= {"Swap": mapping.fields["Swap"]}
        seen.append((mapping.start, expected, found))
    return seen


def _in_whole_pages(memory: Memory, entries: Sequence[int], first: int, end: int) -> int:
    """Return how many bytes of the base pages from ``first`` to ``end`` make up whole huge pages."""
    pages = len(entries) // memory.pages
    whole = 0
    for start in range(-(-first // pages) * pages, end - pages + 1, pages):
        frames = [entry & FRAME if entry & PRESENT else -1 for entry in entries[start : start + pages]]
        whole += frames[0] % pages == 0 and frames == list(range(frames[0], frames[0] + pages))
    return whole * memory.size
