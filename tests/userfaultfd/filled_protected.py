"""Memory that a program fills write-protected, in parts: UFFDIO_COPY_MODE_WP, UFFDIO_CONTINUE_MODE_WP."""

import errno
import signal
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.khugepaged_clock import let_nobody_else_act
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import WORD, Memory, runs
from hugepage_qa.cases.thp_memory import map_aligned, mapped_huge, pmd_size
from hugepage_qa.cases.thp_policy import advised
from hugepage_qa.cases.thp_shared_memory import expect_shared, map_file, map_start, nameless_file
from hugepage_qa.cases.userfaultfd import Feature, Mode, Userfault, protected_pages
from hugepage_qa.plugins.avocado_test import LiveTest

FILLED_PROTECTED = Area("userfaultfd/filled-protected", sizes=Sizes.ONCE)

DOC = (
    "Documentation/admin-guide/mm/userfaultfd.rst Write Protect Notifications; Documentation/admin-guide/mm/pagemap.rst"
    " bit 57; mm/userfaultfd.c mfill_atomic_install_pte()"
)
RULE = (
    "what is protected of it can be read, and not written until it is no longer, base pages beside what is not and all"
    " of a huge page; what is not can be written"
)
_VALUE, _NEW_VALUE = 77, 1 << 41
_OF_FILES = Feature.MISSING_SHMEM | Feature.WP_HUGETLBFS_SHMEM


@dataclass(frozen=True)
class Filled:
    """Memory of the size of a huge page, none of it mapped, and what maps ``length`` bytes of it, protected or not."""

    memory: Memory
    fault: Userfault
    fill: Callable[[int, int, bool], object]


@FILLED_PROTECTED.case(
    f"of memory that a program fills as it says, anonymous, of a file, and private memory of a file, {RULE}; what is"
    " not registered for that is not filled protected, EINVAL",
    f"{DOC}; ioctl_userfaultfd(2) UFFDIO_COPY_MODE_WP",
    since="5.19",  # UFFD_FEATURE_WP_HUGETLBFS_SHMEM
)
def copied(live: Live) -> None:
    let_nobody_else_act(live)
    for make in (_anonymous, _of_a_file, _private_of_a_file):
        with live.about(make.__name__.strip("_")):
            _expect_protected_in_parts(live, partial(_to_copy, live, make))
            _expect_refused(live, _to_copy(live, make, Mode.MISSING))


@FILLED_PROTECTED.case(
    f"of memory of a file that a program has mapped as it says, shared and private, in a huge page or not, {RULE}; what"
    " is not registered for that is not mapped protected, EINVAL",
    f"{DOC}; UFFDIO_CONTINUE_MODE_WP (0289184476c8)",
    since="6.4",
)
def continued(live: Live) -> None:
    let_nobody_else_act(live)
    for huge, shared in product(("always", "never"), (True, False)):
        make = partial(_to_continue, live, huge, shared)
        with live.about(f"huge={huge}, {'shared' if shared else 'private'}"):
            _expect_protected_in_parts(live, make)
            _expect_refused(live, make(Mode.MINOR))


def _expect_protected_in_parts(live: Live, make: Callable[[Mode], Filled]) -> None:
    """Expect what ``make`` makes to be protected where it was filled so: ends and middles, and all of it at once."""
    size, base = pmd_size(live), live.base_page
    several = 0, base, 5 * base, size // 2, size - 2 * base, size - base, size
    for borders, first in ((several, True), (several, False), ((0, size), True)):
        filled = make(Mode.WRITE_PROTECTED)
        parts = [(start, end, first == (not number % 2)) for number, (start, end) in enumerate(pairwise(borders))]
        for start, end, is_protected in parts:
            filled.fill(start, end - start, is_protected)
        with live.about(f"{'protected' if first else 'not protected'} at first, in {len(parts)} parts"):
            _expect_parts(live, filled, parts)
        filled.memory.actor.end()


def _expect_parts(live: Live, filled: Filled, parts: list[tuple[int, int, bool]]) -> None:
    memory, base = filled.memory, live.base_page
    wanted = [range(start // base, end // base) for start, end, is_protected in parts if is_protected]
    live.expect("base pages that are protected", wanted, runs({*protected_pages(memory)}))
    memory.expect_filled(_VALUE)
    for start, end, is_protected in parts:
        for offset in (start, end - WORD):
            if is_protected:
                live.expect_signal(signal.SIGBUS, memory.actor.write, memory.address + offset, _NEW_VALUE)
            else:
                memory.actor.write(memory.address + offset, _VALUE + offset)
    live.expect("base pages that are protected still", wanted, runs({*protected_pages(memory)}))
    for start, end, is_protected in parts:
        if is_protected:
            filled.fault.write_protect(on=False, offset=start, length=end - start)
    live.expect("base pages that are protected no longer, and are", [], runs({*protected_pages(memory)}))
    memory.expect_filled(_VALUE)
    memory.fill(_NEW_VALUE)
    memory.expect_filled(_NEW_VALUE)


def _expect_refused(live: Live, filled: Filled) -> None:
    """Expect nothing to be filled protected of what is not registered for that."""
    live.expect_errno(errno.EINVAL, filled.fill, 0, live.base_page, True)
    mapping = filled.memory.smaps()
    live.expect("Rss, huge pages of what was refused", (0, 0), (mapping.rss, mapped_huge(filled.memory)))
    filled.memory.actor.end()


def _to_copy(live: Live, make: Callable[[Live], Memory], mode: Mode) -> Filled:
    memory = make(live)
    source = map_aligned(live, 1, memory.size, actor=memory.actor)
    source.fill(_VALUE)
    fault = Userfault(memory, Mode.MISSING | mode, _OF_FILES)

    def fill(offset: int, length: int, is_protected: bool) -> None:
        copied = fault.copy(source, offset=offset, length=length, protected=is_protected)
        live.expect(f"bytes copied to {offset}", length, copied)

    return Filled(memory, fault, fill)


def _to_continue(live: Live, huge: str, shared: bool, mode: Mode) -> Filled:
    actor = live.actor()
    descriptor = nameless_file(live, actor, huge)
    file = map_start(live, actor, descriptor)
    expect_shared(live, file, huge == "always", f"huge={huge}")
    file.fill(_VALUE)
    memory = map_file(live, actor, descriptor, 1, shared=shared)
    fault = Userfault(memory, Mode.MINOR | mode, Feature.MINOR_SHMEM | Feature.WP_HUGETLBFS_SHMEM)

    def fill(offset: int, length: int, is_protected: bool) -> None:
        fault.go_on(offset=offset, length=length, protected=is_protected)

    return Filled(memory, fault, fill)


def _anonymous(live: Live) -> Memory:
    return advised(live)


def _of_a_file(live: Live, *, shared: bool = True) -> Memory:
    actor = live.actor()
    descriptor = nameless_file(live, actor, "never")
    actor.call("ftruncate", descriptor, pmd_size(live))
    return map_file(live, actor, descriptor, 1, shared=shared)


def _private_of_a_file(live: Live) -> Memory:
    return _of_a_file(live, shared=False)


class ThpFilledProtected(LiveTest):
    def test_filled_protected(self) -> None:
        self.run_area(FILLED_PROTECTED)
