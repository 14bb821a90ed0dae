"""Where UFFDIO_MOVE stops, and what it refuses: ioctl_userfaultfd(2)."""

import errno
import mmap
import signal
from collections.abc import Callable
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.endless_calls import returned
from hugepage_qa.cases.khugepaged_clock import let_rest
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.pinned_pages import Pin
from hugepage_qa.cases.swapped import need_swap, swap_out
from hugepage_qa.cases.thp_memory import map_aligned, pmd_size
from hugepage_qa.cases.thp_policy import base_pages, huge_pages, mapped_in_parts
from hugepage_qa.cases.thp_shared_memory import map_file, mount_tmpfs
from hugepage_qa.cases.user_moves import MOVE, Sides
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest

REFUSED = Area("userfaultfd/moves-refused", sizes=Sizes.ONCE)

_NEW_VALUE = 77
_PAGES = 3


@REFUSED.case(
    "UFFDIO_MOVE stops at what is missing at its source (ENOENT), what is there at its target (EEXIST), and a page that"
    " a child has, too (EBUSY), in huge pages and base pages: .move is the error when nothing was moved, else how many"
    " bytes were (EAGAIN), and the rest stays; where holes are allowed, they are moved",
    f"{MOVE} UFFDIO_MOVE_MODE_ALLOW_SRC_HOLES, EAGAIN, EBUSY, EEXIST, ENOENT; mm/userfaultfd.c move_pages();"
    " fs/userfaultfd.c userfaultfd_move()",
    since="6.8",
)
def half_way(live: Live) -> None:
    let_rest(live)
    base, size = live.base_page, pmd_size(live)
    stops = 0, base, size - base, size, size + base, _PAGES * size - base
    for make, at, obstacle in product((huge_pages, base_pages), stops, (_missing, _there, _shared)):
        with live.about(f"{make.__name__}, {obstacle.__name__.strip('_')} at {at}"):
            sides = Sides.of(live, make(live, _PAGES))
            _expect_stopped(live, sides, at, obstacle(sides, at))
            sides.source.actor.end()


def _expect_stopped(live: Live, sides: Sides, at: int, number: int) -> None:
    source, target, whole = sides.source, sides.target, sides.source.length
    actor, behind = source.actor, at + live.base_page
    if (found := sides.move_until(at)) != (at, number):
        # who reads what has moved besides would wait for it
        live.fail("bytes moved, and the error that ended it", (at, number), found)
    live.expect("words that were moved and changed", 0, target.wrong(0, at))
    live.expect("words that are left where they were", 0, actor.nonzero(source.address, at) if at else 0)
    live.expect("words behind it that changed", 0, source.wrong(behind, whole - behind))
    if number == errno.ENOENT:
        sides.move_all(at, at, whole - at, holes=True)
        live.expect("words behind the hole that changed", 0, target.wrong(behind, whole - behind))
        live.expect("words that are left behind the hole", 0, actor.nonzero(source.address + at, whole - at))
        sides.expect_missing(at)
        return
    live.expect("words at it that changed", 0, source.wrong(at, live.base_page))
    if number == errno.EEXIST:
        live.expect("what was there", _NEW_VALUE, actor.read(target.address + at))


def _missing(sides: Sides, at: int) -> int:
    sides.source.actor.call("madvise", sides.source.address + at, sides.live.base_page, mmap.MADV_DONTNEED)
    return errno.ENOENT


def _there(sides: Sides, at: int) -> int:
    base = sides.live.base_page
    page = map_aligned(sides.live, 1, base, actor=sides.source.actor)
    page.touch(value=_NEW_VALUE)
    found = sides.faults.moving(page.address, sides.target.address + at, base)
    sides.live.expect("error, and bytes moved, of one page", (0, base), found)
    return errno.EEXIST


def _shared(sides: Sides, at: int) -> int:
    source, behind = sides.source, at + sides.live.base_page
    source.actor.fork()
    # a page that was written since is the writer's own again
    for start, end in ((0, at), (behind, source.length)):
        if start < end:
            source.fill_part(start, end - start)
    return errno.EBUSY


@REFUSED.case(
    "UFFDIO_MOVE puts no base page where UFFDIO_POISON has poisoned one, or where one is in swap (EEXIST): who reads"
    " the one gets SIGBUS as before, the other comes back as it was, and what was to be moved stays",
    f"{MOVE} EEXIST; ioctl_userfaultfd(2) UFFDIO_POISON; mm/userfaultfd.c move_pages_pte()",
    since="6.8",
)
def onto_what_is_not_in_memory(live: Live) -> None:
    let_rest(live)
    base, size = live.base_page, pmd_size(live)
    need_swap(live, _PAGES * size)
    for in_swap, at in product((False, True), (0, base, size - base)):
        with live.about(f"at {at}, in swap {in_swap}"):
            sides = Sides.of(live, base_pages(live, _PAGES))
            source, target = sides.source, sides.target
            if in_swap:
                _there(sides, at)
                swap_out(live, target, base, at)
            else:
                sides.faults.poison(offset=at, length=base)
            live.expect("bytes moved, and the error", (at, errno.EEXIST), sides.move_until(at))
            live.expect("words that stay and changed", 0, source.wrong(at, source.length - at))
            read = partial(target.actor.read, target.address + at)
            if in_swap:
                live.expect("what was there", _NEW_VALUE, read())
            else:
                live.expect_signal(signal.SIGBUS, read)
            source.actor.end()
        if live.differences:
            # swapoff(2) would wait for ever for what was put in the place of a page in swap
            break


@REFUSED.case(
    "UFFDIO_MOVE refuses a huge page, or a base page, that is pinned, with EBUSY, and what pins it sees what the"
    " process does; let go, it is moved",
    f"{MOVE} EBUSY; mm/userfaultfd.c move_present_pte(); mm/huge_memory.c move_pages_huge_pmd()",
    since="6.8",
)
def pinned(live: Live) -> None:
    let_rest(live)
    base, size = live.base_page, pmd_size(live)
    for make, start, to, length in (
        (huge_pages, 0, 0, size),
        (base_pages, 0, 0, size),
        (base_pages, 0, size // 2, base),
        (base_pages, size - base, 0, base),
    ):
        _expect_pinned(live, make, start, to, length)


@REFUSED.case(
    "UFFDIO_MOVE of a part of a huge page that is pinned, mapped whole or as base pages, ends, with EBUSY; let go, it"
    " is moved",
    f"{MOVE} EBUSY; mm/userfaultfd.c move_pages_pte(), move_pages()",
    since="6.8",
)
def pinned_in_part(live: Live) -> None:
    let_rest(live)
    base, size = live.base_page, pmd_size(live)
    for make, start, to, length in (
        (huge_pages, 0, 0, base),
        (huge_pages, 0, 0, size // 2),
        (huge_pages, size - base, 0, base),
        (mapped_in_parts, 0, 0, size),
        (mapped_in_parts, base, size - base, base),
    ):
        _expect_pinned(live, make, start, to, length)


def _expect_pinned(live: Live, make: Callable[[Live], Memory], start: int, to: int, length: int) -> None:
    """Expect a move to be refused while the first base page of what it is to move is pinned, and then to be done."""
    size = pmd_size(live)
    with live.about(f"{make.__name__}, {length} bytes from {start} to {to}"):
        sides = Sides.of(live, make(live))
        source = sides.source
        pin = Pin(live, source)
        pin.hold((start, live.base_page))
        live.expect("whether it ends", True, _ends(sides, start, to, length), {Quirk.MOVE_OF_A_PART_NEVER_ENDS: False})
        live.expect("words that changed", 0, source.wrong(0, size))
        sides.expect_missing(to)
        source.actor.write(source.address + start, _NEW_VALUE)
        pin.let_go()
        sides.move_all(start, to, length)
        there = sides.target.address + to
        live.expect("what was written while it was pinned", _NEW_VALUE, source.actor.read(there))
        behind = source.actor.check(there + WORD, length - WORD, WORD, 1 + start + WORD)
        live.expect("words behind that that changed", 0, behind)
        source.actor.end()


def _ends(sides: Sides, start: int, to: int, length: int) -> bool:
    """Tell whether a move ends before its process is ended for it, and expect that it is refused."""
    found = returned(sides.live, sides.source.actor, partial(sides.move, start, to, length))
    if found is None:
        return False
    sides.live.expect("error, and what .move tells", (errno.EBUSY, -errno.EBUSY), found)
    return True


@REFUSED.case(
    "UFFDIO_MOVE refuses with EINVAL, and changes nothing, what is shared or of a file, what may be read alone, what is"
    " protected or locked otherwise than its target, goes beyond its mapping, is registered with nobody, begins within"
    " a page or is nothing; and with ENOENT what is not mapped",
    f"{MOVE} EINVAL, ENOENT; mm/userfaultfd.c validate_move_areas(), move_pages(); fs/userfaultfd.c validate_range()",
    since="6.8",
)
def refused(live: Live) -> None:
    let_rest(live)
    size, base = pmd_size(live), live.base_page
    for change in _CHANGES:
        sides = Sides.of(live, huge_pages(live))
        source, target = sides.source, sides.target
        change(source, target)
        with live.about(change.__name__.strip("_").replace("_", " ")):
            for length in (size, base):
                found = sides.move(0, 0, length)
                live.expect(f"error, and what .move tells, {length} bytes", (errno.EINVAL, -errno.EINVAL), found)
            source.protect(mmap.PROT_READ)
            source.expect_filled()
    sides = Sides.of(live, huge_pages(live))
    begin, place, faults = sides.source.address, sides.target.address, sides.faults
    apart = map_aligned(live, 1, size, actor=sides.source.actor)
    shared = map_aligned(live, 1, size, actor=sides.source.actor, shared=True)
    file = live.open(shared.actor, f"{mount_tmpfs(live, 'never')}/file")
    shared.actor.call("ftruncate", file, size)
    of_a_file = map_file(live, shared.actor, file, 1, shared=False)
    for memory in (shared, of_a_file):
        memory.fill()
    # the last one: another mapping would be put there
    gone = map_aligned(live, 2, size, actor=sides.source.actor)
    gone.unmap()
    for what, expected, start, to, length in (
        ("a source within a page", errno.EINVAL, begin + 8, place, base),
        ("a target within a page", errno.EINVAL, begin, place + 8, base),
        ("a part of a page", errno.EINVAL, begin, place, base - 8),
        ("nothing", errno.EINVAL, begin, place, 0),
        ("more than all", errno.EINVAL, begin, place, -base),
        ("beyond the source", errno.EINVAL, begin + size - base, place, 2 * base),
        ("beyond the target", errno.EINVAL, begin, place + size - base, 2 * base),
        ("to what is not registered", errno.EINVAL, begin, apart.address, size),
        ("to what is not mapped", errno.ENOENT, begin, gone.address, size),
        ("from what is not mapped", errno.ENOENT, gone.address, place, size),
        ("from shared memory", errno.EINVAL, shared.address, place, size),
        ("from private memory of a file", errno.EINVAL, of_a_file.address, place, size),
    ):
        # arguments that are wrong by themselves are not told
        told = 0 if length in (0, -base) or (start | to | length) % base else -expected
        live.expect(f"error, and what .move tells, {what}", (expected, told), faults.moving(start, to, length))
    sides.source.expect_filled()
    live.expect("AnonHugePages", size, sides.source.smaps().anon_huge_pages)
    for memory in (shared, of_a_file):
        memory.expect_filled()


def _source_read_alone(source: Memory, _target: Memory) -> None:
    source.protect(mmap.PROT_READ)


def _target_read_alone(_source: Memory, target: Memory) -> None:
    target.protect(mmap.PROT_READ)


def _both_read_alone(source: Memory, target: Memory) -> None:
    for memory in (source, target):
        memory.protect(mmap.PROT_READ)


def _source_run(source: Memory, _target: Memory) -> None:
    source.protect(READ_WRITE | mmap.PROT_EXEC)


def _source_locked(source: Memory, _target: Memory) -> None:
    source.lock()


_CHANGES = _source_read_alone, _target_read_alone, _both_read_alone, _source_run, _source_locked


class ThpMovesRefused(LiveTest):
    def test_moves_refused(self) -> None:
        self.run_area(REFUSED)
