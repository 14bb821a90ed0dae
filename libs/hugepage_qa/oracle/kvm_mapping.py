"""Which page sizes KVM has to map for a guest: kvm_alloc_memslot_metadata() and kvm_mmu_max_mapping_level() on x86."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from hugepage_qa.sizes import GIB, KIB, MIB

#: what the tables of x86 can map, the largest first
SIZES = (GIB, 2 * MIB, 4 * KIB)
_BASE = SIZES[-1]


@dataclass(frozen=True)
class GivenMemory:
    """``length`` bytes of a guest, all of them touched.

    The guest has them at the address ``guest``, its process at ``host``, which has pages of ``page`` bytes mapped there
    from a multiple of their size on.
    """

    guest: int
    host: int
    length: int
    page: int


def mapped_by_kvm(memory: GivenMemory, largest: int) -> Mapping[int, int]:
    """Return the size of a page -> how many KVM maps, where its tables can map pages of up to ``largest`` bytes.

    A page is mapped whole where it lies whole in the memory, and where it begins both to the guest and to its process.
    """
    counts: Counter[int] = Counter()
    # those that begin at the same places for both; of the others no page is mapped whole
    sizes = [size for size in SIZES if size <= min(memory.page, largest) and (memory.guest - memory.host) % size == 0]
    at, end = memory.guest, memory.guest + memory.length
    while at < end:
        size = next(size for size in sizes if at % size == 0 and at + size <= end)
        counts[size] += 1
        at += size
    return counts


def mapped_with_dirty_log(memory: GivenMemory) -> Mapping[int, int]:
    """Return the same while KVM logs which pages the guest writes: it has to see each base page."""
    return Counter({_BASE: memory.length // _BASE})


def mapped_after_execution(memory: GivenMemory, largest: int) -> Mapping[int, int]:
    """Return the same when the guest has executed the last base page of its memory, with nx_huge_pages.

    Of the page around that the last base page alone is executable, and each table on the way to it is split: what the
    guest touches there is mapped in pages of the smaller sizes.
    """
    whole = Counter(mapped_by_kvm(memory, largest))
    size = max(whole)
    whole[size] -= 1
    for larger, smaller in pairwise(SIZES[SIZES.index(size) :]):
        whole[smaller] += larger // smaller - (smaller > _BASE)
    return +whole


def split_for_execution(memory: GivenMemory, largest: int) -> int:
    """Return how many tables are there only for that (nx_lpage_splits)."""
    return SIZES.index(_BASE) - SIZES.index(max(mapped_by_kvm(memory, largest)))
