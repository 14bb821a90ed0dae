"""Files with an entry for each page, read from anywhere: the entries are the same, however many are read at once."""

import errno
import mmap
import os
from collections.abc import Callable, Sequence
from functools import partial
from operator import eq

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.frames import ANONYMOUS, COMPOUND_HEAD, COMPOUND_TAIL, MAPPED, TRANSPARENT
from hugepage_qa.cases.idle_bitmap import BITS, IdleBitmap, let_uses_show, use
from hugepage_qa.cases.idle_bitmap import DOC as IDLE_DOC
from hugepage_qa.cases.khugepaged_clock import let_rest
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import FRAME, PAGEMAP, PRESENT, WORD, Memory, read_entries
from hugepage_qa.cases.thp_policy import base_pages, huge_pages
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor, Refused

READ_ANYWHERE = Area("accounting/read-anywhere", sizes=Sizes.ONCE)

PAGEMAP_DOC = "Documentation/admin-guide/mm/pagemap.rst"
_EVERY_BIT = (1 << BITS) - 1
#: a frame that no machine has
_BEYOND = 1 << 50
#: how many entries are read at once
_COUNTS = (1, 2, 63, 511, 512, 513, 1025)
_PAGES = 3
#: base pages that are looked at one by one
_FEW = 128
#: what kpageflags shows of huge pages at all times
_FLAGS = COMPOUND_HEAD | COMPOUND_TAIL | TRANSPARENT | ANONYMOUS | MAPPED


@READ_ANYWHERE.case(
    "pagemap, kpageflags and kpagecount have the same entry for a base page of huge pages and of a hole between them,"
    " from wherever and however many are read, one read after the other, too; a part of an entry is EINVAL, and beyond"
    " the last one there is none",
    f"{PAGEMAP_DOC}; fs/proc/task_mmu.c pagemap_read(), pagemap_pmd_range(); fs/proc/page.c kpagecount_read(),"
    " kpageflags_read()",
)
def entries_of_pages(live: Live) -> None:
    let_rest(live)
    memory = huge_pages(live, _PAGES)
    firsts = [entry & FRAME for entry in memory.pagemap(map(memory.at, range(_PAGES)))]
    memory.advise(mmap.MADV_DONTNEED, 1, 1)
    every, reader = memory.size // live.base_page, memory.actor
    places: list[int] = []
    for page, first in enumerate(firsts):
        places += [0] * every if page == 1 else range(first, first + every)
    present = [PRESENT | frame if frame else 0 for frame in places]
    _expect_entries(live, reader, PAGEMAP, memory.address // live.base_page, present, PRESENT | FRAME)
    head, tail = (TRANSPARENT | ANONYMOUS | MAPPED | kind for kind in (COMPOUND_HEAD, COMPOUND_TAIL))
    _expect_entries(live, reader, "/proc/kpageflags", firsts[0], [head] + [tail] * (every - 1), _FLAGS)
    _expect_entries(live, reader, "/proc/kpagecount", firsts[2], [1] * every, FRAME)
    memory.part(2).expect_filled(1 + 2 * memory.size)


@READ_ANYWHERE.case(
    "the bitmap of idle pages has a huge page as its first base page: of many bits that are written at once the others"
    " are nobody's, and no other page is marked; a 0 changes nothing; of base pages each has its own bit; a part of a"
    " word is EINVAL, and beyond the last page nothing is read, and ENXIO what is written",
    f"{IDLE_DOC}; mm/page_idle.c page_idle_bitmap_read(), page_idle_bitmap_write()",
)
def idle_bits(live: Live) -> None:
    bitmap = IdleBitmap(live)
    let_rest(live)
    marked, other, small = huge_pages(live), huge_pages(live), base_pages(live)
    words = marked.size // live.base_page // BITS
    if not words:
        raise CannotRun("a huge page has fewer base pages than a word of the bitmap has bits")
    nothing = [0] * words
    idle = [1, *nothing[1:]]
    expected = [*[nothing] * (words > 1), words * WORD, idle, nothing, idle]
    found = live.host.last_attempt(partial(_bits_of_huge_pages, bitmap, marked, other, words), partial(eq, expected))
    live.expect("bits without the first word, bytes written, bits of both, bits after a 0 was written", expected, found)
    nobody: tuple[set[int], set[int]] = set(), set()
    of_small = live.host.last_attempt(partial(_wrong_base_pages, live, bitmap, small), partial(eq, nobody))
    live.expect("base pages that are idle where they should not be or the reverse, before and after", nobody, of_small)
    watcher, descriptor = bitmap.actor, bitmap.descriptor
    _expect_whole_entries(live, watcher, descriptor)
    _expect_end(live, watcher, descriptor)
    live.expect_errno(errno.EINVAL, watcher.call, "pwrite64", descriptor, bytes(WORD), WORD, WORD // 2)
    live.expect_errno(errno.EINVAL, watcher.call, "pwrite64", descriptor, bytes(WORD), WORD // 2, 0)
    live.expect_errno(errno.ENXIO, bitmap.write, _BEYOND // BITS, 1)


def _bits_of_huge_pages(bitmap: IdleBitmap, marked: Memory, other: Memory, words: int) -> list[object]:
    """Write bits of a page that is in use, those of its other base pages first, and return what is read each time."""
    use(marked)
    frames = [memory.frames().pop() // BITS for memory in (marked, other)]
    found: list[object] = []
    if words > 1:
        bitmap.write(frames[0] + 1, *[_EVERY_BIT] * (words - 1))
        found.append(bitmap.words(frames[0], words))
    found.append(bitmap.write(frames[0], *[_EVERY_BIT] * words))
    found += [bitmap.words(first, words) for first in frames]
    bitmap.write(frames[0], *[0] * words)
    return [*found, bitmap.words(frames[0], words)]


def _wrong_base_pages(live: Live, bitmap: IdleBitmap, memory: Memory) -> tuple[set[int], set[int]]:
    """Mark some of the base pages of ``memory``, and use some of these: return those that are not idle as they should.

    When they were marked, and when they were used.
    """
    use(memory)
    frames = memory.present_frames(1)[:_FEW]
    chosen, used = set(frames[::7]), set(frames[::14])
    bitmap.mark(chosen)
    wrong = set(filter(bitmap.is_idle, frames)) ^ chosen
    let_uses_show(memory)
    places = range(0, len(frames) * live.base_page, 14 * live.base_page)
    held = [memory.actor.read(memory.address + place) for place in places]
    live.expect("what they hold", [1 + place for place in places], held)
    return wrong, set(filter(bitmap.is_idle, frames)) ^ (chosen - used)


def _expect_entries(live: Live, reader: Actor, path: str, first: int, expected: Sequence[int], mask: int) -> None:
    """Expect the entries of ``path`` from number ``first`` on to be these, of the bits of ``mask``.

    Raises CannotRun where the file cannot be opened.
    """
    try:
        descriptor = live.open(reader, path, os.O_RDONLY)
    except Refused as refusal:
        raise CannotRun(f"{path} cannot be opened: {refusal.strerror}") from refusal
    half = len(expected) // 2
    with live.about(path):
        for count in _COUNTS:
            for start in {0, 1, half - 1, half, len(expected) - count}:
                if start >= 0 and start + count <= len(expected):
                    found = read_entries(reader, descriptor, first + start, count)
                    wrong = _first_wrong(found, expected[start : start + count], mask)
                    live.expect(f"first wrong one of {count} entries from {start} on", None, wrong)
        reader.call("lseek", descriptor, first * WORD, os.SEEK_SET)
        one_by_one: list[int] = []
        for count in (1, 3, 100):
            length, (data,) = reader.call_with_buffers("read", descriptor, bytes(count * WORD), count * WORD)
            one_by_one += reader.uapi.unpack(f"{length // WORD}Q", data[:length])
        wrong = _first_wrong(one_by_one, expected[: len(one_by_one)], mask)
        live.expect("first wrong one of reads one after the other", (104, None), (len(one_by_one), wrong))
        _expect_whole_entries(live, reader, descriptor)
        if path != PAGEMAP:  # of an address as high as that some processors leave bits out
            _expect_end(live, reader, descriptor)
    reader.call("close", descriptor)


def _expect_whole_entries(live: Live, reader: Actor, descriptor: int) -> None:
    """Expect a part of an entry to be EINVAL."""
    read: Callable[..., int] = reader.call
    for length, offset in ((WORD // 2, 0), (WORD + 1, 0), (WORD, 1), (WORD, WORD // 2)):
        live.expect_errno(errno.EINVAL, read, "pread64", descriptor, bytes(2 * WORD), length, offset)


def _expect_end(live: Live, reader: Actor, descriptor: int) -> None:
    found = reader.call("pread64", descriptor, bytes(WORD), WORD, _BEYOND * WORD)
    live.expect("bytes beyond the last entry", 0, found)


def _first_wrong(found: Sequence[int], expected: Sequence[int], mask: int) -> tuple[int, int, int] | None:
    """Return the number of the first entry that is another one, what it should be, and what it is."""
    if len(found) != len(expected):
        return min(len(found), len(expected)), len(expected), len(found)
    pairs = enumerate(zip(expected, found, strict=True))
    return next(((at, wanted, is_so & mask) for at, (wanted, is_so) in pairs if is_so & mask != wanted), None)


class ReadAnywhere(LiveTest):
    def test_read_anywhere(self) -> None:
        self.run_area(READ_ANYWHERE)
