"""The policies of transparent huge pages for a case, and memory to try them on."""

import mmap
from collections.abc import Iterator
from itertools import product

from hugepage_qa.cases.fragmentation import compact_if_short, expect_no_node_short, expect_no_shortage, with_blocks
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import PRESENT, Memory
from hugepage_qa.cases.thp_memory import (
    keep_min_free,
    let_nothing_be_balanced,
    map_aligned,
    mapped_huge,
    need_blocks,
    pmd_size,
)
from hugepage_qa.cases.thp_shared_memory import let_only_pmd_inherit
from hugepage_qa.kernel.counters import read_meminfo
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.tree import size_directories, size_name
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE, MADV_NOHUGEPAGE
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.process.actor import Actor
from hugepage_qa.sizes import MIB
from hugepage_qa.version import KernelVersion

#: what memory can be advised: nothing, for, against
ADVICES = (None, MADV_HUGEPAGE, MADV_NOHUGEPAGE)
_DIRTY_PAGES = 4
#: what every machine has; and what must stay for others beside huge pages of half a GiB
_LITTLE, _MARGIN = 64 * MIB, 256 * MIB
#: with CONFIG_NO_PAGE_MAPCOUNT
_MAY_NOT_COUNT = KernelVersion(6, 15)


def set_policy(live: Live, enabled: str, *, pmd: str = "inherit", defrag: str = "always") -> None:
    """Set the policies for anonymous memory until the case ends: only PMD-sized pages, no smaller ones.

    Nothing is balanced between nodes meanwhile: Linux 6.1 leaves huge pages out of smaps as long as balancing waits for
    a fault on them (balanced-pages-missed), and that is not what a policy is judged by.
    """
    keep_min_free(live)
    let_nothing_be_balanced(live)
    live.set_knob(f"{DIRECTORY}/enabled", enabled)
    live.set_knob(f"{DIRECTORY}/defrag", defrag)
    for size, path in size_directories(live.host, DIRECTORY).items():
        # since Linux 6.8
        live.set_knob_if_there(f"{path}/enabled", pmd if size == pmd_size(live) else "never")


def give_on_advice(live: Live) -> None:
    """Have anonymous and shared memory get PMD-sized pages on advice, and no smaller ones, until the case ends.

    Raises CannotRun on a kernel without shared memory in huge pages.
    """
    set_policy(live, "madvise")
    let_only_pmd_inherit(live)
    live.set_knob(f"{DIRECTORY}/shmem_enabled", "advise")


def has_size_policy(live: Live) -> bool:
    """Tell whether each size has a policy of its own."""
    return live.host.read(f"{DIRECTORY}/{size_name(pmd_size(live))}/enabled") is not None


def smaller_sizes(live: Live) -> list[tuple[int, str]]:
    """Return each size below that of a PMD that anonymous memory can have, in bytes, and its directory; ascending."""
    sizes = size_directories(live.host, DIRECTORY).items()
    return [(size, path) for size, path in sizes if size < pmd_size(live) and "enabled" in live.host.names(path)]


def some_smaller_sizes(live: Live) -> list[tuple[int, str]]:
    """Return the smallest, the middle and the largest of ``smaller_sizes``, each once; none where there are none."""
    sizes = smaller_sizes(live)
    return sorted({sizes[0], sizes[len(sizes) // 2], sizes[-1]} if sizes else ())


def need_sizes(sizes: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """Return ``sizes``, which are ``smaller_sizes`` or some of them. Raises CannotRun where there are none."""
    if not sizes:
        raise CannotRun("this kernel has no huge pages of smaller sizes")
    return sizes


def sizes_in_turn(live: Live) -> Iterator[int]:
    """Yield the bytes of some smaller sizes, and of a PMD-sized page, while advised memory gets pages of that size."""
    size = pmd_size(live)
    for page, path in (*some_smaller_sizes(live), (size, "")):
        set_policy(live, "madvise", pmd="inherit" if page == size else "never")
        if path:
            live.set_knob(f"{path}/enabled", "always")
        yield page


def allows(enabled: str, pmd: str, advice: int | None) -> bool:
    """Tell whether a fault gets a PMD-sized page: the size's policy decides, which can inherit that of all."""
    if advice == MADV_NOHUGEPAGE:
        return False
    policy = enabled if pmd == "inherit" else pmd
    return policy == "always" or (policy == "madvise" and advice == MADV_HUGEPAGE)


def advised(live: Live, pages: int = 1, advice: int | None = MADV_HUGEPAGE, *, actor: Actor | None = None) -> Memory:
    """Map aligned anonymous memory of PMD-sized pages with ``advice``, by default in an actor of its own."""
    return map_aligned(live, pages, pmd_size(live), actor=actor, advice=advice)


def fill_in_huge_pages(live: Live, memory: Memory, node: int | None = None) -> None:
    """Fill ``memory``. Raises CannotRun where ``node``, or all, are too fragmented for huge pages."""
    memory.fill()
    need_blocks(live, memory, node)


def expect_all_huge(live: Live, memory: Memory, about: str = "", node: int | None = None) -> None:
    """Expect all of ``memory`` to be in huge pages. Raises CannotRun as ``need_blocks`` does."""
    need_blocks(live, memory, node)
    live.expect(f"bytes in huge pages {about}".rstrip(), memory.length, mapped_huge(memory))


def expect_huge_bytes(live: Live, memory: Memory, expected: int) -> None:
    """Expect so many bytes of ``memory`` to be in huge pages.

    Raises CannotRun where memory of a node is too fragmented.
    """
    found = mapped_huge(memory)
    if found != expected:
        expect_no_node_short(live, memory.size, memory.pages)
    live.expect("bytes in huge pages", expected, found)


def base_pages(live: Live, pages: int = 1) -> Memory:
    """Return advised memory that was filled with base pages before it was advised. Raises CannotRun for want of it."""
    _need_available(live, pages * pmd_size(live))
    memory = advised(live, pages, MADV_NOHUGEPAGE)
    memory.fill()
    memory.advise(MADV_HUGEPAGE)
    return memory


def unadvised_base_pages(live: Live) -> Memory:
    """Return memory of one huge page without advice that was filled with base pages: the policy is never, and stays."""
    set_policy(live, "never")
    memory = advised(live, 1, None)
    memory.fill()
    return memory


def huge_pages(live: Live, pages: int = 1) -> Memory:
    """Return advised memory that was filled, and is in huge pages.

    Raises Failed where it is not, CannotRun where memory is too fragmented for that, or does not suffice.
    """
    set_policy(live, "madvise")
    memory, found = _filled(live, pages)
    if found != memory.length and compact_if_short(live, memory.size, pages):
        memory.actor.end()
        memory, found = _filled(live, pages)
    if found != memory.length:
        expect_no_shortage(live, memory.size, pages)
        live.fail("AnonHugePages of advised memory", memory.length, found)
    return memory


def huge_zeroes(live: Live, pages: int = 1, *, actor: Actor | None = None) -> Memory:
    """Return advised memory, by default of a new actor, of which each page was read alone: the huge page of zeroes.

    Raises as ``huge_pages`` does.
    """
    set_policy(live, "madvise")
    live.set_knob(f"{DIRECTORY}/use_zero_page", "1")
    with_blocks(live, pmd_size(live), 1, movable=False)
    memory = advised(live, pages, actor=actor)
    for page in range(pages):
        expect_huge_zeroes(live, memory, page)
    return memory


def expect_huge_zeroes(live: Live, memory: Memory, page: int) -> None:
    """Read one page of advised memory that nobody has written, and expect the huge page of zeroes there.

    Raises as ``huge_pages`` does.
    """
    live.expect("what is read", 0, memory.read(page))
    _read, last = memory.pagemap((memory.at(page), memory.at(page + 1) - live.base_page))
    if not last & PRESENT:
        # one zero page of base pages is at the place that was read; the huge one must not move (get_huge_zero_page())
        expect_no_shortage(live, memory.size, 1, movable=False)
        live.fail("memory that was read", "the huge page of zeroes", "a base page of zeroes")


def mapped_in_parts(live: Live, pages: int = 1) -> Memory:
    """Return huge pages that are mapped as base pages."""
    memory = huge_pages(live, pages)
    map_in_parts(live, memory)
    return memory


def map_in_parts(live: Live, memory: Memory) -> None:
    """Have the huge pages of ``memory`` mapped as base pages."""
    for page, prot in product(range(memory.pages), (mmap.PROT_READ, READ_WRITE)):
        memory.actor.call("mprotect", memory.at(page + 1) - live.base_page, live.base_page, prot)


def smaller_pages(live: Live, pages: int = 1) -> Memory:
    """Return memory in pages of the largest size below that of a PMD, or in base pages where there is none."""
    set_policy(live, "madvise" if has_size_policy(live) else "never", pmd="never")
    for _size, path in smaller_sizes(live)[-1:]:
        live.set_knob(f"{path}/enabled", "always")
    memory = advised(live, pages)
    memory.fill()
    return memory


def need_counted_parts(live: Live) -> None:
    """Raise CannotRun where the kernel does not count how often the base pages of a huge page are mapped."""
    if live.kernel_version >= _MAY_NOT_COUNT and live.host.kernel_option("NO_PAGE_MAPCOUNT") is not False:
        raise CannotRun("this kernel counts no mappings of the parts of a huge page (CONFIG_NO_PAGE_MAPCOUNT)")


def leave_dirt(live: Live) -> None:
    """Write every word of a few huge pages and give them back: free memory that the next users must not see."""
    memory = advised(live, _DIRTY_PAGES)
    memory.fill()
    memory.actor.end()


def _filled(live: Live, pages: int) -> tuple[Memory, int]:
    _need_available(live, pages * pmd_size(live))
    memory = advised(live, pages)
    memory.fill()
    return memory, memory.smaps().anon_huge_pages


def _need_available(live: Live, length: int) -> None:
    """Raise CannotRun where memory is short of ``length`` bytes: it would be filled until somebody is killed."""
    if length > _LITTLE and (available := read_meminfo(live.host)["MemAvailable"]) < length + _MARGIN:
        raise CannotRun(f"memory is short: {available >> 20} MiB are available for {length >> 20} MiB")
