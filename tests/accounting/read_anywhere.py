"""Files with an entry for each page, read from anywhere: the entries are the same, however many are read at once."""

import errno
import mmap
import os
import re
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from operator import eq

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.frames import ANONYMOUS, COMPOUND_HEAD, COMPOUND_TAIL, MAPPED, TRANSPARENT
from hugepage_qa.cases.idle_bitmap import BITMAP, BITS, IdleBitmap, has_idle_bitmap, let_uses_show, use
from hugepage_qa.cases.idle_bitmap import DOC as IDLE_DOC
from hugepage_qa.cases.khugepaged_clock import let_rest
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import FRAME, PAGEMAP, PRESENT, WORD, Memory, read_entries
from hugepage_qa.cases.places import end_of_addresses
from hugepage_qa.cases.thp_policy import base_pages, huge_pages
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor, Refused

READ_ANYWHERE = Area("accounting/read-anywhere", sizes=Sizes.ONCE)

PAGEMAP_DOC = "Documentation/admin-guide/mm/pagemap.rst"
_EVERY_BIT = (1 << BITS) - 1
#: a frame that no machine has
_BEYOND = 1 << 50
#: no machine has more memory, in bytes, and above it some processors leave bits of an address out
_MOST = 1 << 54
#: where a file has ended, and how many entries are asked for
_NOTHING_LEFT = (0, 1, 0), (0, 64, 0), (1, 1, 0), (513, 2, 0)
#: of frames, as kpageflags is, and the options of kernels that have them
_OF_FRAMES = {"/proc/kpagecount": "PROC_PAGE_MONITOR", "/proc/kpagecgroup": "MEMCG"}
#: how many entries are read at once
_COUNTS = (1, 2, 63, 511, 512, 513, 1025)
_PAGES = 3
#: blocks of memory that the machine has, by number
_BLOCKS, _BLOCK = "sys/devices/system/memory", re.compile(r"memory(\d+)")
#: what is told of a frame that is no page, and of how many that is read at once
_NO_PAGE, _SOME = 1 << 20, 64
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


@READ_ANYWHERE.case(
    "what is read across the end of kpagecount, kpageflags, kpagecgroup, the bitmap of idle pages, or pagemap is what"
    " lies before it, and from there on it is nothing, and no error, however far behind and however often; those of"
    " frames end at the same one, and the bitmap not behind it, and each has those of huge pages",
    f"read(2); {PAGEMAP_DOC}; {IDLE_DOC}; fs/proc/page.c kpage_read(); fs/proc/task_mmu.c pagemap_read();"
    " mm/page_idle.c page_idle_bitmap_read()",
    since="5.10",
)
def ends(live: Live) -> None:
    let_rest(live)
    memory = huge_pages(live)
    frames_end = memory.frames().pop() + memory.size // live.base_page
    end = _expect_end_of(live, memory.actor, "/proc/kpageflags")
    live.expect("whether a huge page lies before the end", True, frames_end <= end)
    for path, option in _OF_FRAMES.items():
        if live.host.kernel_option(option) is not False:
            live.expect(f"end of {path}", end, _expect_end_of(live, memory.actor, path))
    if has_idle_bitmap(live):
        idle = _expect_end_of(live, memory.actor, BITMAP)
        # the others end with a section of memory, whose last frames may be none, and the bitmap with a whole word
        within = frames_end // BITS <= idle <= end // BITS
        live.expect("whether the bitmap ends behind a huge page, and not behind the others", True, within)
    addresses = end_of_addresses(live, memory.actor)
    if addresses < _MOST:
        mapped = _expect_end_of(live, memory.actor, PAGEMAP) * live.base_page
        live.expect("whether pagemap has entries of all that can be mapped", True, mapped >= addresses)
    memory.expect_filled()


@READ_ANYWHERE.case(
    "of a frame amid memory that no block of memory has, kpageflags tells that there is no page (NOPAGE), and nothing"
    " else, and kpagecount that nobody maps it; a part of an entry is EINVAL",
    f"{PAGEMAP_DOC} /proc/kpageflags 20 - NOPAGE; fs/proc/page.c stable_page_flags(), kpagecount_read()",
)
def frames_of_no_memory(live: Live) -> None:
    numbers = {int(match[1]) for name in live.host.names(_BLOCKS) if (match := _BLOCK.fullmatch(name))}
    holes = sorted({*range(max(numbers, default=0))} - numbers)
    if not holes:
        raise CannotRun("blocks of memory have no hole between them, or this kernel does not tell of them")
    every = int(live.host.read(f"{_BLOCKS}/block_size_bytes") or "", 16) // live.base_page
    reader = live.actor()
    known = {Quirk.HOLES_SHOWN_AS_PAGES: {0}}
    for path, expected in {"/proc/kpagecount": 0, "/proc/kpageflags": _NO_PAGE}.items():
        descriptor = _open(live, reader, path)
        for block, place in product({holes[0], holes[-1]}, (0, every // 2, every - _SOME)):
            found = set(read_entries(reader, descriptor, block * every + place, _SOME))
            live.expect(f"{path} of frames from {place} on of block {block}", {expected}, found, known)
        _expect_whole_entries(live, reader, descriptor)


def _expect_end_of(live: Live, reader: Actor, path: str) -> int:
    """Expect reads about the end of ``path`` to end there, and return how many entries it has.

    Raises CannotRun where the file cannot be opened.
    """
    descriptor = _open(live, reader, path)

    def read(first: int, count: int = 1) -> int:
        return reader.result("pread64", descriptor, bytes(count * WORD), count * WORD, first * WORD)

    most = _MOST // live.base_page
    low, high = 0, most
    while low < high:
        middle = (low + high) // 2
        if read(middle) == WORD:
            low = middle + 1
        else:
            high = middle
    with live.about(path):
        for first, count, left in ((-1, 1, 1), (-1, 2, 1), (-2, 5, 2), (-3, 100, 3), *_NOTHING_LEFT):
            found = read(low + first, count)
            live.expect(f"bytes read of {count} entries, {first} from the end on", left * WORD, found)
        live.expect("bytes read far behind the end", 0, read(most))
        reader.call("lseek", descriptor, (low - 1) * WORD, os.SEEK_SET)
        one_by_one = [reader.result("read", descriptor, bytes(WORD), WORD) for _time in range(3)]
        live.expect("bytes read one word after the other, from the last one on", [WORD, 0, 0], one_by_one)
    reader.call("close", descriptor)
    return low


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
    descriptor = _open(live, reader, path)
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
        counts = (1, 3, min(100, len(expected) - 4))
        for count in counts:
            length, (data,) = reader.call_with_buffers("read", descriptor, bytes(count * WORD), count * WORD)
            one_by_one += reader.uapi.unpack(f"{length // WORD}Q", data[:length])
        wrong = _first_wrong(one_by_one, expected[: len(one_by_one)], mask)
        live.expect("first wrong one of reads one after the other", (sum(counts), None), (len(one_by_one), wrong))
        _expect_whole_entries(live, reader, descriptor)
        if path != PAGEMAP:  # of an address as high as that some processors leave bits out
            _expect_end(live, reader, descriptor)
    reader.call("close", descriptor)


def _open(live: Live, reader: Actor, path: str) -> int:
    try:
        return live.open(reader, path, os.O_RDONLY)
    except Refused as refusal:
        raise CannotRun(f"{path} cannot be opened: {refusal.strerror}") from refusal


def _expect_whole_entries(live: Live, reader: Actor, descriptor: int) -> None:
    """Expect a part of an entry to be EINVAL."""
    read: Callable[..., int] = reader.call
    for length, offset in ((WORD // 2, 0), (WORD + 1, 0), (WORD, 1), (WORD, WORD // 2)):
        live.expect_errno(errno.EINVAL, read, "pread64", descriptor, bytes(2 * WORD), length, offset)


def _expect_end(live: Live, reader: Actor, descriptor: int) -> None:
    found = reader.result("pread64", descriptor, bytes(WORD), WORD, _BEYOND * WORD)
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
