"""Text that madvise(2) is to collapse while some of it, or all, has yet to be read from its disk."""

import errno
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.file_text import collapse_text, need_eligible, start_touched, whole_pages
from hugepage_qa.cases.fragmentation import expect_no_node_short, expect_no_shortage
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.madv_collapse import collapse
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.memory_policy import keep_to_one_cpu
from hugepage_qa.cases.pages_in_memory import base_pages_in_memory
from hugepage_qa.cases.text_program import evict
from hugepage_qa.cases.thp_memory import pmd_size, room_for
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.uapi import MADV_COLLAPSE, MAP_FIXED
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.oracle.program_text import Kind, round_up
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor
from hugepage_qa.process.text_program_build import BuiltText, Recipe

UNREAD = Area("text/unread-text", sizes=Sizes.ONCE)

COLLAPSE = "madvise(2) MADV_COLLAPSE; mm/khugepaged.c madvise_collapse(), collapse_file()"
#: its pages can be collapsed as soon as they are read
_FILE_SYSTEM = "ext4"
#: POSIX_FADV_RANDOM: what is asked for is read, and nothing ahead of it
_RANDOM = 1
#: how often a collapse is tried, each time on text that is read anew, and after a pause of so many seconds
_ATTEMPTS, _PAUSE_SECONDS = 10, 0.2
#: what others have a hold of in that moment is EAGAIN: compaction takes pages from their list, say
_BUSY = errno.EAGAIN, errno.EBUSY
_EXECUTABLE = mmap.PROT_READ | mmap.PROT_EXEC
#: bytes that are read from a file at once, at most
_CHUNK = 1 << 20


@UNREAD.case(
    "MADV_COLLAPSE of text that the page cache has but for one base page, the first, one in the middle or the last,"
    " reads that page and makes the text huge: it need not be asked for again; the text is right",
    COLLAPSE,
    since="6.1",
)
def one_page_is_missing(live: Live) -> None:
    text, base, size = _text(live), live.base_page, pmd_size(live)
    for missing in (0, size // 2, size - base):
        with live.about(f"without the base page at {missing}"):
            # of several the kernel waits for the first alone, and those behind it may be busy until they are read, too
            memory, answer = text.collapse_once(missing)
            for _attempt in range(_ATTEMPTS - 1):
                if -answer not in _BUSY:
                    break
                memory.actor.end()
                live.host.pause(_PAUSE_SECONDS)
                memory, answer = text.collapse_once(missing)
            if answer == -errno.ENOMEM:
                expect_no_node_short(live, size, 1)
                expect_no_shortage(live, size, 1)
            if answer:
                live.fail(
                    f"the last of up to {_ATTEMPTS} answers of MADV_COLLAPSE", 0, errno.errorcode.get(-answer, answer)
                )
            text.expect_collapsed(memory)


@UNREAD.case(
    "MADV_COLLAPSE of text that the page cache has none of, or half of, or all but some base pages, reads what is"
    " missing and makes the text huge; the text is right",
    COLLAPSE,
    since="6.1",
)
def much_is_missing(live: Live) -> None:
    text, base, size = _text(live), live.base_page, pmd_size(live)
    halves = [range(size // 2)], [range(size // 2, size)], [range(size // 4, 3 * size // 4)]
    apart = [range(start, start + base) for start in range(0, size, size // 32)]
    for missing in ([range(size)], *halves, apart):
        with live.about(f"without {len(missing)} parts of {len(missing[0])} bytes from {missing[0].start} on"):
            memory = text.mapped_without(missing)
            collapse(live, partial(memory.advise, MADV_COLLAPSE))
            text.expect_collapsed(memory)


@dataclass(frozen=True)
class _Text:
    """A huge page of the text of a library of ``recipe``, from byte ``start`` of its file on, that nobody runs."""

    live: Live
    recipe: Recipe
    built: BuiltText
    start: int
    checksum: int

    def collapse_once(self, missing: int) -> tuple[Memory, int]:
        """Map it without the base page at ``missing``, and return what MADV_COLLAPSE of it answers, too."""
        memory = self.mapped_without([range(missing, missing + self.live.base_page)])
        return memory, memory.actor.result("madvise", memory.address, memory.length, MADV_COLLAPSE)

    def mapped_without(self, missing: Sequence[range]) -> Memory:
        """Map it in a process of its own: the page cache has it but for what is ``missing``, in ascending order.

        Raises CannotRun where it has more or less.
        """
        live, base, actor = self.live, self.live.base_page, self.live.actor()
        # a CPU has what it has read on a list of its own at first, and the kernel asks it alone to give that up
        keep_to_one_cpu(live, actor)
        memory = _mapped(live, actor, self.built, self.start)
        # a huge page that was made of it before would need no page table
        evict(live, self.recipe)
        self._leave_page_table(memory)
        evict(live, self.recipe)
        reader = live.open(actor, self.built.file, os.O_RDONLY)
        actor.call("fadvise64", reader, 0, 0, _RANDOM)
        # what lies before it and behind it, too: the kernel reads ahead when it reads what is missing
        gaps = [range(self.start + gap.start, self.start + gap.stop) for gap in missing]
        ends = [*(gap.start for gap in gaps), self.built.elf.size]
        for begin, end in zip((0, *(gap.stop for gap in gaps)), ends, strict=True):
            self._read(actor, reader, begin, end)
        pages = range(memory.length // base)
        wanted = {page for page in pages if not any(page * base in gap for gap in missing)}
        found = base_pages_in_memory(live, actor, memory.address, pages)
        if found != wanted:
            raise CannotRun(
                f"{len(found - wanted)} base pages more and {len(wanted - found)} less are in the page cache"
            )
        return memory

    def _leave_page_table(self, memory: Memory) -> None:
        """Have ``memory`` be mapped by a page table that has none of its pages.

        Without one it cannot be collapsed on some kernels, as 6.1: SCAN_PMD_NULL and SCAN_PMD_NONE are EINVAL there.
        """
        self._expect_right(memory)
        # a table that all of is given up may go itself, since Linux 6.14
        half = memory.length // 2
        for start in (0, half):
            memory.actor.call("madvise", memory.address + start, half, mmap.MADV_DONTNEED)

    def _read(self, actor: Actor, descriptor: int, begin: int, end: int) -> None:
        """Read the file from ``begin`` to before ``end``."""
        buffer = actor.mmap(_CHUNK, READ_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        for place in range(begin, end, _CHUNK):
            length = min(_CHUNK, end - place)
            self.live.expect("bytes read", length, actor.call("pread64", descriptor, buffer, length, place))
        actor.call("munmap", buffer, _CHUNK)

    def expect_collapsed(self, memory: Memory) -> None:
        """Expect ``memory``, which it is mapped in, to be a huge page that has all of it. Ends the process."""
        live = self.live
        live.expect("FilePmdMapped", memory.length, memory.smaps().file_pmd_mapped)
        self._expect_right(memory)
        memory.actor.end()

    def _expect_right(self, memory: Memory) -> None:
        found = memory.actor.sum(memory.address, memory.length)
        self.live.expect("checksum of the text", self.checksum, found)


def _text(live: Live) -> _Text:
    """Return text that MADV_COLLAPSE makes huge, and nothing else. Raises CannotRun where it does not."""
    live.host.disk(_FILE_SYSTEM)
    program = start_touched(live, Kind.LIBRARY)
    need_eligible(live, program)
    live.set_knob(f"{DIRECTORY}/enabled", "never")
    collapse_text(live, program)
    program.touch()
    live.expect("FilePmdMapped of text that was read", whole_pages(live, program), program.huge())
    program.actor.end()
    size = pmd_size(live)
    recipe = Recipe(size, tail=size // 2, kind=Kind.LIBRARY)
    built = live.host.build_text(recipe)
    start = round_up(built.elf.segments[built.elf.text].offset, size)
    memory = _mapped(live, live.actor(), built, start)
    checksum = memory.actor.sum(memory.address, size)
    memory.actor.end()
    return _Text(live, recipe, built, start, checksum)


def _mapped(live: Live, actor: Actor, built: BuiltText, start: int) -> Memory:
    """Map a huge page of a file from ``start`` on as text."""
    size = pmd_size(live)
    descriptor = live.open(actor, built.file, os.O_RDONLY)
    place = room_for(actor, 1, size)
    address = actor.mmap(size, _EXECUTABLE, mmap.MAP_PRIVATE | MAP_FIXED, descriptor, start, place)
    return Memory(live, actor, address, 1, size)


class UnreadText(LiveTest):
    def test_unread_text(self) -> None:
        self.run_area(UNREAD)
