"""What min_size= promises the files of a mount: kept while it is not used, and used by all that take pages there."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.hugetlb_files import HugeFile, open_file
from hugepage_qa.cases.hugetlb_of_a_process import forked
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory, value_or_signal
from hugepage_qa.cases.thp_memory import map_aligned
from hugepage_qa.cases.userfaultfd import Feature, Mode, Userfault
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.oracle.rules import HUGETLB_DOC
from hugepage_qa.plugins.avocado_test import LiveTest

PROMISED = Area("reservation/promised-pages")
MIN_SIZE = f"{HUGETLB_DOC} min_size"
COPY = f"{MIN_SIZE}; ioctl_userfaultfd(2) UFFDIO_COPY"
#: pages that are used one after the other
_MOST = 4
#: min_size= and size= in pages: below the most, without one, at both ends
_LIMITS = ((2, _MOST), (2, None), (1, _MOST), (_MOST, _MOST), (0, _MOST))
#: lose a reservation, until the machine is rebooted, where a private mapping that has none itself takes a page
_LOSE_RESERVATIONS = (Quirk.SUBPOOL_RESERVE_NOT_USED, Quirk.COPY_LOSES_RESERVATION)


@PROMISED.case(
    "of what min_size= promises as much stays reserved as is not used, whichever way pages are used and given back, one"
    " by one or two at once; without size=, which has the kernel count what is used, each page that is given back"
    " is promised again until all are",
    f"{MIN_SIZE}; mm/hugetlb.c hugepage_subpool_get_pages(), hugepage_subpool_put_pages()",
    pages=_MOST,
)
def promise_beside_what_is_used(live: Live) -> None:
    # gigantic pages take seconds each
    limits, step = (_LIMITS[:1], 2) if live.is_gigantic else (_LIMITS, 1)
    for at_once, (least, most) in product((1, 2), limits):
        for use in _uses(at_once)[::step]:
            _use_a_mount(live, use, least, most)


@dataclass(frozen=True)
class _Use:
    """A way to use ``at_once`` pages of a file, which are pages of the pool if ``touched``, and to give them back.

    Each use reserves ``besides`` pages more for each, and needs ``spare`` pages of the pool for a while. Kernels with
    one of ``known`` reserve one page more.
    """

    name: str
    touched: bool
    take: Callable[[HugeFile, int], Memory | None]
    give: Callable[[HugeFile, int, Memory | None], None]
    besides: int = 0
    spare: int = 0
    known: Iterable[Quirk] = ()
    at_once: int = 1


def _use_a_mount(live: Live, use: _Use, least: int, most: int | None) -> None:
    """Mount a hugetlbfs with these limits in pages, and have the pages of a file there used and given back."""
    point = _mount(live, least, most)
    file = open_file(live, f"{point}/file")
    file.truncate(_MOST)
    with live.about(f"min_size= of {least} pages, size= of {most}, {use.at_once} at once, {use.name}"):
        _use_page_by_page(live, file, use, least, most)
    file.actor.end()
    live.unmount(point)
    live.expect_pool(nr=_MOST + use.spare, free=_MOST + use.spare)


def _use_page_by_page(live: Live, file: HugeFile, use: _Use, least: int, most: int | None) -> None:
    """Have all pages of ``file`` used and given back, one after the other, and expect what stays reserved each time."""
    taken: list[Memory | None] = []
    promised, each = least, use.at_once * (1 + use.besides)
    for number in range(_MOST // each):
        taken.append(use.take(file, number * use.at_once))
        promised = max(promised - each, 0)
        _expect_used(live, use, len(taken) * use.at_once, promised)
    while taken:
        memory = taken.pop()
        use.give(file, len(taken) * use.at_once, memory)
        promised = min(promised + each, least) if most is None else max(least - len(taken) * each, 0)
        _expect_used(live, use, len(taken) * use.at_once, promised)


def _expect_used(live: Live, use: _Use, pages: int, promised: int) -> None:
    nr, touched = _MOST + use.spare, pages if use.touched else 0
    reserved = promised + pages * (1 + use.besides) - touched
    known = {quirk: {"resv": reserved + 1} for quirk in use.known}
    live.expect_pool(nr=nr, free=nr - touched, resv=reserved, known=known)


def _map(file: HugeFile, first: int, *, pages: int = 1, shared: bool, touched: bool) -> Memory:
    memory = file.map(pages, shared=shared, first=first)
    for page in range(pages) if touched else ():
        memory.touch(page)
    return memory


def _allocate(file: HugeFile, first: int, *, pages: int) -> None:
    file.allocate(pages, first)


def _cut(file: HugeFile, page: int, _memory: Memory | None) -> None:
    file.truncate(page)


def _punch(file: HugeFile, first: int, _memory: Memory | None, *, pages: int = 1) -> None:
    file.punch(pages, first)


def _unmap(_file: HugeFile, _page: int, memory: Memory | None) -> None:
    if memory:
        memory.unmap()


def _uses(pages: int) -> list[_Use]:
    """Return the ways to use so many pages at once."""
    mapped, written = (partial(_map, pages=pages, touched=touched) for touched in (False, True))
    punch = partial(_punch, pages=pages)
    uses = (
        _Use("mapped, and the file is cut", False, partial(mapped, shared=True), _cut),
        _Use("touched, and the file is cut", True, partial(written, shared=True), _cut),
        _Use("touched, and a hole is punched", True, partial(written, shared=True), punch),
        _Use("allocated, and a hole is punched", True, partial(_allocate, pages=pages), punch),
        _Use("mapped privately, and unmapped", False, partial(mapped, shared=False), _unmap),
        _Use("written privately, and unmapped", True, partial(written, shared=False), _unmap),
    )
    return [replace(use, at_once=pages) for use in uses]


@PROMISED.case(
    "a page that UFFDIO_COPY fills is one that min_size= promises, and is promised again when it is given back, whether"
    " the source is there or has to be brought first, to shared memory and to private memory that is reserved",
    f"{COPY}; mm/hugetlb.c hugetlb_mfill_atomic_pte(), restore_reserve_on_error()",
    sizes=Sizes.BUDDY,
    pages=_MOST + 1,
)
def copied_to_what_is_reserved(live: Live) -> None:
    shared, private = (partial(_map, shared=is_shared, touched=False) for is_shared in (True, False))
    for use in (
        *_copies(live, "shared memory", shared, _punch),
        *_copies(live, "shared memory with MAP_NORESERVE", partial(_map_unreserved, shared=True), _punch),
        *_copies(live, "private memory", private, _unmap),
    ):
        for least, most in _LIMITS:
            _use_a_mount(live, use, least, most)


@PROMISED.case(
    "a page that UFFDIO_COPY fills of private memory that nothing is reserved for, as with MAP_NORESERVE or in a child,"
    " is one that min_size= promises, and is promised again when it is given back, whether the source is there or has"
    " to be brought first",
    f"{COPY}; mm/hugetlb.c hugetlb_mfill_atomic_pte(), restore_reserve_on_error(), free_huge_folio()",
    sizes=Sizes.BUDDY,
    pages=_MOST + 1,
)
def copied_to_what_is_not_reserved(live: Live) -> None:
    for quirk in _LOSE_RESERVATIONS:
        if live.has_bug(quirk):
            if not live.host.is_thrown_away():
                raise CannotRun(
                    f"{quirk.value}, a known bug of this kernel, has a page reserved for nobody until the machine is"
                    " rebooted: a throwaway machine can judge it"
                )
            live.host.is_spoiled = True
    for use in (
        *_copies(live, "private memory with MAP_NORESERVE", partial(_map_unreserved, shared=False), _unmap),
        *_copies(live, "private memory of a child", _map_by_child, _end_child, besides=1),
    ):
        for least, most in _LIMITS:
            _use_a_mount(live, replace(use, known=_LOSE_RESERVATIONS), least, most)


def _copies(
    live: Live,
    name: str,
    make: Callable[[HugeFile, int], Memory],
    give: Callable[[HugeFile, int, Memory | None], None],
    *,
    besides: int = 0,
) -> list[_Use]:
    """Return how a page is used that ``make`` maps and UFFDIO_COPY fills, of a source that is there, or is not yet.

    What such a source has is held by a page that nobody reserved, until it can be where it belongs.
    """
    return [
        _Use(
            f"to {name}, source there {is_there}",
            touched=True,
            take=partial(_copy, live, make, is_there=is_there),
            give=give,
            besides=besides,
            spare=1,
        )
        for is_there in (True, False)
    ]


def _copy(live: Live, make: Callable[[HugeFile, int], Memory], file: HugeFile, page: int, *, is_there: bool) -> Memory:
    memory = make(file, page)
    source = map_aligned(live, 1, live.size, actor=memory.actor)
    if is_there:
        source.fill()
    copied = Userfault(memory, Mode.MISSING, Feature.MISSING_HUGETLBFS).copied(source, 0, live.size)
    live.expect("errno, .copy", (0, live.size), copied)
    source.unmap()
    if is_there:
        memory.expect_filled()
    else:
        memory.expect_zero()
    return memory


def _map_unreserved(file: HugeFile, page: int, *, shared: bool) -> Memory:
    return file.map(1, shared=shared, noreserve=True, first=page)


def _map_by_child(file: HugeFile, page: int) -> Memory:
    memory = file.map(1, shared=False, first=page)
    return memory.fork()


def _end_child(file: HugeFile, _page: int, memory: Memory | None) -> None:
    if memory:
        memory.actor.end()
        memory.seen_by(file.actor).unmap()


@PROMISED.case(
    "the copy that the owner of a private mapping makes is a page that min_size= promises, and its child keeps the"
    " other, also where no other page is free",
    f"{MIN_SIZE}; mm/hugetlb.c hugetlb_wp(), alloc_hugetlb_folio()",
    pages=3,
)
def copy_of_the_owner(live: Live) -> None:
    _expect_promised_copy(live, Quirk.SUBPOOL_RESERVE_AVOIDED, by_child=False)


@PROMISED.case(
    "the copy that a child makes of a private page is a page that min_size= promises, also where no other page is free",
    f"{MIN_SIZE}; mm/hugetlb.c hugetlb_wp(), alloc_hugetlb_folio()",
    pages=3,
)
def copy_of_a_child(live: Live) -> None:
    _expect_promised_copy(live, Quirk.SUBPOOL_RESERVE_NOT_USED, by_child=True)


def _expect_promised_copy(live: Live, passed_by: Quirk, *, by_child: bool) -> None:
    """Expect who writes a page that parent and child have to get one of two that are promised, but for ``passed_by``.

    Without a spare page first: there a kernel with the bug loses no reservation for good.
    """
    for spare, most in _spares(live):
        live.set_nr(2 + spare)
        point = _mount(live, 2, most)
        memory = open_file(live, f"{point}/file").map(1, shared=False)
        memory.touch(value=1)
        child = forked(live, memory)
        live.expect_pool(nr=2 + spare, free=1 + spare, resv=1)
        writer, reader = (child, memory) if by_child else (memory, child)
        with live.about(_limits(most, spare)):
            came = value_or_signal(partial(writer.touch, value=2))
            live.expect_pool(nr=2 + spare, free=spare, known={passed_by: {"free": 1, "resv": 1}})
            live.expect("the signal that came of the write", None, came)
            live.expect("what both have", (2, 1), (writer.read(), reader.read()))
            child.actor.end()
            live.expect_pool(nr=2 + spare, free=1 + spare, resv=1)
        memory.actor.end()
        live.unmount(point)
        live.expect_pool(nr=2 + spare, free=2 + spare)


@PROMISED.case(
    "a page of a file that nothing is reserved for is one that min_size= promises, also where no other page is free",
    f"{MIN_SIZE}; mm/hugetlb.c alloc_hugetlb_folio(); fs/hugetlbfs/inode.c hugetlbfs_fallocate()",
    pages=3,
)
def page_of_a_file(live: Live) -> None:
    _expect_promised(live, "allocated", lambda file: file.allocate(1))
    _expect_promised(live, "touched", lambda file: file.map(1, noreserve=True).touch())


@PROMISED.case(
    "a private page that nothing is reserved for is one that min_size= promises, also where no other page is free",
    f"{MIN_SIZE}; mm/hugetlb.c alloc_hugetlb_folio()",
    pages=3,
)
def private_page(live: Live) -> None:
    known = {Quirk.SUBPOOL_RESERVE_NOT_USED: {"free": 2, "resv": 2}}
    _expect_promised(live, "written", lambda file: file.map(1, shared=False, noreserve=True).touch(), known)


def _expect_promised(
    live: Live,
    name: str,
    take: Callable[[HugeFile], None],
    known: Mapping[Quirk, Mapping[str, int]] | None = None,
) -> None:
    """Expect what has ``take`` taken of a file of one page to be one of two pages that are promised."""
    for spare, most in _spares(live):
        live.set_nr(2 + spare)
        point = _mount(live, 2, most)
        file = open_file(live, f"{point}/file")
        file.truncate(1)
        with live.about(f"{name}, {_limits(most, spare)}"):
            came = value_or_signal(partial(take, file))
            live.expect_pool(nr=2 + spare, free=1 + spare, resv=1, known=known)
            live.expect("the signal that came of it", None, came)
        file.actor.end()
        live.unmount(point)
        live.expect_pool(nr=2 + spare, free=2 + spare)


def _spares(live: Live) -> Iterable[tuple[int, int | None]]:
    """Return how many pages there are beside two that are promised, and size= in pages; gigantic ones take seconds."""
    return product((0, 1), (None,) if live.is_gigantic else (None, 2))


def _limits(most: int | None, spare: int) -> str:
    return f"size= of {most} pages, {spare} pages that are promised to nobody"


def _mount(live: Live, least: int, most: int | None) -> str:
    """Mount a hugetlbfs with these limits in pages and return where."""
    size = {} if most is None else {"size": most * live.size}
    return live.mount(min_size=least * live.size, **size)


class PromisedPages(LiveTest):
    def test_promised_pages(self) -> None:
        self.run_area(PROMISED)
