"""Ranges of memory of which a part is registered already: what UFFDIO_REGISTER and UFFDIO_UNREGISTER make of it."""

import mmap
import signal
from collections.abc import Mapping, Sequence, Set
from itertools import combinations, product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.thp_memory import map_aligned, pmd_size
from hugepage_qa.cases.userfaultfd import Feature, Mode, Userfault, offered_features
from hugepage_qa.plugins.avocado_test import LiveTest

PARTS = Area("userfaultfd/registered-parts")

EACH_PART = (
    "UFFDIO_REGISTER registers all of a range and no more, and UFFDIO_UNREGISTER ends all of it and no more, whichever"
    " pages in it or beside it are registered already, for other faults too, in one mapping or in several: faults of"
    " what is registered then are the program's"
)
REGISTERED = "ioctl_userfaultfd(2) UFFDIO_REGISTER, UFFDIO_UNREGISTER; mm/userfaultfd.c userfaultfd_register_range()"
#: pages of which any are registered, and ranges of them: the first one, and the one behind the last
_PAGES = 3
_RANGES = tuple(combinations(range(_PAGES + 1), 2))
#: what smaps has among VmFlags of memory that is registered, for each mode
_FLAGS = {Mode.MISSING: {"um"}, Mode.MISSING | Mode.WRITE_PROTECTED: {"um", "uw"}}


@PARTS.case(EACH_PART, REGISTERED, sizes=Sizes.BUDDY, since="5.11")
def each_part_of_hugetlb_pages(live: Live) -> None:
    features = Feature.MISSING_HUGETLBFS | Feature.WP_HUGETLBFS_SHMEM
    for shared in (False, True):
        with live.about(f"shared {shared}"):
            _expect_each_part(live, live.map(_PAGES, shared=shared, noreserve=True), features)


@PARTS.case(EACH_PART, REGISTERED, sizes=Sizes.ONCE, since="5.11")
def each_part_of_other_memory(live: Live) -> None:
    private, shared = Feature.PAGEFAULT_FLAG_WP, Feature.MISSING_SHMEM | Feature.WP_HUGETLBFS_SHMEM
    for size, features in product((live.base_page, pmd_size(live)), (private, shared)):
        with live.about(f"pages of {size} bytes, shared {features is shared}"):
            memory = map_aligned(live, _PAGES, size, shared=features is shared)
            _expect_each_part(live, memory, features)


def _expect_each_part(live: Live, memory: Memory, features: Feature) -> None:
    """Expect ranges of untouched ``memory`` to be registered, and unregistered, whatever of it was registered before.

    Its pages are one mapping, but for what is registered, or several.
    """
    fault = Userfault(memory, Mode.MISSING, features & offered_features(live))
    modes = [*_FLAGS] if Feature.WP_HUGETLBFS_SHMEM in offered_features(live) else [Mode.MISSING]
    for is_apart, mode in product((False, True), modes):
        memory.protect(mmap.PROT_READ if is_apart else READ_WRITE, 1, 1)
        for before, (first, end) in product(product((False, True), repeat=_PAGES), _RANGES):
            part = fault.handling(memory.part(first, end - first))
            about = f"in mappings of their own {is_apart}, registered before: {before}, pages {first} to before {end}"
            with live.about(f"{about}, {mode!r}"):
                _register_alone(memory, fault, before)
                part.register(mode)
                wanted = {page: {"um"} if is_ours else set[str]() for page, is_ours in enumerate(before)}
                wanted |= dict.fromkeys(range(first, end), _FLAGS[mode])
                _expect_flags(live, memory, wanted)
                for page in (page for page, flags in wanted.items() if flags):
                    live.expect_signal(signal.SIGBUS, memory.read, page, at=memory.at(page))
                _register_alone(memory, fault, before)
                part.unregister()
                ours = enumerate(before)
                left = {page: {"um"} if is_ours and not first <= page < end else set() for page, is_ours in ours}
                _expect_flags(live, memory, left)
    memory.actor.end()


def _register_alone(memory: Memory, fault: Userfault, pages: Sequence[bool]) -> None:
    fault.unregister()
    for page, is_ours in enumerate(pages):
        if is_ours:
            fault.handling(memory.part(page)).register(Mode.MISSING)


def _expect_flags(live: Live, memory: Memory, wanted: Mapping[int, Set[str]]) -> None:
    """Expect smaps to show these modes of the mapping that has each page."""
    known = set[str]().union(*_FLAGS.values())
    found = memory.all_mappings()
    shown = {page: set[str]() for page in wanted}
    for page, mapping in product(wanted, found):
        if mapping.start <= memory.at(page) < mapping.end:
            shown[page] |= mapping.flags & known
    live.expect("modes of each page", wanted, shown)


class RegisteredParts(LiveTest):
    def test_registered_parts(self) -> None:
        self.run_area(PARTS)
