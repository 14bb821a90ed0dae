"""Memory that its process alone has and may only read, which others read, and which is pinned to be read.

Whose a huge page is that is mapped as a whole is marked at its first base page, for all of them (PageAnonExclusive() in
include/linux/page-flags.h): whichever of them is asked for, there is nothing to be copied.
"""

import mmap
import signal
from collections.abc import Callable, Iterator
from functools import partial

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.endless_calls import returned
from hugepage_qa.cases.folio_layout import expect_folio
from hugepage_qa.cases.khugepaged_clock import let_rest
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.pinned_pages import open_for_direct_io
from hugepage_qa.cases.places import ordinary_memory
from hugepage_qa.cases.reached_from_outside import word_read_by
from hugepage_qa.cases.registered_memory import Registry
from hugepage_qa.cases.thp_memory import anon_huge_pages
from hugepage_qa.cases.thp_policy import (
    advised,
    base_pages,
    huge_pages,
    mapped_in_parts,
    set_policy,
    some_smaller_sizes,
)
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor

WHERE_IT_IS = Area("memory/read-where-it-is", sizes=Sizes.ONCE)

#: frames of some of it, and how much of it is in huge pages
_Where = tuple[list[int], int]
#: who has the kernel read memory, and what does it: of the base page at a place it returns the first word
_MakeWay = Callable[[Live, Memory], tuple[Actor, Callable[[int], int]]]
_RULE = (
    "what its process alone has and may only read is read as it is, whichever base page of it is asked for, and nothing"
    " of it is copied or split for that"
)
_HUGE = "mm/internal.h gup_must_unshare(); mm/huge_memory.c follow_trans_huge_pmd(), mm/gup.c follow_huge_pmd()"


@WHERE_IT_IS.case(
    f"{_RULE}: base pages and huge pages, mapped as a whole or in parts, by process_vm_readv(2), its own or another's",
    f"process_vm_readv(2); {_HUGE}",
)
def by_processes(live: Live) -> None:
    for way in (_by_itself, _by_another):
        _expect_thp_read(live, way)


@WHERE_IT_IS.case(
    f"{_RULE}: base pages and huge pages, mapped as a whole or in parts, by O_DIRECT",
    f"open(2) O_DIRECT; {_HUGE}, gup_fast()",
)
def by_a_disk(live: Live) -> None:
    _expect_thp_read(live, _by_disk)


@WHERE_IT_IS.case(
    f"{_RULE}: base pages and huge pages, mapped as a whole or in parts, while they are pinned for a device",
    f"mm/gup.c FOLL_LONGTERM; drivers/infiniband/core/umem.c ib_umem_get(); {_HUGE}",
    since="6.2",  # it asked for pages to be written until then
)
def by_a_device(live: Live) -> None:
    _expect_thp_read(live, _registered)


@WHERE_IT_IS.case(
    f"{_RULE}: a hugetlb page, by process_vm_readv(2), its own or another's",
    "process_vm_readv(2); mm/internal.h gup_must_unshare(); mm/hugetlb.c hugetlb_wp()",
    sizes=Sizes.EACH,
    pages=2,
)
def hugetlb_page(live: Live) -> None:
    memory = live.map(1)
    memory.fill()
    for way in (_by_itself, _by_another):
        live.expect("frames, and AnonHugePages", *_where_when_read(live, memory, way))
        live.expect_pool(nr=2, free=1)


def _expect_thp_read(live: Live, way: _MakeWay) -> None:
    let_rest(live)
    for make, what in _kinds(live):

        def looks(make: Callable[[Live], Memory] = make) -> tuple[_Where, _Where]:
            memory = make(live)
            where = _where_when_read(live, memory, way)
            memory.actor.end()
            return where

        with live.about(f"{what}, {way.__name__.strip('_')}"):
            # what others move or swap out is elsewhere; what was copied is not copied once more
            before, after = live.host.last_attempt(looks, lambda where: where[0] == where[1])
            live.expect("frames, and AnonHugePages", before, after)


def _kinds(live: Live) -> Iterator[tuple[Callable[[Live], Memory], str]]:
    for make in (base_pages, huge_pages, mapped_in_parts):
        yield make, make.__name__
    for size, path in some_smaller_sizes(live):
        yield partial(_of_size, size=size, policy=f"{path}/enabled"), f"pages of {size >> 10} kB"


def _of_size(live: Live, size: int, policy: str) -> Memory:
    """Return memory in pages of a smaller size. Raises CannotRun where memory is too fragmented for them."""
    set_policy(live, "madvise", pmd="never")
    live.set_knob(policy, "always")
    memory = advised(live)
    memory.fill()
    live.set_knob(policy, "never")
    expect_folio(live, memory, size)
    return memory


def _where_when_read(live: Live, memory: Memory, make: _MakeWay) -> tuple[_Where, _Where]:
    """Expect what its process may only read to be read by a way at several places; return where it was and is then."""
    places = 0, live.base_page, memory.size // 2, memory.size - live.base_page

    def where() -> _Where:
        return [memory.frame(place) for place in places], anon_huge_pages(memory)

    before = where()
    memory.protect(mmap.PROT_READ)
    reader, read = make(live, memory)
    for place in places:
        found = returned(live, reader, partial(read, place))
        if found is None:
            live.fail(f"what is read at {place}", 1 + place, "nothing: the call does not come back")
        live.expect(f"what is read at {place}", 1 + place, found)
        address = memory.address + place
        live.expect_signal(signal.SIGSEGV, memory.actor.write, address, 9, at=address)
    after = where()
    memory.protect(READ_WRITE)
    memory.expect_filled()
    return before, after


def _by_itself(live: Live, memory: Memory) -> tuple[Actor, Callable[[int], int]]:
    return memory.actor, partial(word_read_by, live, memory.actor, memory)


def _by_another(live: Live, memory: Memory) -> tuple[Actor, Callable[[int], int]]:
    reader = live.actor()
    return reader, partial(word_read_by, live, reader, memory)


def _by_disk(live: Live, memory: Memory) -> tuple[Actor, Callable[[int], int]]:
    actor, length = memory.actor, live.base_page
    file, page = open_for_direct_io(live, actor), ordinary_memory(live, actor, 1)

    def read(place: int) -> int:
        live.expect("bytes written", length, actor.call("pwrite64", file, memory.address + place, length, 0))
        live.expect("bytes read", length, actor.call("pread64", file, page.address, length, 0))
        return page.read()

    return actor, read


def _registered(live: Live, memory: Memory) -> tuple[Actor, Callable[[int], int]]:
    registry, base = Registry(live, memory.actor), live.base_page

    def read(place: int) -> int:
        part = Memory(live, memory.actor, memory.address + place, 1, base)
        with registry.registered(part):
            return part.read()

    return memory.actor, read


class ReadWhereItIs(LiveTest):
    def test_read_where_it_is(self) -> None:
        self.run_area(WHERE_IT_IS)
