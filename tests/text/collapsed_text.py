"""Text that madvise(2) collapses: what is huge of it then, how that is counted, and what splits it again."""

import errno
import mmap
import os
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.changed_counters import OF_NODES, expect_change, read_counters_with_nodes
from hugepage_qa.cases.debugfs import expect_split
from hugepage_qa.cases.file_text import (
    allow_always,
    collapse_text,
    expect_whole_pages,
    is_eligible,
    need_base_pages_in_cache,
    need_eligible,
    start_collapsible,
    start_eligible_library,
    start_touched,
    whole_pages,
)
from hugepage_qa.cases.hugetext import huge_page_of_text
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.madv_collapse import collapse
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.text_program import TextProgram, evict, start_again, start_text
from hugepage_qa.cases.thp_memory import pmd_size, room_for
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.uapi import MADV_COLLAPSE, MAP_FIXED
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.oracle.program_text import Kind
from hugepage_qa.oracle.rules import THP_DOC
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.text_program_build import BuiltText, Recipe
from hugepage_qa.version import KernelVersion

COLLAPSED = Area("text/collapsed-text", sizes=Sizes.ONCE)

PROC_DOC = "Documentation/filesystems/proc.rst"
FILE_THP = "mm/Kconfig READ_ONLY_THP_FOR_FS; mm/huge_memory.c file_thp_enabled()"
#: file_thp_enabled() of 6.1 asks for VM_EXEC, and that of 6.12 does not; those between are judged by text alone
_TEXT_UNTIL, _NEED_NOT_BE_TEXT = KernelVersion(6, 2), KernelVersion(6, 12)
_EXECUTABLE = mmap.PROT_READ | mmap.PROT_EXEC
COLLAPSE = "madvise(2) MADV_COLLAPSE; mm/khugepaged.c madvise_collapse()"


@COLLAPSED.case(
    "MADV_COLLAPSE makes text huge where THPeligible says so with enabled=always, else it is EINVAL without effect",
    f"{COLLAPSE}; {FILE_THP}",
    since="6.1",
)
def collapsed_text(live: Live) -> None:
    for kind in (Kind.PIE, Kind.FIXED, Kind.LIBRARY):
        _expect_collapse(live, start_touched(live, kind))


@COLLAPSED.case(
    "MADV_COLLAPSE makes text on XFS huge where THPeligible says so, else it is EINVAL, and the code stays right",
    f"{COLLAPSE}; {FILE_THP}; mm/readahead.c page_cache_ra_order()",
    since="6.1",
)
def text_on_xfs(live: Live) -> None:
    _expect_collapse(live, start_touched(live, Kind.PIE, live.host.disk("xfs")))


@COLLAPSED.case(
    "MADV_COLLAPSE makes text on btrfs huge where THPeligible says so, else it is EINVAL, and the code stays right",
    f"{COLLAPSE}; {FILE_THP}",
    since="6.1",
)
def text_on_btrfs(live: Live) -> None:
    _expect_collapse(live, start_touched(live, Kind.PIE, live.host.disk("btrfs")))


@COLLAPSED.case(
    "FileHugePages is text in huge pages as long as it is in the page cache, FilePmdMapped what of it is mapped, of"
    " the machine, of its nodes together, and in /proc/vmstat",
    f"{PROC_DOC} FileHugePages, FilePmdMapped; mm/khugepaged.c collapse_file(); drivers/base/node.c",
    since="6.1",
)
def counted_text(live: Live) -> None:
    started = [start_touched(live, Kind.LIBRARY)]
    need_eligible(live, started[0])
    # MADV_COLLAPSE alone makes it huge
    live.set_knob(f"{DIRECTORY}/enabled", "never")
    whole = whole_pages(live, started[0])
    recipe = Recipe(pmd_size(live), tail=pmd_size(live) // 2, kind=Kind.LIBRARY)

    def start() -> TextProgram:
        started[-1].actor.end()
        # what is in the page cache is evicted, now that nobody maps it
        started.append(start_collapsible(live, recipe))
        started[-1].touch()
        return started[-1]

    def collapse_it(program: TextProgram) -> None:
        collapse_text(live, program)
        program.touch()

    def collapsed() -> TextProgram:
        program = start()
        collapse_it(program)
        return program

    def unmapped() -> None:
        collapsed().actor.end()

    def end(program: TextProgram) -> None:
        program.actor.end()

    taken = _counted(live, mapped=whole, cached=whole) | {"ShmemHugePages": 0}
    expect_change(live, taken, start, collapse_it, read_counters_with_nodes)
    expect_change(live, _counted(live, mapped=-whole, cached=0), collapsed, end, read_counters_with_nodes)
    expect_change(
        live, _counted(live, cached=-whole), unmapped, lambda _none: evict(live, recipe), read_counters_with_nodes
    )


@COLLAPSED.case(
    "huge pages of a file leave the page cache when it is opened for writing, and none are made as long as it is open",
    "mm/Kconfig READ_ONLY_THP_FOR_FS; fs/open.c do_dentry_open(); mm/khugepaged.c collapse_file()",
    since="6.1",
    until="6.16",
)
def text_that_is_written(live: Live) -> None:
    library = start_eligible_library(live)
    whole = whole_pages(live, library)
    writer = live.actor()
    for _time in range(2):
        collapse_text(live, library)
        library.touch()
        live.expect("FilePmdMapped", whole, library.huge())
        descriptor = live.open(writer, library.built.file, os.O_RDWR)
        live.expect("FilePmdMapped after it was opened for writing", 0, library.huge())
        library.touch()
        library.expect_intact()
        live.expect("THPeligible while it is open for writing", False, library.mappings()[0].thp_eligible)
        live.expect_errno(errno.EINVAL, collapse_text, live, library)
        live.expect("FilePmdMapped while it is open for writing", 0, library.huge())
        writer.call("close", descriptor)
        library.touch()
        library.expect_intact()


@COLLAPSED.case(
    "text in a tmpfs is collapsed into huge pages of shared memory, in whole aligned blocks, and runs from them",
    f"{THP_DOC} Hugepages in tmpfs/shmem; {COLLAPSE}",
    since="6.1",
)
def text_in_tmpfs(live: Live) -> None:
    _collapsed_in_tmpfs(live)


@COLLAPSED.case(
    "text that is mapped as huge pages is split by split_huge_pages, and the code stays right",
    f"{THP_DOC}; mm/huge_memory.c split_huge_pages_all()",
    since="6.1",
)
def split_text(live: Live) -> None:
    program = _collapsed_in_tmpfs(live)
    expect_split(live, "1", 1)
    # each process that has it maps base pages
    live.expect("ShmemPmdMapped after the split", 0, _shared_huge(program))
    program.touch()
    program.expect_intact()


@COLLAPSED.case(
    "text that is collapsed for one program is run by another one, without its page tables, and collapsed there, too,"
    " whether it was run in between or not",
    "madvise(2) MADV_COLLAPSE; mm/khugepaged.c retract_page_tables(), collapse_pte_mapped_thp()",
    since="6.1",
)
def text_collapsed_by_another(live: Live) -> None:
    for is_touched in (True, False):
        first = start_touched(live, Kind.PIE)
        second = start_again(live, first.built)
        second.touch()
        if not is_eligible(live, first):
            raise CannotRun("this kernel collapses no text of this file system")
        collapse_text(live, first)
        if is_touched:
            second.touch()
            second.expect_intact()
        collapse_text(live, second)
        for program in (second, first):
            with live.about(f"touched in between {is_touched}"):
                if program is second:
                    live.expect("FilePmdMapped at once", whole_pages(live, program), program.huge())
                program.touch()
                program.expect_intact()
                live.expect("FilePmdMapped", whole_pages(live, program), program.huge())
            program.actor.end()


@COLLAPSED.case(
    "MADV_COLLAPSE makes what is mapped of a file huge where THPeligible says so, which is only where it may be"
    " executed, on kernels where that is asked for, and where it lies in the file as in memory, mapped shared or"
    " private; else it is EINVAL without effect, and what the file holds is read, mapped or not",
    f"{COLLAPSE}; {FILE_THP}; include/linux/huge_mm.h transhuge_vma_suitable(), thp_vma_suitable_order();"
    " mm/filemap.c filemap_read()",
    since="6.1",
)
def mapped_otherwise(live: Live) -> None:
    program = start_touched(live, Kind.LIBRARY)
    need_base_pages_in_cache(live, program)
    _expect_collapse(live, program)
    has_option = is_eligible(live, program)
    size = huge_page_of_text(live)
    recipe = Recipe(size, tail=size // 2, kind=Kind.LIBRARY)
    program.actor.end()
    asked_for, not_asked_for = live.kernel_version < _TEXT_UNTIL, live.kernel_version >= _NEED_NOT_BE_TEXT
    protections = (mmap.PROT_READ, _EXECUTABLE) if asked_for or not_asked_for else (_EXECUTABLE,)
    mapped = (live.base_page, mmap.MAP_PRIVATE), (0, mmap.MAP_PRIVATE), (0, mmap.MAP_SHARED)
    for prot, (shift, kind) in product(protections, mapped):
        with live.about(f"protection {prot}, flags {kind}, {shift} bytes further on in the file"):
            # none of it is in the page cache, nor runs it
            built = live.host.build_text(recipe)
            may = prot == _EXECUTABLE or not_asked_for
            _expect_mapping(live, built, prot, shift, kind, huge=has_option and may and not shift)


def _expect_mapping(live: Live, built: BuiltText, prot: int, shift: int, kind: int, *, huge: bool) -> None:
    """Expect a mapping of the file from ``shift`` on to become a huge page, or to be EINVAL."""
    size, actor = pmd_size(live), live.actor()
    descriptor = live.open(actor, built.file, os.O_RDONLY)
    address = actor.mmap(size, prot, kind | MAP_FIXED, descriptor, shift, room_for(actor, 1, size))
    memory = Memory(live, actor, address, 1, size)
    before = actor.sum(address, size)
    live.expect("THPeligible", huge, memory.smaps().thp_eligible)
    advise = partial(memory.advise, MADV_COLLAPSE)
    if huge:
        collapse(live, advise)
    else:
        live.expect_errno(errno.EINVAL, advise)
    live.expect("checksum of what is mapped", before, actor.sum(address, size))
    live.expect("FilePmdMapped", size if huge else 0, memory.smaps().file_pmd_mapped)
    _expect_read(live, memory, descriptor, shift)
    actor.end()


def _expect_read(live: Live, memory: Memory, descriptor: int, start: int) -> None:
    """Expect reads of parts of a file to give what is mapped of it from ``start`` on."""
    actor, base = memory.actor, live.base_page
    buffer = actor.mmap(2 * base, READ_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for first in (0, base, memory.size // 2 + WORD, memory.size - 2 * base):
        live.expect("bytes read", 2 * base, actor.call("pread64", descriptor, buffer, 2 * base, start + first))
        found, expected = (actor.sum(address, 2 * base) for address in (buffer, memory.address + first))
        live.expect(f"checksum of what is read at {first}", expected, found)


def _collapsed_in_tmpfs(live: Live) -> TextProgram:
    size = huge_page_of_text(live)
    allow_always(live)
    live.set_knob_if_there(f"{DIRECTORY}/shmem_enabled", "never")  # and not "deny", which goes before all else
    point = live.mount_other("huge=always,mode=0700", "tmpfs")
    program = start_text(live, Recipe(size, tail=size // 2), point)
    program.touch()
    collapse_text(live, program)
    program.touch()
    live.expect("ShmemPmdMapped", whole_pages(live, program), _shared_huge(program))
    live.expect("FilePmdMapped", 0, program.huge())
    program.expect_intact()
    return program


def _shared_huge(program: TextProgram) -> int:
    return sum(mapping.shmem_pmd_mapped for mapping in program.mappings())


def _expect_collapse(live: Live, program: TextProgram) -> None:
    """Expect MADV_COLLAPSE to do what THPeligible says. Large folios that the file system has read stay as they are."""
    before = program.huge()
    expect_whole_pages(live, program, before)
    if is_eligible(live, program):
        collapse_text(live, program)
        program.touch()
        live.expect("FilePmdMapped", whole_pages(live, program), program.huge())
    else:
        live.expect_errno(errno.EINVAL, collapse_text, live, program)
        live.expect("FilePmdMapped", before, program.huge())
    program.touch()
    program.expect_intact()


def _counted(live: Live, **changes: int) -> dict[str, int]:
    """Return by how much what is ``mapped`` and ``cached`` changes: of the machine, its nodes, and in huge pages."""
    names = {
        "mapped": ("FilePmdMapped", "nr_file_pmdmapped"),
        "cached": ("FileHugePages", "nr_file_hugepages"),
    }
    counted = dict[str, int]()
    for name, change in changes.items():
        in_bytes, in_pages = names[name]
        counted |= {in_bytes: change, f"{OF_NODES}{in_bytes}": change, in_pages: change // pmd_size(live)}
    return counted


class CollapsedText(LiveTest):
    def test_collapsed_text(self) -> None:
        self.run_area(COLLAPSED)
