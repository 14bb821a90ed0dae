"""Buffers that are registered with io_uring(7), in huge pages: what requests carry of any part of them."""

import errno
import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.hugetlb_files import new_memfd
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.pinned_pages import LONGEST_BUFFER, Pin
from hugepage_qa.cases.places import free_place
from hugepage_qa.cases.thp_memory import room_for
from hugepage_qa.cases.thp_policy import huge_pages, mapped_in_parts
from hugepage_qa.kernel.uapi import MADV_NOHUGEPAGE, MAP_FIXED, MREMAP_FIXED, MREMAP_MAYMOVE
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor

FIXED_BUFFERS = Area("memory/fixed-buffers")

CARRIED = (
    "io_uring_enter(2) IORING_OP_READ_FIXED, IORING_OP_WRITE_FIXED, EFAULT; io_uring_register(2)"
    " IORING_REGISTER_BUFFERS; io_uring/rsrc.c io_import_fixed(), io_sqe_buffer_register()"
)
#: of huge pages that buffers lie in
_PAGES = 3
_VALUE = 1 << 40
#: no word of a base page, and no multiple of any
_ODD = 1001
#: of the buffers that memory of each kind is tried with
_SOME = 4
#: base pages that are looked at beside what is carried
_BESIDE = 4

Part = tuple[int, int]


@FIXED_BUFFERS.case(
    "requests carry any part of registered buffers to a file and from it, wherever buffer and part begin and end in"
    " huge pages, and change no byte beside it; what is not all in its buffer is EFAULT, and carries nothing",
    CARRIED,
    pages=_PAGES,
    sizes=Sizes.BUDDY,
)
def parts_of_hugetlb_pages(live: Live) -> None:
    memory = live.map(_PAGES)
    memory.fill(_VALUE)
    _expect_carried(live, memory, _buffers(live, live.size), written=True)
    memory.actor.end()
    live.expect_pool(nr=_PAGES, free=_PAGES)


@FIXED_BUFFERS.case(
    "requests carry any part of a registered buffer, in which pages lie in any order, one of them several times, to a"
    " file",
    CARRIED,
    pages=2,
    sizes=Sizes.BUDDY,
)
def hugetlb_pages_in_any_order(live: Live) -> None:
    file = new_memfd(live, pages=2)
    file.map(2).fill(_VALUE)
    for order in ((1, 0, 1), (0, 0, 1), (1, 0, 0)):
        place = free_place(live, file.actor, _PAGES)
        for number, page in enumerate(order):
            file.map(1, first=page, at=place + number * live.size, flags=MAP_FIXED)
        memory = Memory(live, file.actor, place, _PAGES, live.size)
        with live.about(f"pages {order}"):
            _expect_carried(live, memory, _buffers(live, live.size)[1:_SOME], written=False)
    file.actor.end()
    live.expect_pool(nr=2, free=2)


@FIXED_BUFFERS.case(
    "requests carry any part of registered buffers to a file and from it, whether they lie in transparent huge pages,"
    " mapped whole or in parts, in whatever order, or partly in base pages, and change no byte beside it",
    CARRIED,
    sizes=Sizes.ONCE,
)
def parts_of_other_memory(live: Live) -> None:
    for make in (huge_pages, mapped_in_parts, _halves_exchanged, _base_pages_between):
        memory = make(live, _PAGES)
        memory.fill(_VALUE)
        with live.about(make.__name__.strip("_").replace("_", " ")):
            _expect_carried(live, memory, _buffers(live, memory.size)[1:_SOME], written=True)
        memory.actor.end()


def _halves_exchanged(live: Live, pages: int) -> Memory:
    """Return huge pages of which each has its second half in front of the first one."""
    memory = huge_pages(live, pages)
    actor, half = memory.actor, memory.size // 2
    place, flags = room_for(actor, pages, memory.size), MREMAP_MAYMOVE | MREMAP_FIXED
    for at in range(0, memory.length, half):
        other = at + half if at % memory.size == 0 else at - half
        actor.call("mremap", memory.address + at, half, half, flags, place + other)
    return Memory(live, actor, place, pages, memory.size)


def _base_pages_between(live: Live, pages: int) -> Memory:
    """Return huge pages of which the second one is base pages, but for its last half, and so is the end of the last."""
    memory = huge_pages(live, pages)
    half = memory.size // 2
    for start, length in ((memory.size, half), (memory.length - live.base_page, live.base_page)):
        for advice in (MADV_NOHUGEPAGE, mmap.MADV_DONTNEED):
            memory.actor.call("madvise", memory.address + start, length, advice)
    return memory


def _buffers(live: Live, size: int) -> Sequence[Part]:
    """Return start and length of buffers in three pages: all, within base pages, from one page to another one.

    All is as much as the kernel takes.
    """
    base = live.base_page
    return (
        (0, min(_PAGES * size, LONGEST_BUFFER)),
        (base, min(_PAGES * size - 2 * base, LONGEST_BUFFER)),
        (size // 2 + _ODD, size + _ODD),
        (2 * size - _ODD, 2 * _ODD),
        (size, size),
        (3 * base + _ODD, _ODD),
    )


def _parts(live: Live, size: int, buffer: Part) -> list[Part]:
    """Return parts of a buffer, from the start of the memory on: at its ends, and at those of the pages it lies in."""
    start, length = buffer
    end, base = start + length, live.base_page
    borders = sorted({start + base - start % base, *range(size, _PAGES * size, size), size + size // 2})
    # across a border, up to it, and from it on
    around = cycle(((-WORD - 1, 3 * WORD), (-base, base), (0, base + 3)))
    parts = [(border + at, each) for border, (at, each) in zip(borders, around, strict=False)]
    within = [(at, each) for at, each in parts if start <= at and at + each <= end]
    # all of it, its last byte, and of a short one all but its ends
    return [buffer, (end - 1, 1), *([(start + 1, length - 2)] if length < base else []), *within]


def _expect_carried(live: Live, memory: Memory, buffers: Sequence[Part], *, written: bool) -> None:
    """Expect parts of ``buffers`` to come to a file and, ``written``, others from there in their place."""
    pin = Pin(live, memory)
    pin.hold(*buffers)
    file = _file(memory.actor, memory.length)
    for number, buffer in enumerate(buffers):
        for part in _parts(live, memory.size, buffer):
            with live.about(f"{part} of the buffer {buffer}"):
                _expect_to_file(live, memory, pin, file, number, part)
                if written:
                    _expect_from_file(live, memory, pin, file, number, part)
        _expect_refused(live, memory, pin, file, number, buffer)
    live.expect("of a buffer that there is not", -errno.EFAULT, pin.to_file(file.descriptor, 0, WORD, len(buffers)))
    pin.let_go()
    live.expect("of a buffer that was let go", -errno.EFAULT, pin.to_file(file.descriptor, 0, WORD))


def _expect_to_file(live: Live, memory: Memory, pin: Pin, file: "_File", number: int, part: Part) -> None:
    actor, (start, length) = memory.actor, part
    # what was carried before is nothing to go by
    actor.fill(file.address, -(-length // WORD) * WORD, WORD, 0)
    live.expect("bytes written to a file", length, pin.to_file(file.descriptor, start, length, number))
    live.expect("sum of the file", actor.sum(memory.address + start, length), actor.sum(file.address, length))


def _expect_from_file(live: Live, memory: Memory, pin: Pin, file: "_File", number: int, part: Part) -> None:
    actor, (start, length) = memory.actor, part
    # nowhere else is the same
    actor.fill(file.address, -(-length // WORD) * WORD, WORD, (number + 3) * _VALUE + start * _VALUE // memory.size)
    before = _sums_beside(live, memory, part)
    live.expect("bytes read from a file", length, pin.from_file(file.descriptor, start, length, number))
    live.expect("sum of the memory", actor.sum(file.address, length), actor.sum(memory.address + start, length))
    live.expect("sums of what is beside it", before, _sums_beside(live, memory, part))


def _sums_beside(live: Live, memory: Memory, part: Part) -> tuple[int, int]:
    """Return the sums of what lies in front of a part and behind it, a few base pages of each."""
    start, end, beside = part[0], sum(part), _BESIDE * live.base_page
    front, behind = min(start, beside), min(memory.length - end, beside)
    actor, address = memory.actor, memory.address
    return actor.sum(address + start - front, front), actor.sum(address + end, behind)


def _expect_refused(live: Live, memory: Memory, pin: Pin, file: "_File", number: int, buffer: Part) -> None:
    """Expect nothing to be carried that is not all in its buffer, which is that of ``number``."""
    start, length = buffer
    kept = _BESIDE * live.base_page
    # nowhere else is the same
    memory.actor.fill(file.address, kept, WORD, (number + 3) * _VALUE + 1)

    def sums() -> list[int]:
        at_ends = [each for end in (start, start + length) for each in _sums_beside(live, memory, (end, 0))]
        return [*at_ends, memory.actor.sum(file.address, kept)]

    for part in ((start - 1, WORD), (start, length + 1)):
        with live.about(f"{part}, not all in the buffer {buffer}"):
            before = sums()
            for carry in (pin.to_file, pin.from_file):
                live.expect(carry.__name__, -errno.EFAULT, carry(file.descriptor, *part, number))
            live.expect("sums of what is beside its ends, and of the file", before, sums())


@dataclass(frozen=True)
class _File:
    """An open file, mapped at ``address``."""

    descriptor: int
    address: int


def _file(actor: Actor, length: int) -> _File:
    descriptor = actor.call("memfd_create", "carried", 0)
    actor.call("ftruncate", descriptor, length)
    return _File(descriptor, actor.mmap(length, READ_WRITE, mmap.MAP_SHARED, descriptor))


class FixedBuffers(LiveTest):
    def test_fixed_buffers(self) -> None:
        self.run_area(FIXED_BUFFERS)
