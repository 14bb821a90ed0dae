"""Memory whose writes a program forbids itself, and mprotect(2) as well: either way holds as long as it is meant to."""

import mmap
import signal
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice, product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.khugepaged_clock import let_nobody_else_act
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import WORD, Memory, runs, value_or_signal
from hugepage_qa.cases.swapped import need_swap, page_all_out
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.cases.thp_policy import base_pages, huge_pages, mapped_in_parts
from hugepage_qa.cases.thp_shared_memory import let_only_pmd_inherit, shared_base_pages, shared_huge_pages
from hugepage_qa.cases.userfaultfd import Feature, Mode, Userfault, protected_pages
from hugepage_qa.kernel.uapi import PROT_NONE
from hugepage_qa.plugins.avocado_test import LiveTest

PROTECTED_TWICE = Area("userfaultfd/protected-twice")

DOC = "Documentation/admin-guide/mm/userfaultfd.rst Write Protect Notifications; mprotect(2)"
SINCE = "5.19"  # UFFD_FEATURE_WP_HUGETLBFS_SHMEM
_NEW_VALUE = 1 << 41
#: start and length in bytes
Part = tuple[int, int]
_PROTECTIONS = {"read": mmap.PROT_READ, "not accessed": PROT_NONE}


@PROTECTED_TWICE.case(
    "pages of a pool, private and shared, that a program has protected stay so when mprotect(2) forbids to write or to"
    " access them, or one of them, and allows it again, and so are those that it protects meanwhile; those that it"
    " protects no longer meanwhile can be written then",
    f"{DOC}; mm/hugetlb.c hugetlb_change_protection()",
    since=SINCE,
    pages=3,
)
def pages_of_a_pool(live: Live) -> None:
    rows = product(((live.size, live.size), (0, 3 * live.size)), (False, True))
    # of gigantic pages pagemap is long
    for part, shared in islice(rows, 1 if live.is_gigantic else None):
        memory = live.map(3, shared=shared)
        memory.fill()
        with live.about(f"shared {shared}"):
            _expect_both_hold(live, memory, part)
        memory.actor.end()
        live.expect_pool(nr=3, free=3)


@PROTECTED_TWICE.case(
    "huge pages, whole or mapped in parts, base pages and shared memory that a program has protected stay so when"
    " mprotect(2) forbids to write or to access them, or a part, and allows it again, and so is what it protects"
    " meanwhile; what it protects no longer meanwhile can be written then",
    f"{DOC}; mm/mprotect.c change_pte_range(); mm/huge_memory.c change_huge_pmd() (51d3d5eb74ff)",
    since=SINCE,
    sizes=Sizes.ONCE,
)
def transparent_pages(live: Live) -> None:
    let_nobody_else_act(live)
    let_only_pmd_inherit(live)
    for (name, make), part in product(_KINDS.items(), _parts(live)):
        memory = make(live)
        with live.about(name):
            _expect_both_hold(live, memory, part)
        memory.actor.end()


@PROTECTED_TWICE.case(
    "memory in swap, anonymous or shared, that a program has protected stays so when mprotect(2) forbids to write or to"
    " access it, or a part, and allows it again, and when it is back",
    f"{DOC}; mm/mprotect.c change_pte_range(); mm/memory.c do_swap_page()",
    since=SINCE,
    sizes=Sizes.ONCE,
)
def memory_in_swap(live: Live) -> None:
    let_nobody_else_act(live)
    let_only_pmd_inherit(live)
    need_swap(live, 2 * pmd_size(live))
    for (name, make), part, (how, prot) in product(_KINDS.items(), _parts(live), _PROTECTIONS.items()):
        memory = make(live)
        fault = _register(memory)
        fault.write_protect(length=memory.length)
        page_all_out(live, memory)
        with live.about(f"{name}, {how}, {part[1]} bytes at {part[0]}"):
            for each in (prot, READ_WRITE):
                _allow(memory, part, each)
            _expect_protected(live, memory)
            _expect_open(live, memory, fault, _around(memory, part))
        memory.actor.end()


def _parts(live: Live) -> Sequence[Part]:
    size, base = pmd_size(live), live.base_page
    return (0, size), (0, base), (size - base, base), (base, size // 2)


def _around(memory: Memory, part: Part) -> Sequence[Part]:
    """Return ``part`` of memory, and what is in front of it and behind it."""
    start, length = part
    end = start + length
    return [(first, size) for first, size in ((0, start), part, (end, memory.length - end)) if size]


def _register(memory: Memory) -> Userfault:
    return Userfault(memory, Mode.WRITE_PROTECTED, Feature.PAGEFAULT_FLAG_WP | Feature.WP_HUGETLBFS_SHMEM)


def _protect(fault: Userfault, mappings: Sequence[Part], *, on: bool = True) -> None:
    """Have a program protect all ``mappings``, which were one before mprotect(2), or no longer.

    Some kernels leave them apart when they are alike again, and protect one at a time.
    """
    for start, length in mappings:
        fault.write_protect(on=on, offset=start, length=length)


def _allow(memory: Memory, part: Part, prot: int) -> None:
    start, length = part
    memory.actor.call("mprotect", memory.address + start, length, prot)


def _expect_both_hold(live: Live, memory: Memory, part: Part) -> None:
    """Expect filled memory to stay protected, or not, by a program, whatever mprotect(2) does to ``part``."""
    fault = _register(memory)
    (start, length), mappings = part, _around(memory, part)
    for (how, prot), is_before in product(_PROTECTIONS.items(), (True, False)):
        with live.about(f"{how}, {length} bytes at {start}, protected before it {is_before}"):
            _protect(fault, mappings, on=is_before)
            _allow(memory, part, prot)
            if not is_before:
                _protect(fault, mappings)
            forbidden = dict.fromkeys((start, start + length - WORD), signal.SIGSEGV.name)
            live.expect("what comes of writes that mprotect(2) forbids", forbidden, _written(memory, forbidden))
            _allow(memory, part, READ_WRITE)
            _expect_protected(live, memory)
            _allow(memory, part, prot)
            _expect_open(live, memory, fault, mappings, lambda: _allow(memory, part, READ_WRITE))


def _expect_protected(live: Live, memory: Memory) -> None:
    """Expect all of filled memory to be protected by a program: it is read, and a write is told."""
    every = memory.length // live.base_page
    live.expect("runs of protected base pages", [range(every)], runs({*protected_pages(memory)}))
    memory.expect_filled()
    told = dict.fromkeys(_places(memory), signal.SIGBUS.name)
    live.expect("what comes of writes", told, _written(memory, told))
    live.expect("runs of protected base pages then", [range(every)], runs({*protected_pages(memory)}))


def _expect_open(
    live: Live, memory: Memory, fault: Userfault, mappings: Sequence[Part], allow: Callable[[], None] | None = None
) -> None:
    """Have ``mappings`` be protected no more, and ``allow`` accesses; expect memory to be written, and fill it."""
    _protect(fault, mappings, on=False)
    if allow:
        allow()
    live.expect("runs of base pages that are protected no longer, and are", [], runs({*protected_pages(memory)}))
    memory.expect_filled()
    memory.fill(_NEW_VALUE)
    memory.expect_filled(_NEW_VALUE)
    memory.fill()


def _places(memory: Memory) -> Sequence[int]:
    return [page * memory.size + place for page in range(memory.pages) for place in (0, memory.size - WORD)]


def _written(memory: Memory, places: Mapping[int, str]) -> dict[int, object]:
    """Return what comes of writing a word at ``places``: nothing, or the signal."""
    write = memory.actor.write
    return {place: value_or_signal(partial(write, memory.address + place, _NEW_VALUE)) for place in places}


_KINDS: Mapping[str, Callable[[Live], Memory]] = {
    "a huge page": huge_pages,
    "a huge page in parts": mapped_in_parts,
    "base pages": base_pages,
    "shared base pages": shared_base_pages,
    "a shared huge page": shared_huge_pages,
}


class UserfaultProtectedTwice(LiveTest):
    def test_protected_twice(self) -> None:
        self.run_area(PROTECTED_TWICE)
