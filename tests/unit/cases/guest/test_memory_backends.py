"""What must come of options of QEMU and elements of libvirt, worked out without either."""

import json
from collections import Counter
from xml.etree import ElementTree

import pytest

from hugepage_qa.cases.guest.memory_backend import MemoryBackend, PoolOutcome, Store, every_backend
from hugepage_qa.cases.guest.memory_backing import (
    MemoryBacking,
    MemoryOutcome,
    every_backing_with_huge_pages,
    every_backing_with_ordinary_pages,
)
from hugepage_qa.cases.guest.refusal import Meaning
from hugepage_qa.qemu.guest.domain_xml import domain_xml
from hugepage_qa.qemu.guest.guest_description import Access, Allocation, Cell, GuestDescription, Source
from hugepage_qa.qemu.guest.guest_site import Site
from hugepage_qa.sizes import MIB

PAGE = 2 * MIB
NAMED, MEMFD = Store.NAMED_FILE, Store.MEMFD


def backend(store: Store, **options: bool) -> MemoryBackend:
    return MemoryBackend(4 * PAGE, PAGE, store, **options)


@pytest.mark.parametrize(
    ("options", "outcome"),
    [
        (backend(MEMFD), PoolOutcome(taken=4)),
        (backend(MEMFD, is_preallocated=False), PoolOutcome(reserved=4)),
        (backend(MEMFD, is_preallocated=False, is_reserved=False), PoolOutcome()),
        (backend(MEMFD, is_reserved=False), PoolOutcome(Meaning.EXCLUDE_EACH_OTHER)),
        (backend(NAMED, is_shared=True), PoolOutcome(taken=4, kept=4)),
        (backend(NAMED, is_shared=True, is_discarded=True), PoolOutcome(taken=4)),
        (backend(NAMED), PoolOutcome(taken=4)),
        # a hole gives no reservation back
        (
            backend(NAMED, is_shared=True, is_preallocated=False, is_discarded=True),
            PoolOutcome(reserved=4, kept_reserved=4),
        ),
        (backend(Store.FILE, is_shared=True), PoolOutcome(taken=4)),
    ],
)
def test_what_a_backend_does_to_a_pool(options: MemoryBackend, outcome: PoolOutcome) -> None:
    assert options.outcome(4) == outcome


def test_what_was_touched_counts_where_it_was_not_taken_at_once() -> None:
    on_demand = backend(NAMED, is_shared=True, is_preallocated=False)
    assert on_demand.outcome(4, 1) == PoolOutcome(taken=1, reserved=3, kept=1, kept_reserved=3)
    assert backend(NAMED).outcome(4, 4) == PoolOutcome(taken=4)


def test_what_is_short_is_refused_where_it_reserves() -> None:
    found = Counter(one.outcome(3).refusal for one in every_backend(4 * PAGE, PAGE))
    assert found == {Meaning.EXCLUDE_EACH_OTHER: 10, Meaning.SHORT_OF_PAGES: 20, None: 10}


def test_every_combination_is_there_once_and_is_told_apart(site: Site) -> None:
    every = list(every_backend(4 * PAGE, PAGE))
    assert (
        len(every) == len({str(one) for one in every}) == len({one.definition(site, "memory") for one in every}) == 40
    )
    document = json.loads(backend(NAMED, is_discarded=True).definition(site, "memory"))
    assert (document["mem-path"], document["discard-data"], document["reserve"]) == (
        "/scratch/huge-2M/backend",
        True,
        True,
    )


@pytest.mark.parametrize(
    ("backing", "outcome"),
    [
        (MemoryBacking(PAGE), MemoryOutcome(is_huge=True, is_there=True)),
        (MemoryBacking(PAGE, Source.MEMFD), MemoryOutcome(is_huge=True, is_there=True, is_shared=True)),
        (MemoryBacking(PAGE, Source.MEMFD, access=Access.PRIVATE), MemoryOutcome(is_huge=True, is_there=True)),
        (MemoryBacking(PAGE, discard=True), MemoryOutcome(is_huge=True, is_there=True, is_discarded=True)),
        (MemoryBacking(PAGE, Source.ANONYMOUS), MemoryOutcome(Meaning.EXCLUDE_EACH_OTHER)),
        (MemoryBacking(PAGE, None, Allocation.ON_DEMAND), MemoryOutcome(Meaning.EXCLUDE_EACH_OTHER)),
        (MemoryBacking(), MemoryOutcome()),
        (
            MemoryBacking(None, Source.FILE, Allocation.IMMEDIATE, Access.SHARED),
            MemoryOutcome(None, False, True, True),
        ),
    ],
)
def test_what_a_backing_does(backing: MemoryBacking, outcome: MemoryOutcome) -> None:
    assert backing.outcome() == outcome


def test_every_backing_is_there_once() -> None:
    every = [*every_backing_with_huge_pages(PAGE), *every_backing_with_ordinary_pages()]
    assert len(every) == len(set(every)) == len({str(one) for one in every}) == 72 + 24


def test_a_backing_takes_the_place_of_that_of_a_domain(site: Site) -> None:
    definition = domain_xml(GuestDescription("guest", (Cell(4 * PAGE, PAGE),)), site)
    full = MemoryBacking(PAGE, Source.FILE, Allocation.IMMEDIATE, Access.SHARED, discard=True, nosharepages=True)
    found = ElementTree.fromstring(full.put_into(definition)).find("memoryBacking")  # noqa: S314 - our own
    assert found is not None
    assert [child.tag for child in found] == [
        *("hugepages", "nosharepages", "source", "access", "allocation", "discard"),
    ]
    without_size = ElementTree.fromstring(MemoryBacking(0).put_into(definition))  # noqa: S314 - our own
    assert without_size.find("memoryBacking/hugepages") is not None
    assert without_size.find("memoryBacking/hugepages/page") is None
