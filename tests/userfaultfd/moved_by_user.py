"""Memory that a program puts where it was missing, in the frames that it has: UFFDIO_MOVE of ioctl_userfaultfd(2)."""

from collections.abc import Callable
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.clear_refs import clear_refs, need_soft_dirty, soft_dirty_pages, while_nothing_moves
from hugepage_qa.cases.khugepaged_clock import let_rest
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import WORD, Memory, runs
from hugepage_qa.cases.swapped import need_swap, swap_out
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.cases.thp_policy import advised, base_pages, huge_pages, huge_zeroes, mapped_in_parts
from hugepage_qa.cases.user_moves import MOVE, Sides
from hugepage_qa.kernel.uapi import MADV_DONTNEED, MADV_NOHUGEPAGE, MADV_POPULATE_READ
from hugepage_qa.plugins.avocado_test import LiveTest

MOVES = Area("userfaultfd/moved-by-user", sizes=Sizes.ONCE)

_NEW_VALUE, _OTHER_VALUE = 77, 1 << 20
#: huge pages of each side
_PAGES = 3
#: of those that a child has, too
_SHARED = 2
#: who isolates or moves a huge page has a reference to it, and what is written then is copied
_ATTEMPTS = 3


def _spans(base: int, size: int) -> tuple[tuple[int, int, int], ...]:
    """Return what is moved: where it begins in its huge pages, where in the others, and how long it is."""
    return (
        (0, 0, _PAGES * size),
        (size, 2 * size, size),
        (0, base, size),
        (base, base, size),
        (size - base, 0, 2 * base),
        (size // 2, size, 2 * size),
        (_PAGES * size - base, _PAGES * size - base, base),
        (0, 0, size + base),
    )


def _moved_whole(span: tuple[int, int, int], size: int) -> int:
    """Return how many bytes of a span are moved by whole huge pages: both sides are aligned, and it is long enough."""
    start, to, length = span
    if (start - to) % size:
        return 0
    first, end = -(-start // size), (start + length) // size
    return max(end - first, 0) * size


def _untouched(span: tuple[int, int, int], size: int) -> int:
    """Return how many bytes of huge pages have no byte of a span."""
    start, _to, length = span
    return (_PAGES - (-(-(start + length) // size) - start // size)) * size


@MOVES.case(
    "what UFFDIO_MOVE takes out of huge pages, whole ones and parts of them, of huge pages mapped as base pages, of"
    " base pages and of memory in swap, at whatever offsets, is where it was missing, with what it holds; the rest"
    " stays, and is huge where nothing was taken from it; smaps counts each side, and whole huge pages as huge",
    f"{MOVE}; mm/userfaultfd.c move_pages(), move_splits_huge_pmd(), move_swap_pte(); mm/huge_memory.c"
    " move_pages_huge_pmd() (adef440691ba)",
    since="6.8",
)
def parts_of_all_kinds(live: Live) -> None:
    let_rest(live)
    size = pmd_size(live)
    need_swap(live, 2 * _PAGES * size)
    spans = _spans(live.base_page, size)
    for make, is_out in ((huge_pages, False), (mapped_in_parts, False), (base_pages, False), (_small_pages, True)):
        for span in spans:
            with live.about(f"{make.__name__.strip('_')}, in swap {is_out}, start, place and length {span}"):
                _expect_moved(live, make(live, _PAGES), span, is_huge=make is huge_pages, is_out=is_out)


def _small_pages(live: Live, pages: int) -> Memory:
    memory = advised(live, pages, MADV_NOHUGEPAGE)
    memory.fill()
    return memory


def _expect_moved(live: Live, source: Memory, span: tuple[int, int, int], *, is_huge: bool, is_out: bool) -> None:
    size, whole = source.size, source.length
    start, to, length = span
    sides = Sides.of(live, source)
    target = sides.target
    if is_out:
        swap_out(live, source, whole)
    sides.move_all(start, to, length)
    for side, memory, there, huge in (
        ("source", source, whole - length, _untouched(span, size)),
        ("target", target, length, _moved_whole(span, size)),
    ):
        mappings = memory.all_mappings()
        rss, swap = (sum(found.fields[name] for found in mappings) for name in ("Rss", "Swap"))
        live.expect(f"Rss and Swap of the {side}", there, rss + swap)
        if is_out:
            live.expect(f"Swap of the {side}", there, swap)
        found = sum(mapping.anon_huge_pages for mapping in mappings)
        live.expect(f"AnonHugePages of the {side}", huge if is_huge else 0, found)
    sides.expect_missing(to - WORD, to + length)
    actor, value = source.actor, 1 + start
    live.expect("words that changed", 0, actor.check(target.address + to, length, WORD, value))
    live.expect("words that are left where it was", 0, actor.nonzero(source.address + start, length))
    actor.fill(target.address + to, length, WORD, _NEW_VALUE)
    live.expect("words that were written", 0, actor.check(target.address + to, length, WORD, _NEW_VALUE))
    end = start + length
    live.expect("words of the rest that changed", 0, source.wrong(0, start) + source.wrong(end, whole - end))
    actor.end()


@MOVES.case(
    "a huge page of zeroes, or base pages of zeroes, that UFFDIO_MOVE takes from their place, as a whole or in part,"
    " are zeroes where they were missing, and no memory of the process until they are written",
    f"{MOVE}; mm/userfaultfd.c move_zeropage_pte(); mm/huge_memory.c move_pages_huge_pmd() (eb1521dad8f3)",
    since="6.9",
)
def zeroes(live: Live) -> None:
    let_rest(live)
    base, size = live.base_page, pmd_size(live)
    spans = (0, 0, size), (base, base, 5 * base), (size - base, 0, base), (0, size // 2, size // 2)
    for make, (start, to, length) in product((huge_zeroes, _small_zeroes), spans):
        with live.about(f"{make.__name__.strip('_')}, {length} bytes from {start} to {to}"):
            source = make(live)
            sides = Sides.of(live, source)
            sides.move_all(start, to, length)
            target, actor = sides.target, source.actor
            # frames of zeroes are in none of these
            for name in ("Rss", "Swap", "AnonHugePages"):
                mappings = [*source.all_mappings(), *target.all_mappings()]
                live.expect(name, 0, sum(found.fields[name] for found in mappings))
            sides.expect_missing(to - WORD, to + length)
            live.expect("words that are not zero", 0, actor.nonzero(target.address + to, length))
            for offset in (to, to + length - WORD):
                actor.write(target.address + offset, _NEW_VALUE)
            live.expect("words that are not zero then", 2, actor.nonzero(target.address + to, length))
            live.expect("words that are not zero where it was", 0, actor.nonzero(source.address, size))
            actor.end()


def _small_zeroes(live: Live) -> Memory:
    memory = advised(live, 1, MADV_NOHUGEPAGE)
    memory.advise(MADV_POPULATE_READ)
    return memory


@MOVES.case(
    "what UFFDIO_MOVE has moved counts as written since clear_refs was, huge pages, base pages and memory in swap, and"
    " nothing else does, but for the rest of a huge page that it splits",
    f"{MOVE}; Documentation/admin-guide/mm/soft-dirty.rst; mm/userfaultfd.c move_present_pte(), move_swap_pte()",
    since="6.8",
)
def written_where_it_is(live: Live) -> None:
    let_rest(live)
    base, size = live.base_page, pmd_size(live)
    need_swap(live, 2 * _PAGES * size)
    for make, is_out in ((huge_pages, False), (base_pages, False), (_small_pages, True)):
        for span in ((0, 0, size), (size, 0, 2 * size), (size, size - base, size), (size - base, base, 3 * base)):
            # base pages of a folio that was dirty are dirty and soft-dirty when it is split (remap_page())
            is_split = make is huge_pages and _moved_whole(span, size) < span[-1]
            with live.about(f"{make.__name__.strip('_')}, in swap {is_out}, start, place and length {span}"):
                there, left = _soft_dirty(live, partial(make, live, _PAGES), span, is_out=is_out)
                live.expect("base pages that were moved, and count as written", _base_pages(live, span), there)
                if not is_split:
                    live.expect("base pages that were not, and count as written", [], left)


@MOVES.case(
    "a huge page of zeroes that UFFDIO_MOVE has moved counts as written since clear_refs was, where it is then",
    f"{MOVE}; Documentation/admin-guide/mm/soft-dirty.rst; mm/huge_memory.c move_pages_huge_pmd()",
    since="7.3",  # 6.12.117 does not mark it, and none between was run
)
def zeroes_written_where_they_are(live: Live) -> None:
    let_rest(live)
    span = 0, 0, pmd_size(live)
    there, left = _soft_dirty(live, partial(huge_zeroes, live), span, is_out=False)
    live.expect("base pages that were moved, and count as written", _base_pages(live, span), there)
    live.expect("base pages that were not, and count as written", [], left)


def _base_pages(live: Live, span: tuple[int, int, int]) -> list[range]:
    _start, to, length = span
    return [range(to // live.base_page, (to + length) // live.base_page)]


def _soft_dirty(
    live: Live, make: Callable[[], Memory], span: tuple[int, int, int], *, is_out: bool
) -> tuple[list[range], list[range]]:
    """Return which base pages are soft-dirty of what a span was moved to, and of where it was."""

    def attempt() -> tuple[tuple[list[range], list[range]], bool]:
        sides = Sides.of(live, make())
        need_soft_dirty(live, sides.source)
        if is_out:
            swap_out(live, sides.source, sides.source.length)
        clear_refs(live, sides.source)
        sides.move_all(*span)
        found = runs({*soft_dirty_pages(sides.target)}), runs({*soft_dirty_pages(sides.source)})
        sides.source.actor.end()
        return found, found == (_base_pages(live, span), [])

    return while_nothing_moves(live, attempt)


@MOVES.case(
    "memory that parent and child had together is the own memory of who is left once the other has ended, or has"
    " unmapped, given back or written all of its own, and it is written: UFFDIO_MOVE takes it, whole and in part; huge"
    " pages need one write each, wherever that is, stay huge, and keep their frames",
    f"{MOVE} EBUSY; mm/huge_memory.c do_huge_pmd_wp_page(); mm/memory.c do_wp_page(), wp_can_reuse_anon_folio()",
    since="6.8",
)
def owned_again(live: Live) -> None:
    let_rest(live)
    base, size = live.base_page, pmd_size(live)
    spans = (0, 0, _SHARED * size), (size, 0, size), (base, size - base, size)
    places = 0, size // 2 + WORD, size - WORD
    for number, (leave, is_parent) in enumerate(product((_ends, _unmaps, _gives_back, _writes), (True, False))):
        span, place = spans[number % len(spans)], places[number // 2 % len(places)]
        about = f"left is the parent {is_parent}, the other one {leave.__name__.strip('_')}"
        with live.about(f"huge_pages, {about}, offset {place} is written"):
            _expect_huge_ones_owned(live, leave, place, span, is_parent=is_parent)
        for make in (mapped_in_parts, base_pages):
            with live.about(f"{make.__name__}, {about}"):
                parent = make(live, _SHARED)
                owner = _left(parent, leave, is_parent=is_parent)
                owner.fill(_NEW_VALUE)
                _expect_taken(live, owner, span, _NEW_VALUE)
                parent.actor.end()


def _ends(memory: Memory) -> None:
    memory.actor.exit()


def _unmaps(memory: Memory) -> None:
    memory.unmap()


def _gives_back(memory: Memory) -> None:
    memory.advise(MADV_DONTNEED)


def _writes(memory: Memory) -> None:
    memory.fill(_OTHER_VALUE)


def _left(parent: Memory, leave: Callable[[Memory], None], *, is_parent: bool) -> Memory:
    """Return the memory of parent or child when the other one of them has done ``leave`` with its own."""
    child = parent.fork()
    owner, other = (parent, child) if is_parent else (child, parent)
    leave(other)
    return owner


def _expect_huge_ones_owned(
    live: Live, leave: Callable[[Memory], None], place: int, span: tuple[int, int, int], *, is_parent: bool
) -> None:
    """Expect huge pages to be who is left's own when the word at ``place`` of each was written."""
    for _attempt in range(_ATTEMPTS):
        parent = huge_pages(live, _SHARED)
        frames = parent.present_frames(_SHARED)
        owner = _left(parent, leave, is_parent=is_parent)
        for page in range(_SHARED):
            owner.actor.write(owner.at(page) + place, 1 + page * owner.size + place)
        found = owner.smaps().anon_huge_pages, owner.present_frames(_SHARED) == frames
        if found == (owner.length, True):
            _expect_taken(live, owner, span, 1)
            parent.actor.end()
            return
        parent.actor.end()
    live.fail("AnonHugePages, and whether the frames stay", (_SHARED * pmd_size(live), True), found)


def _expect_taken(live: Live, owner: Memory, span: tuple[int, int, int], value: int) -> None:
    """Expect a span of memory that holds ``value`` to be moved, and to hold it there."""
    start, to, length = span
    sides = Sides.of(live, owner)
    found = sides.move_until(length, start, to, length)
    if found != (length, 0):
        live.fail("bytes moved, and error", (length, 0), found)
    wrong = owner.actor.check(sides.target.address + to, length, WORD, value + start)
    live.expect("words that were moved and changed", 0, wrong)
    end = start + length
    left = owner.wrong_beside(start, end, value)
    live.expect("words of the rest that changed", 0, left)


class ThpMovedByUser(LiveTest):
    def test_moved_by_user(self) -> None:
        self.run_area(MOVES)
