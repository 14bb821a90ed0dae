"""Which process has which hugetlb page, and what each page holds: a model, and all that the kernel tells of it."""

from collections import Counter
from collections.abc import Iterator, Mapping, Set
from itertools import count
from random import Random

from hugepage_qa.cases.drawn_program import DrawnProgram
from hugepage_qa.cases.hugetlb_files import HugeFile
from hugepage_qa.cases.hugetlb_of_a_process import seeming_shared
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import EXCLUSIVE, FRAME, OF_A_FILE, PRESENT, WORD, Memory
from hugepage_qa.cases.memory_policy import nodes_of
from hugepage_qa.kernel.numa_maps import read_numa_maps
from hugepage_qa.machine.host import ObservedTree
from hugepage_qa.oracle.known_issues import Quirk

#: processes at once
MOST_PROCESSES = 3
#: one look of so many reads also what is not there
_LOOKS_WITHOUT_A_TOUCH = 4


class ModelledPages(DrawnProgram):
    """A program on hugetlb pages, which are its parts, of ``file`` or private; what it does a subclass says.

    A page is a number, one of ``new`` when it comes. ``held`` has, by process, the page that each part has in its page
    table, None where it has none; ``in_file`` the page of each part of the file.
    """

    def __init__(self, live: Live, memory: Memory, random: Random, file: HugeFile | None) -> None:
        descriptor = None if file is None else file.descriptor
        super().__init__(live, memory, random, unit=live.size, most_processes=MOST_PROCESSES, file=descriptor)
        self._free = live.pool().free
        self.new: Iterator[int] = count(1)
        self.held: dict[int, list[int | None]] = {memory.actor.pid: [None] * memory.pages}
        self.in_file: list[int | None] = [None] * memory.pages
        self._frames: dict[int, int] = {}

    @property
    def mine(self) -> list[int | None]:
        """What the process has whose turn it is."""
        return self.held[self.one.memory.actor.pid]

    def holders(self, page: int) -> int:
        """Return how many processes have ``page``."""
        return sum(held.count(page) for held in self.held.values())

    def reached(self, parts: range, *, written: bool, but: Set[int] = frozenset()) -> None:
        """Have the process reach ``parts``: what is not there comes, and who writes has a private page to himself."""
        for part in sorted({*parts} - but):
            mine = self.mine[part]
            if self.one.file is not None:
                self.in_file[part] = self.in_file[part] or next(self.new)
                self.mine[part] = self.in_file[part]
            elif mine is None or (written and self.holders(mine) > 1):
                self.mine[part] = next(self.new)

    def _used(self) -> int:
        """Return how many pages of the pool are used."""
        if self.one.file is not None:
            return sum(page is not None for page in self.in_file)
        return len({page for held in self.held.values() for page in held if page is not None})

    def expect_all(self) -> None:
        """Expect contents, protection, pages and what is told of them to be what the model says."""
        if self.one is self.processes[0]:
            self._frames = {}
        self.live.expect("free pages of the pool", self._free - self._used(), self.live.pool().free)
        self._expect_pages()
        if self.one.file is not None:
            self._expect_read(HugeFile(self.live, self.one.memory.actor, self.one.file))
        # who looks at what is not there has it come, and most looks leave things as they are
        absent = {part for part, page in enumerate(self.mine) if page is None}
        unread = absent if self.random.randrange(_LOOKS_WITHOUT_A_TOUCH) else set()
        self.expect_contents(unread)
        for run in self.runs(range(len(self.one.parts)), lambda part: part.is_readable):
            self.reached(run, written=False, but=unread)

    def _expect_pages(self) -> None:
        """Expect the page table to have the pages that the process has, and smaps and numa_maps to tell of as many."""
        memory = self.one.memory
        offsets = (0, self.live.base_page, self.unit // 2, self.unit - self.live.base_page)
        for part, page in enumerate(self.mine):
            entries = memory.pagemap(memory.at(part) + offset for offset in offsets)
            if page is None:
                self.live.expect(f"entries of page {part}", [0] * len(offsets), [entry & PRESENT for entry in entries])
                continue
            frame = entries[0] & FRAME
            frames = [frame + offset // self.live.base_page for offset in offsets]
            self.live.expect(f"frames of page {part}", frames, [entry & FRAME for entry in entries])
            is_alone, is_of_a_file = self.holders(page) == 1, self.one.file is not None
            told = [(bool(entry & EXCLUSIVE), bool(entry & OF_A_FILE)) for entry in entries]
            bits, not_alone = ([(alone, is_of_a_file)] * len(offsets) for alone in (is_alone, False))
            seeming = {Quirk.SMAPS_SHOWS_SHARED: not_alone} if self.live.mmu.may_seem_shared(self.unit) else None
            self.live.expect(f"page {part} is mapped once, and of a file", bits, told, seeming)
            # one page has one frame in all processes, and two have not the same
            others = [other for other, its in self._frames.items() if its == frame and other != page]
            self.live.expect(f"pages with the frame of page {part}", [], others)
            self.live.expect(f"frame of page {part} in others", self._frames.setdefault(page, frame), frame)
        for name, expected, found, known in self._told():
            self.live.expect(name, expected, found, known)

    def _expect_read(self, file: HugeFile) -> None:
        """Expect read(2) to find in the file what is mapped, and in holes zeroes."""
        for part, value in enumerate(self.one.values):
            offset = part * self.unit + self.unit // 2 - WORD
            expected = [value + offset + at if value else 0 for at in (0, WORD)]
            found = file.actor.uapi.unpack("2Q", file.read(offset, 2 * WORD))
            self.live.expect(f"words that are read of page {part}", expected, [*found])

    def _told(self) -> Iterator[tuple[str, object, object, Mapping[Quirk, object]]]:
        """Yield what is told of each mapping, what the page table says of it, what is found, and with known bugs."""
        memory = self.one.memory
        on_nodes = read_numa_maps(ObservedTree(self.live.host), memory.actor.pid) or ()
        counted = {each.start: {node: pages for node, pages in each.nodes.items() if pages} for each in on_nodes}
        for mapping in memory.all_mappings():
            first, end = ((place - memory.address) // self.unit for place in (mapping.start, mapping.end))
            pages = {part: page for part, page in enumerate(self.mine[first:end], first) if page is not None}
            alone = [memory.at(part) for part, page in pages.items() if self.holders(page) == 1]
            private, all_pages = len(alone) * self.unit, len(pages) * self.unit
            seeming = seeming_shared(self.live, alone, mapping.private_hugetlb)
            yield f"Private_Hugetlb and Shared_Hugetlb of pages {first} to {end}", all_pages, mapping.hugetlb, {}
            yield f"Private_Hugetlb of pages {first} to {end}", private, mapping.private_hugetlb, seeming
            if on_nodes:
                here = counted.get(mapping.start, {})
                yield f"pages {first} to {end} in numa_maps", len(pages), sum(here.values()), {}
                there = [memory.at(part) for part in range(first, end) if self.mine[part] is not None]
                if there and "r" in mapping.permissions:
                    nodes = Counter(nodes_of(memory.actor, there))
                    yield f"nodes of pages {first} to {end} in numa_maps", dict(nodes), here, {}
