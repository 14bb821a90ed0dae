"""Which processes hugetext makes huge text of: new ones, those that khugepaged looks at, and none that is exempt."""

import os

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.hugetext import (
    ENABLED,
    expect_collapsed,
    expect_not_collapsed,
    expect_small,
    huge_page_of_text,
    see_khugepaged_at_work,
    switch,
)
from hugepage_qa.cases.khugepaged_clock import await_rest, full_scans
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.text_program import TextProgram, start_again, start_used
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE, MADV_NOHUGEPAGE, PR_SET_THP_DISABLE
from hugepage_qa.oracle.program_text import Kind
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.text_program_build import Recipe

PROCESSES = Area("text/processes", sizes=Sizes.ONCE)

QUALIFIES = "include/linux/huge_mm.h, mm/khugepaged.c hugepage_vma_check() of ANCK 5.10"
LISTED = "mm/memory.c do_read_fault(), include/linux/khugepaged.h khugepaged_enter() of ANCK 5.10"

_REST = 0.5


@PROCESSES.case(
    "a process whose text is mapped when hugetext is switched on is not collapsed, until a new one has its file so",
    LISTED,
)
def a_process_that_runs_already(live: Live) -> None:
    running = _started_in_mode_0(live)
    live.host.write(ENABLED, "1")
    # in a process of its own: this one is to be on no list
    see_khugepaged_at_work(live)
    expect_small(live, running)
    newer = start_again(live, running.built)
    newer.touch()
    expect_collapsed(live, newer, 1)
    running.touch()
    live.expect("FilePmdMapped of the process that ran before", newer.huge(), running.huge())


@PROCESSES.case(
    "a process that khugepaged looks at for another reason is collapsed when hugetext is switched on",
    LISTED,
)
def a_process_that_is_listed(live: Live) -> None:
    running = _started_in_mode_0(live)
    see_khugepaged_at_work(live, running.actor)
    live.host.write(ENABLED, "1")
    expect_collapsed(live, running, 1)


@PROCESSES.case(
    "with THP off hugetext alone keeps khugepaged at work, and lets it rest when it is switched off",
    "mm/huge_memory.c hugetext_enabled_store(), include/linux/khugepaged.h khugepaged_enabled() of ANCK 5.10",
)
def khugepaged_for_hugetext_alone(live: Live) -> None:
    size = huge_page_of_text(live)
    switch(live, 1, thp="never")
    expect_collapsed(live, start_used(live, Recipe(size)), 1)
    live.host.write(ENABLED, "0")
    before = await_rest(live)
    live.host.pause(_REST)
    live.expect("full scans with all of it off", before, full_scans(live))


@PROCESSES.case("text with MADV_NOHUGEPAGE stays small", QUALIFIES)
def advised_against(live: Live) -> None:
    program = _exempted_later(live)
    program.advise(MADV_NOHUGEPAGE)
    live.host.write(ENABLED, "1")
    expect_not_collapsed(live, program)


@PROCESSES.case(
    "text with MADV_HUGEPAGE collapses in mode 0, too, and what nobody advised does not",
    "include/linux/huge_mm.h, mm/khugepaged.c hugepage_vma_check() of ANCK 5.10: explicitly madvise MADV_HUGEPAGE",
)
def advised_in_mode_0(live: Live) -> None:
    program = _started_in_mode_0(live)
    expect_not_collapsed(live, program)
    program.advise(MADV_HUGEPAGE)
    expect_collapsed(live, program, 0, advised=True)


@PROCESSES.case("text of a process with PR_SET_THP_DISABLE stays small", QUALIFIES)
def disabled_by_prctl(live: Live) -> None:
    program = _exempted_later(live)
    program.actor.call("prctl", PR_SET_THP_DISABLE, 1, 0, 0, 0)
    live.host.write(ENABLED, "1")
    see_khugepaged_at_work(live)
    expect_small(live, program)


@PROCESSES.case(
    "a library that somebody has open for write stays small, and collapses when it was closed",
    f"{QUALIFIES}, inode_is_open_for_write()",
)
def open_for_write(live: Live) -> None:
    size = huge_page_of_text(live)
    switch(live, 1)
    built = live.host.build_text(Recipe(size, kind=Kind.LIBRARY))
    writer = live.actor()
    descriptor = live.open(writer, built.file, os.O_RDWR)
    program = start_again(live, built)
    program.touch()
    expect_not_collapsed(live, program)
    writer.call("close", descriptor)
    later = start_again(live, built)
    later.touch()
    expect_collapsed(live, later, 1)


def _started_in_mode_0(live: Live) -> TextProgram:
    """Return a program that runs, and is placed for huge pages as it would be in mode 1."""
    size = huge_page_of_text(live)
    switch(live, 0)
    return start_used(live, Recipe(size, kind=Kind.FIXED))


def _exempted_later(live: Live) -> TextProgram:
    """Return a program that runs in mode 0 and is looked at: in mode 1 nothing but an exemption keeps it small."""
    program = _started_in_mode_0(live)
    see_khugepaged_at_work(live, program.actor)
    return program


class HugetextProcesses(LiveTest):
    def test_processes(self) -> None:
        self.run_area(PROCESSES)
