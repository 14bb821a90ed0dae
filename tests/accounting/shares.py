"""What smaps, smaps_rollup and status tell of the memory of a process: its kind, its share, its peak.

One model has all fields of all kinds of memory, alone and with children that have it, too.
"""

import mmap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.clear_refs import (
    CLEAR_REFS_ALL,
    CLEAR_REFS_ANON,
    CLEAR_REFS_MAPPED,
    CLEAR_REFS_PEAK,
    CLEAR_REFS_SOFT_DIRTY,
    clear_refs,
)
from hugepage_qa.cases.khugepaged_clock import let_nobody_else_act
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.process_counters import expect_process_swap, may_lack, process_status
from hugepage_qa.cases.swapped import need_swap, page_all_out, swap_out
from hugepage_qa.cases.thp_memory import free_lazily, pmd_size, room_for
from hugepage_qa.cases.thp_policy import advised, base_pages, huge_pages
from hugepage_qa.cases.thp_shared_memory import (
    map_file,
    map_start_of_file,
    mount_tmpfs,
    shared_base_pages,
    shared_huge_pages,
)
from hugepage_qa.kernel.smaps import read_smaps, read_smaps_rollup
from hugepage_qa.kernel.uapi import MAP_FIXED
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.sizes import KIB, MIB

SHARES = Area("accounting/shares", sizes=Sizes.ONCE)

PROC_DOC = "Documentation/filesystems/proc.rst"
#: the numbers of processes divide them, so that no share is rounded
_PAGES = 4
_PROCESSES = (1, 2, 4)
#: so much is mapped and given back at once, at most, where a counter may lack more than one huge page shows
_MOST_EACH = 64 * MIB
#: a page that compaction moves is told as clean and private alone in that moment (smaps_pte_entry())
_ATTEMPTS, _PAUSE_SECONDS = 5, 0.2
_MOVED_SECONDS = 1.0
#: since 6.0
_PSS_DIRTY = "Pss_Dirty"
#: of smaps_rollup alone
_PSS_OF_KINDS = ("Pss_Anon", "Pss_File", "Pss_Shmem")
_FIELDS = (
    "Rss",
    "Pss",
    _PSS_DIRTY,
    "Shared_Clean",
    "Shared_Dirty",
    "Private_Clean",
    "Private_Dirty",
    "Anonymous",
    "LazyFree",
    "AnonHugePages",
    "ShmemPmdMapped",
    "Swap",
    "SwapPss",
    "Locked",
)
#: which have a share of what is shared
_SHARES = ("Pss", _PSS_DIRTY, *_PSS_OF_KINDS, "SwapPss", "Locked")


@dataclass(frozen=True)
class Part:
    """Some huge pages of memory: whose share they are in smaps_rollup, and which fields of smaps have all of them."""

    pages: int
    share: str
    fields: tuple[str, ...] = ()
    is_dirty: bool = True


@dataclass(frozen=True)
class Kind:
    """Memory of ``_PAGES`` huge pages: how it is made, and of what it consists. mlock(2) changes what some are."""

    name: str
    make: Callable[[Live], Memory]
    parts: tuple[Part, ...]
    can_be_locked: bool = True


def _in_parts(live: Live) -> Memory:
    memory = huge_pages(live, _PAGES)
    for page, prot in product(range(_PAGES), (mmap.PROT_READ, READ_WRITE)):
        memory.actor.call("mprotect", memory.at(page), live.base_page, prot)
    return memory


def _lazily_freed(live: Live) -> Memory:
    memory = huge_pages(live, _PAGES)
    live.host.wait_until(partial(free_lazily, live, memory))
    return memory


def _private_of_a_file(live: Live, pages: int = _PAGES) -> Memory:
    """Return a private mapping of a file in shared memory, of which the first half was written, the second one read."""
    shared = map_start_of_file(live, f"{mount_tmpfs(live, 'never')}/file", pages)
    shared.fill()
    path, actor = shared.smaps().path, live.actor()
    shared.actor.end()
    address = room_for(actor, pages, shared.size)
    actor.mmap(shared.length, READ_WRITE, mmap.MAP_PRIVATE | MAP_FIXED, live.open(actor, path), address=address)
    memory = Memory(live, actor, address, pages, shared.size)
    memory.expect_filled()
    memory.part(0, pages // 2).fill()
    return memory


def _of_a_file(live: Live, *, is_written: bool) -> Memory:
    """Return a mapping of a file that is page cache and nothing else, as that of a disk, and is read back from none."""
    actor = live.actor()
    file = live.open(actor, f"{live.mount_other('mode=0700', 'ramfs')}/file")
    actor.call("ftruncate", file, _PAGES * pmd_size(live))
    memory = map_file(live, actor, file, _PAGES)
    if is_written:
        memory.fill()
    else:
        live.expect("words that are not zero", 0, actor.nonzero(memory.address, memory.length))
    return memory


_ANONYMOUS = (Part(_PAGES, "Pss_Anon", ("Anonymous",)),)
_SHARED = (Part(_PAGES, "Pss_Shmem"),)
_HALF = _PAGES // 2
KINDS = (
    Kind(
        "anonymous huge pages",
        partial(huge_pages, pages=_PAGES),
        (Part(_PAGES, "Pss_Anon", ("Anonymous", "AnonHugePages")),),
    ),
    Kind("huge pages mapped in parts", _in_parts, _ANONYMOUS),
    Kind("anonymous base pages", partial(base_pages, pages=_PAGES), _ANONYMOUS),
    Kind(
        "huge pages that nobody needs",
        _lazily_freed,
        (Part(_PAGES, "Pss_Anon", ("Anonymous", "AnonHugePages", "LazyFree"), is_dirty=False),),
        can_be_locked=False,
    ),
    Kind(
        "shared huge pages", partial(shared_huge_pages, pages=_PAGES), (Part(_PAGES, "Pss_Shmem", ("ShmemPmdMapped",)),)
    ),
    Kind("shared base pages", partial(shared_base_pages, pages=_PAGES), _SHARED),
    Kind(
        "a private mapping of shared memory",
        _private_of_a_file,
        (Part(_HALF, "Pss_Anon", ("Anonymous",)), Part(_HALF, "Pss_Shmem")),
        can_be_locked=False,
    ),
    Kind("a file", partial(_of_a_file, is_written=True), (Part(_PAGES, "Pss_File"),)),
    Kind(
        "a file of zeroes",
        partial(_of_a_file, is_written=False),
        (Part(_PAGES, "Pss_File", is_dirty=False),),
        can_be_locked=False,
    ),
)


@SHARES.case(
    "smaps tells of memory of each kind how much there is, whether others have it, too, what share of it is the"
    " process's own, and whether it is dirty, anonymous, huge and locked; smaps_rollup of which kind the shares are,"
    " and else the sums over all mappings",
    f"{PROC_DOC} smaps, smaps_rollup; fs/proc/task_mmu.c smaps_account(), __show_smap(), show_smaps_rollup()",
    since="5.4",
)
def kinds(live: Live) -> None:
    _prepare(live)
    for kind, processes, locked in product(KINDS, _PROCESSES, (False, True)):
        if locked and not kind.can_be_locked:
            continue
        memory = kind.make(live)
        if locked:
            memory.lock()
        children = [memory.fork() for _child in range(processes - 1)]
        for child in children:
            # which of it but anonymous memory it has from now on alone
            child.nonzero(0, child.length)
        for each in (memory, *children):
            with live.about(f"{kind.name}, {processes} processes, {'locked' if locked else 'not locked'}"):
                # locks are not inherited
                _expect_fields(live, each, _resident(kind, memory.size, processes, locked=locked and each is memory))
        for each in (memory, *children):
            each.actor.end()


@SHARES.case(
    "Swap of smaps is all of anonymous memory that is in swap, SwapPss the process's share of it, VmSwap of status all"
    " of it; what comes back to a process is in its swap no longer, and more of it the others' own",
    f"{PROC_DOC} Swap, SwapPss, VmSwap; fs/proc/task_mmu.c smaps_pte_entry()",
    since="5.4",
)
def in_swap(live: Live) -> None:
    _prepare(live)
    need_swap(live, _PAGES * pmd_size(live))
    for make, processes in product((huge_pages, base_pages), _PROCESSES):
        memory = make(live, _PAGES)
        swap_out(live, memory, memory.length)
        every = [memory, *(memory.fork() for _child in range(processes - 1))]
        half = memory.length // 2
        # half of it comes back to one after the other
        for back in range(processes + 1):
            if back:
                every[-back].expect_filled(pages=_HALF)
            others = processes - back
            if half % max(others, 1):
                # what would be rounded
                continue
            rest = half // max(others, 1)
            for number, each in enumerate(every):
                came_back = number >= others
                with live.about(f"{make.__name__}, {processes} processes, half of it back in {back}"):
                    swap, share = (half, half // processes) if came_back else (memory.length, half // processes + rest)
                    _expect_swap(live, each, swap, share, swap)
        memory.expect_filled()
        _expect_swap(live, memory, 0, 0, 0)
        for each in every:
            each.actor.end()


@SHARES.case(
    "Swap of smaps is all of shared memory that is in swap, for each process that maps it, and what was written of a"
    " private mapping, of which alone SwapPss is a share, and which alone VmSwap of status counts",
    f"{PROC_DOC} Swap, SwapPss, VmSwap; fs/proc/task_mmu.c smap_gather_stats(), smaps_pte_hole(); mm/shmem.c"
    " shmem_swap_usage()",
    since="5.4",
)
def shared_in_swap(live: Live) -> None:
    _prepare(live)
    need_swap(live, 2 * _PAGES * pmd_size(live))
    for make, processes in product((shared_huge_pages, shared_base_pages, _private_of_a_file), _PROCESSES):
        memory = make(live, _PAGES)
        page_all_out(live, memory)
        own = memory.length // 2 if make is _private_of_a_file else 0
        every = [memory, *(memory.fork() for _child in range(processes - 1))]
        for each in every:
            with live.about(f"{make.__name__}, {processes} processes"):
                _expect_swap(live, each, memory.length, own // processes, own)
        memory.expect_filled()
        with live.about(f"{make.__name__}, {processes} processes, read"):
            _expect_swap(live, memory, 0, 0, 0)
        for each in every:
            each.actor.end()


@SHARES.case(
    "VmHWM is the most memory that a process had, whatever it has given back, until clear_refs has it be what there is"
    " now, from where it rises again, for huge pages and others; the other numbers leave it",
    f"{PROC_DOC} clear_refs, VmHWM; fs/proc/task_mmu.c clear_refs_write(), task_mem()",
)
def peak(live: Live) -> None:
    lack = may_lack(live)
    _need_few(live, lack)
    _prepare(live)
    some = base_pages(live, 1)
    besides = process_status(live, some.actor).sizes["VmRSS"] - some.length
    some.actor.end()
    # what an actor has besides is in it, too
    each = _need_few(live, lack + max(besides, 0))
    for make in (huge_pages, base_pages, shared_huge_pages, shared_base_pages):
        memory = make(live, 3 * each)
        with live.about(make.__name__):
            _expect_peak(live, memory, 3, each)
            memory.unmap(each, 2 * each)
            others = CLEAR_REFS_ALL, CLEAR_REFS_ANON, CLEAR_REFS_MAPPED, CLEAR_REFS_SOFT_DIRTY
            for number, most in (*((number, 3) for number in others), (CLEAR_REFS_PEAK, 1)):
                clear_refs(live, memory, number)
                _expect_peak(live, memory, most, each)
            more = advised(live, each, actor=memory.actor)
            more.fill()
            _expect_peak(live, memory, 2, each)
        memory.actor.end()


def _prepare(live: Live) -> None:
    let_nobody_else_act(live)


def _resident(kind: Kind, size: int, processes: int, *, locked: bool) -> dict[str, int]:
    """Return the fields of memory that so many ``processes`` have, in bytes; those that are not there are 0."""
    fields = dict.fromkeys((*_FIELDS, *_PSS_OF_KINDS), 0)
    for part in kind.parts:
        length = part.pages * size
        share = length // processes
        kept = f"{'Private' if processes == 1 else 'Shared'}_{'Dirty' if part.is_dirty else 'Clean'}"
        for name in ("Rss", kept, *part.fields):
            fields[name] += length
        shares = ["Pss", part.share, *([_PSS_DIRTY] if part.is_dirty else []), *(["Locked"] if locked else [])]
        for name in shares:
            fields[name] += share
    return fields


def _expect_fields(live: Live, memory: Memory, expected: Mapping[str, int]) -> None:
    """Expect these fields of ``memory``, and smaps_rollup of its process to have them and little more."""

    def look() -> dict[str, int]:
        of_memory = memory.all_mappings()
        names = [name for name in _FIELDS if name in of_memory[0].fields]
        return {name: sum(mapping.fields[name] for mapping in of_memory) for name in names}

    found = live.host.last_look(look, lambda found: found.items() <= expected.items(), _MOVED_SECONDS)
    live.expect("smaps", {name: expected[name] for name in found}, found)
    rollup = _expect_rollup(live, memory)
    others = rollup["Pss"] - expected["Pss"]
    for name in _PSS_OF_KINDS:
        is_right = expected[name] <= rollup[name] <= expected[name] + others
        told = f"{rollup[name]}, is the {expected[name]} of this memory and at most {others} of others"
        live.expect(f"{name} of smaps_rollup, {told}", True, is_right)
    missing = rollup["Pss"] - sum(rollup[name] for name in _PSS_OF_KINDS)
    # each is cut off at a KiB
    live.expect(
        f"shares of no kind, {missing}, are less than {len(_PSS_OF_KINDS)} KiB",
        True,
        missing in range(len(_PSS_OF_KINDS) * KIB),
    )


def _expect_rollup(live: Live, memory: Memory) -> dict[str, int]:
    """Expect smaps_rollup of the process that has ``memory`` to be the sums over all its mappings, and return it."""
    tree, pid = ObservedTree(live.host), memory.actor.pid

    def sums() -> dict[str, int]:
        mappings = read_smaps(tree, pid) or ()
        names = [name for name in _FIELDS if all(name in mapping.fields for mapping in mappings)]
        return {name: sum(mapping.fields[name] for mapping in mappings) for name in names}

    for attempt in range(_ATTEMPTS):
        if attempt:
            live.host.pause(_PAUSE_SECONDS)
        before, count = sums(), len(read_smaps(tree, pid) or ())
        rollup = read_smaps_rollup(tree, pid) or live.fail(f"/proc/{pid}/smaps_rollup", "a process", "none")
        after = sums()
        # the shares of each mapping are cut off at a KiB, and those of its program change as others start and end
        more = {name: count * KIB if name in _SHARES else 0 for name in before}
        wrong = {
            name: (rollup[name], before[name], after[name])
            for name in before
            if not min(before[name], after[name]) <= rollup[name] <= max(before[name], after[name]) + more[name]
        }
        if not wrong:
            break
    live.expect("what smaps_rollup has, and mappings before and after it do not", {}, wrong)
    return rollup


def _expect_swap(live: Live, memory: Memory, swap: int, share: int, of_process: int) -> None:
    fields = memory.smaps().fields
    live.expect("Swap, SwapPss", (swap, share), (fields["Swap"], fields["SwapPss"]))
    _expect_rollup(live, memory)
    expect_process_swap(live, memory, of_process)


def _expect_peak(live: Live, memory: Memory, times: int, each: int) -> None:
    """Expect VmHWM of the process that has ``memory`` to be ``times`` as much as ``each`` huge pages."""
    # an actor has little else
    found = process_status(live, memory.actor).sizes["VmHWM"]
    live.expect(f"VmHWM, in {each} huge pages", times, round(found / (each * memory.size)))


def _need_few(live: Live, off: int) -> int:
    """Return how many huge pages are more than four times ``off`` bytes. Raises CannotRun where these are too many."""
    pages = off * 4 // pmd_size(live) + 1
    if pages > 1 and pages * pmd_size(live) > _MOST_EACH:
        raise CannotRun(f"VmHWM may be off by {off >> 10} KiB with these CPUs and base pages")
    return pages


class MemoryShares(LiveTest):
    def test_shares(self) -> None:
        self.run_area(SHARES)
