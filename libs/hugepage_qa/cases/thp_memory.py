"""Memory that may get transparent huge pages: anonymous and shared, files of a tmpfs with huge= among it."""

import errno
import mmap
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from hugepage_qa.cases.added_up import add_up_counters
from hugepage_qa.cases.fragmentation import expect_no_node_short, expect_no_shortage, tell, with_blocks
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.kernel.counters import read_meminfo, read_vmstat
from hugepage_qa.kernel.nodes import node_directories
from hugepage_qa.kernel.smaps import MemoryMapping
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.tree import read_integer, size_directories, size_name
from hugepage_qa.kernel.uapi import MADV_COLLAPSE, MADV_HUGEPAGE, MAP_FIXED, MS_REMOUNT
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.process.actor import Actor, Refused
from hugepage_qa.version import KernelVersion

_PROT_NONE = 0
_SIZED_BY_WRITES, _SIZED_NO_MORE = KernelVersion(6, 14), KernelVersion(6, 17)

#: before the name of a line of meminfo that is the sum of those of all nodes
OF_NODES = "nodes together: "

MIN_FREE = "proc/sys/vm/min_free_kbytes"

#: how often a change is measured until nobody else has changed the same counters
_ATTEMPTS = 10
#: how often the counters are looked at for changes by others, with a pause before each
_LOOKS = 20

#: for how long and after how many seconds a collapse is tried again
_COLLAPSE_SECONDS, _PAUSE_SECONDS = 60.0, 0.1

Prepared = TypeVar("Prepared")


def pmd_size(live: Live) -> int:
    """Return the bytes of a PMD-sized page. Raises CannotRun without transparent huge pages."""
    size = read_integer(live.host, f"{DIRECTORY}/hpage_pmd_size")
    if size is None:
        raise CannotRun("this kernel has no transparent huge pages")
    return size


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


def collapse(live: Live, advise: Callable[[], object], node: int | None = None) -> None:
    """Call ``advise``, which gives MADV_COLLAPSE, again while a base page is busy (madvise(2): EAGAIN, EBUSY).

    Compaction in the background takes pages from the LRU for moments, which are long on a busy machine. Raises Refused,
    and CannotRun where there is no free block (ENOMEM), of ``node`` or at all.
    """
    end = live.host.clock() + _COLLAPSE_SECONDS
    while True:
        try:
            advise()
        except Refused as refusal:
            if refusal.errno == errno.ENOMEM:
                if node is None:
                    expect_no_node_short(live, pmd_size(live), 1)
                expect_no_shortage(live, pmd_size(live), 1, node)
            if refusal.errno not in (errno.EAGAIN, errno.EBUSY) or live.host.clock() > end:
                raise
        else:
            return
        live.host.pause(_PAUSE_SECONDS)


def collapse_memory(live: Live, memory: Memory, node: int | None = None) -> None:
    """Have the process of ``memory`` ask for all of it to be in huge pages, as ``collapse`` does, and raise as that."""
    collapse(live, partial(memory.advise, MADV_COLLAPSE), node)


def expect_no_collapse(live: Live, memory: Memory, number: int, advise: Callable[[], object] | None = None) -> None:
    """Expect MADV_COLLAPSE of ``memory`` to fail with errno ``number``, tried again while a base page is busy (EAGAIN).

    Its process asks for it, or ``advise`` does. Raises CannotRun where there is no free block (ENOMEM).
    """
    found: int | None = None

    def is_decided() -> bool:
        nonlocal found
        found = None
        try:
            advise() if advise else memory.advise(MADV_COLLAPSE)
        except Refused as refusal:
            found = refusal.errno
        return found != errno.EAGAIN

    live.host.wait_until(is_decided, _COLLAPSE_SECONDS)
    if found == errno.ENOMEM:
        expect_no_shortage(live, memory.size, 1)
    live.expect("errno of MADV_COLLAPSE", number, found)


def free_lazily(memory: Memory, pages: int | None = None) -> bool:
    """Give MADV_FREE for the first ``pages``, by default all, and tell whether smaps shows all of them as LazyFree.

    Pages that somebody else has a hold of in that moment are passed over: it is given again.
    """
    memory.advise(mmap.MADV_FREE, 0, pages)
    return memory.smaps().fields["LazyFree"] == (memory.pages if pages is None else pages) * memory.size


def map_aligned(
    live: Live, pages: int, size: int, *, shared: bool = False, actor: Actor | None = None, advice: int | None = None
) -> Memory:
    """Map ``pages`` anonymous pages at a multiple of ``size`` bytes, and give ``advice`` for them. Raises OSError."""
    actor = actor or live.actor()
    address = room_for(actor, pages, size)
    kind = mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE
    # the start of shared memory has to be aligned as its address is
    actor.mmap(pages * size, READ_WRITE, kind | mmap.MAP_ANONYMOUS | MAP_FIXED, address=address)
    memory = Memory(live, actor, address, pages, size)
    if advice is not None:
        memory.advise(advice)
    return memory


def read_counters(live: Live) -> dict[str, int]:
    """Return the lines of /proc/meminfo (bytes) and the counters of /proc/vmstat."""
    add_up_counters(live)
    return {**read_vmstat(ObservedTree(live.host)), **read_meminfo(ObservedTree(live.host))}


def read_counters_with_nodes(live: Live) -> dict[str, int]:
    """Return what ``read_counters`` does, and what the meminfo of each node has, added up, by ``OF_NODES`` names."""
    counters, tree = read_counters(live), ObservedTree(live.host)
    of_nodes = [read_meminfo(tree, f"{directory}/meminfo") for directory in node_directories(live.host).values()]
    # some lines of a node are younger than those of the machine: Linux 5.4
    names = set.intersection(*map(set, of_nodes)) if of_nodes else set()
    return counters | {f"{OF_NODES}{name}": sum(each[name] for each in of_nodes) for name in names}


def expect_change(
    live: Live,
    expected: Mapping[str, int],
    prepare: Callable[[], Prepared],
    act: Callable[[Prepared], None],
    read: Callable[[Live], Mapping[str, int]] = read_counters,
    on_others: Callable[[Live], None] = lambda _live: None,
    known: Mapping[Quirk, Mapping[str, int]] | None = None,
) -> Prepared:
    """Expect ``act`` on what ``prepare`` returns to change counters of the whole machine as ``expected``.

    Other processes change them, too: what disagrees once is done again, and told. What disagrees twice is a difference
    unless the counters are seen to change with nothing done but ``on_others``, what ``act`` does to others as well:
    then it is done until it agrees. Counters that the kernel does not have are left out. ``known`` tells which counters
    change how else with a known bug: there the case ends, if all change so. Returns what ``prepare`` returned last.
    Raises KnownBug, and CannotRun where it never agrees, each time otherwise, and others are seen each time.
    """
    wrong: list[dict[str, int]] = []
    for _attempt in range(_ATTEMPTS):
        prepared = prepare()
        before, began = read(live), live.host.clock()
        act(prepared)
        after, took = read(live), live.host.clock() - began
        wanted = {name: change for name, change in expected.items() if name in before}
        found = {name: after[name] - before[name] for name in wanted}
        if found == wanted:
            break
        wrong.append({name: change for name, change in found.items() if change != wanted[name]})
        if len(wrong) > 1 and not _changes_by_itself(live, read, on_others, wrong, took):
            break
    else:
        if any(each != wrong[0] for each in wrong):
            raise CannotRun("others change the same counters all the time")
    often = f", {len(wrong)} of {len(wrong) + (found == wanted)} attempts disagree" if wrong else ""
    if wrong:
        live.notes.append(f"counters{often}: {', '.join(map(str, wrong))}")
    if known:
        quirks = {quirk: {**wanted, **changes} for quirk, changes in known.items()}
        live.expect(f"changes of counters{often}", wanted, found, quirks)
        return prepared
    for name, change in wanted.items():
        live.expect(f"change of {name}{often}", change, found[name])
    return prepared


def _changes_by_itself(
    live: Live,
    read: Callable[[Live], Mapping[str, int]],
    on_others: Callable[[Live], None],
    wrong: Sequence[Mapping[str, int]],
    took: float,
) -> bool:
    """Tell whether any of the counters that were ``wrong`` changes while nothing is done but ``on_others``.

    Each attempt had the ``took`` seconds of the act for others to change them: it is looked for as long as all had.
    """
    names = {name for each in wrong for name in each}
    before, began, looks = read(live), live.host.clock(), 0
    while looks < _LOOKS or live.host.clock() - began < len(wrong) * took:
        live.host.pause(_PAUSE_SECONDS)
        on_others(live)
        now = read(live)
        if any(now[name] != before[name] for name in names):
            return True
        looks += 1
    return False


def mount_tmpfs(live: Live, huge: str) -> str:
    """Mount a tmpfs with option huge= until the case ends, and return where. Raises Refused."""
    return live.mount_other(f"huge={huge},mode=0700", "tmpfs")


def need_huge_pages_for_words(live: Live) -> None:
    """Raise CannotRun where write(2) and fallocate(2) of a few bytes bring no huge page to a tmpfs with huge=always.

    Since acd7ccb284b8 a folio was no larger than what is written, until that was taken back.
    """
    if _SIZED_BY_WRITES <= live.kernel_version < _SIZED_NO_MORE:
        raise CannotRun("folios of a tmpfs are no larger than what is written to it, in Linux 6.14 to 6.16")


def remount_tmpfs(actor: Actor, point: str, options: str) -> None:
    """Give the tmpfs at ``point`` other options (mount(2) MS_REMOUNT). Raises Refused."""
    actor.call("mount", "none", point, "tmpfs", MS_REMOUNT, options)


def map_start_of_file(live: Live, path: str, pages: int = 1, length: int | None = None) -> Memory:
    """Map the first PMD-sized pages of a new file where huge pages fit; it has ``length`` bytes, or what is mapped."""
    actor = live.actor()
    return map_start(live, actor, live.open(actor, path, os.O_RDWR | os.O_CREAT), pages, length)


def map_start(live: Live, actor: Actor, descriptor: int, pages: int = 1, length: int | None = None) -> Memory:
    """Map the first PMD-sized pages of an open file, as ``map_start_of_file`` does."""
    actor.call("ftruncate", descriptor, length or pages * pmd_size(live))
    return map_file(live, actor, descriptor, pages)


def map_file(live: Live, actor: Actor, descriptor: int, pages: int, *, shared: bool = True) -> Memory:
    """Map the first ``pages`` PMD-sized pages of an open file where huge pages fit, whatever its length is."""
    size = pmd_size(live)
    address = room_for(actor, pages, size)
    kind = mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE
    actor.mmap(pages * size, READ_WRITE, kind | MAP_FIXED, descriptor, address=address)
    return Memory(live, actor, address, pages, size)


def room_for(actor: Actor, pages: int, size: int) -> int:
    """Return a multiple of ``size`` from which on ``pages`` pages can be mapped: nothing else is there."""
    start = actor.mmap((pages + 1) * size, _PROT_NONE, mmap.MAP_ANONYMOUS | mmap.MAP_PRIVATE)
    return -(-start // size) * size


def let_only_pmd_inherit(live: Live) -> None:
    """Have shmem_enabled, "never" for now, and mounts decide for PMD-sized pages alone, until the case ends.

    Raises CannotRun on a kernel without shared memory in huge pages.
    """
    keep_min_free(live)
    live.set_knob(f"{DIRECTORY}/enabled", "madvise")
    if live.host.read(f"{DIRECTORY}/shmem_enabled") is None:
        raise CannotRun("this kernel has no shared memory in huge pages")
    live.set_knob(f"{DIRECTORY}/shmem_enabled", "never")
    ours = f"{DIRECTORY}/{size_name(pmd_size(live))}"
    for path in size_directories(live.host, DIRECTORY).values():
        if live.host.read(f"{path}/shmem_enabled") is not None:  # since Linux 6.11
            live.set_knob(f"{path}/shmem_enabled", "inherit" if path == ours else "never")


def expect_shared(live: Live, memory: Memory, huge: bool, where: str) -> None:
    """Expect shared ``memory`` to get PMD-sized pages when it is filled, or none of them.

    Raises CannotRun where memory is too fragmented for them.
    """
    now = with_blocks(live, memory.size, memory.pages if huge else 0)
    tell(live, now)
    memory.fill()
    mapping = expect_mapped_whole(live, memory, memory.pages if huge else 0, f"{where} ({now})")
    live.expect(f"AnonHugePages, {where}", 0, mapping.anon_huge_pages)
    memory.expect_filled()


def shared_huge_pages(live: Live, pages: int = 1) -> Memory:
    """Return anonymous shared memory that was filled, and is in huge pages. Raises CannotRun as above."""
    live.set_knob(f"{DIRECTORY}/shmem_enabled", "always")
    memory = map_aligned(live, pages, pmd_size(live), shared=True)
    expect_shared(live, memory, True, "shmem_enabled=always")
    return memory


def advised_shared_memory(live: Live, pages: int) -> Memory:
    """Map anonymous shared memory that was advised, and gets huge pages for it alone, until the case ends.

    Raises CannotRun on a kernel without shared memory in huge pages.
    """
    let_only_pmd_inherit(live)
    live.set_knob(f"{DIRECTORY}/shmem_enabled", "advise")
    return map_aligned(live, pages, pmd_size(live), shared=True, advice=MADV_HUGEPAGE)


def shared_base_pages(live: Live, pages: int = 1) -> Memory:
    """Return anonymous shared memory that was filled, and has no huge pages."""
    live.set_knob(f"{DIRECTORY}/shmem_enabled", "never")
    memory = map_aligned(live, pages, pmd_size(live), shared=True)
    memory.fill()
    return memory


def expect_mapped_whole(live: Live, memory: Memory, pages: int, where: str = "huge=always") -> MemoryMapping:
    """Expect ``pages`` of a shared mapping to be mapped whole, and return what smaps shows of it.

    Raises CannotRun where memory is too fragmented for them.
    """
    mapping = memory.smaps()
    if pages and mapping.shmem_pmd_mapped != pages * memory.size:
        expect_no_node_short(live, memory.size, pages)
    live.expect(f"ShmemPmdMapped, {where}", pages * memory.size, mapping.shmem_pmd_mapped)
    return mapping


def need_blocks(live: Live, memory: Memory, node: int | None = None) -> None:
    """Raise CannotRun where filled ``memory`` is not in huge pages, and a node, or all, too fragmented for them."""
    if mapped_huge(memory) != memory.length:
        expect_no_shortage(live, memory.size, memory.pages, node)


def filled_file(live: Live, path: str, pages: int) -> Memory:
    """Map a new file of a tmpfs with huge=always and fill it, in huge pages. Raises CannotRun as above."""
    memory = map_start_of_file(live, path, pages)
    expect_shared(live, memory, True, "huge=always")
    return memory


def anon_huge_pages(memory: Memory) -> int:
    """Return how many bytes of anonymous ``memory``, which may be several mappings, smaps shows as huge pages."""
    return sum(found.anon_huge_pages for found in memory.mappings())


def mapped_huge(memory: Memory) -> int:
    """Return how many bytes of ``memory``, anonymous or shared, smaps shows as mapped by huge pages.

    It may be several mappings.
    """
    return sum(found.anon_huge_pages + found.shmem_pmd_mapped for found in memory.mappings())
