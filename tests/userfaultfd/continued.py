"""Shared memory that a program has mapped when it says so: UFFDIO_CONTINUE, whatever brought its pages to the file."""

import errno
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.fragmentation import expect_no_node_short, with_blocks
from hugepage_qa.cases.hugetlb_files import HugeFile, open_file
from hugepage_qa.cases.khugepaged_clock import let_rest
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.madv_collapse import collapse_memory
from hugepage_qa.cases.mapped_memory import PRESENT, WORD, Memory, value_or_signal
from hugepage_qa.cases.swapped import need_swap, page_all_out
from hugepage_qa.cases.thp_memory import has_folios_of, map_aligned, pmd_size
from hugepage_qa.cases.thp_policy import need_sizes, some_smaller_sizes
from hugepage_qa.cases.thp_shared_memory import let_only_pmd_inherit, map_file, mount_tmpfs
from hugepage_qa.cases.userfaultfd import Feature, Mode, Userfault
from hugepage_qa.kernel.uapi import FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, PR_SET_THP_DISABLE
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.oracle.rules import THP_DOC
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Refused

CONTINUED = Area("userfaultfd/continued", sizes=Sizes.ONCE)
SOURCE = (
    "Documentation/admin-guide/mm/userfaultfd.rst UFFDIO_CONTINUE; ioctl_userfaultfd(2) EFAULT, EEXIST, EAGAIN;"
    " mm/userfaultfd.c mfill_atomic_pte_continue()"
)
_VALUE = 77
#: no manual page says which: shmem_get_folio() has EINVAL for what is behind the end, hugetlb_mfill_atomic_pte() EFAULT
_BEHIND = (errno.EFAULT, errno.EINVAL)


def _source(live: Live, file: HugeFile) -> Memory:
    memory = map_aligned(live, 1, pmd_size(live), actor=file.actor)
    memory.fill(_VALUE)
    return memory


def _allocated(_live: Live, file: HugeFile, size: int) -> int:
    file.actor.call("fallocate", file.descriptor, 0, 0, size)
    return 0


def _allocated_before_it_was_longer(_live: Live, file: HugeFile, size: int) -> int:
    length = file.size
    file.actor.call("ftruncate", file.descriptor, 0)
    file.actor.call("fallocate", file.descriptor, FALLOC_FL_KEEP_SIZE, 0, size)
    file.actor.call("ftruncate", file.descriptor, length)
    return 0


def _written(live: Live, file: HugeFile, size: int) -> int:
    memory = _source(live, file)
    for start in range(0, size, live.base_page):
        file.actor.call("pwrite64", file.descriptor, memory.address + start, live.base_page, start)
    return _VALUE


def _touched(live: Live, file: HugeFile, _size: int) -> int:
    map_file(live, file.actor, file.descriptor, 1).fill(_VALUE)
    return _VALUE


def _read(live: Live, file: HugeFile, _size: int) -> int:
    map_file(live, file.actor, file.descriptor, 1).expect_zero()
    return 0


def _filled_by_a_program(live: Live, file: HugeFile, _size: int) -> int:
    memory = map_file(live, file.actor, file.descriptor, 1)
    Userfault(memory, Mode.MISSING, Feature.MISSING_SHMEM).copy(_source(live, file))
    return _VALUE


def _swapped_out(live: Live, file: HugeFile, _size: int) -> int:
    memory = map_file(live, file.actor, file.descriptor, 1)
    memory.fill(_VALUE)
    page_all_out(live, memory)
    return _VALUE


#: what brings the first ``size`` bytes, and returns what they are filled with, 0 where they are zero
_WAYS: tuple[Callable[[Live, HugeFile, int], int], ...] = (
    *(_allocated, _allocated_before_it_was_longer, _written, _touched, _read, _filled_by_a_program, _swapped_out),
)


@CONTINUED.case(
    "what a file of shared memory has is mapped when a program says so, and not before, base page for base page and as"
    " a whole, in a huge page or not, whether it was allocated, written, touched, read, filled by a program or swapped"
    " out; it is what it was, and what was allocated and never written is zero",
    SOURCE,
    since="5.14",  # UFFD_FEATURE_MINOR_SHMEM
)
def whatever_brought_it(live: Live) -> None:
    let_only_pmd_inherit(live)
    size, base = pmd_size(live), live.base_page
    need_swap(live, size)
    for huge, way in product(("always", "never"), _WAYS):
        with live.about(f"huge={huge}, {way.__name__.strip('_').replace('_', ' ')}"):
            file = _file(live, f"{mount_tmpfs(live, huge)}/file", 1)
            value = way(live, file, size)
            memory = _mapped(live, file, 1)
            fault = Userfault(memory, Mode.MINOR, Feature.MINOR_SHMEM)
            for offset in (0, base, size // 2, size - WORD):
                live.expect_signal(signal.SIGBUS, file.actor.read, memory.address + offset)
            _go_on(live, fault, size // 2, base)
            _expect_part(live, memory, size // 2, base, value)
            for offset in (size // 2 - WORD, size // 2 + base):
                live.expect_signal(signal.SIGBUS, file.actor.read, memory.address + offset)
            for offset, length in ((size // 2, base), (size // 2, size // 2)):
                live.expect_errno(errno.EEXIST, partial(fault.go_on, offset=offset, length=length))
            _go_on(live, fault, 0, size // 2)
            _go_on(live, fault, size // 2 + base, size // 2 - base)
            _expect_part(live, memory, 0, size, value)
            memory.fill(_VALUE + 1)
            memory.expect_filled(_VALUE + 1)
            live.expect("st_blocks", size, file.blocks)
            file.actor.end()


@CONTINUED.case(
    "where a file has no page none is mapped, EFAULT, before one that it has or behind it, in a hole or behind its end,"
    " and none is allocated; a range that begins in what it has is mapped up to there, EAGAIN",
    SOURCE,
    since="5.14",
)
def where_nothing_is(live: Live) -> None:
    let_only_pmd_inherit(live)
    size, base = pmd_size(live), live.base_page
    hole = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
    # what is there begins and ends within a huge page
    start, end = size // 2, size + size // 2
    for huge in ("always", "never"):
        with live.about(f"huge={huge}"):
            file = _file(live, f"{mount_tmpfs(live, huge)}/file", 2)
            file.actor.call("fallocate", file.descriptor, 0, 0, 2 * size)
            for offset, length in ((0, start), (size, base), (end, 2 * size - end)):
                file.actor.call("fallocate", file.descriptor, hole, offset, length)
            kept = file.blocks
            live.expect("st_blocks", size - base, kept)
            memory = _mapped(live, file, 3)
            fault = Userfault(memory, Mode.MINOR, Feature.MINOR_SHMEM)
            for offset, length in ((0, base), (0, size), (start - base, 2 * base), (size, 2 * base), (end, base)):
                live.expect_errno(errno.EFAULT, partial(fault.go_on, offset=offset, length=length))
            for offset in (2 * size, 3 * size - base):
                found = _refusal(fault, offset, base)
                live.expect(f"errno {found} is one of what is behind the end", True, found in _BEHIND)
            live.expect("Rss", 0, memory.smaps().rss)
            for first, last, behind in ((start, size, size + base), (size + base, end, 2 * size)):
                live.expect_errno(errno.EAGAIN, partial(fault.go_on, offset=first, length=behind - first))
                _expect_part(live, memory, first, last - first, 0)
            live.expect("Rss", size - base, memory.smaps().rss)
            live.expect("st_blocks", kept, file.blocks)
            file.actor.end()


@CONTINUED.case(
    "who reads or writes a hole has that base page alone mapped, of whatever size the page is that the file gets for"
    " it: of each other base page of it it is told, and has it mapped when it says so",
    f"{SOURCE}; {THP_DOC} hugepages-<size>kB/shmem_enabled; mm/memory.c finish_fault()",
    since="6.11",  # hugepages-<size>kB/shmem_enabled
)
def holes_of_smaller_sizes(live: Live) -> None:
    let_only_pmd_inherit(live, is_used=False)
    let_rest(live)
    half, base = pmd_size(live) // 2, live.base_page
    for size, path in need_sizes(some_smaller_sizes(live)):
        if not has_folios_of(live, size):
            continue
        live.set_knob(f"{path}/shmem_enabled", "always")
        actor = live.actor()
        file = HugeFile(live, actor, actor.call("memfd_create", "holes", 0))
        actor.call("ftruncate", file.descriptor, 2 * half)
        memory = map_file(live, actor, file.descriptor, 1)
        fault = Userfault(memory, Mode.MINOR, Feature.MINOR_SHMEM)
        with_blocks(live, size, 2)
        with live.about(f"{size >> 10} kB"):
            live.expect("what is read of a hole", 0, actor.read(memory.address + base))
            actor.write(memory.address + half + base, _VALUE)
            taken = file.blocks
            if taken < 2 * size:
                expect_no_node_short(live, size, 2)
            live.expect("st_blocks", 2 * size, taken)
            there = {number for number, entry in enumerate(memory.whole_pagemap()) if entry & PRESENT}
            live.expect("base pages that are mapped", {1, half // base + 1}, there)
            for start in (0, half):
                live.expect_signal(signal.SIGBUS, actor.read, memory.address + start)
                _go_on(live, fault, start, base)
                _expect_part(live, memory, start, base, 0)
        actor.end()
        live.set_knob(f"{path}/shmem_enabled", "never")


@CONTINUED.case(
    "a private mapping of a file is mapped what the file has when a program says so: what is written there is its own,"
    " and the file and who shares it keep what they had",
    f"{SOURCE}, mfill_atomic_install_pte(); mmap(2) MAP_PRIVATE",
    since="5.14",
)
def in_private(live: Live) -> None:
    let_only_pmd_inherit(live)
    size, base = pmd_size(live), live.base_page
    for huge in ("always", "never"):
        with live.about(f"huge={huge}"):
            file = _file(live, f"{mount_tmpfs(live, huge)}/file", 1)
            shared = map_file(live, file.actor, file.descriptor, 1)
            shared.fill(_VALUE)
            file.actor.call("prctl", PR_SET_THP_DISABLE, 1, 0, 0, 0)
            private = map_file(live, file.actor, file.descriptor, 1, shared=False)
            fault = Userfault(private, Mode.MINOR, Feature.MINOR_SHMEM)
            for offset in (0, size // 2, size - base):
                _go_on(live, fault, offset, base)
                _expect_part(live, private, offset, base, _VALUE)
                private.actor.fill(private.address + offset, base, WORD, 1)
                wrong = private.actor.check(private.address + offset, base, WORD, 1)
                live.expect("words of its own that are wrong", 0, wrong)
                shared.expect_filled(_VALUE)
            file.actor.end()


@CONTINUED.case(
    "MADV_COLLAPSE by a program that has not said so, or has of a base page, maps nothing else: each access is told",
    f"{SOURCE}; include/linux/userfaultfd_k.h uffd_disable_fault_around(); madvise(2) MADV_COLLAPSE; mm/khugepaged.c"
    " try_collapse_pte_mapped_thp()",
    since="6.1",
)
def collapsed(live: Live) -> None:
    let_only_pmd_inherit(live)
    size, base = pmd_size(live), live.base_page
    for huge, mapped in product(("always", "never"), (0, base)):
        with live.about(f"huge={huge}, {mapped} bytes mapped before"):
            file = _file(live, f"{mount_tmpfs(live, huge)}/file", 1)
            _touched(live, file, size)
            memory = map_file(live, file.actor, file.descriptor, 1)
            fault = Userfault(memory, Mode.MINOR, Feature.MINOR_SHMEM)
            if mapped:
                _go_on(live, fault, 0, mapped)
            # nobody says whether it is refused: the file may have a huge page then, or not
            with suppress(Refused):
                collapse_memory(live, memory)
            for offset in (base, size // 2, size - WORD):
                found = value_or_signal(partial(file.actor.read, memory.address + offset))
                known = {Quirk.COLLAPSE_MAPS_UNTOLD: _VALUE + offset}
                live.expect("what is read of what was not mapped", signal.SIGBUS.name, found, known)
            _go_on(live, fault, size // 2, size // 2)
            _expect_part(live, memory, size // 2, size // 2, _VALUE)
            fault.unregister()
            memory.expect_filled(_VALUE)
            file.actor.end()


def _file(live: Live, path: str, pages: int) -> HugeFile:
    """Return a new file of ``pages`` huge pages without any memory."""
    with_blocks(live, pmd_size(live), pages)
    actor = live.actor()
    file = open_file(live, path, actor)
    actor.call("ftruncate", file.descriptor, pages * pmd_size(live))
    return file


def _mapped(live: Live, file: HugeFile, pages: int) -> Memory:
    """Map the file where khugepaged, which fills holes and unmaps base pages (collapse_file()), looks at nothing."""
    file.actor.call("prctl", PR_SET_THP_DISABLE, 1, 0, 0, 0)
    return map_file(live, file.actor, file.descriptor, pages)


def _expect_part(live: Live, memory: Memory, offset: int, length: int, value: int) -> None:
    """Expect what ``fill`` with ``value`` left there, or zeroes where it is 0."""
    wrong = memory.wrong(offset, length, value) if value else memory.nonzero(offset, length)
    live.expect(f"words of {length} bytes at {offset} that are wrong", 0, wrong)


def _go_on(live: Live, fault: Userfault, offset: int, length: int) -> None:
    """Have what the file has there mapped. Raises Failed where that is refused: the rest would meet faults."""
    with live.about(f"UFFDIO_CONTINUE of {length} bytes at {offset}"):
        live.expect_success(partial(fault.go_on, offset=offset, length=length))


def _refusal(fault: Userfault, offset: int, length: int) -> int | None:
    try:
        fault.go_on(offset=offset, length=length)
    except Refused as refusal:
        return refusal.errno
    return None


class ThpContinued(LiveTest):
    def test_continued(self) -> None:
        self.run_area(CONTINUED)
