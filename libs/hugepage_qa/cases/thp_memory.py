"""Memory that may get transparent huge pages: when it gets them, where it is mapped, and what is mapped as one."""

import mmap

from hugepage_qa.cases.fragmentation import expect_no_shortage
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.lru_batches import drain_lru_batches
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.tree import read_integer, size_name
from hugepage_qa.kernel.uapi import MAP_FIXED, PROT_NONE
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.process.actor import Actor

MIN_FREE = "proc/sys/vm/min_free_kbytes"
_NUMA_BALANCING = "proc/sys/kernel/numa_balancing"
#: of the page cache, and of shared memory with it: MAX_XAS_ORDER in include/linux/pagemap.h
_LARGEST_ORDER = 11


def pmd_size(live: Live) -> int:
    """Return the bytes of a PMD-sized page. Raises CannotRun without transparent huge pages."""
    size = read_integer(live.host, f"{DIRECTORY}/hpage_pmd_size")
    if size is None:
        raise CannotRun("this kernel has no transparent huge pages")
    return size


def has_folios_of(live: Live, size: int) -> bool:
    """Tell whether a folio of the page cache, and of shared memory, can have ``size`` bytes.

    On arm64 with base pages of 64 KiB none is PMD-sized (MAX_PAGECACHE_ORDER; mm/shmem.c shmem_is_huge(),
    shmem_huge_global_enabled()).
    """
    return size <= live.base_page << _LARGEST_ORDER


def need_folios_of(live: Live, size: int) -> None:
    """Raise CannotRun where ``has_folios_of`` says that shared memory has no pages of ``size`` bytes."""
    if not has_folios_of(live, size):
        raise CannotRun(f"shared memory has no pages of {size >> 20} MiB with base pages of {live.base_page >> 10} KiB")


def allow_on_advice(live: Live) -> None:
    """Have memory get PMD-sized pages where it was advised so, anonymous and shared, until the case ends."""
    directory = f"{DIRECTORY}/{size_name(pmd_size(live))}"
    live.set_knob(f"{DIRECTORY}/enabled", "madvise")
    live.set_knob(f"{DIRECTORY}/defrag", "madvise")
    live.set_knob(f"{DIRECTORY}/shmem_enabled", "advise")
    for name in ("enabled", "shmem_enabled"):  # since Linux 6.8 and 6.11
        live.set_knob_if_there(f"{directory}/{name}", "inherit")


def keep_min_free(live: Live) -> None:
    """Have vm.min_free_kbytes put back after the case: to switch huge pages on may raise it.

    set_recommended_min_free_kbytes() in mm/khugepaged.c; since Linux 5.16 to switch them off computes it anew. Called
    before the switches, it is put back after them.
    """
    live.set_knob(MIN_FREE, (live.host.read(MIN_FREE) or "").strip())


def let_nothing_be_balanced(live: Live) -> None:
    """Have NUMA balancing mark no memory for a fault, and move none between nodes, until the case ends."""
    if live.has_several_nodes:
        live.set_knob_if_there(_NUMA_BALANCING, "0")


def free_lazily(live: Live, memory: Memory, pages: int | None = None) -> bool:
    """Give MADV_FREE for the first ``pages``, by default all, and tell whether smaps shows all of them as LazyFree.

    It is to be given again: it passes over pages that somebody else has a hold of in that moment, and over those that
    another CPU has in a batch.
    """
    memory.advise(mmap.MADV_FREE, 0, pages)
    if memory.smaps().fields["LazyFree"] == (memory.pages if pages is None else pages) * memory.size:
        return True
    drain_lru_batches(live, memory.actor)
    return False


def map_aligned(
    live: Live,
    pages: int,
    size: int,
    *,
    shared: bool = False,
    actor: Actor | None = None,
    advice: int | None = None,
    prot: int = READ_WRITE,
) -> Memory:
    """Map ``pages`` anonymous pages at a multiple of ``size`` bytes, and give ``advice`` for them. Raises OSError.

    Private memory that may only be read, by ``prot``, is not committed.
    """
    actor = actor or live.actor()
    address = room_for(actor, pages, size)
    kind = mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE
    # the start of shared memory has to be aligned as its address is
    actor.mmap(pages * size, prot, kind | mmap.MAP_ANONYMOUS | MAP_FIXED, address=address)
    memory = Memory(live, actor, address, pages, size)
    if advice is not None:
        memory.advise(advice)
    return memory


def room_for(actor: Actor, pages: int, size: int) -> int:
    """Return a multiple of ``size`` from which on ``pages`` pages can be mapped: nothing else is there."""
    start = actor.mmap((pages + 1) * size, PROT_NONE, mmap.MAP_ANONYMOUS | mmap.MAP_PRIVATE)
    return -(-start // size) * size


def need_blocks(live: Live, memory: Memory, node: int | None = None) -> None:
    """Raise CannotRun where filled ``memory`` is not in huge pages, and is owed none.

    A node, or all, are too fragmented for them, or it is shared and has none so large.
    """
    if mapped_huge(memory) != memory.length:
        need_folios_of_mapping(live, memory)
        expect_no_shortage(live, memory.size, memory.pages, node)


def need_folios_of_mapping(live: Live, memory: Memory) -> None:
    """Raise CannotRun where ``memory`` is mapped as shared, and has no pages of its size as ``need_folios_of`` says."""
    if not has_folios_of(live, memory.size) and any(mapping.is_shared for mapping in memory.mappings()):
        need_folios_of(live, memory.size)


def anon_huge_pages(memory: Memory) -> int:
    """Return how many bytes of anonymous ``memory``, which may be several mappings, smaps shows as huge pages."""
    return sum(found.anon_huge_pages for found in memory.mappings())


def mapped_huge(memory: Memory) -> int:
    """Return how many bytes of ``memory``, anonymous or shared, smaps shows as mapped by huge pages.

    It may be several mappings.
    """
    return sum(found.anon_huge_pages + found.shmem_pmd_mapped for found in memory.mappings())
