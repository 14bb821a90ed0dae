"""What the kernel reads from huge pages and writes into them: O_DIRECT, pipes, other processes."""

import errno
import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate, product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.hugetlb_files import HugeFile, open_again
from hugepage_qa.cases.hugetlb_segments import get_segment
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.pinned_pages import open_for_direct_io, pipe_with, word_from
from hugepage_qa.cases.reached_from_outside import read_of_another
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.cases.thp_policy import base_pages, huge_pages
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor
from hugepage_qa.process.actor_link import Argument
from hugepage_qa.sizes import MIB

TRANSFER = Area("memory/transfer")
DIRECT = "open(2) O_DIRECT; mm/gup.c, mm/hugetlb.c: what was pinned is unpinned"
LONG = "process_vm_readv(2); mm/process_vm_access.c process_vm_rw_single_vec(); fs/proc/base.c mem_rw(); mm/gup.c"
BLOCK = 65536
OLD, NEW = 5, 7
#: of another process 1024 base pages are carried at a time, 4 MiB (PVM_MAX_KMALLOC_PAGES in mm/process_vm_access.c),
#: and to a disk 256 of them, or of what lies side by side (BIO_MAX_VECS in include/linux/bio.h)
_LONG, _MAPPED = 9 * MIB, 10 * MIB
#: of so many base pages the kernel has the list on its stack (PVM_MAX_PP_ARRAY_COUNT)
_SHORT_LIST = 16


@TRANSFER.case("O_DIRECT carries huge pages to a file and back, and holds no page afterwards", DIRECT, pages=2)
def direct_io(live: Live) -> None:
    memory = live.map(2)
    carry(live, memory)
    live.expect_pool(nr=2, free=0)
    memory.unmap()
    live.expect_pool(nr=2, free=2)


@TRANSFER.case("O_DIRECT carries the pages of a segment to a file and back", f"{DIRECT}; shmat(2)", pages=2)
def direct_io_of_a_segment(live: Live) -> None:
    segment = get_segment(live, 2 * live.size)
    memory, other = segment.attach(), segment.attach(live.actor())
    carry(live, memory)
    live.expect_pool(nr=2, free=0)
    live.expect("words that another process does not see", 0, other.actor.check(other.at(2) - BLOCK, BLOCK, 8, 5))
    for attached in (memory, other):
        segment.detach(attached)
    segment.remove()
    live.expect_pool(nr=2, free=2)


def carry(live: Live, memory: Memory) -> None:
    """Have O_DIRECT carry parts of two pages to a file and back."""
    call = memory.actor.call
    file = HugeFile(live, memory.actor, open_for_direct_io(live, memory.actor))
    half = live.base_page // 2
    # the middle one lies across both pages
    parts = [(place, BLOCK) for place in (memory.address, memory.at(1) - BLOCK // 2, memory.at(2) - BLOCK)]
    if half % file.direct_alignment:
        live.notes.append(_no_half_pages(file.direct_alignment))
    else:
        # that begin, or end, within a base page, and stay within the first page
        lengths = (min(BLOCK, memory.size - half), BLOCK - half)
        parts += [(memory.address, BLOCK - half), *((memory.address + half, length) for length in lengths)]
    for place, length in parts:
        memory.actor.fill(place, length, 8, 5)
        live.expect("bytes written", length, call("pwrite64", file.descriptor, place, length, 0))
        memory.actor.fill(place, length, 8, 0)
        live.expect("bytes read", length, call("pread64", file.descriptor, place, length, 0))
        live.expect("words that changed on the way", 0, memory.actor.check(place, length, 8, 5))


def _no_half_pages(alignment: int) -> str:
    return f"the disk carries multiples of {alignment} bytes, no half base pages"


@TRANSFER.case("a page in a pipe stays until it is read, though its mapping has gone", "vmsplice(2)", pages=1)
def page_in_a_pipe(live: Live) -> None:
    memory = live.map(1)
    memory.touch(value=7)
    reader = pipe_with(live, memory)
    memory.unmap()
    live.expect_pool(nr=1, free=0, known={Quirk.PINNED_PAGE_UNRESERVED: {"resv": -1}})
    live.expect("what came out", 7, word_from(live, memory.actor, reader))
    live.expect_pool(nr=1, free=1)


@TRANSFER.case("one process reads and writes the huge pages of another", "process_vm_readv(2)", pages=2)
def pages_of_another_process(live: Live) -> None:
    ours, theirs = live.map(1), live.map(1)
    call = ours.actor.call
    for offset in (0, live.base_page, live.size // 2 + WORD, live.size - WORD):
        local, remote = (
            live.host.uapi.pack("2Q", address, WORD) for address in (ours.address, theirs.address + offset)
        )
        theirs.actor.write(theirs.address + offset, 7 + offset)
        read = read_of_another(live, ours.actor, theirs.actor.pid, local, remote)
        live.expect(f"bytes read at {offset}", WORD, read)
        live.expect(f"what was read at {offset}", 7 + offset, ours.read())
        ours.touch(value=8)
        written = call("process_vm_writev", theirs.actor.pid, local, 1, remote, 1, 0)
        live.expect(f"bytes written at {offset}", WORD, written)
        live.expect(f"what was written at {offset}", 8, theirs.actor.read(theirs.address + offset))
    live.expect_pool(nr=2, free=0)


@TRANSFER.case(
    "however much others read and write at once, from wherever in a base page on, each byte comes to its place, and"
    " none beside it changes: by process_vm_readv(2), process_vm_writev(2) and /proc/PID/mem",
    LONG,
)
def long_stretches(live: Live) -> None:
    _expect_pages_carried(live, _by_call, _by_file)


@TRANSFER.case(
    "however much others read and write at once of base pages and of huge pages, from wherever in a base page on, each"
    " byte comes to its place, and none beside it changes",
    LONG,
    sizes=Sizes.ONCE,
)
def long_stretches_of_a_thp(live: Live) -> None:
    _expect_thp_carried(live, _by_call, _by_file)


@TRANSFER.case(
    "however much O_DIRECT carries at once, from wherever in a base page on, each byte comes to its place, and none"
    " beside it changes",
    DIRECT,
)
def long_direct_io(live: Live) -> None:
    _expect_pages_carried(live, _by_disk)


@TRANSFER.case(
    "however much of base pages and of huge pages O_DIRECT carries at once, from wherever in a base page on, each byte"
    " comes to its place, and none beside it changes",
    DIRECT,
    sizes=Sizes.ONCE,
)
def long_direct_io_of_a_thp(live: Live) -> None:
    _expect_thp_carried(live, _by_disk)


def _expect_pages_carried(live: Live, *ways: "_MakeWay") -> None:
    memory = _mapped(live)
    _expect_carried(live, memory, *ways)
    live.expect_pool(nr=memory.pages, free=0)
    memory.actor.end()
    live.expect_pool(nr=memory.pages, free=memory.pages)


def _expect_thp_carried(live: Live, *ways: "_MakeWay") -> None:
    for make in (base_pages, huge_pages):
        memory = make(live, -(-_MAPPED // pmd_size(live)))
        with live.about(make.__name__.replace("_", " ")):
            _expect_carried(live, memory, *ways)
        memory.actor.end()


@TRANSFER.case(
    "process_vm_readv(2) and process_vm_writev(2) carry one range after the other, however they are cut here and there,"
    " up to the first that is not mapped",
    "process_vm_readv(2) lvec, rvec, RETURN VALUE; mm/process_vm_access.c process_vm_rw_core()",
)
def many_ranges(live: Live) -> None:
    memory = _mapped(live)
    reader = live.actor()
    buffer, gone = _buffer(reader), _buffer(memory.actor)
    # the machine may forbid it
    read_of_another(live, reader, memory.actor.pid, *(live.host.uapi.pack("2Q", at, WORD) for at in (buffer, gone)))
    memory.actor.call("munmap", gone, _LONG)
    memory.fill_part(0, _MAPPED, OLD)
    base = live.base_page
    parts = [(7 * MIB + base - WORD, 2 * WORD), (3 * WORD, 5 * MIB), (6 * MIB + 5 * WORD, _SHORT_LIST * base)]
    for cut, missing in product((WORD, MIB + 3 * WORD), (None, 0, 2, 3)):
        there = [(memory.address + offset, length) for offset, length in parts]
        carried = parts[:missing]
        if missing is not None:
            there.insert(missing, (gone, base))
        everything, total = sum(length for _place, length in there), sum(length for _offset, length in carried)
        local = live.host.uapi.pack("4Q", buffer, cut, buffer + cut, everything - cut)
        remote = b"".join(live.host.uapi.pack("2Q", *part) for part in there)
        words = memory.actor.pid, local, 2, remote, len(there), 0
        starts = list(accumulate((length for _offset, length in carried), initial=0))
        with live.about(f"cut after {cut} bytes, range {missing} is not mapped"):
            reader.fill(buffer, everything, WORD, NEW)
            _expect_bytes(live, total, reader, "process_vm_readv", *words)
            for (offset, length), start in zip(carried, starts, strict=False):
                live.expect("words read elsewhere", 0, reader.check(buffer + start, length, WORD, OLD + offset))
            rest = reader.check(buffer + total, everything - total, WORD, NEW + total) if everything > total else 0
            live.expect("words behind them that changed", 0, rest)
            reader.fill(buffer, everything, WORD, NEW)
            _expect_bytes(live, total, reader, "process_vm_writev", *words)
            for (offset, length), start in zip(carried, starts, strict=False):
                place = memory.address + offset
                live.expect("words written elsewhere", 0, memory.actor.check(place, length, WORD, NEW + start))
                memory.actor.fill(place, length, WORD, OLD + offset)
            live.expect("words beside them that changed", 0, memory.wrong(0, _MAPPED, OLD))
    live.expect_pool(nr=memory.pages, free=0)


def _expect_bytes(live: Live, total: int, actor: Actor, call: str, *words: Argument) -> None:
    if total:
        live.expect(f"bytes of {call}()", total, actor.call(call, *words))
    else:
        live.expect_errno(errno.EFAULT, actor.call, call, *words)


def _mapped(live: Live) -> Memory:
    """Return huge pages of at least 10 MiB, all of them touched."""
    pages = -(-_MAPPED // live.size)
    live.reserve(pages)
    memory = live.map(pages)
    for page in range(pages):
        memory.touch(page)
    return memory


def _buffer(actor: Actor) -> int:
    return actor.mmap(_LONG, READ_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _expect_carried(live: Live, memory: Memory, *ways: "_MakeWay") -> None:
    """Expect another process to get what is in the first 10 MiB of ``memory``, and to store other words there."""
    other, short = live.actor(), _SHORT_LIST * live.base_page
    for make in ways:
        way = make(live, other, memory)
        # from within a base page on, if that is a whole block of the disk
        start = max(live.base_page // 2, way.alignment)
        shift = 0 if way.alignment > WORD else 3 * WORD
        for length in (short, short + start, 5 * MIB, _LONG - 2 * start):
            _expect_carried_by(live, way, memory, start + shift, length - 2 * shift)
    other.end()


def _expect_carried_by(live: Live, way: "_Way", memory: Memory, offset: int, length: int) -> None:
    owner, other = memory.actor, way.other
    place, behind = memory.address + offset, offset + length
    with live.about(f"{length} bytes at {offset} by {way.name}"):
        owner.fill(memory.address, _MAPPED, WORD, OLD)
        live.expect("bytes read", length, way.read(place, length))
        live.expect("words read elsewhere", 0, other.check(way.buffer, length, WORD, OLD + offset))
        other.fill(way.buffer, length, WORD, NEW)
        live.expect("bytes written", length, way.write(place, length))
        live.expect("words written elsewhere", 0, owner.check(place, length, WORD, NEW))
        for start, end in ((0, offset), (behind, _MAPPED)):
            wrong = owner.check(memory.address + start, end - start, WORD, OLD + start)
            live.expect(f"words from {start} to {end} that changed", 0, wrong)


@dataclass(frozen=True)
class _Way:
    """How ``other`` gets what is at an address of another process into its ``buffer``, and the other way round."""

    name: str
    other: Actor
    buffer: int
    read: Callable[[int, int], int]
    write: Callable[[int, int], int]
    #: it carries multiples of so many bytes
    alignment: int = WORD


_MakeWay = Callable[[Live, Actor, Memory], _Way]


def _by_call(live: Live, other: Actor, memory: Memory) -> _Way:
    buffer, process = _buffer(other) + WORD, memory.actor.pid

    def ranges(place: int, length: int) -> tuple[bytes, bytes]:
        return live.host.uapi.pack("2Q", buffer, length), live.host.uapi.pack("2Q", place, length)

    def read(place: int, length: int) -> int:
        return read_of_another(live, other, process, *ranges(place, length))

    def write(place: int, length: int) -> int:
        local, remote = ranges(place, length)
        return other.call("process_vm_writev", process, local, 1, remote, 1, 0)

    return _Way("process_vm_readv() and process_vm_writev()", other, buffer, read, write)


def _by_file(live: Live, other: Actor, memory: Memory) -> _Way:
    buffer, file = _buffer(other) + WORD, live.open(other, f"/proc/{memory.actor.pid}/mem", os.O_RDWR)

    def read(place: int, length: int) -> int:
        return other.call("pread64", file, buffer, length, place)

    def write(place: int, length: int) -> int:
        return other.call("pwrite64", file, buffer, length, place)

    return _Way("/proc/PID/mem", other, buffer, read, write)


def _by_disk(live: Live, other: Actor, memory: Memory) -> _Way:
    owner, buffer = memory.actor, _buffer(other)
    direct = HugeFile(live, owner, open_for_direct_io(live, owner))
    alignment = direct.direct_alignment
    if live.base_page // 2 % alignment:
        live.notes.append(_no_half_pages(alignment))
    through_cache = open_again(live, direct, other).descriptor

    def read(place: int, length: int) -> int:
        live.expect("bytes that O_DIRECT writes", length, owner.call("pwrite64", direct.descriptor, place, length, 0))
        return other.call("pread64", through_cache, buffer, length, 0)

    def write(place: int, length: int) -> int:
        live.expect("bytes for the file", length, other.call("pwrite64", through_cache, buffer, length, 0))
        return owner.call("pread64", direct.descriptor, place, length, 0)

    return _Way("O_DIRECT", other, buffer, read, write, alignment)


@TRANSFER.case("a transfer into a page that cannot be had is EFAULT, and no signal", "read(2) EFAULT", pages=1)
def transfer_without_a_page(live: Live) -> None:
    memory = live.map(2, noreserve=True)
    memory.touch(0)
    reader, writer = memory.actor.pipe()
    live.expect("bytes written", 8, memory.actor.call("write", writer, bytes(8), 8))
    live.expect_errno(errno.EFAULT, memory.actor.call, "read", reader, memory.at(1), 8)
    live.expect_pool(nr=1, free=0)


class Transfer(LiveTest):
    def test_transfer(self) -> None:
        self.run_area(TRANSFER)
