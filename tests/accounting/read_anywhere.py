"""Files with an entry for each page, read from anywhere: the entries are the same, however many are read at once."""

import errno
import mmap
import os
from collections.abc import Callable, Sequence

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.frames import ANONYMOUS, COMPOUND_HEAD, COMPOUND_TAIL, MAPPED, TRANSPARENT
from hugepage_qa.cases.khugepaged_clock import let_rest
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import FRAME, PAGEMAP, PRESENT, WORD, read_entries
from hugepage_qa.cases.thp_policy import base_pages, huge_pages
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor, Refused

READ_ANYWHERE = Area("accounting/read-anywhere", sizes=Sizes.ONCE)

PAGEMAP_DOC = "Documentation/admin-guide/mm/pagemap.rst"
IDLE_DOC = "Documentation/admin-guide/mm/idle_page_tracking.rst"
_DIRECTORY, _BITMAP, _BITS = "sys/kernel/mm/page_idle", "bitmap", 64
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
    if _BITMAP not in live.host.names(_DIRECTORY):
        raise CannotRun("this kernel has no CONFIG_IDLE_PAGE_TRACKING")
    let_rest(live)
    marked, other, small = huge_pages(live), huge_pages(live), base_pages(live)
    watcher = live.actor()
    descriptor = live.open(watcher, f"/{_DIRECTORY}/{_BITMAP}", os.O_RDWR)
    words = marked.size // live.base_page // _BITS
    if not words:
        raise CannotRun("a huge page has fewer base pages than a word of the bitmap has bits")

    def bits(frame: int) -> list[int]:
        return list(read_entries(watcher, descriptor, frame // _BITS, words))

    def is_idle(frame: int) -> bool:
        return bool(read_entries(watcher, descriptor, frame // _BITS, 1)[0] >> frame % _BITS & 1)

    def write(first: int, *values: int) -> int:
        data = watcher.uapi.pack(f"{len(values)}Q", *values)
        return watcher.call("pwrite64", descriptor, data, len(data), first * WORD)

    frames = [memory.frames().pop() for memory in (marked, other)]
    every_bit, nothing = (1 << _BITS) - 1, [0] * words
    if words > 1:
        # without the word of its first base page
        write(frames[0] // _BITS + 1, *[every_bit] * (words - 1))
        live.expect("bits after those of the others were written", nothing, bits(frames[0]))
    live.expect("bytes written", words * WORD, write(frames[0] // _BITS, *[every_bit] * words))
    idle = [1, *nothing[1:]]
    live.expect("bits of both", [idle, nothing], [bits(frame) for frame in frames])
    write(frames[0] // _BITS, *nothing)
    live.expect("bits after a 0 was written", idle, bits(frames[0]))
    of_small = small.present_frames(1)[:_FEW]
    chosen = set(of_small[::7])
    for frame in chosen:
        write(frame // _BITS, 1 << frame % _BITS)
    found = set(filter(is_idle, of_small))
    live.expect("base pages that are idle and should not be, and the other way round", set(), found ^ chosen)
    used = set(of_small[::14])
    # the processor writes down a use where it has forgotten what it knew of the page
    for prot in (mmap.PROT_READ, READ_WRITE):
        small.protect(prot)
    places = range(0, len(of_small) * live.base_page, 14 * live.base_page)
    held = [small.actor.read(small.address + place) for place in places]
    live.expect("what they hold", [1 + place for place in places], held)
    found = set(filter(is_idle, of_small))
    live.expect("the same when some of them were read", set(), found ^ (chosen - used))
    _expect_whole_entries(live, watcher, descriptor)
    _expect_end(live, watcher, descriptor)
    live.expect_errno(errno.EINVAL, watcher.call, "pwrite64", descriptor, bytes(WORD), WORD, WORD // 2)
    live.expect_errno(errno.EINVAL, watcher.call, "pwrite64", descriptor, bytes(WORD), WORD // 2, 0)
    live.expect_errno(errno.ENXIO, write, _BEYOND // _BITS, 1)


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
    """Files with an entry for each page.

    :avocado: enable
    """

    def test_read_anywhere(self) -> None:
        """Every case, once for the machine."""
        self.run_area(READ_ANYWHERE)
