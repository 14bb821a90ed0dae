"""Memory that a program closes while others act: children, who moves it, who reaches it from outside, who is woken."""

import errno
import mmap
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product

from hugepage_qa.cases.closed_memory import (
    ASYNCHRONOUS,
    VALUE,
    close,
    end_access,
    expect_access,
    expect_accessed,
    expect_closed,
    expect_closed_anew,
    expect_every_access_told,
    expect_marked,
    expect_told,
)
from hugepage_qa.cases.forced_writes import debugging
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.pinned_pages import Pin, open_for_direct_io, word_from
from hugepage_qa.cases.thp_memory import map_aligned
from hugepage_qa.cases.userfaultfd import Feature, Mode, Userfault
from hugepage_qa.cases.userfaultfd_messages import Event
from hugepage_qa.process.actor_threads import Came

#: what others write
_NEW_VALUE = 1 << 41


@dataclass(frozen=True)
class Way:
    """How a filled word of memory is reached otherwise than by a load or a store.

    ``reach`` gets its place, or is ``refused`` so; what it returns judges what was read or written.
    """

    name: str
    reach: Callable[[Live, Memory, int], Callable[[], None]]
    refused: int
    writes: bool = False


def debugger_reads(live: Live, memory: Memory, place: int) -> Callable[[], None]:
    """Have a debugger read a word by /proc/PID/mem. Raises Refused."""
    with debugging(live, memory.actor.pid) as (debugger, file):
        _count, (found,) = debugger.call_with_buffers("pread64", file, bytes(WORD), WORD, memory.address + place)
    return partial(_expect_word, live, place, found)


def debugger_writes(live: Live, memory: Memory, place: int) -> Callable[[], None]:
    """Have a debugger write a word by /proc/PID/mem. Raises Refused."""
    with debugging(live, memory.actor.pid) as (debugger, file):
        word = live.host.uapi.pack("Q", _NEW_VALUE)
        written = debugger.call("pwrite64", file, word, WORD, memory.address + place)
    return partial(live.expect, "bytes written", WORD, written)


def disk_takes(live: Live, memory: Memory, place: int) -> Callable[[], None]:
    """Write the base page of the word to a disk past the page cache. Raises Refused."""
    actor, base = memory.actor, live.base_page
    file, start = open_for_direct_io(live, actor), place // base * base
    written = actor.call("pwrite64", file, memory.address + start, base, 0)

    def judge() -> None:
        buffer = _base_page(live, memory)
        live.expect("bytes written", base, written)
        live.expect("bytes read", base, actor.call("pread64", file, buffer, base, 0))
        live.expect("words of the file that are wrong", 0, actor.check(buffer, base, WORD, VALUE + start))

    return judge


def disk_gives(live: Live, memory: Memory, place: int) -> Callable[[], None]:
    """Read the base page of the word from a disk past the page cache, where the word is another. Raises Refused."""
    actor, base = memory.actor, live.base_page
    file, start, buffer = open_for_direct_io(live, actor), place // base * base, _base_page(live, memory)
    actor.fill(buffer, base, WORD, VALUE + start)
    actor.write(buffer + place - start, _NEW_VALUE)
    live.expect("bytes written", base, actor.call("pwrite64", file, buffer, base, 0))
    read = actor.call("pread64", file, memory.address + start, base, 0)
    return partial(live.expect, "bytes read", base, read)


def pipe_takes(live: Live, memory: Memory, place: int) -> Callable[[], None]:
    """Have a pipe take the word (vmsplice(2)). Raises Refused."""
    reader, writer = memory.actor.pipe()
    vector = live.host.uapi.pack("2Q", memory.address + place, WORD)
    taken = memory.actor.call("vmsplice", writer, vector, 1, 0)

    def judge() -> None:
        live.expect("bytes in the pipe", WORD, taken)
        live.expect("word that comes out of the pipe", VALUE + place, word_from(live, memory.actor, reader))

    return judge


def ring_pins(live: Live, memory: Memory, place: int) -> Callable[[], None]:
    """Have io_uring(7) pin the base page of the word. Raises Refused."""
    pin = Pin(live, memory)
    pin.hold((place // live.base_page * live.base_page, live.base_page))

    def judge() -> None:
        file = memory.actor.call("memfd_create", "pinned", 0)
        live.expect("bytes carried through the pin", WORD, pin.to_file(file, place, WORD))
        _count, (word,) = memory.actor.call_with_buffers("pread64", file, bytes(WORD), WORD, 0)
        _expect_word(live, place, word)
        pin.let_go()

    return judge


DEBUGGERS = (
    Way("/proc/PID/mem read", debugger_reads, errno.EIO),
    Way("/proc/PID/mem written", debugger_writes, errno.EIO, writes=True),
)
PINS = (
    Way("O_DIRECT write", disk_takes, errno.EFAULT),
    Way("O_DIRECT read", disk_gives, errno.EFAULT, writes=True),
    Way("vmsplice", pipe_takes, errno.EFAULT),
    Way("io_uring", ring_pins, errno.EFAULT),
)


def expect_reached(live: Live, memory: Memory, way: Way, unit: int) -> None:
    """Expect filled memory to be refused while it is closed, and each access to open ``unit`` bytes where it may."""
    place = memory.size // 2
    fault = close(memory)
    live.expect_errno(way.refused, way.reach, live, memory, place)
    expect_marked(live, memory, (0, memory.length))
    memory.actor.call("close", fault.descriptor)
    memory.expect_filled(VALUE)
    fault = Userfault(memory, Mode.READ_WRITE_PROTECTED, ASYNCHRONOUS, waits=True, of_kernel=True)
    fault.read_write_protect(length=memory.length)
    way.reach(live, memory, place)()
    start = place // unit * unit
    closed = (0, start), (start + unit, memory.length)
    expect_marked(live, memory, *(one for one in closed if one[0] < one[1]))
    expect_accessed(live, memory, (start, start + unit))
    fault.expect_nothing_told(live)
    live.expect("word there", _NEW_VALUE if way.writes else VALUE + place, memory.actor.read(memory.address + place))
    memory.actor.write(memory.address + place, VALUE + place)
    memory.expect_filled(VALUE)


def expect_child_closed(
    live: Live, memory: Memory, unit: int, *, shared: bool, meanwhile: Callable[[], object] = lambda: None
) -> None:
    """Expect what is closed of two filled pages, the first, to be so for a child, of which is told apart.

    ``meanwhile`` is called when it is closed, before there is a child.
    """
    features = Feature.RWP | Feature.EVENT_FORK
    fault = Userfault(memory, Mode.READ_WRITE_PROTECTED, features, waits=True)
    fault.read_write_protect()
    meanwhile()
    child, faults = fault.fork(live)
    for one in (child, memory):
        expect_marked(live, one, (0, memory.size))
        expect_accessed(live, one, (memory.size, memory.length))
    sides = (child, faults, memory, fault), (memory, fault, child, faults)
    for (one, its, other, others), writes in product(sides, (False, True)):
        with live.about(f"{'the child' if one is child else 'the parent'} writes {writes}"):
            expect_told(live, one, its, memory.size // 2, unit, writes=writes)
            others.expect_nothing_told(live)
            its.read_write_protect(on=False)
            live.expect("what came of it", Came.DONE, end_access(live, one, memory.size // 2, writes=writes))
            expect_marked(live, one)
            expect_marked(live, other, (0, memory.size))
            its.read_write_protect()
    faults.read_write_protect(on=False)
    child.fill(_NEW_VALUE)
    fault.read_write_protect(on=False)
    memory.expect_filled(_NEW_VALUE if shared else VALUE)


def expect_closed_where_moved(live: Live, memory: Memory, address: int, unit: int) -> None:
    """Expect what is closed of two filled pages, the first, to be so at ``address``, if who closes is told of moves."""
    fault = Userfault(memory, Mode.READ_WRITE_PROTECTED, Feature.RWP | Feature.EVENT_REMAP, waits=True)
    fault.read_write_protect()
    numbers = memory.address, address, memory.length
    there = fault.event_of(live, partial(memory.moved_to, address), Event.REMAP, *numbers)
    expect_marked(live, there, (0, memory.size))
    expect_accessed(live, there, (memory.size, memory.length))
    first = there.part(0)
    expect_every_access_told(live, first, fault.handling(first), unit)
    there.expect_filled(VALUE)


def expect_woken_later(live: Live, memory: Memory, unit: int) -> None:
    """Expect who waits for a page to sleep when it is opened with UFFDIO_RWPROTECT_MODE_DONTWAKE, until it is woken."""
    fault = close(memory, waits=True)
    live.expect_errno(errno.EINVAL, fault.read_write_protect, wakes=False)
    for page, writes in product(range(memory.pages), (False, True)):
        with live.about(f"page {page}"):
            place, start = (page + 1) * memory.size - unit, page * memory.size
            fault.read_write_protect(length=memory.length)
            expect_told(live, memory, fault, place, unit, writes=writes)
            fault.read_write_protect(page, on=False, wakes=False)
            closed = (0, start), (start + memory.size, memory.length)
            expect_marked(live, memory, *(one for one in closed if one[0] < one[1]))
            for other in set(range(memory.pages)) - {page}:
                fault.wake(other, 1)
                fault.read_write_protect(other, on=False)
            live.expect("threads told of no more, and all that wait", (0, 1), fault.waiting(live))
            fault.wake(page, 1)
            live.expect("what came of it", Came.DONE, end_access(live, memory, place, writes=writes))
    memory.expect_filled(VALUE)


def expect_hole_filled(live: Live, memory: Memory, fault: Userfault, fill_hole: Callable[[], None]) -> None:
    """Expect a hole, the second page of two that are closed, to be open when it is filled, and what is beside it not.

    ``fill_hole`` fills it, and has the memory be filled.
    """
    fault.read_write_protect(length=memory.length)
    expect_marked(live, memory, (0, memory.size))
    expect_access(live, memory, memory.size, Came.SIGBUS, writes=False)
    fill_hole()
    expect_closed(live, memory, (0, memory.size))
    expect_closed_anew(live, memory, fault)


def copy_into_hole(live: Live, memory: Memory, fault: Userfault) -> None:
    """Have the program copy what the second page is filled with into it. A copy that is protected is refused."""
    source = map_aligned(live, 1, memory.size, actor=memory.actor)
    source.fill(VALUE + memory.size)
    live.expect_errno(errno.EINVAL, fault.copy, source, 1, protected=True)
    live.expect("bytes copied", memory.size, fault.copy(source, 1))


def expect_own_copy(live: Live, shared: Memory, private: Memory) -> None:
    """Expect what a private mapping of two filled pages writes, closed before or after it, to be its own alone."""
    private.expect_filled(VALUE)
    fault = close(private)
    expect_marked(live, private, (0, private.length))
    for writes in (False, True):
        expect_access(live, private, private.size, Came.SIGBUS, writes=writes)
    fault.read_write_protect(1, on=False)
    own = private.part(1)
    own.fill(_NEW_VALUE)
    expect_marked(live, private, (0, private.size))
    fault.read_write_protect(1)
    expect_marked(live, private, (0, private.length))
    fault.set_mode(Feature.RWP_ASYNC, 0)
    own.expect_filled(_NEW_VALUE)
    private.fill(_NEW_VALUE)
    expect_marked(live, private)
    private.expect_filled(_NEW_VALUE)
    shared.expect_filled(VALUE)


def _expect_word(live: Live, place: int, found: bytes) -> None:
    live.expect("word that was read", VALUE + place, live.host.uapi.unpack("Q", found)[0])


def _base_page(live: Live, memory: Memory) -> int:
    """Return the address of a base page that is mapped beside ``memory``."""
    return memory.actor.mmap(live.base_page, READ_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
