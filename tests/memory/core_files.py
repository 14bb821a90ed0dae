"""Core files of processes with huge pages: which mappings coredump_filter lets in, and what the core has of them."""

import errno
import mmap
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.fragmentation import with_blocks
from hugepage_qa.cases.hugetlb_files import new_memfd
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.thp_memory import allow_on_advice, pmd_size
from hugepage_qa.cases.thp_policy import advised, fill_in_huge_pages
from hugepage_qa.kernel.counters import read_meminfo
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.uapi import (
    AT_FDCWD,
    MADV_DODUMP,
    MADV_DONTDUMP,
    MADV_DONTNEED,
    MADV_HUGEPAGE,
    MADV_NOHUGEPAGE,
    RLIM_INFINITY,
    RLIMIT_CORE,
)
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor, Refused
from hugepage_qa.sizes import MIB

CORES = Area("memory/core-files", sizes=Sizes.BUDDY)

DOC = "core(5); Documentation/filesystems/proc.rst coredump_filter"

_FILTER = "/proc/self/coredump_filter"
#: bits of it: anonymous private memory, hugetlb private memory, hugetlb shared memory
_ANONYMOUS, _PRIVATE, _SHARED = 1 << 0, 1 << 5, 1 << 6
_PATTERN = "proc/sys/kernel/core_pattern"
_SHARED_MEMORY = f"{DIRECTORY}/shmem_enabled"
#: where a core goes into the working directory
_IN_WORKING_DIRECTORY = "core"
# include/uapi/linux/elf.h: struct elf64_hdr with e_phoff and e_phnum, struct elf64_phdr
_HEADER, _HEADER_SIZE, _TABLE, _ENTRIES = "16x2HI3QI6H", 64, 4, 9
_SEGMENT, _SEGMENT_SIZE = "2I6Q", 56
#: beside the pages: what else the process has mapped, and what the machine needs
_MARGIN = 256 * MIB
#: huge pages that are not too large for some of them in a core
_LARGEST = 16 * MIB
_VALUE = 7


@dataclass(frozen=True)
class _Core:
    """A core file that ``reader`` has opened: address -> where its bytes are, how many, and of how much memory."""

    reader: Actor
    descriptor: int
    segments: dict[int, tuple[int, int, int]]


@CORES.case(
    "a core has private and shared pages of a pool as coredump_filter says: those that were touched as they are, others"
    " as zeroes",
    f"{DOC}; fs/coredump.c vma_dump_size(), dump_user_range()",
    pages=4,
)
def chosen_by_the_filter(live: Live) -> None:
    parent, directory = _parent(live)
    for chosen in (0, _PRIVATE, _SHARED, _PRIVATE | _SHARED):
        with live.about(f"coredump_filter {chosen:#x}"):
            child = parent.fork()
            private, shared = (_first_filled(live, child, shared=shared) for shared in (False, True))
            core = _core_of(live, parent, child, directory, chosen)
            _expect_in(live, core, private, is_there=bool(chosen & _PRIVATE))
            _expect_in(live, core, shared, is_there=bool(chosen & _SHARED))
            live.expect_pool(nr=4, free=4)


@CORES.case(
    "a core lacks pages of a pool that were advised so, whatever coredump_filter says, until that is taken back",
    f"{DOC}; madvise(2) MADV_DONTDUMP, MADV_DODUMP; fs/coredump.c vma_dump_size()",
    pages=2,
)
def left_out_on_advice(live: Live) -> None:
    parent, directory = _parent(live)
    for shared in (False, True):
        for is_taken_back in (False, True):
            with live.about(f"shared {shared}, taken back {is_taken_back}"):
                child = parent.fork()
                memory = _first_filled(live, child, shared=shared)
                memory.advise(MADV_DONTDUMP)
                if is_taken_back:
                    memory.advise(MADV_DODUMP)
                core = _core_of(live, parent, child, directory, _PRIVATE | _SHARED)
                _expect_in(live, core, memory, is_there=is_taken_back)
                live.expect_pool(nr=2, free=2)


@CORES.case(
    "a core has what a file holds of each page of a mapping, private or shared and whatever its protection, whether the"
    " process has written it, read it or left it to others to bring; it has the copy that the process made, and zeroes"
    " for what the file has not",
    f"{DOC}; mm/hugetlb.c hugetlbfs_pagecache_present(); mm/gup.c get_dump_page(), no_page_table()",
    pages=4,
)
def pages_of_files(live: Live) -> None:
    parent, directory = _parent(live)
    for shared, prot in product((False, True), (READ_WRITE, mmap.PROT_READ, 0)):
        with live.about(f"shared {shared}, protection {prot}"):
            file = new_memfd(live, parent, pages=4)
            brought = file.map(3)
            brought.fill(1)
            brought.unmap()
            child = parent.fork()
            memory = live.map(4, child, fd=file.descriptor, shared=shared, noreserve=True)
            file.close()
            child.fill(memory.address, live.size, memory.step, 5)
            live.expect("what the process reads of the file", 1 + live.size, memory.read(1))
            memory.protect(prot)
            core = _core_of(live, parent, child, directory, _SHARED if shared else _PRIVATE)
            _expect_in(live, core, memory, is_there=True, values=(5, 1, 1, None))
            live.expect_pool(nr=4, free=4)


@CORES.case(
    "a core has what ordinary memory holds in base pages and in huge pages, wherever in a huge page there are some that"
    " nobody has touched, or that were given back: the first one, the last one, all of it; these are zeroes",
    f"{DOC}; fs/coredump.c dump_user_range(); mm/gup.c get_dump_page()",
    sizes=Sizes.ONCE,
)
def ordinary_memory_with_holes(live: Live) -> None:
    base, size = live.base_page, pmd_size(live)
    if size > _LARGEST:
        raise CannotRun(f"cores with huge pages of {size >> 20} MiB take too much memory")
    parent, directory = _parent(live, 4 * size)
    allow_on_advice(live)
    holes = (0, base), (size - base, base), (size // 2, 3 * base), (0, size), (base, 2 * size - 2 * base)
    for advice, (start, length) in product((MADV_NOHUGEPAGE, MADV_HUGEPAGE), holes):
        with live.about(f"advice {advice}, {length} bytes from {start} of the second huge page on are not there"):
            child = parent.fork()
            memory = advised(live, 4, advice, actor=child)
            first, end = size + start, size + start + length
            if advice == MADV_HUGEPAGE:
                with_blocks(live, size, memory.pages)
                fill_in_huge_pages(live, memory)
                memory.expect_huge()
                child.call("madvise", memory.address + first, length, MADV_DONTNEED)
            for offset, filled in ((0, first), (end, memory.length - end)):
                child.fill(memory.address + offset, filled, WORD, _VALUE + offset)
            core = _core_of(live, parent, child, directory, _ANONYMOUS)
            place, in_core = _expect_segment(live, core, memory, is_there=True)
            if in_core == memory.length:
                address = parent.mmap(in_core, mmap.PROT_READ, mmap.MAP_PRIVATE, core.descriptor, place)
                wrong = (
                    parent.check(address, first, WORD, _VALUE),
                    parent.nonzero(address + first, length),
                    parent.check(address + end, memory.length - end, WORD, _VALUE + end),
                )
                live.expect("words that are wrong in front of it, not zero, and wrong behind it", (0, 0, 0), wrong)
                parent.call("munmap", address, in_core)
            parent.call("close", core.descriptor)


def _parent(live: Live, length: int | None = None) -> tuple[Actor, str]:
    """Return who has children that end with a core, and a directory for it. Raises CannotRun where none goes there."""
    pattern = (live.host.read(_PATTERN) or "").strip()
    if pattern != _IN_WORKING_DIRECTORY:
        raise CannotRun(f"cores do not go to the working directory: /{_PATTERN} is {pattern!r}")
    if read_meminfo(live.host).get("MemAvailable", 0) < 2 * (length or 4 * live.size) + _MARGIN:
        raise CannotRun("memory is short: the pages in a core, and as much again for the machine itself, are not free")
    # in a huge page of the core its holes would be data
    if "[force]" in (live.host.read(_SHARED_MEMORY) or ""):
        live.set_knob(_SHARED_MEMORY, "never")
    directory = live.mount_other("huge=never,mode=0700", "tmpfs")
    return live.actor(), directory


def _first_filled(live: Live, actor: Actor, *, shared: bool) -> Memory:
    """Return two pages, the first of which is filled."""
    memory = live.map(2, actor, shared=shared)
    actor.fill(memory.address, live.size, memory.step, 1)
    return memory


def _core_of(live: Live, parent: Actor, child: Actor, directory: str, chosen: int) -> _Core:
    """End ``child`` with a core that has what the bits ``chosen`` say, and read which segments that has."""
    _choose(live, child, chosen)
    child.call("setrlimit", RLIMIT_CORE, live.host.uapi.pack("2Q", RLIM_INFINITY, RLIM_INFINITY))
    child.call("chdir", directory)
    parent.call("kill", child.pid, signal.SIGABRT)
    # nobody waits for a child of an actor: it is gone as soon as its core is written, which a signal would cut short
    live.host.wait_until(lambda: live.host.read(f"proc/{child.pid}/stat") is None)
    child.end()
    is_numbered = (live.host.read("proc/sys/kernel/core_uses_pid") or "0").strip() != "0"
    path = f"{directory}/core{f'.{child.pid}' if is_numbered else ''}"
    descriptor = live.open(parent, path, os.O_RDONLY)
    parent.call("unlinkat", AT_FDCWD, path, 0)
    header = live.host.uapi.unpack(_HEADER, _read(parent, descriptor, 0, _HEADER_SIZE))
    count = header[_ENTRIES]
    table = _read(parent, descriptor, header[_TABLE], count * _SEGMENT_SIZE)
    segments = {}
    for at in range(0, len(table), _SEGMENT_SIZE):
        _kind, _flags, offset, address, _physical, length, memory, _align = live.host.uapi.unpack(
            _SEGMENT, table[at : at + _SEGMENT_SIZE]
        )
        segments[address] = offset, length, memory
    return _Core(parent, descriptor, segments)


def _choose(live: Live, child: Actor, chosen: int) -> None:
    try:
        descriptor = live.open(child, _FILTER, os.O_WRONLY)
    except Refused as refusal:
        if refusal.errno != errno.ENOENT:
            raise
        raise CannotRun("this kernel writes no core files: CONFIG_ELF_CORE") from refusal
    text = f"{chosen:#x}".encode()
    child.call("write", descriptor, text, len(text))


def _read(actor: Actor, descriptor: int, at: int, size: int) -> bytes:
    length, (found,) = actor.call_with_buffers("pread64", descriptor, bytes(size), size, at)
    return found[:length]


def _expect_segment(live: Live, core: _Core, memory: Memory, *, is_there: bool) -> tuple[int, int]:
    """Expect ``core`` to have a segment for ``memory``, with bytes if they are ``there``; return where and how many."""
    offset, length, of_memory = core.segments.get(memory.address, (0, 0, 0))
    live.expect("bytes of memory of the segment", memory.length, of_memory)
    live.expect("bytes of it in the core", memory.length if is_there else 0, length)
    return offset, length


def _expect_in(
    live: Live, core: _Core, memory: Memory, *, is_there: bool, values: Sequence[int | None] = (1, None)
) -> None:
    """Expect ``core`` to have a segment for ``memory``, and its bytes if ``is_there``.

    Each page is filled from one of ``values`` on, as ``Memory.fill`` does, or there is none.
    """
    offset, length = _expect_segment(live, core, memory, is_there=is_there)
    if is_there and length == memory.length:
        # what is not there is a hole, for which no pool gives a page; to map it would fill it
        for page in (page for page, value in enumerate(values) if value is None):
            at = offset + page * live.size
            hole = core.reader.call("lseek", core.descriptor, at, os.SEEK_HOLE)
            data = core.reader.call("lseek", core.descriptor, at, os.SEEK_DATA)
            there = hole, data >= at + live.size
            live.expect(f"whether the core has a hole for page {page}, which is not there", (at, True), there)
        address = core.reader.mmap(length, mmap.PROT_READ, mmap.MAP_PRIVATE, core.descriptor, offset)
        found = Memory(live, core.reader, address, memory.pages, memory.size)
        for page, value in enumerate(values):
            if value is None:
                found.expect_zero(page)
            else:
                found.expect_filled(value, first=page, pages=1)
        found.unmap()


class CoreFiles(LiveTest):
    def test_core_files(self) -> None:
        self.run_area(CORES)
