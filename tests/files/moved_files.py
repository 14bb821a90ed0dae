"""Files whose folios, large ones and base pages, move between NUMA nodes: what they hold, in memory and on the disk."""

from functools import partial
from itertools import cycle

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.file_contents import KnownFile
from hugepage_qa.cases.frames import DIRTY, flags_of_folios
from hugepage_qa.cases.large_folios import DISKS, block_size, file_case
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import FRAME, PRESENT, WORD, Memory
from hugepage_qa.cases.memory_policy import move_pages, nodes_of
from hugepage_qa.cases.pages_of_a_node import need_memory
from hugepage_qa.kernel.uapi import MADV_POPULATE_READ
from hugepage_qa.plugins.avocado_test import LiveTest

MOVED_FILES = Area("files/moved-files", sizes=Sizes.ONCE, uncleared=True)

MOVES = (
    "move_pages(2); mm/migrate.c folio_migrate_mapping(), folio_migrate_flags(), filemap_migrate_folio(),"
    " buffer_migrate_folio()"
)
#: addresses of one call
_AT_ONCE = 512
#: somebody else, who writes it back or looks for free memory, may have a hold of a folio for a moment
_SECONDS = 20.0
_DIRTY_SECONDS = 1.0

case = partial(file_case, MOVED_FILES, since="5.14", nodes=2)  # MADV_POPULATE_READ


@case(
    "a file whose pages move to another node and back holds what it held, for who maps it, reads it, or reads it from"
    " the disk once more, also what was written just before, between and after",
    MOVES,
)
def moved_with_its_contents(live: Live, file: KnownFile) -> None:
    base, block = live.base_page, block_size(live)
    need_memory(live, live.nodes[:2], 4 * file.contents.length)
    nodes = cycle(live.nodes[:2])
    for written, first, length in (
        # nothing, what is dirty and in which folio; by a mapping and by write(2)
        (None, 0, 0),
        ("mapped", block - base, 2 * base),
        ("written", 5 * base + WORD, base),
        ("mapped", 0, file.contents.length),
    ):
        memory = file.map()
        if written == "mapped":
            file.store(memory, first, length)
        elif written == "written":
            file.write(first, length)
        for _way in range(2):
            node = next(nodes)
            with live.about(f"to node {node}, {length} bytes from {first} on {written}"):
                _move(live, file, memory, node)
        where = f"moved, {length} bytes from {first} on {written} before"
        # one more place that is written when all has moved: it is in the page cache's page, and not in the old one
        file.write(7 * base, 2 * WORD)
        file.store(memory, 9 * base, 2 * WORD)
        memory.unmap()
        file.expect(where)


@case(
    "each base page of a file that was written stays dirty when it moves, and is written to the disk afterwards, which"
    " nobody else does; what is as on the disk stays so",
    f"{MOVES}; Documentation/admin-guide/mm/pagemap.rst kpageflags",
    on=DISKS,
)
def moved_while_dirty(live: Live, file: KnownFile) -> None:
    need_memory(live, live.nodes[:2], 4 * file.contents.length)
    for node in live.nodes[:2]:
        file.actor.call("fsync", file.descriptor)
        memory = file.map()
        _bring(live, file, memory)
        live.host.wait_until(partial(_is_clean, live, file, memory), _DIRTY_SECONDS)
        is_clean = _is_clean(live, file, memory)
        with live.about(f"to node {node}"):
            _move(live, file, memory, node)
            if is_clean:
                live.expect("whether it is as on the disk when it was so", True, _is_clean(live, file, memory))
            file.store(memory, 0, file.contents.length)
            _move(live, file, memory, next(other for other in live.nodes[:2] if other != node))
        memory.unmap()
        file.expect("moved while all of it was dirty")


def _bring(live: Live, file: KnownFile, memory: Memory) -> list[int]:
    """Have all base pages of a file mapped, and return their addresses."""
    length = -(-file.contents.length // live.base_page) * live.base_page
    memory.actor.call("madvise", memory.address, length, MADV_POPULATE_READ)
    return list(range(memory.address, memory.address + length, live.base_page))


def _is_clean(live: Live, file: KnownFile, memory: Memory) -> bool:
    """Tell whether kpageflags shows no folio of a file that is mapped as dirty: before 6.10 its first page alone is."""
    entries = memory.pagemap(_bring(live, file, memory)[:: file.contents.length // live.base_page // 8])
    frames = [entry & FRAME for entry in entries if entry & PRESENT]
    return not any(flags & DIRTY for flags in flags_of_folios(live, memory.actor, frames))


def _move(live: Live, file: KnownFile, memory: Memory, node: int) -> None:
    """Expect all pages of a mapped file to move to ``node``, tried again as long as somebody holds one of them."""

    def elsewhere() -> list[int]:
        addresses = _bring(live, file, memory)
        for at in range(0, len(addresses), _AT_ONCE):
            part = addresses[at : at + _AT_ONCE]
            move_pages(memory.actor, part, [node] * len(part))
        parts = (addresses[at : at + _AT_ONCE] for at in range(0, len(addresses), _AT_ONCE))
        return [found for part in parts for found in nodes_of(memory.actor, part) if found != node]

    left = live.host.last_look(elsewhere, lambda nodes: not nodes, _SECONDS)
    live.expect("nodes of base pages that have not moved", [], left)


class MovedFiles(LiveTest):
    def test_moved_files(self) -> None:
        self.run_area(MOVED_FILES)
