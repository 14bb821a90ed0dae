"""Huge pages in memory that a program fills itself: userfaultfd(2), UFFDIO_COPY."""

import errno
import mmap
import signal
from collections.abc import Callable
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.fragmentation import with_blocks
from hugepage_qa.cases.hugetlb_files import HugeFile, open_file
from hugepage_qa.cases.khugepaged_clock import await_scans, let_nobody_else_act
from hugepage_qa.cases.khugepaged_work import expect_collapse, put_to_work
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import WORD, Memory, value_or_signal
from hugepage_qa.cases.swapped import need_swap, page_all_out, swap_out, swapped
from hugepage_qa.cases.thp_memory import map_aligned, pmd_size
from hugepage_qa.cases.thp_policy import advised, base_pages, huge_pages, set_policy
from hugepage_qa.cases.thp_shared_memory import expect_mapped_whole, let_only_pmd_inherit, map_file, map_start
from hugepage_qa.cases.userfaultfd import Feature, Mode, Userfault
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.uapi import MADV_COLLAPSE, MADV_GUARD_INSTALL, PROT_NONE
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Refused

FILLED = Area("userfaultfd/filled-by-programs", sizes=Sizes.ONCE)
DOC = "Documentation/admin-guide/mm/userfaultfd.rst"
FILE_DOC = f"{DOC} UFFDIO_COPY, UFFDIO_ZEROPAGE; mm/shmem.c shmem_mfill_atomic_pte()"
_NEW_VALUE = 77
#: base pages that a small tmpfs has room for
_ROOM = 4
_REFUSALS = (errno.EINVAL, errno.EBUSY, errno.EAGAIN)


@FILLED.case(
    "what a program fills itself gets no huge page at a fault, and khugepaged and MADV_COLLAPSE make none of it until"
    " each base page is there: they fill nothing",
    f"{DOC} UFFDIO_COPY; mm/khugepaged.c hpage_collapse_scan_pmd(), collapse_max_ptes_none()",
    since="6.1",
)
def filled_by_a_program(live: Live) -> None:
    put_to_work(live)
    source = base_pages(live)
    memory = advised(live, actor=source.actor)
    fault = Userfault(memory, Mode.MISSING, Feature(0))
    live.expect_signal(signal.SIGBUS, memory.touch, 0, _NEW_VALUE)
    half = memory.size // 2
    live.expect("bytes copied", half, fault.copy(source, length=half))
    await_scans(live)
    _expect_refused(live, memory)
    live.expect("Rss of half a huge page", half, memory.smaps().rss)
    for access in (memory.actor.read, partial(memory.actor.write, value=_NEW_VALUE)):
        live.expect_signal(signal.SIGBUS, access, memory.address + half)
    live.expect("bytes copied", half, fault.copy(source, offset=half, length=half))
    expect_collapse(live, memory, memory.length)
    memory.expect_filled()


@FILLED.case(
    "memory that a program fills itself is missing to who reads it first as to who writes it, wherever in a huge page:"
    " neither one nor the huge zero page is mapped",
    f"{DOC} UFFDIO_REGISTER_MODE_MISSING; mm/huge_memory.c do_huge_pmd_anonymous_page()",
)
def missing_to_all(live: Live) -> None:
    set_policy(live, "madvise")
    for use_zero_page in ("1", "0"):
        live.set_knob(f"{DIRECTORY}/use_zero_page", use_zero_page)
        memory = advised(live, 2)
        Userfault(memory, Mode.MISSING, Feature(0))
        for offset in (0, live.base_page, memory.size - WORD, memory.size, memory.length - WORD):
            live.expect_signal(signal.SIGBUS, memory.actor.read, memory.address + offset)
            live.expect_signal(signal.SIGBUS, memory.actor.write, memory.address + offset, _NEW_VALUE)
        live.expect(f"Rss with use_zero_page={use_zero_page}", 0, memory.smaps().rss)


@FILLED.case(
    "what is there is not filled again: UFFDIO_COPY and UFFDIO_ZEROPAGE of a huge page, and of any part of it, are"
    " EEXIST, and it stays what it was",
    f"{DOC} UFFDIO_COPY; ioctl_userfaultfd(2) EEXIST; mm/userfaultfd.c mfill_atomic()",
)
def filled_twice(live: Live) -> None:
    memory, fault, source = _filled_before(live)
    base, rest = live.base_page, memory.size - live.base_page
    for offset, length in ((0, memory.size), (0, base), (base, rest), (rest, base)):
        live.expect_errno(errno.EEXIST, partial(fault.copy, source, offset=offset, length=length))
    live.expect_errno(errno.EEXIST, fault.zero)
    memory.expect_huge()
    memory.expect_filled()


@FILLED.case(
    "what is given back is missing again: MADV_DONTNEED of a part of a huge page leaves the rest as it was",
    f"{DOC} UFFDIO_REGISTER_MODE_MISSING; madvise(2) MADV_DONTNEED; mm/memory.c do_anonymous_page()",
)
def given_back(live: Live) -> None:
    memory, fault, source = _filled_before(live)
    half = memory.size // 2
    memory.actor.call("madvise", memory.address + half, memory.size, mmap.MADV_DONTNEED)
    for offset in (half, memory.size, memory.size + half - WORD):
        live.expect_signal(signal.SIGBUS, memory.actor.read, memory.address + offset)
    live.expect("words that were not given back and changed", 0, memory.wrong_beside(half, 3 * half))
    live.expect("bytes copied", half, fault.copy(source, offset=half, length=half))
    live.expect("words that were filled and are wrong", 0, memory.wrong(half, half, _NEW_VALUE))
    live.expect_signal(signal.SIGBUS, memory.touch, 1)


@FILLED.case(
    "what a file of a tmpfs has, in a huge page or not, mapped or not, is not filled again by UFFDIO_COPY or"
    " UFFDIO_ZEROPAGE, EEXIST, and nothing is from where no memory is, EFAULT: that takes nothing of the mount; a copy"
    " that comes up against what is there, EAGAIN, has filled what is before it, and that is taken alone",
    f"{FILE_DOC}; ioctl_userfaultfd(2) EEXIST, EAGAIN, EFAULT",
)
def file_filled_twice(live: Live) -> None:
    # khugepaged of Linux 6.1 fills what is a program's to fill (collapse_file())
    let_nobody_else_act(live)
    page = live.base_page
    for huge, is_mapped in product(("always", "never"), (False, True)):
        with live.about(f"huge={huge}, mapped: {is_mapped}"):
            point, file, held = _half_filled_file(live, huge)
            memory = held if is_mapped else map_file(live, file.actor, file.descriptor, 2)
            fault = Userfault(memory, Mode.MISSING, Feature.MISSING_SHMEM)
            source = _source(live, file)
            _expect_not_filled(live, point, file, fault, memory)
            # of eight base pages the fourth one is there
            live.expect("bytes copied", page, fault.copy(source, 1, offset=3 * page, length=page))
            taken = _taken(live, point, file)
            live.expect_errno(errno.EAGAIN, partial(fault.copy, source, 1, length=8 * page))
            live.expect("bytes taken by what is before it", [3 * page] * 2, _more(live, point, file, taken))
            found = file.actor.check(memory.at(1), 4 * page, WORD, _NEW_VALUE)
            live.expect("words that were filled and are wrong", 0, found)
            live.expect("words of the file that changed", 0, held.wrong(0, held.size))
            file.actor.end()


@FILLED.case(
    "what a file of a tmpfs has in swap is not filled again by UFFDIO_COPY or UFFDIO_ZEROPAGE, EEXIST: that takes"
    " nothing of the mount, and it comes back as it was",
    f"{FILE_DOC}; ioctl_userfaultfd(2) EEXIST",
)
def file_in_swap_filled(live: Live) -> None:
    let_only_pmd_inherit(live)
    need_swap(live, pmd_size(live))
    for huge in ("always", "never"):
        with live.about(f"huge={huge}"):
            point, file, held = _half_filled_file(live, huge)
            page_all_out(live, held, length=pmd_size(live))
            memory = map_file(live, file.actor, file.descriptor, 2)
            _expect_not_filled(live, point, file, Userfault(memory, Mode.MISSING, Feature.MISSING_SHMEM), memory)
            live.expect("words of the file that changed", 0, held.wrong(0, held.size))
            file.actor.end()


@FILLED.case(
    "private memory that is a guard, poisoned or in swap, of base pages or a huge page, is missing to nobody:"
    " UFFDIO_ZEROPAGE, UFFDIO_POISON and UFFDIO_MOVE, and of swap UFFDIO_COPY, are EEXIST wherever it is; it stays so,"
    " and comes back from swap as it was",
    f"{DOC} UFFDIO_COPY, UFFDIO_ZEROPAGE, UFFDIO_POISON, UFFDIO_MOVE; ioctl_userfaultfd(2) EEXIST; mm/userfaultfd.c",
    since="5.4",  # MADV_PAGEOUT
)
def in_place_of_pages(live: Live) -> None:
    let_nobody_else_act(live)
    need_swap(live, pmd_size(live))
    # swap comes last: one that is filled nobody has any more, and swapoff(2) looks for it without end
    ways = [(_guard, 0), (_poison, 0), (_swap_out, pmd_size(live))]
    for (put_there, in_swap), make in product(ways, (base_pages, huge_pages)):
        if live.differences:
            break
        memory = make(live)
        source = map_aligned(live, 1, memory.size, actor=memory.actor)
        source.fill(_NEW_VALUE)
        fault = Userfault(memory, Mode.MISSING, Feature(0))
        if put_there(live, memory, fault):
            with live.about(f"{make.__name__}, {put_there.__name__.strip('_').replace('_', ' ')}"):
                _expect_in_place(live, memory, fault, source, in_swap)
        memory.actor.end()


def _expect_in_place(live: Live, memory: Memory, fault: Userfault, source: Memory, in_swap: int) -> None:
    """Expect nothing of ``memory`` to be filled, of which so many bytes are ``in_swap``."""
    size, base = memory.size, live.base_page
    for offset, length in ((0, base), (base, base), (size // 2, base), (size - base, base), (0, size)):
        one = fault.handling(Memory(live, memory.actor, memory.address + offset, 1, length))
        # the last ones are of Linux 6.6 and 6.8
        calls: dict[str, Callable[[], object]]
        calls = {"zeropage": one.zero, "poison": one.poison, "move": partial(one.move, source)}
        for name in filter(fault.promises, calls):
            with live.about(f"{name} of {length} bytes at {offset}"):
                live.expect_errno(errno.EEXIST, calls[name])
        if in_swap:
            live.expect_errno(errno.EEXIST, one.copy, source)
    live.expect("Rss, and what is in swap", (0, in_swap), (memory.smaps().rss, swapped(memory)))
    source.expect_filled(_NEW_VALUE)
    if in_swap:
        memory.expect_filled()
    else:
        for offset in (0, size - WORD):
            found = value_or_signal(partial(memory.actor.read, memory.address + offset))
            live.expect(f"whether the word at {offset} can be read", False, isinstance(found, int))


def _guard(_live: Live, memory: Memory, _fault: Userfault) -> bool:
    # EINVAL before Linux 6.13
    return memory.actor.result("madvise", memory.address, memory.length, MADV_GUARD_INSTALL) == 0


def _poison(_live: Live, memory: Memory, fault: Userfault) -> bool:
    if fault.promises("poison"):
        memory.advise(mmap.MADV_DONTNEED)
        fault.poison()
    return fault.promises("poison")


def _swap_out(live: Live, memory: Memory, _fault: Userfault) -> bool:
    swap_out(live, memory, memory.length)
    return True


@FILLED.case(
    "private memory of a file of a tmpfs is filled by UFFDIO_COPY whatever the file has there, and once, EEXIST: what"
    " the file has stays as it was, and so does the room of the mount",
    f"{FILE_DOC}; mm/userfaultfd.c mfill_atomic_install_pte(); ioctl_userfaultfd(2) EEXIST",
)
def private_memory_of_a_file(live: Live) -> None:
    let_only_pmd_inherit(live)
    for huge in ("always", "never"):
        with live.about(f"huge={huge}"):
            point, file, held = _half_filled_file(live, huge)
            memory = map_file(live, file.actor, file.descriptor, 2, shared=False)
            fault, source = Userfault(memory, Mode.MISSING, Feature.MISSING_SHMEM), _source(live, file)
            taken = _taken(live, point, file)
            for page in range(2):
                live.expect("bytes copied", memory.size, fault.copy(source, page))
                live.expect_errno(errno.EEXIST, fault.copy, source, page)
                found = file.actor.check(memory.at(page), memory.size, WORD, _NEW_VALUE)
                live.expect("words that were filled and are wrong", 0, found)
            live.expect("bytes taken", [0, 0], _more(live, point, file, taken))
            live.expect("words of the file that changed", 0, held.wrong(0, held.size))
            file.actor.end()


@FILLED.case(
    "what a full tmpfs has no room for is not filled by UFFDIO_COPY or UFFDIO_ZEROPAGE, ENOMEM, however often: it stays"
    " a hole of the file, and nothing is in memory there, nor taken of the mount; with room again it is filled",
    f"{FILE_DOC}, shmem_mfill_filemap_add(); mincore(2)",
)
def full_file_system(live: Live) -> None:
    actor, page, size = live.actor(), live.base_page, pmd_size(live)
    point = live.mount_other(f"size={_ROOM * page},mode=0700", "tmpfs")
    file = open_file(live, f"{point}/file", actor)
    memory = map_start(live, actor, file.descriptor)
    fault, source = Userfault(memory, Mode.MISSING, Feature.MISSING_SHMEM), _source(live, file)
    length = _ROOM * page
    live.expect("bytes copied", length, fault.copy(source, length=length))
    taken = _taken(live, point, file)
    for offset in (length, size // 2, size - page):
        one = fault.handling(Memory(live, actor, memory.address + offset, 1, page))
        for fill in (partial(one.copy, source), one.zero) * 2:
            with live.about(f"at {offset}"):
                live.expect_errno(errno.ENOMEM, fill)
                _expect_hole(live, file, memory, offset)
                live.expect("bytes taken", [0, 0], _more(live, point, file, taken))
    live.expect("words that were filled before and are wrong", 0, actor.check(memory.address, length, WORD, _NEW_VALUE))
    file.punch_bytes(0, page)
    live.expect("bytes copied", page, fault.copy(source, offset=size - page, length=page))
    found = actor.check(memory.address + size - page, page, WORD, _NEW_VALUE + size - page)
    live.expect("words that were filled in the end and are wrong", 0, found)


def _expect_hole(live: Live, file: HugeFile, memory: Memory, offset: int) -> None:
    """Expect a base page of a file to be in no memory, and to be read as zeroes."""
    _result, (state,) = file.actor.call_with_buffers("mincore", memory.address + offset, live.base_page, bytes(1))
    live.expect("whether it is in memory (mincore)", 0, state[0] & 1)
    live.expect("what is read of the file", bytes(WORD), file.read(offset, WORD))


def _half_filled_file(live: Live, huge: str) -> tuple[str, HugeFile, Memory]:
    """Return a new mount of a tmpfs, a file there of two huge pages, or what makes up two, and a mapping of it.

    The first one is filled, the second one is a hole.
    """
    size, actor = pmd_size(live), live.actor()
    point = live.mount_other(f"huge={huge},size={4 * size},mode=0700", "tmpfs")
    file = open_file(live, f"{point}/file", actor)
    with_blocks(live, size, 1)
    memory = map_start(live, actor, file.descriptor, 2)
    actor.fill(memory.address, size, WORD, 1)
    expect_mapped_whole(live, memory, int(huge == "always"), f"huge={huge}")
    return point, file, memory


def _source(live: Live, file: HugeFile) -> Memory:
    source = map_aligned(live, 1, pmd_size(live), actor=file.actor)
    source.fill(_NEW_VALUE)
    return source


def _expect_not_filled(live: Live, point: str, file: HugeFile, fault: Userfault, memory: Memory) -> None:
    """Expect the first page of a file, which is there, not to be filled again, nor the second from no memory."""
    base, size = live.base_page, memory.size
    source, taken = _source(live, file), _taken(live, point, file)
    for offset in (0, base, size // 2, size - base):
        one = fault.handling(Memory(live, file.actor, memory.address + offset, 1, base))
        live.expect_errno(errno.EEXIST, one.copy, source)
        live.expect_errno(errno.EEXIST, one.zero)
        live.expect(f"bytes taken at {offset}", [0, 0], _more(live, point, file, taken))
    live.expect_errno(errno.EEXIST, fault.copy, source)
    live.expect_errno(errno.EEXIST, fault.zero)
    source.protect(PROT_NONE)
    for offset in (0, size - base):
        live.expect_errno(errno.EFAULT, partial(fault.copy, source, 1, offset=offset, length=base))
    live.expect("bytes taken", [0, 0], _more(live, point, file, taken))


def _taken(live: Live, point: str, file: HugeFile) -> tuple[int, int]:
    """Return what a file takes, and what of its mount is taken, in bytes."""
    use = live.host.file_system(point)
    return file.blocks, use.taken_bytes


def _more(live: Live, point: str, file: HugeFile, before: tuple[int, int]) -> list[int]:
    return [now - then for now, then in zip(_taken(live, point, file), before, strict=True)]


def _expect_refused(live: Live, memory: Memory) -> None:
    """Expect MADV_COLLAPSE to be refused: Linux 6.1 says EINVAL, 7.3 EBUSY, and any EAGAIN where a page is busy."""
    found: int | None = None
    try:
        memory.advise(MADV_COLLAPSE)
    except Refused as refusal:
        found = refusal.errno
    live.expect(f"errno is one of {_REFUSALS}, found {found}", True, found in _REFUSALS)


def _filled_before(live: Live) -> tuple[Memory, Userfault, Memory]:
    """Return huge pages that are there, what fills them where they are missing, and other words to fill them with."""
    memory = huge_pages(live, 2)
    fault = Userfault(memory, Mode.MISSING, Feature(0))
    source = map_aligned(live, 1, memory.size, actor=memory.actor)
    source.fill(_NEW_VALUE)
    return memory, fault, source


class ThpFilledByPrograms(LiveTest):
    def test_filled_by_programs(self) -> None:
        self.run_area(FILLED)
