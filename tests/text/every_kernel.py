"""Program text on any kernel: what is huge of it, who may make it so, and that its code stays right."""

import errno
import mmap
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.file_text import (
    absent_pages,
    allow_always,
    expect_whole_pages,
    is_eligible,
    need_collapsible_cache,
    needs_advice,
    start_touched,
    whole_pages,
)
from hugepage_qa.cases.hugetext import (
    ENABLED,
    THRESHOLD,
    expect_huge,
    expect_not_collapsed,
    expect_text_can_be_huge,
    huge_page_of_text,
    see_khugepaged_at_work,
)
from hugepage_qa.cases.khugepaged_clock import (
    KHUGEPAGED,
    PATIENT_SCANS,
    allow_absent,
    await_khugepaged,
)
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.text_program import TextProgram, start_again, start_text
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.kernel.tree import read_integer
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.oracle.program_text import Kind
from hugepage_qa.oracle.rules import THP_DOC
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Refused
from hugepage_qa.process.text_program_build import STEP, Recipe
from hugepage_qa.version import KernelVersion

EVERY_KERNEL = Area("text/every-kernel", sizes=Sizes.ONCE)

FILE_THP = "mm/Kconfig READ_ONLY_THP_FOR_FS; mm/huge_memory.c file_thp_enabled()"
#: 2a010c412853 let a program be written while it runs, 3b832035387f took it back
_WRITABLE_SINCE, _WRITABLE_UNTIL = KernelVersion(6, 11), KernelVersion(6, 13)


@EVERY_KERNEL.case(
    "a kernel has all files of hugetext, with values within their limits, or none",
    "mm/Kconfig HUGETEXT of ANCK 4.19 and 5.10; mm/huge_memory.c",
)
def files_of_hugetext(live: Live) -> None:
    enabled, threshold, most = (
        read_integer(ObservedTree(live.host), path) for path in (ENABLED, THRESHOLD, f"{KHUGEPAGED}/max_nr_hugetext")
    )
    if enabled is None:
        live.expect("hugetext_pad_threshold and max_nr_hugetext", (None, None), (threshold, most))
        return
    live.expect("hugetext_enabled is 0..3", True, enabled in range(4))
    if threshold is not None:
        live.expect("hugetext_pad_threshold is below a huge page", True, threshold in range(pmd_size(live)))


@EVERY_KERNEL.case(
    "khugepaged makes text huge where THPeligible says so, in whole aligned blocks, and leaves all other as it was;"
    " where there is hugetext only text with MADV_HUGEPAGE",
    f"{THP_DOC} THPeligible; {FILE_THP}",
    since="5.4",
)
def text_and_khugepaged(live: Live) -> None:
    program = start_touched(live, Kind.PIE)
    before = program.huge()
    expect_whole_pages(live, program, before)
    if needs_advice(live):
        expect_not_collapsed(live, program)
        program.advise(MADV_HUGEPAGE)
    eligible = is_eligible(live, program)
    if eligible:
        await_khugepaged(live, lambda: _after_touch(program) == whole_pages(live, program), PATIENT_SCANS)
    else:
        see_khugepaged_at_work(live, program.actor)
    program.touch()
    expect_huge(live, program, [whole_pages(live, program) if eligible else before])
    program.expect_intact()


@EVERY_KERNEL.case(
    "max_ptes_none is how many pages of text that khugepaged makes a huge page may be absent from the page cache",
    f"{THP_DOC} max_ptes_none; mm/khugepaged.c collapse_file(), SCAN_EXCEED_NONE_PTE",
    since="5.4",
)
def absent_text(live: Live) -> None:
    size = huge_page_of_text(live)
    allow_always(live)
    # nothing is to be huge before it is known how much is absent
    allow_absent(live, 0)
    program = start_text(live, Recipe(size, tail=size // 2))
    if needs_advice(live):
        program.advise(MADV_HUGEPAGE)
    if not is_eligible(live, program):
        raise CannotRun("khugepaged makes no text of a program huge on this kernel: THPeligible is 0")
    need_collapsible_cache(live, program)
    program.advise(mmap.MADV_RANDOM)
    run_some = partial(program.actor.run, program.code, size // 2 // STEP, STEP)
    live.expect("pages of code that are wrong", 0, run_some())
    absent = absent_pages(live, program)
    if min(absent) == 0:
        raise CannotRun("the file system reads a whole huge page of text at once")
    for limit in (min(absent) - 1, min(absent)):
        allow_absent(live, limit)
        expected = sum(pages <= limit for pages in absent) * size
        if not expected:
            see_khugepaged_at_work(live, program.actor)
            live.expect("unpopulated pages of each block", absent, absent_pages(live, program))
        await_khugepaged(live, partial(_becomes, live, program, run_some, expected), PATIENT_SCANS)
        found = program.huge()
        expect_text_can_be_huge(live, [found], [expected])
        live.expect(f"FilePmdMapped with {absent} absent, max_ptes_none {limit}", expected, found)
    program.touch()
    program.expect_intact()


@EVERY_KERNEL.case(
    "code stays right while caches are dropped, for the process that runs it and for the next one",
    "Documentation/admin-guide/sysctl/vm.rst drop_caches",
)
def dropped_caches(live: Live) -> None:
    program = start_touched(live, Kind.PIE)
    for _round in range(3):
        live.host.write("proc/sys/vm/drop_caches", "3")
        program.touch()
        program.expect_intact()
    later = start_again(live, program.built)
    later.touch()
    later.expect_intact()


@EVERY_KERNEL.case(
    "the program that a process runs cannot be opened for writing, its libraries can, and its code stays right",
    "execve(2) ETXTBSY; fs/exec.c exe_file_deny_write_access()",
)
def open_for_write(live: Live) -> None:
    program, library = start_touched(live, Kind.PIE), start_touched(live, Kind.LIBRARY)
    writer = live.actor()
    if _WRITABLE_SINCE <= live.kernel_version < _WRITABLE_UNTIL:
        # stable releases took it back in the middle
        with suppress(Refused):
            live.open(writer, program.built.file, os.O_RDWR)
    else:
        live.expect_errno(errno.ETXTBSY, live.open, writer, program.built.file, os.O_RDWR)
    live.open(writer, library.built.file, os.O_RDWR)
    library.touch()
    library.expect_intact()
    program.touch()


def _becomes(live: Live, program: TextProgram, run_some: Callable[[], int], huge: int) -> bool:
    live.expect("pages of code that are wrong", 0, run_some())
    return program.huge() == huge


def _after_touch(program: TextProgram) -> int:
    program.touch()
    return program.huge()


class TextOfPrograms(LiveTest):
    def test_every_kernel(self) -> None:
        self.run_area(EVERY_KERNEL)
