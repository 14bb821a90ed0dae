"""Threads that use transparent huge pages while these are filled, moved, split, collapsed, given back and written."""

import errno
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.debugfs import open_debugfs
from hugepage_qa.cases.forced_writes import debugging, need_forced_writes
from hugepage_qa.cases.fragmentation import expect_no_shortage, with_blocks
from hugepage_qa.cases.khugepaged_clock import let_nobody_else_act
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.madv_collapse import collapse_memory
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.memory_policy import moving
from hugepage_qa.cases.process_counters import process_status, tells_resident
from hugepage_qa.cases.race import RACERS, at_once, clash_in_one_page, use_while_it_moves
from hugepage_qa.cases.reached_from_outside import word_read_by
from hugepage_qa.cases.thp_memory import map_aligned
from hugepage_qa.cases.thp_nodes import two_nodes_with_room
from hugepage_qa.cases.thp_policy import (
    advised,
    base_pages,
    huge_pages,
    need_sizes,
    set_policy,
    smaller_pages,
    some_smaller_sizes,
)
from hugepage_qa.cases.thp_shared_memory import (
    filled_file,
    let_only_pmd_inherit,
    mount_tmpfs,
    shared_base_pages,
    shared_huge_pages,
)
from hugepage_qa.cases.userfaultfd import Feature, Mode, Userfault
from hugepage_qa.kernel.counters import read_vmstat, vmstat_delta
from hugepage_qa.kernel.smaps import read_smaps
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.tree import read_integer
from hugepage_qa.kernel.uapi import (
    FALLOC_FL_KEEP_SIZE,
    FALLOC_FL_PUNCH_HOLE,
    MADV_COLLAPSE,
    MADV_HUGEPAGE,
    MADV_NOHUGEPAGE,
    MADV_POPULATE_WRITE,
)
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor_threads import Action
from hugepage_qa.sizes import MIB
from hugepage_qa.version import KernelVersion

RACING = Area("thp/racing", sizes=Sizes.ONCE)

SMALLER = "mm/memory.c do_anonymous_page(), alloc_anon_folio()"
FILL = "Documentation/admin-guide/mm/userfaultfd.rst UFFDIO_COPY"
#: threads that fill, each a part of the memory
_PARTS = 4
#: others have a hold of a page for a moment, or no huge page is free
_NOT_COLLAPSED = (errno.EAGAIN, errno.EBUSY, errno.EINVAL, errno.ENOMEM)
_ROUNDS, _FORCED_ROUNDS = 4, 16
#: each base page of it may be the first of a new huge page, which is zeroed as a whole: of 512 MiB on some machines
_FORCED_LENGTH = 2 * MIB
_NEW_VALUE = 77
#: pages that are given back while they move
_GIVEN_BACK = 4
#: f1a7941243c1
_COUNTED_BY_CPUS = KernelVersion(6, 2)


@RACING.case(
    "threads that touch memory while others fill it, and it is given back, find what it is filled with, and never none",
    f"{FILL}; mm/userfaultfd.c mfill_atomic(), handle_userfault()",
)
def filled_by_others(live: Live) -> None:
    source = base_pages(live)
    memory = advised(live, actor=source.actor)
    fault = Userfault(memory, Mode.MISSING, Feature(0), waits=True)
    _expect_filled_by_others(live, source, memory, fault, mmap.MADV_DONTNEED)


@RACING.case(
    "threads that touch shared memory while others fill it, and it is removed, find what it is filled with",
    f"{FILL}; mm/userfaultfd.c mfill_atomic()",
)
def shared_memory_filled_by_others(live: Live) -> None:
    # khugepaged of Linux 6.1 fills what is a program's to fill (collapse_file())
    let_nobody_else_act(live)
    source = base_pages(live)
    memory = map_aligned(live, 1, source.size, shared=True, actor=source.actor, advice=MADV_HUGEPAGE)
    fault = Userfault(memory, Mode.MISSING, Feature.MISSING_SHMEM, waits=True)
    _expect_filled_by_others(live, source, memory, fault, mmap.MADV_REMOVE)


@RACING.case(
    "threads that write to huge pages while these move from node to node, and are put together, lose no word",
    "move_pages(2); mm/migrate.c migrate_pages(), mm/huge_memory.c set_pmd_migration_entry()",
    since="5.9",  # thp_migration_success
    nodes=2,
)
def used_while_they_move(live: Live) -> None:
    # what finds no free block is split, or stays: ENOMEM
    two_nodes_with_room(live, 2)
    memory = huge_pages(live, 2)
    before = read_vmstat(ObservedTree(live.host))
    use_while_it_moves(live, memory)
    moved = vmstat_delta(before, read_vmstat(ObservedTree(live.host)))["thp_migration_success"]
    live.expect("thp_migration_success rose", True, moved > 0)


@RACING.case(
    "of memory that is given back and comes again while it moves from node to node nothing is left in RssAnon, nor in"
    " RssFile and RssShmem, when it is unmapped, by smaps of what else there is: huge pages, smaller ones, base pages,"
    " and such as are shared",
    "Documentation/filesystems/proc.rst RssAnon, RssFile, RssShmem; move_pages(2); mm/huge_memory.c zap_huge_pmd();"
    " mm/memory.c zap_nonpresent_ptes()",
    since="5.14",  # MADV_POPULATE_WRITE
    nodes=2,
)
def given_back_while_it_moves(live: Live) -> None:
    let_nobody_else_act(live)
    two_nodes_with_room(live, 2 * _GIVEN_BACK)
    for make in (huge_pages, smaller_pages, base_pages, shared_huge_pages, shared_base_pages):
        memory = make(live, _GIVEN_BACK)
        if make is base_pages:
            memory.advise(MADV_NOHUGEPAGE)
        with live.about(make.__name__):
            with at_once(live, memory.actor) as threads:
                for node in live.nodes[:2]:
                    threads.attempt("move_pages", *moving(memory, node))
                for advice in (mmap.MADV_DONTNEED, MADV_POPULATE_WRITE):
                    threads.attempt("madvise", memory.address, memory.length, advice)
            memory.unmap()
            _expect_nothing_left(live, memory)
        memory.actor.end()


def _expect_nothing_left(live: Live, memory: Memory) -> None:
    """Expect what the process is told to have resident to be what smaps has of it, in halves of a huge page."""
    unit = memory.size // 2
    if not tells_resident(live, unit):
        return
    told = process_status(live, memory.actor).sizes
    mappings = read_smaps(ObservedTree(live.host), memory.actor.pid) or ()
    anonymous = sum(mapping.fields["Anonymous"] for mapping in mappings)
    others = sum(mapping.rss for mapping in mappings) - anonymous
    of_files = round((told["RssFile"] + told["RssShmem"] - others) / unit)
    if live.kernel_version < _COUNTED_BY_CPUS:
        # a thread keeps to itself what it mapped around 64 faults (mm/memory.c check_sync_rss_stat())
        of_files = max(0, of_files)
    what = f"RssAnon, and RssFile and RssShmem, beyond those of smaps, in {unit >> 10} KiB"
    live.expect("AnonHugePages when all huge pages are unmapped", 0, sum(one.anon_huge_pages for one in mappings))
    live.expect(what, (0, 0), (round((told["RssAnon"] - anonymous) / unit), of_files))


@RACING.case(
    "threads that write to memory while its huge pages are split and collapsed again lose no word",
    "mm/huge_memory.c split_huge_pages_pid(), unmap_folio(); madvise(2) MADV_COLLAPSE",
    since="6.1",
)
def used_while_they_are_split(live: Live) -> None:
    memory = huge_pages(live, 2)
    file = open_debugfs(live, memory.actor, "split_huge_pages")
    words = f"{memory.actor.pid},{memory.address:#x},{memory.at(2):#x}".encode()
    with _splitting_and_collapsing(live), at_once(live, memory.actor) as threads:
        threads.use(memory)
        threads.use(memory)
        threads.call("pwrite64", file, words, len(words), 0, may_fail=_NOT_COLLAPSED)
        threads.call("madvise", memory.address, memory.length, MADV_COLLAPSE, may_fail=_NOT_COLLAPSED)
    collapse_memory(live, memory)
    memory.expect_huge(about="of what was collapsed at last")


@RACING.case(
    "who reads and maps a file of a tmpfs while its folios are split and collapsed again finds what it holds",
    "mm/filemap.c filemap_get_entry(); mm/huge_memory.c folio_split(); madvise(2) MADV_COLLAPSE",
    since="6.1",
)
def read_while_it_is_split(live: Live) -> None:
    let_only_pmd_inherit(live)
    path = f"{mount_tmpfs(live, 'always')}/file"
    memory = filled_file(live, path, 2)
    file = open_debugfs(live, memory.actor, "split_huge_pages")
    words = f"{path},0x0,{memory.length // live.base_page:#x}".encode()
    with _splitting_and_collapsing(live), at_once(live, memory.actor) as threads:
        threads.reread(live.open(memory.actor, path), memory.length, live.base_page)
        threads.watch(memory)
        threads.call("pwrite64", file, words, len(words), 0, may_fail=_NOT_COLLAPSED)
        threads.call("madvise", memory.address, memory.length, MADV_COLLAPSE, may_fail=_NOT_COLLAPSED)


@RACING.case(
    "who reads and maps a file of a tmpfs while others punch holes in its folios finds what lies beside the holes",
    "fallocate(2) FALLOC_FL_PUNCH_HOLE; mm/huge_memory.c folio_split() (577a1f495fd7)",
)
def read_while_it_is_punched(live: Live) -> None:
    let_only_pmd_inherit(live)
    point, base = mount_tmpfs(live, "always"), live.base_page
    for number in range(_ROUNDS):
        memory = filled_file(live, f"{point}/{number}", 4)
        file = live.open(memory.actor, f"{point}/{number}")
        with at_once(live, memory.actor, 0) as threads:
            for _thread in range(2):
                threads.reread(file, memory.length, 2 * base)
                threads.watch(memory, step=2 * base)
            for offset in range(base, memory.length, memory.size // 8):
                punch = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
                memory.actor.call("fallocate", file, punch, offset, base)
        live.expect("the last hole", 0, memory.actor.read(memory.at(4) - memory.size // 8 + base))
        memory.actor.end()


@RACING.case(
    "what a debugger writes to the huge zero page, while it is given back again and again, nobody else reads",
    "mm/gup.c touch_pmd() (CVE-2017-1000405); madvise(2) MADV_DONTNEED",
)
def zero_page(live: Live) -> None:
    need_forced_writes(live)
    live.set_knob(f"{DIRECTORY}/use_zero_page", "1")
    other = huge_pages(live)  # and the policy that gives them
    memory = advised(live, actor=other.actor)
    other.advise(mmap.MADV_DONTNEED)
    for one in (memory, other):
        one.protect(mmap.PROT_READ)
    file = live.open(memory.actor, "/proc/self/mem", os.O_RDONLY)
    with at_once(live, memory.actor, 0) as threads:
        threads.watch(other, 0)
        threads.call("pread64", file, bytes(WORD), WORD, memory.address + 2 * WORD)
        threads.call("madvise", memory.address, memory.length, mmap.MADV_DONTNEED)
        with debugging(live, memory.actor.pid) as (debugger, forced):
            length = min(memory.size, _FORCED_LENGTH)
            written = debugger.mmap(length, READ_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            debugger.fill(written, length, WORD, _NEW_VALUE)
            for _round in range(_FORCED_ROUNDS):
                # mem_rw() takes hold of each base page anew
                count = debugger.call("pwrite64", forced, written, length, memory.address)
                live.expect("bytes written", length, count)
    other.expect_zero()


@RACING.case(
    "threads that touch other parts of what is to be one huge page smaller than a PMD at the same moment, some reading"
    " before they write, find zeroes and then what they wrote: who comes second takes no larger page than there is room"
    " for between the others",
    f"{SMALLER}, pte_range_none()",
    since="6.8",
)
def touched_in_parts(live: Live) -> None:
    for size in _smaller_pages_that_come(live):
        for actions in ((Action.TOUCH, Action.READ_FIRST), (Action.READ_FIRST,)):
            clash_in_one_page(live, size, *actions * (RACERS // len(actions)))


@RACING.case(
    "threads that touch what is to be one huge page smaller than a PMD while another process reads and writes other"
    " parts of it find what they wrote, and so does it",
    f"process_vm_readv(2) process_vm_writev; {SMALLER}, pte_range_none()",
    since="6.8",
)
def touched_from_outside(live: Live) -> None:
    memory = base_pages(live)
    live.expect("a word read from outside", 1, word_read_by(live, live.actor(), memory, 0))
    for size in _smaller_pages_that_come(live):
        clash_in_one_page(live, size, *(Action.TOUCH, Action.READ_FIRST_FROM_OUTSIDE) * (RACERS // 2))


@contextmanager
def _splitting_and_collapsing(live: Live) -> Iterator[None]:
    """Have threads split huge pages meanwhile, and collapse what they were.

    Raises CannotRun where either never came to be: neither is promised while others use it.
    """
    before = read_vmstat(ObservedTree(live.host))
    yield
    rose = vmstat_delta(before, read_vmstat(ObservedTree(live.host)))
    if missing := [name for name in ("thp_split_page", "thp_collapse_alloc") if not rose[name]]:
        raise CannotRun(f"{' and '.join(missing)} did not rise: nothing was raced against")


def _smaller_pages_that_come(live: Live) -> Iterator[int]:
    """Have new memory in huge pages of one smaller size after the other; yield it, and expect faults to have taken it.

    Raises CannotRun where the kernel has none, or memory is too fragmented for them.
    """
    set_policy(live, "never", pmd="never")
    for size, path in need_sizes(some_smaller_sizes(live)):
        live.set_knob(f"{path}/enabled", "always")
        with_blocks(live, size, RACERS)
        before = _taken(live, path)
        with live.about(f"pages of {size >> 10} kB"):
            yield size
            if before is not None:  # since Linux 6.10
                rose = (_taken(live, path) or 0) > before
                if not rose:
                    expect_no_shortage(live, size, RACERS)
                live.expect("anon_fault_alloc rose", True, rose)
        live.set_knob(f"{path}/enabled", "never")


def _taken(live: Live, path: str) -> int | None:
    return read_integer(ObservedTree(live.host), f"{path}/stats/anon_fault_alloc")


def _expect_filled_by_others(live: Live, source: Memory, memory: Memory, fault: Userfault, give_back: int) -> None:
    part = memory.size // _PARTS
    with at_once(live, memory.actor) as threads:
        for offset in range(0, memory.size, part):
            # there already, or a part of it: the rest is filled the next time
            threads.call("ioctl", *fault.copying(source, offset, part), may_fail=(errno.EEXIST, errno.EAGAIN))
        for _thread in range(2):
            threads.watch(memory)
        threads.call("madvise", memory.address, memory.length, give_back)


class ThpRacing(LiveTest):
    def test_racing(self) -> None:
        self.run_area(RACING)
