"""Memory with an untouched huge range amid its pages that is carried at once: each byte comes to its place.

What can be pinned without a fault ends where no page is (mm/gup.c gup_fast()); there pages are brought, and the rest
follows. What nobody has touched has no page table.
"""

import mmap
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.fragmentation import compact_if_short
from hugepage_qa.cases.hugetlb_files import HugeFile, open_again
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.pinned_pages import Pin, open_for_direct_io
from hugepage_qa.cases.reached_from_outside import read_of_another
from hugepage_qa.cases.thp_memory import pmd_size, room_for
from hugepage_qa.cases.thp_policy import expect_huge_bytes, give_on_advice
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE, MADV_NOHUGEPAGE, MAP_FIXED
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor
from hugepage_qa.sizes import MIB

CARRIED_HOLES = Area("memory/carried-holes")

RULE = (
    "what is carried from memory of which a huge range was never touched is each byte in its place, and zeroes for the"
    " range, and what is carried into it comes to its place, and changes nothing beside it"
)
SOURCE = "mm/gup.c gup_fast(), gup_fast_pmd_range(), gup_fast_pud_range(), __get_user_pages()"
OLD, NEW = 5, 7
#: huge ranges, and the one that is never touched
_PAGES, _UNTOUCHED = 3, 1
#: base pages that are carried at each side of a border, and as many beside them are looked at
_EDGE = 4
#: of a longer hole the whole is not carried: a disk has to hold it
_LONGEST_HOLE = 16 * MIB


@dataclass(frozen=True)
class _Way:
    """How the kernel takes what is at an address of memory to ``buffer`` of ``reader``, and puts that there."""

    reader: Actor
    buffer: int
    take: Callable[[int, int], int]
    put: Callable[[int, int], int]
    #: a hole that is longer it cannot carry as a whole
    most: int = _LONGEST_HOLE


_MakeWay = Callable[[Live, Memory], _Way]


def _by_pipe(live: Live, memory: Memory) -> _Way:
    actor, buffer = memory.actor, _buffer(live, memory.actor, memory)

    def take(place: int, length: int) -> int:
        reader, writer = actor.pipe()
        given = actor.call("vmsplice", writer, live.host.uapi.pack("2Q", place, length), 1, 0)
        live.expect("bytes given to the pipe", length, given)
        found = actor.call("read", reader, buffer, length)
        _close(actor, reader, writer)
        return found

    def put(place: int, length: int) -> int:
        reader, writer = actor.pipe()
        live.expect("bytes written to the pipe", length, actor.call("write", writer, buffer, length))
        found = actor.call("vmsplice", reader, live.host.uapi.pack("2Q", place, length), 1, 0)
        _close(actor, reader, writer)
        return found

    # a pipe has room for 16 base pages, and who gives it more waits (PIPE_DEF_BUFFERS)
    return _Way(actor, buffer, take, put, most=0)


def _by_disk(live: Live, memory: Memory) -> _Way:
    actor, buffer = memory.actor, _buffer(live, memory.actor, memory)
    direct = open_for_direct_io(live, actor)
    cached = open_again(live, HugeFile(live, actor, direct), actor).descriptor

    def take(place: int, length: int) -> int:
        live.expect("bytes that O_DIRECT writes", length, actor.call("pwrite64", direct, place, length, 0))
        return actor.call("pread64", cached, buffer, length, 0)

    def put(place: int, length: int) -> int:
        live.expect("bytes for the file", length, actor.call("pwrite64", cached, buffer, length, 0))
        return actor.call("pread64", direct, place, length, 0)

    return _Way(actor, buffer, take, put)


def _by_fixed_buffer(live: Live, memory: Memory) -> _Way:
    actor, buffer = memory.actor, _buffer(live, memory.actor, memory)
    file, pin = actor.call("memfd_create", "carried", 0), Pin(live, memory)

    def take(place: int, length: int) -> int:
        part = place - memory.address, length
        pin.hold(part)
        live.expect("bytes written from the fixed buffer", length, pin.to_file(file, *part))
        pin.let_go()
        return actor.call("pread64", file, buffer, length, 0)

    def put(place: int, length: int) -> int:
        part = place - memory.address, length
        live.expect("bytes for the file", length, actor.call("pwrite64", file, buffer, length, 0))
        pin.hold(part)
        found = pin.from_file(file, *part)
        pin.let_go()
        return found

    return _Way(actor, buffer, take, put)


def _by_another(live: Live, memory: Memory) -> _Way:
    other, owner = live.actor(), memory.actor.pid
    buffer = _buffer(live, other, memory)

    def take(place: int, length: int) -> int:
        local, remote = (live.host.uapi.pack("2Q", at, length) for at in (buffer, place))
        return read_of_another(live, other, owner, local, remote)

    def put(place: int, length: int) -> int:
        local, remote = (live.host.uapi.pack("2Q", at, length) for at in (buffer, place))
        return other.call("process_vm_writev", owner, local, 1, remote, 1, 0)

    return _Way(other, buffer, take, put)


@CARRIED_HOLES.case(f"by vmsplice(2): {RULE}", f"vmsplice(2); {SOURCE}", pages=_PAGES)
def given_to_pipes(live: Live) -> None:
    _judge_pages(live, _by_pipe)


@CARRIED_HOLES.case(f"by O_DIRECT: {RULE}", f"open(2) O_DIRECT; {SOURCE}", pages=_PAGES)
def carried_to_a_disk(live: Live) -> None:
    _judge_pages(live, _by_disk)


@CARRIED_HOLES.case(
    f"through fixed buffers: {RULE}",
    f"io_uring_register(2) IORING_REGISTER_BUFFERS; {SOURCE}",
    since="5.12",
    pages=_PAGES,
)
def carried_through_fixed_buffers(live: Live) -> None:
    _judge_pages(live, _by_fixed_buffer)


@CARRIED_HOLES.case(
    f"by process_vm_readv(2) and process_vm_writev(2): {RULE}", f"process_vm_readv(2); {SOURCE}", pages=_PAGES
)
def carried_by_another_process(live: Live) -> None:
    _judge_pages(live, _by_another)


@CARRIED_HOLES.case(
    f"of transparent huge pages and base pages by vmsplice(2): {RULE}", f"vmsplice(2); {SOURCE}", sizes=Sizes.ONCE
)
def thp_given_to_pipes(live: Live) -> None:
    _judge_thp(live, _by_pipe)


@CARRIED_HOLES.case(
    f"of transparent huge pages and base pages by O_DIRECT: {RULE}", f"open(2) O_DIRECT; {SOURCE}", sizes=Sizes.ONCE
)
def thp_carried_to_a_disk(live: Live) -> None:
    _judge_thp(live, _by_disk)


@CARRIED_HOLES.case(
    f"of transparent huge pages and base pages through fixed buffers: {RULE}",
    f"io_uring_register(2) IORING_REGISTER_BUFFERS; {SOURCE}",
    since="5.12",
    sizes=Sizes.ONCE,
)
def thp_carried_through_fixed_buffers(live: Live) -> None:
    _judge_thp(live, _by_fixed_buffer)


@CARRIED_HOLES.case(
    f"of transparent huge pages and base pages by process_vm_readv(2) and process_vm_writev(2): {RULE}",
    f"process_vm_readv(2); {SOURCE}",
    sizes=Sizes.ONCE,
)
def thp_carried_by_another_process(live: Live) -> None:
    _judge_thp(live, _by_another)


def _judge_pages(live: Live, make: _MakeWay) -> None:
    actor = live.actor()
    # kept until then: what a way maps for itself is not to lie where pages are mapped again and again
    place = live.map(_PAGES, actor, noreserve=True)
    way = make(live, place)
    # gigantic pages take seconds each
    for shared in (True,) if live.is_gigantic else (False, True):
        map_anew = partial(live.map, _PAGES, actor, shared=shared, flags=MAP_FIXED, at=place.address)
        with live.about(f"shared {shared}"):
            _expect_carried(live, way, live.size, map_anew)
    live.expect_pool(nr=_PAGES, free=_PAGES)


def _judge_thp(live: Live, make: _MakeWay) -> None:
    give_on_advice(live)
    actor, size = live.actor(), pmd_size(live)
    compact_if_short(live, size, _PAGES)
    memory = Memory(live, actor, room_for(actor, _PAGES, size), _PAGES, size)
    way = make(live, memory)
    for kind, *advice in product((mmap.MAP_PRIVATE, mmap.MAP_SHARED), *[(MADV_HUGEPAGE, MADV_NOHUGEPAGE)] * _PAGES):
        with live.about(f"mapped with flag {kind}, advised {advice}"):
            _expect_as_advised(live, _mapped_anew(memory, kind, advice), advice)
            _expect_carried(live, way, size, partial(_mapped_anew, memory, kind, advice))


def _mapped_anew(memory: Memory, kind: int, advice: list[int]) -> Memory:
    flags = kind | mmap.MAP_ANONYMOUS | MAP_FIXED
    memory.actor.mmap(memory.length, READ_WRITE, flags, address=memory.address)
    for page, advised in enumerate(advice):
        memory.advise(advised, page, 1)
    return memory


def _expect_as_advised(live: Live, memory: Memory, advice: list[int]) -> None:
    """Touch all but the range that stays untouched, and expect huge pages where they were advised.

    Raises CannotRun where memory is too fragmented for them.
    """
    touched = [page for page in range(_PAGES) if page != _UNTOUCHED]
    for page in touched:
        memory.fill_part(page * memory.size, live.base_page, OLD)
    expected = sum(memory.size for page in touched if advice[page] == MADV_HUGEPAGE)
    expect_huge_bytes(live, memory, expected)


def _expect_carried(live: Live, way: _Way, size: int, map_anew: Callable[[], Memory]) -> None:
    """Expect ``way`` to carry parts of memory in which the second ``size`` bytes were never touched, each time anew."""
    edge = _EDGE * live.base_page
    parts = [(size - edge, size + edge), (2 * size - edge, 2 * size + edge)]
    if size <= way.most:
        parts.append((size - edge, 2 * size + edge))
    for (start, end), expect in product(parts, (_expect_taken, _expect_put)):
        memory = map_anew()
        for first in (size - 2 * edge, 2 * size):
            memory.fill_part(first, 2 * edge, OLD)
        with live.about(f"{end - start} bytes at {start}"):
            expect(live, way, memory, start, end)
            for first in (start - edge, end):
                wrong = _wrong(memory.actor, memory.address + first, size, first, first + edge)
                live.expect(f"words from {first} on, beside them, that changed", 0, wrong)
        memory.unmap()


def _expect_taken(live: Live, way: _Way, memory: Memory, start: int, end: int) -> None:
    way.reader.fill(way.buffer, end - start, WORD, NEW)
    live.expect("bytes taken", end - start, way.take(memory.address + start, end - start))
    wrong = _wrong(way.reader, way.buffer, memory.size, start, end)
    live.expect("words taken that are not those of their place", 0, wrong)
    wrong = _wrong(memory.actor, memory.address + start, memory.size, start, end)
    live.expect("words of memory that changed", 0, wrong)


def _expect_put(live: Live, way: _Way, memory: Memory, start: int, end: int) -> None:
    way.reader.fill(way.buffer, end - start, WORD, NEW)
    live.expect("bytes put", end - start, way.put(memory.address + start, end - start))
    wrong = memory.actor.check(memory.address + start, end - start, WORD, NEW)
    live.expect("words that were put elsewhere", 0, wrong)


def _wrong(actor: Actor, address: int, size: int, start: int, end: int) -> int:
    """Return how many words at ``address`` are not those that memory holds from ``start`` to ``end`` at first."""
    wrong = 0
    for page in range(_PAGES):
        first, last = max(page * size, start), min((page + 1) * size, end)
        if first < last and page == _UNTOUCHED:
            wrong += actor.nonzero(address + first - start, last - first)
        elif first < last:
            wrong += actor.check(address + first - start, last - first, WORD, OLD + first)
    return wrong


def _buffer(live: Live, actor: Actor, memory: Memory) -> int:
    """Map as much as is carried at once at most, for an actor."""
    length = min(memory.size, _LONGEST_HOLE) + 2 * _EDGE * live.base_page
    return actor.mmap(length, READ_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _close(actor: Actor, *descriptors: int) -> None:
    for descriptor in descriptors:
        actor.call("close", descriptor)


class CarriedHoles(LiveTest):
    def test_carried_holes(self) -> None:
        self.run_area(CARRIED_HOLES)
