"""Text of programs on any kernel: whether it can be huge, how much of it, and what of it is in memory."""

import mmap
import os
from functools import partial

from hugepage_qa.cases.hugetext import ENABLED, huge_page_of_text
from hugepage_qa.cases.khugepaged_clock import allow_absent, quicken
from hugepage_qa.cases.large_folios import has_huge_folios
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.madv_collapse import collapse
from hugepage_qa.cases.text_program import TextProgram, start_again
from hugepage_qa.cases.thp_memory import keep_min_free, pmd_size
from hugepage_qa.kernel.proc_tables import find_mount
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.uapi import MADV_COLLAPSE
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.oracle.program_text import Kind
from hugepage_qa.process.text_program_build import BuiltText, Recipe
from hugepage_qa.version import KernelVersion

#: the last kernel that was seen with READ_ONLY_THP_FOR_FS; 7.2 has none
_OPTION_UNTIL = KernelVersion(6, 19)
#: before commit e6be37b2e7bd of Linux 5.14 THPeligible left such text out
_SHOWN_SINCE = KernelVersion(5, 14)
_TRUSTED_SINCE = KernelVersion(6, 6)
#: file systems read ahead into large folios: XFS was the first
_LARGE_FOLIOS_SINCE = KernelVersion(5, 18)
#: before, mm/khugepaged.c leaves a block alone that has a large folio in it: SCAN_PAGE_COMPOUND, EINVAL to madvise(2)
_LARGE_FOLIOS_COLLAPSE_SINCE = KernelVersion(6, 12)
_IN_MEMORY = 1
#: before Linux 6.16
_WITHOUT_LARGE_FOLIOS = ("ext4", "btrfs")


def allow_always(live: Live) -> None:
    """Let khugepaged collapse all it may, until the case ends: always, whatever is absent, and nothing by hugetext."""
    keep_min_free(live)
    live.set_knob_if_there(ENABLED, "0")
    live.set_knob(f"{DIRECTORY}/enabled", "always")
    quicken(live)
    allow_absent(live, pmd_size(live) // live.base_page - 1)


def start_collapsible(live: Live, recipe: Recipe, directory: str | None = None) -> TextProgram:
    """Build a program and start it, its text in the page cache as the kernel can collapse it.

    Where it may be read ahead into large folios and these are not collapsed, it is read page by page before.
    """
    built = live.host.build_text(recipe, directory)
    if _leaves_large_folios(live):
        _read_page_by_page(live, built)
    return start_again(live, built)


def start_touched(live: Live, kind: Kind, directory: str | None = None, *, tail: int = 0) -> TextProgram:
    """Start and run a program, or a library's, of a huge page of text and ``tail`` bytes more (half a huge page).

    The page cache is as :func:`start_collapsible` leaves it, and khugepaged may collapse whatever it can.
    """
    size = huge_page_of_text(live)
    allow_always(live)
    program = start_collapsible(live, Recipe(size, tail=tail or size // 2, kind=kind), directory)
    program.touch()
    return program


def collapse_text(live: Live, program: TextProgram) -> None:
    """Have MADV_COLLAPSE make the whole huge pages of the text huge. Raises Refused."""
    size = pmd_size(live)
    mapping = program.mapped()[0]
    start = -(-mapping.start // size) * size
    length = mapping.end // size * size - start
    collapse(live, partial(program.actor.call, "madvise", start, length, MADV_COLLAPSE))


def need_collapsible_cache(live: Live, program: TextProgram) -> None:
    """Raise CannotRun where text that was read ahead may be in large folios, and these are not collapsed."""
    if _leaves_large_folios(live):
        need_base_pages_in_cache(live, program)


def _leaves_large_folios(live: Live) -> bool:
    return _LARGE_FOLIOS_SINCE <= live.kernel_version < _LARGE_FOLIOS_COLLAPSE_SINCE


def _read_page_by_page(live: Live, built: BuiltText) -> None:
    """Read the text into the page cache without reading ahead: in base pages."""
    segment = built.elf.segments[built.elf.text]
    length = segment.offset + segment.size
    reader = live.actor()
    descriptor = live.open(reader, built.file, os.O_RDONLY)
    start = reader.mmap(length, mmap.PROT_READ, mmap.MAP_PRIVATE, descriptor)
    reader.call("madvise", start, length, mmap.MADV_RANDOM)
    reader.sum(start, length)
    reader.end()


def needs_advice(live: Live) -> bool:
    """Tell whether without a mode of hugetext only text with MADV_HUGEPAGE becomes huge, even with enabled=always.

    hugepage_vma_check() of ANCK 4.19 and 5.10, where it is so.
    """
    return live.host.read(ENABLED) is not None


def is_eligible(live: Live, program: TextProgram) -> bool:
    """Return what smaps says, which has to be what the kernel was built for, where that decides.

    The text has been advised where it needs advice. Raises CannotRun where neither tells.
    """
    if needs_advice(live):
        # CONFIG_HUGETEXT depends on READ_ONLY_THP_FOR_FS; THPeligible of these kernels knows of neither
        return True
    built_in = live.host.kernel_option("READ_ONLY_THP_FOR_FS")
    if built_in is not None and live.kernel_version < _SHOWN_SINCE:
        return built_in
    eligible = program.mappings()[0].thp_eligible
    if eligible is None:
        raise CannotRun("smaps of this kernel has no THPeligible")
    if built_in is None or live.kernel_version >= _OPTION_UNTIL:
        if has_huge_folios(live, program.built.file):
            live.expect("THPeligible of text", True, eligible)
        return eligible
    if eligible and not built_in and _is_trusted(live, program):
        return False
    live.expect("THPeligible of text", built_in, eligible)
    return eligible


def _is_trusted(live: Live, program: TextProgram) -> bool:
    """Tell whether smaps takes the text for eligible without the option.

    It does since commit 7a81751fcdeb of Linux 6.6 where a file system has a handler of huge faults, which is for DAX:
    XFS has it for all files.
    """
    mount = find_mount(live.host, program.built.file)
    return live.kernel_version >= _TRUSTED_SINCE and mount is not None and mount.type == "xfs"


def start_eligible_library(live: Live) -> TextProgram:
    """Start and run a library of a huge page of text, which is to become huge, in a file of its own.

    Raises CannotRun where no text becomes huge, or large folios are in the page cache by themselves.
    """
    # of a file that was huge before, a count that is wrong may be right by chance
    library = start_touched(live, Kind.LIBRARY, tail=huge_page_of_text(live) // 4)
    need_base_pages_in_cache(live, library)
    need_eligible(live, library)
    return library


def need_eligible(live: Live, program: TextProgram) -> None:
    """Raise CannotRun where no text becomes huge."""
    if not is_eligible(live, program):
        raise CannotRun("no text becomes huge on this kernel: THPeligible is 0")


def need_base_pages_in_cache(live: Live, program: TextProgram) -> None:
    """Raise CannotRun where the file system of the text has large folios by itself, or may have.

    What is huge there stays so when the file is written (filemap_nr_thps_inc() in include/linux/pagemap.h).
    """
    mount = find_mount(live.host, program.built.file)
    if mount is None or mount.type not in _WITHOUT_LARGE_FOLIOS:
        raise CannotRun(f"the file system of programs, {mount.type if mount else 'unknown'}, may have large folios")


def whole_pages(live: Live, program: TextProgram) -> int:
    """Return the bytes of its text that lie in whole, aligned huge pages."""
    return sum(one.huge_bytes(program.built.elf.size, pmd_size(live)) for one in program.mapped())


def absent_pages(live: Live, program: TextProgram) -> tuple[int, ...]:
    """Return how many base pages of each of these are not in the page cache (mincore(2))."""
    count = pmd_size(live) // live.base_page
    asked = (
        program.actor.call_with_buffers("mincore", start, pmd_size(live), bytes(count))[1][0]
        for start in program.whole_blocks(pmd_size(live))
    )
    return tuple(sum(not state & _IN_MEMORY for state in states) for states in asked)


def expect_whole_pages(live: Live, program: TextProgram, huge: int) -> None:
    """Expect whole aligned blocks: large folios of a file system are mapped whole, too, but never more than these."""
    live.expect("FilePmdMapped is whole huge pages", 0, huge % pmd_size(live))
    live.expect("FilePmdMapped lies within the whole blocks", True, huge <= whole_pages(live, program))
