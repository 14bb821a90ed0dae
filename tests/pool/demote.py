"""Demotion: a page of a large size becomes pages of a smaller one."""

import errno
import os
from functools import partial
from itertools import permutations

from hugepage_qa.cases.case import Area
from hugepage_qa.cases.demotion import demote, smaller_pool, smallest_demote_size
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.memory_of_others import expect_no_drift, free_bytes
from hugepage_qa.cases.pages_of_a_node import filled_page_on
from hugepage_qa.cases.struct_pages import (
    need_struct_pages,
    optimize_struct_pages,
    read_counted_struct_pages,
    struct_pages,
)
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.oracle.rules import HUGETLB_DOC
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.sizes import KIB

DEMOTE = Area("pool/demote")
#: 79dfc695525f, 8531fc6f52f5
SINCE = "5.16"
_ATTEMPTS = 5
RULE = f"{HUGETLB_DOC} demote, demote_size; mm/hugetlb.c demote_store()"


def _expect_made(live: Live, smaller: Live, pages: int) -> None:
    """Expect the smaller pool to have what became of ``pages`` pages, free, also where the kernel counts it apart."""
    parts = pages * live.size // smaller.size
    smaller.expect_pool(nr=parts, free=parts)
    smaller.expect_sysctl(parts)


def _need_empty_pool(live: Live) -> None:
    """Raise CannotRun where the pool had pages before: their number is reserved on all nodes.

    demote_store() takes that off what a node has free.
    """
    if live.before.pools[live.size].nr:
        raise CannotRun("the pool has pages that are not ours: they would be demoted, or are spared on each node")


def _kept_too_many(live: Live, smaller: Live) -> int:
    """Return the base pages of struct pages that all parts of a page but the first one keep with the bug."""
    return (live.size // smaller.size - 1) * (struct_pages(live, smaller.size) // live.base_page - 1)


@DEMOTE.case("a demoted page is as many free pages of the smaller size as fit in it", RULE, since=SINCE, pages=2)
def demoted_page(live: Live) -> None:
    smaller = smaller_pool(live)
    for left in (1, 0):
        demote(live, 1)
        live.expect_pool(nr=left, free=left)
        _expect_made(live, smaller, 2 - left)


@DEMOTE.case("what is left of a demoted page is zeroed for its next user", RULE, since=SINCE, pages=1)
def demoted_page_is_clean(live: Live) -> None:
    smaller = smaller_pool(live)
    memory = live.map(1)
    memory.fill()
    memory.unmap()
    demote(live, 1)
    parts = live.size // smaller.size
    small = smaller.map(parts)
    smaller.expect_pool(nr=parts, free=parts, resv=parts)
    small.expect_zero(0, parts)
    smaller.expect_pool(nr=parts, free=0)
    small.unmap()
    smaller.expect_pool(nr=parts, free=parts)


@DEMOTE.case("a page that gave back its struct pages is demoted to pages that can be used", RULE, since=SINCE)
def optimised_page(live: Live) -> None:
    smaller = smaller_pool(live)
    optimize_struct_pages(live)
    live.reserve(1)
    demote(live, 1)
    live.expect_pool(nr=0, free=0)
    parts = live.size // smaller.size
    memory = smaller.map(parts)
    places = (0, parts // 2, parts - 1)
    for place in places:
        memory.touch(place, place)
    smaller.expect_pool(nr=parts, free=parts - len(places), resv=parts - len(places))
    live.expect("what the pages hold", places, tuple(memory.read(place) for place in places))
    memory.unmap()
    smaller.set_nr(0)
    smaller.expect_pool(nr=0, free=0)


@DEMOTE.case(
    "pages that demotion made of one that gave back its struct pages have given back their own, too",
    "Documentation/admin-guide/sysctl/vm.rst hugetlb_optimize_vmemmap; mm/hugetlb_vmemmap.c; mm/hugetlb.c"
    " demote_free_huge_page()",
    since=SINCE,
)
def optimised_parts(live: Live) -> None:
    smaller = smaller_pool(live)
    parts = live.size // smaller.size
    need_struct_pages(live, smaller.size)
    optimize_struct_pages(live)
    # each of them keeps one base page, as their large one did
    expected = (parts - 1) * live.base_page
    limit = (struct_pages(live, live.size) - parts * live.base_page) // 2
    taken = []
    for _attempt in range(_ATTEMPTS):
        live.reserve(1)
        live.expect_pool(nr=1, free=1)
        before, counted = free_bytes(live), read_counted_struct_pages(live)
        demote(live, 1)
        taken.append(before - free_bytes(live))
        if counted is not None:
            kept = counted + parts - 1
            known = {Quirk.DEMOTED_PARTS_LOSE_MEMORY: kept + _kept_too_many(live, smaller)}
            live.expect("base pages of struct pages", kept, read_counted_struct_pages(live), known)
        live.expect_pool(nr=0, free=0)
        smaller.expect_pool(nr=parts, free=parts)
        smaller.set_nr(0)
        if abs(taken[-1] - expected) < limit:
            break
    nearest = min(taken, key=lambda each: abs(each - expected))
    if abs(nearest - expected) >= limit:
        expect_no_drift(live, limit // 2)
    live.expect(f"{nearest} bytes taken, within {limit} of {expected}", True, abs(nearest - expected) < limit)


@DEMOTE.case(
    "no memory is missing when all is freed that became of a page that had given back its struct pages",
    "Documentation/admin-guide/sysctl/vm.rst hugetlb_optimize_vmemmap; mm/hugetlb_vmemmap.c",
    # what tells how many there are (15995a352474)
    since="6.11",
)
def freed_parts(live: Live) -> None:
    smaller = smaller_pool(live)
    need_struct_pages(live, smaller.size)
    optimize_struct_pages(live)
    # the first page has the kernel make what it keeps for all, since 7.1 a page of tails (622026e87c40)
    live.reserve(1)
    live.set_nr(0)
    counted = read_counted_struct_pages(live)
    if counted is None:
        raise CannotRun("this kernel does not count base pages of struct pages")
    live.reserve(1)
    live.expect_pool(nr=1, free=1)
    demote(live, 1)
    live.expect_pool(nr=0, free=0)
    _expect_made(live, smaller, 1)
    smaller.set_nr(0)
    smaller.expect_pool(nr=0, free=0)
    known = {Quirk.DEMOTED_PARTS_LOSE_MEMORY: counted + _kept_too_many(live, smaller)}
    live.expect("base pages of struct pages", counted, read_counted_struct_pages(live), known)


@DEMOTE.case("as many pages are demoted at once as are asked for, and no more", RULE, since=SINCE, pages=3)
def several_at_once(live: Live) -> None:
    smaller = smaller_pool(live)
    demote(live, 2)
    live.expect_pool(nr=1, free=1)
    _expect_made(live, smaller, 2)


@DEMOTE.case("demotion takes the free pages that there are, and asks for no more", RULE, since=SINCE, pages=1)
def demote_more_than_free(live: Live) -> None:
    smaller = smaller_pool(live)
    quirk = Quirk.DEMOTE_TAKES_RESERVED
    if live.before.pools[live.size].available and live.has_bug(quirk):
        raise CannotRun(f"{quirk.value}, a known bug of this kernel, would demote pages that are not ours")
    for pages in (3, 1):
        demote(live, pages)
        live.expect_pool(nr=0, free=0)
        _expect_made(live, smaller, 1)


@DEMOTE.case("a page that is reserved for a mapping or in use is not demoted", RULE, since=SINCE, pages=2)
def pages_in_use_stay(live: Live) -> None:
    smaller = smaller_pool(live)
    memory = live.map(2)
    demote(live, 2)
    live.expect_pool(nr=2, free=2, resv=2)
    memory.touch(0, 1)
    memory.touch(1, 2)
    demote(live, 2)
    live.expect_pool(nr=2, free=0)
    _expect_made(live, smaller, 0)
    live.expect("what the pages hold", (1, 2), (memory.read(0), memory.read(1)))


@DEMOTE.case("only what is free beyond the reservations is demoted", RULE, since=SINCE, pages=2)
def reservations_stay(live: Live) -> None:
    smaller = smaller_pool(live)
    memory = live.map(1)
    demote(live, 2)
    live.expect_pool(nr=1, free=1, resv=1, known={Quirk.DEMOTE_TAKES_RESERVED: {"nr": 0, "free": 0}})
    _expect_made(live, smaller, 1)
    memory.touch()
    live.expect_pool(nr=1, free=0)


@DEMOTE.case("demotion on a node takes pages of that node alone", RULE, since=SINCE)
def demote_on_a_node(live: Live) -> None:
    smaller = smaller_pool(live)
    live.need_nodes()
    _need_empty_pool(live)
    parts = live.size // smaller.size
    # twice each: a kernel that takes pages from all nodes in turn takes them from the right one every other time
    for node in (node for node in live.nodes for _again in range(2)):
        for each in live.nodes:
            live.reserve(1, each)
        demote(live, 1, node)
        for each in live.nodes:
            left, made = (0, parts) if each == node else (1, 0)
            live.expect_pool(nr=left, free=left, node=each)
            smaller.expect_pool(nr=made, free=made, node=each)
        _expect_made(live, smaller, 1)
        smaller.set_nr(0)
        smaller.expect_pool(nr=0, free=0)


@DEMOTE.case("demotion on a node that has no page does nothing, though others have", RULE, since=SINCE, nodes=2)
def demote_on_an_empty_node(live: Live) -> None:
    smaller = smaller_pool(live)
    there, empty = live.nodes[:2]
    _need_empty_pool(live)
    live.reserve(1, there)
    demote(live, 1, empty)
    live.expect_pool(nr=1, free=1, node=there)
    for node in (there, empty):
        smaller.expect_pool(nr=0, free=0, node=node)


@DEMOTE.case("demotion on a node spares what is reserved, on whichever node it may be", RULE, since=SINCE, nodes=2)
def reservations_stay_on_a_node(live: Live) -> None:
    smaller = smaller_pool(live)
    here, there = live.nodes[:2]
    live.reserve(1, here)
    live.reserve(1, there)
    live.expect_pool(nr=2, free=2)
    memory = live.map(2)
    demote(live, 2)
    live.expect_pool(nr=2, free=2, resv=2)
    demote(live, 1, here)
    live.expect_pool(nr=2, free=2, resv=2, known={Quirk.DEMOTE_ON_NODE_TAKES_RESERVED: {"nr": 1, "free": 1}})
    smaller.expect_pool(nr=0, free=0)
    for page in (0, 1):
        memory.touch(page)
    live.expect_pool(nr=2, free=0)


@DEMOTE.case(
    "demotion on a node whose pages are all in use does nothing, and is no error, whatever number is asked for, where"
    " others have free ones, too: all of its pages stay, and hold what they held",
    RULE,
    since=SINCE,
    nodes=2,
)
def used_pages_stay_on_a_node(live: Live) -> None:
    _expect_used_page_to_stay(live, free=0)


@DEMOTE.case(
    "demotion on a node that has a free page and one in use takes the free one, and is no error where more are asked"
    " for, once more, too: the page in use stays, and holds what it held",
    RULE,
    since=SINCE,
    nodes=2,
)
def free_pages_beside_used_ones_on_a_node(live: Live) -> None:
    _expect_used_page_to_stay(live, free=1)


def _expect_used_page_to_stay(live: Live, *, free: int) -> None:
    """Expect demotion on a node that has ``free`` pages beside one in use to take those, and what others have to stay.

    Raises CannotRun where the pool had pages before.
    """
    smaller = smaller_pool(live)
    _need_empty_pool(live)
    parts = live.size // smaller.size
    for node, other in permutations(live.nodes[:2]):
        live.reserve(1, node)
        memory = filled_page_on(live, node)
        live.reserve(1 + free, node)
        for others, asked in ((0, 3), (0, 1), (1, 1), (1, 2)):
            live.reserve(others, other)
            with live.about(f"{asked} of node {node}, where node {other} has {others} free"):
                live.expect_success(demote, live, asked, node)
                live.expect_pool(nr=1 + others, free=others)
                live.expect_pool(nr=1, free=0, node=node)
                live.expect_pool(nr=others, free=others, node=other)
                smaller.expect_pool(nr=free * parts, free=free * parts, node=node)
                smaller.expect_pool(nr=0, free=0, node=other)
        _expect_made(live, smaller, free)
        memory.expect_filled()
        memory.unmap()
        smaller.set_nr(0)
        live.set_nr(0)


@DEMOTE.case("no number of pages, no demotion", RULE, since=SINCE, pages=1)
def demote_no_number(live: Live) -> None:
    smaller = smaller_pool(live)
    for text in ("-1", "x"):
        live.expect_errno(errno.EINVAL, live.host.write, live.pool_file("demote"), text)
    demote(live, 0)
    live.expect_pool(nr=1, free=1)
    smaller.expect_pool(nr=0, free=0)


@DEMOTE.case("demote_size takes every smaller size that is at least a PMD, and no other", RULE, since=SINCE)
def demote_sizes(live: Live) -> None:
    smaller_pool(live)
    path = live.pool_file("demote_size")
    smallest = smallest_demote_size(live)
    for size in live.sizes:
        if smallest <= size < live.size:
            live.set_knob(path, f"{size // KIB}K")
            live.expect(path, f"{size // KIB}kB\n", ObservedTree(live.host).read(path))
        else:
            live.expect_errno(errno.EINVAL, live.host.write, path, f"{size // KIB}K")
    before = live.host.read(path)
    for text in ("0", "3M", f"{2 * max(live.sizes)}", "x"):
        live.expect_errno(errno.EINVAL, live.host.write, path, text)
        live.expect(path, before, ObservedTree(live.host).read(path))


@DEMOTE.case(
    "a write to demote, of all pages or of those of a node, and to demote_size takes all of its bytes; what demote_size"
    " shows is refused, and stays, where it is less than a PMD",
    f"{RULE}; write(2); mm/hugetlb.c demote_store(), demote_size_store()",
    since=SINCE,
)
def bytes_that_are_taken(live: Live) -> None:
    is_taken = smaller_pool(live).size >= smallest_demote_size(live)
    actor, size = live.actor(), live.pool_file("demote_size")
    shown = live.host.read(size) or ""
    demotions = [(live.pool_file("demote", node=node), "0") for node in (None, *live.nodes)]
    for path, text in ((size, shown), *demotions):
        file = live.open(actor, f"/{path}", os.O_WRONLY)
        for written in (text.strip(), f"{text.strip()}\n"):
            write = partial(actor.call, "write", file, written.encode(), len(written))
            with live.about(f"{written!r} to {path}"):
                if path == size and not is_taken:
                    live.expect_errno(errno.EINVAL, write)
                else:
                    live.expect("bytes taken", len(written), write())
                live.expect(size, shown, ObservedTree(live.host).read(size))
        actor.call("close", file)


@DEMOTE.case("demote is written and never read", RULE, since=SINCE)
def demote_is_write_only(live: Live) -> None:
    smaller_pool(live)
    live.expect("what demote shows", None, ObservedTree(live.host).read(live.pool_file("demote")))


class Demote(LiveTest):
    def test_demote(self) -> None:
        self.run_area(DEMOTE)
