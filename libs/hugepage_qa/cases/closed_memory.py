"""Memory that a program closes, to be told who reads or writes it: userfaultfd(2), UFFDIO_RWPROTECT (Linux 7.3).

All accesses are those of threads: one that never ends is told, and ends with its process.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise, product

from hugepage_qa.cases.clear_refs import pages_moved
from hugepage_qa.cases.hugetlb_files import new_memfd
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import WORD, WRITE_PROTECTED, Memory, runs
from hugepage_qa.cases.pagemap_scan import Is, Region, scan
from hugepage_qa.cases.thp_policy import base_pages, huge_pages, mapped_in_parts
from hugepage_qa.cases.thp_shared_memory import shared_base_pages
from hugepage_qa.cases.userfaultfd import Feature, Mode, Userfault, protected_pages
from hugepage_qa.cases.userfaultfd_messages import PageFault, Told
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.process.actor_threads import Came
from hugepage_qa.sizes import MIB

DOC, SINCE = "Documentation/admin-guide/mm/userfaultfd.rst Read-Write Protection", "7.3"
#: what makes memory without pools: what is its process's own, and all kinds
PRIVATE_KINDS = huge_pages, mapped_in_parts, base_pages
KINDS = *PRIVATE_KINDS, shared_base_pages
#: what the memory is filled with
VALUE = 1 << 40
#: an access opens what it finds closed
ASYNCHRONOUS = Feature.RWP | Feature.RWP_ASYNC
#: what an access looks at, and stores
_ACCESSED = 2 * WORD
#: of more memory than this pagemap is read for both ends of each page alone
_MUCH = 64 * MIB

Bytes = tuple[int, int]


def fill(memory: Memory) -> Memory:
    """Fill ``memory``, and all words that an access may look at, too: of large pages not all words are stored."""
    memory.fill(VALUE)
    for page in range(memory.pages):
        for place in places(memory.size):
            _store(memory, page * memory.size + place)
    return memory


def places(length: int) -> tuple[int, ...]:
    """Return where accesses look at ``length`` bytes: at both ends, and in the middle."""
    return 0, length // 2, length - _ACCESSED


def close(memory: Memory, feature: Feature = Feature.RWP, *, waits: bool = False) -> Userfault:
    """Register ``memory`` and close what is there of it: an access ends in SIGBUS, or ``waits``."""
    fault = Userfault(memory, Mode.READ_WRITE_PROTECTED, feature, waits=waits)
    fault.read_write_protect(length=memory.length)
    return fault


def close_first(memory: Memory) -> Userfault:
    """Register two pages and close what is there of the first one alone: an access of it ends in SIGBUS."""
    fault = close(memory)
    fault.read_write_protect(1, on=False)
    return fault


def begin_access(memory: Memory, place: int, *, writes: bool, value: int | None = None) -> None:
    """Have a thread access the words ``place`` bytes from the start, where ``value`` is, by default what was filled."""
    if writes:
        memory.actor.threads.use(memory.address + place, WORD, WORD)
    else:
        memory.actor.threads.watch(memory.address + place, WORD, WORD, VALUE + place if value is None else value)


def end_access(live: Live, memory: Memory, place: int, *, writes: bool) -> Came:
    """Return what came of the access, and have memory as it was. Raises Failed where the thread never ends."""
    (found,) = memory.actor.threads.stop(0)
    if Came.STUCK in found.came:
        live.fail(f"what came of an access at {place:#x}, writes {writes}", "an end of it", found.came)
    if found.came == Came.DONE:
        if writes:
            _store(memory, place)
        return Came.DONE
    # a thread that stores has found nothing wrong before
    return found.came & ~Came.DONE


def expect_access(
    live: Live, memory: Memory, place: int, came: Came = Came.DONE, *, writes: bool, value: int | None = None
) -> None:
    """Expect ``came`` to come of an access. Raises Failed where its thread never ends."""
    begin_access(memory, place, writes=writes, value=value)
    found = end_access(live, memory, place, writes=writes)
    live.expect(f"what came of an access at {place:#x}, writes {writes}", came, found)


def expect_told(live: Live, memory: Memory, fault: Userfault, place: int, unit: int, *, writes: bool) -> None:
    """Have a thread access a closed place, and expect it to be told, by multiples of ``unit`` bytes; it waits then."""
    begin_access(memory, place, writes=writes)
    address, written = memory.address + place, Told.WRITE if writes else Told(0)
    wanted = PageFault(Told.READ_WRITE_PROTECTED | written, address - address % unit)
    live.expect("what is told of the access", wanted, fault.await_fault(live))


def expect_every_access_told(live: Live, memory: Memory, fault: Userfault, unit: int) -> None:
    """Expect each access of filled memory, which is closed, to be told and to go on when it is opened, in place."""
    moved, frames = pages_moved(live), memory.frames()
    for page, place, writes in product(range(memory.pages), places(memory.size), (False, True)):
        with live.about(f"page {page}"):
            fault.read_write_protect(page)
            expect_told(live, memory, fault, page * memory.size + place, unit, writes=writes)
            fault.read_write_protect(page, on=False)
            came = end_access(live, memory, page * memory.size + place, writes=writes)
            live.expect("what came of the access", Came.DONE, came)
    fault.expect_nothing_told(live)
    found = memory.frames()
    # compaction may move base pages meanwhile
    if pages_moved(live) == moved:
        live.expect("frames", frames, found)
    memory.expect_filled(VALUE)


def expect_closed(live: Live, memory: Memory, *closed: Bytes) -> None:
    """Expect ``closed``, starts and ends in bytes, and nothing else of filled memory to be closed, and pagemap to say.

    An access of what is closed ends in SIGBUS.
    """
    expect_marked(live, memory, *closed)
    borders = sorted({0, memory.length, *(border for part in closed for border in part)})
    for start, end in pairwise(borders):
        came = Came.SIGBUS if (start, end) in closed else Came.DONE
        for place, writes in product({start, end - _ACCESSED}, (False, True)):
            expect_access(live, memory, place, came, writes=writes)


def expect_closed_anew(live: Live, memory: Memory, fault: Userfault) -> None:
    """Expect all of filled memory to be closed when it is closed again; it is open then, and holds what it held."""
    fault.read_write_protect(length=memory.length)
    expect_closed(live, memory, (0, memory.length))
    fault.read_write_protect(on=False, length=memory.length)
    memory.expect_filled(VALUE)


def expect_shared_still_closed(live: Live, memory: Memory, closed: Bytes) -> None:
    """Expect ``closed`` of filled shared memory, and nothing else, to be closed after others had it unmapped.

    Raises KnownBug.
    """
    start, end = closed
    wanted = [*range(start // live.base_page, end // live.base_page)]
    found = protected_pages(memory)
    live.expect("base pages that are closed", wanted, found, {Quirk.UNMAPPING_OPENS_SHARED: list[int]()})
    expect_closed(live, memory, closed)


def expect_open_at_last(live: Live, memory: Memory, fault: Userfault) -> None:
    """Expect filled memory to be open when it is registered no more, anew, and when its userfaultfd is closed."""
    fault.unregister()
    expect_closed(live, memory)
    fault.register(Mode.READ_WRITE_PROTECTED)
    expect_closed(live, memory)
    fault.read_write_protect(length=memory.length)
    expect_closed(live, memory, (0, memory.length))
    memory.actor.call("close", fault.descriptor)
    expect_closed(live, memory)
    memory.expect_filled(VALUE)


def expect_marked(live: Live, memory: Memory, *closed: Bytes) -> None:
    """Expect pagemap to say of ``closed``, and of nothing else, that it is closed."""
    base, every = live.base_page, memory.length // live.base_page
    of_a_page = memory.size // base
    if memory.length > _MUCH:
        looked_at = [number for first in range(0, every, of_a_page) for number in (first, first + of_a_page - 1)]
        entries = memory.pagemap(memory.address + number * base for number in looked_at)
        found = [number for number, entry in zip(looked_at, entries, strict=True) if entry & WRITE_PROTECTED]
    else:
        looked_at, found = [*range(every)], protected_pages(memory)
    marked = {number for start, end in closed for number in range(-(-start // base), -(-end // base))}
    wanted = [number for number in looked_at if number in marked]
    live.expect("base pages that are closed", _told(wanted), _told(found))


def expect_accessed(live: Live, memory: Memory, *accessed: Bytes) -> None:
    """Expect PAGEMAP_SCAN to tell of ``accessed``, starts and ends in bytes, that it was, and of nothing else."""
    found = scan(live, memory, Is.ACCESSED, Is.ACCESSED).regions
    live.expect("what was accessed", [Region(start, end, Is.ACCESSED) for start, end in accessed], found)


def new_pages(live: Live, pages: int, *, shared: bool) -> Memory:
    """Map pages of a pool, private ones or those of a file."""
    if not shared:
        return live.map(pages)
    file = new_memfd(live, pages=pages)
    return file.map(pages)


@contextmanager
def filled_memory(live: Live, make: Callable[[Live, int], Memory], about: str = "") -> Iterator[Memory]:
    """Yield two filled stretches of one of KINDS, as long as a huge page each; their process ends then."""
    memory = fill(make(live, 2))
    with live.about(", ".join(filter(None, (make.__name__, about)))):
        yield memory
    memory.actor.end()


@contextmanager
def filled_pages(
    live: Live, pages: int, *, shared: bool, filled: int | None = None, pool: int | None = 0
) -> Iterator[Memory]:
    """Yield memory of which all pages, or the first ones, are ``filled``; it ends, and all pages are free then.

    Those are ``pool`` pages, by default those of the memory; of None they are not looked at.
    """
    with live.about(f"shared {shared}"):
        memory = new_pages(live, pages, shared=shared)
        fill(memory.part(0, pages if filled is None else filled))
        yield memory
        memory.actor.end()
        if pool is not None:
            live.expect_pool(nr=pool or pages, free=pool or pages)


def _told(numbers: Sequence[int]) -> str:
    """Return which base pages these are, side by side or not."""
    return ", ".join(f"{one.start} to {one.stop - 1}" for one in runs(set(numbers))) or "none"


def _store(memory: Memory, place: int) -> None:
    for at in range(place, place + _ACCESSED, WORD):
        memory.actor.write(memory.address + at, VALUE + at)
