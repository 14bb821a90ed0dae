"""Buffers that io_uring(7) chooses from a ring that its user provides: the ring and the buffers in huge pages."""

import errno
import mmap
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.hugetlb_files import new_memfd
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.provided_buffers import ENTRY, MOST_REQUESTS, ProvidedBuffers
from hugepage_qa.cases.thp_memory import room_for
from hugepage_qa.cases.thp_policy import huge_pages, map_in_parts
from hugepage_qa.kernel.uapi import MADV_COLLAPSE, MADV_DONTNEED, MADV_PAGEOUT, MAP_FIXED
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Refused
from hugepage_qa.sizes import MIB
from hugepage_qa.version import KernelVersion

PROVIDED = Area("memory/provided-buffers")

SOURCE = "io_uring_register(2) IORING_REGISTER_PBUF_RING; io_uring_enter(2) IOSQE_BUFFER_SELECT"
SINCE = "5.19"
#: IOU_PBUF_RING_MMAP
_MAPS_OURS = KernelVersion(6, 4)
#: of each huge page, where two meet
_MOST = 4 * MIB
_BUFFER, _VALUE, _BYTE = 64, 1000, 1


@PROVIDED.case(
    "what io_uring reads into a buffer of a ring is there, as long as the buffer is or as the request wants, and"
    " nothing beside it, wherever in pages of a pool the buffer begins and ends, and whether the ring is in one, too",
    SOURCE,
    pages=3,
    since=SINCE,
)
def contents(live: Live) -> None:
    _expect_contents(live, live.map(3))


@PROVIDED.case(
    "what io_uring reads into a buffer of a ring is there, as long as the buffer is or as the request wants, and"
    " nothing beside it, wherever in transparent huge pages the buffer begins and ends, and whether the ring is in one,"
    " too",
    SOURCE,
    sizes=Sizes.ONCE,
    since=SINCE,
)
def contents_of_transparent_pages(live: Live) -> None:
    _expect_contents(live, huge_pages(live, 3))


def _expect_contents(live: Live, memory: Memory) -> None:
    """Expect what is read into buffers in the last pages of ``memory`` to be right, with a ring in the first one."""
    base, half, actor = live.base_page, min(memory.size, _MOST), memory.actor
    start = memory.size * 2 - half
    area = Memory(live, actor, memory.address + start, 1, 2 * half)
    file = _file(memory, 2 * half)
    for buffers in _rings(live, memory):
        for at, length in (
            (0, base),
            (base - WORD, base + 2 * WORD),
            (WORD, 70 * 1024),
            (half - 3 * base - WORD, 6 * base + 2 * WORD),
            (half // 2, half + base),
            (0, 2 * half),
        ):
            for wanted in (0, length // 2 // WORD * WORD, 2 * length):
                with live.about(f"{length} bytes at {at}, of which {wanted or 'all'} are wanted"):
                    area.fill(_VALUE)
                    buffers.provide((area.address + at, length))
                    done, number = buffers.read(file, wanted)[0]
                    expected = min(wanted or length, length)
                    live.expect("bytes read", expected, done)
                    live.expect("whether it tells of a buffer", True, number is not None)
                    live.expect("words read wrong", 0, actor.check(area.address + at, expected, WORD, 1))
                    beside = area.wrong_beside(at, at + expected, _VALUE)
                    live.expect("words beside them that changed", 0, beside)


def _rings(live: Live, memory: Memory) -> Iterator[ProvidedBuffers]:
    """Yield a ring in the first page of ``memory``, and one in memory of the kernel, where it has such."""
    entries = _entries(live)
    ours = ProvidedBuffers(live, memory.actor, entries)
    ours.register(memory.address)
    yield ours
    # what a ring has that is closed with its user goes later
    ours.unregister()
    if live.kernel_version >= _MAPS_OURS:
        of_kernel = ProvidedBuffers(live, memory.actor, entries)
        of_kernel.register_of_kernel()
        yield of_kernel


def _entries(live: Live) -> int:
    """Return how many entries are in four base pages."""
    return 4 * live.base_page // ENTRY


def _file(memory: Memory, length: int) -> int:
    """Return a descriptor of a file as long, whose words are what ``Memory.fill`` stores."""
    actor = memory.actor
    file = actor.call("memfd_create", "data", 0)
    actor.call("ftruncate", file, length)
    address = actor.mmap(length, READ_WRITE, mmap.MAP_SHARED, file)
    actor.fill(address, length, WORD, 1)
    actor.call("munmap", address, length)
    return file


@PROVIDED.case(
    "io_uring takes each buffer of a ring of several base pages in a page of a pool once, from the first to the last"
    " and from the first again, and when none is left it is ENOBUFS",
    SOURCE,
    pages=2,
    since=SINCE,
)
def each_once(live: Live) -> None:
    _expect_each_once(live, live.map(2))


@PROVIDED.case(
    "io_uring takes each buffer of a ring of several base pages in a transparent huge page once, from the first to the"
    " last and from the first again, and when none is left it is ENOBUFS",
    SOURCE,
    sizes=Sizes.ONCE,
    since=SINCE,
)
def each_once_of_transparent_pages(live: Live) -> None:
    _expect_each_once(live, huge_pages(live, 2))


def _expect_each_once(live: Live, memory: Memory) -> None:
    file, addresses = _ones(memory), [memory.at(1) + number * _BUFFER for number in range(_entries(live))]
    for buffers in _rings(live, memory):
        for first, count in ((0, len(addresses)), (0, 3), (3, len(addresses)), (3, len(addresses) - 3), (0, 1)):
            with live.about(f"{count} buffers from number {first} on"):
                numbers = [(first + number) % len(addresses) for number in range(count)]
                memory.fill_part(memory.size, len(addresses) * _BUFFER, _VALUE)
                buffers.provide(*((addresses[number], _BUFFER) for number in numbers))
                _expect_read(live, buffers, file, numbers)
                total = memory.wrong(memory.size, len(addresses) * _BUFFER, _VALUE)
                live.expect("words read into buffers", count * _BUFFER // WORD, total)
                live.expect("what a request without a buffer is", [(-errno.ENOBUFS, None)], buffers.read(file))


def _ones(memory: Memory) -> int:
    """Return a descriptor of a file of ones, as long as a buffer."""
    file = memory.actor.call("memfd_create", "ones", 0)
    memory.actor.call("pwrite64", file, bytes([_BYTE] * _BUFFER), _BUFFER, 0)
    return file


def _expect_read(live: Live, buffers: ProvidedBuffers, file: int, numbers: list[int]) -> None:
    """Expect as many requests to be read into the buffers ``numbers``, whichever into which."""
    found = list[tuple[int, int | None]]()
    while len(found) < len(numbers):
        found += buffers.read(file, 0, min(MOST_REQUESTS, len(numbers) - len(found)))
    live.expect("what requests read", {_BUFFER}, {done for done, _number in found})
    used = [number for _done, number in found if number is not None]
    twice, missing = len(used) - len(set(used)), sorted(set(numbers) - set(used))
    live.expect("buffers that were used twice, and that were not", (0, []), (twice, missing))


Act = Callable[[Memory], object]


@PROVIDED.case(
    "a ring of buffers in a transparent huge page is the same for io_uring and for its user whatever is done to the"
    " page: a fork, and what parent or child write then, parts, MADV_PAGEOUT, MADV_COLLAPSE; when it is unmapped or"
    " MADV_DONTNEED is given for it io_uring has what was provided before",
    f"{SOURCE}; Documentation/core-api/pin_user_pages.rst; fork(2)",
    sizes=Sizes.ONCE,
    since=SINCE,
)
def kept(live: Live) -> None:
    acts: dict[str, tuple[Act, bool]] = {
        "a fork": (Memory.fork, True),
        "a fork, and the child writes": (lambda memory: memory.fork().fill(7), True),
        "parts": (lambda memory: map_in_parts(live, memory), True),
        "MADV_PAGEOUT": (lambda memory: memory.advise(MADV_PAGEOUT), True),
        "MADV_COLLAPSE of parts": (lambda memory: _collapse_parts(live, memory), True),
        "MADV_DONTNEED": (lambda memory: memory.advise(MADV_DONTNEED, 0, 1), False),
        "munmap(2)": (lambda memory: memory.unmap(0, 1), False),
    }
    for what, (act, stays) in acts.items():
        with live.about(what):
            memory = huge_pages(live, 2)
            file, count = _ones(memory), _entries(live)
            buffers = ProvidedBuffers(live, memory.actor, count)
            buffers.register(memory.address)
            provided = [(memory.at(1) + number * _BUFFER, _BUFFER) for number in range(count)]
            buffers.provide(*provided)
            act(memory)
            _expect_read(live, buffers, file, list(range(count)))
            expected = zlib.adler32(bytes([_BYTE] * (count * _BUFFER)))
            live.expect("checksum of the buffers", expected, memory.actor.sum(memory.at(1), count * _BUFFER))
            if stays:
                buffers.provide(*provided)
                _expect_read(live, buffers, file, list(range(count)))
            buffers.unregister()
            memory.actor.end()


def _collapse_parts(live: Live, memory: Memory) -> None:
    map_in_parts(live, memory)
    # before Linux 6.1 there is no such advice, and what is pinned stays as it is
    with suppress(Refused):
        memory.advise(MADV_COLLAPSE)


@PROVIDED.case(
    "a page of a pool with a ring of buffers is free when the ring is unregistered, the io_uring closed, or its user"
    " has ended, though its file has it no more, wherever in it the ring is; a ring that is refused has none",
    SOURCE,
    pages=1,
    since=SINCE,
)
def given_back(live: Live) -> None:
    def close(buffers: ProvidedBuffers, _memory: Memory) -> None:
        buffers.close()

    def unregister(buffers: ProvidedBuffers, _memory: Memory) -> None:
        buffers.unregister()

    def end(_buffers: ProvidedBuffers, memory: Memory) -> None:
        memory.actor.end()

    for (what, let_go), several, at_end in product(
        (("unregistered", unregister), ("closed", close), ("its user has ended", end)), (False, True), (False, True)
    ):
        size, place = "several base pages" if several else "one", "end" if at_end else "start"
        with live.about(f"{what}, of {size} at its {place}"):
            file = new_memfd(live, pages=1)
            memory = file.map(1)
            memory.touch()
            entries = _entries(live) if several else 2
            buffers = ProvidedBuffers(live, memory.actor, entries)
            length = -(-entries * ENTRY // live.base_page) * live.base_page
            buffers.register(memory.address + (memory.size - length if at_end else 0))
            file.truncate(0)
            memory.unmap()
            live.expect_pool(nr=1, free=0)
            let_go(buffers, memory)
            # a worker lets go of what it has
            live.host.wait_until(lambda: live.pool().free == 1)
            live.expect_pool(nr=1, free=1)
            memory.actor.end()
    _expect_refusals(live)


def _expect_refusals(live: Live) -> None:
    """Expect rings that are not in memory as a whole, or wrong, to be refused, and the page of the pool to be free."""
    file = new_memfd(live, pages=1)
    # what is mapped behind it cannot be used
    memory = file.map(1, at=room_for(file.actor, 2, live.size), flags=MAP_FIXED)
    memory.touch()
    actor, entries, base = memory.actor, _entries(live), live.base_page
    past_the_end = memory.address + memory.size - base
    for what, number, address, count in (
        ("beyond what is mapped", errno.EFAULT, past_the_end, entries),
        ("at no base page", errno.EINVAL, memory.address + ENTRY, entries),
        ("of no power of two", errno.EINVAL, memory.address, 3),
        ("of too many", errno.EINVAL, memory.address, 1 << 16),
    ):
        with live.about(f"a ring {what}"):
            buffers = ProvidedBuffers(live, actor, count)
            live.expect_errno(number, buffers.register, address)
    registered = ProvidedBuffers(live, actor, entries)
    registered.register(memory.address)
    with live.about("a second ring of a group"):
        live.expect_errno(errno.EEXIST, registered.register, memory.address)
    registered.unregister()
    file.truncate(0)
    memory.unmap()
    live.host.wait_until(lambda: live.pool().free == 1)
    live.expect_pool(nr=1, free=1)


class Provided(LiveTest):
    def test_provided_buffers(self) -> None:
        self.run_area(PROVIDED)
