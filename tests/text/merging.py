"""Which text becomes huge in which mode of hugetext."""

import mmap
import os

from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.live.case import Area, Sizes
from hugepage_qa.live.hugetext import (
    ENABLED,
    WRITABLE_CODE,
    expect_merged,
    expect_not_merged,
    huge_page_of_text,
    map_code,
    see_khugepaged_at_work,
    switch,
)
from hugepage_qa.live.live import Live
from hugepage_qa.live.text_program.program import TextProgram, start_again, start_text
from hugepage_qa.live.text_program.recipe import Recipe
from hugepage_qa.live.text_program.source import STEP
from hugepage_qa.live.transparent import MADV_NOHUGEPAGE, pmd_size
from hugepage_qa.model.text.mapping import is_placed_for_huge_pages
from hugepage_qa.model.text.program import Kind
from hugepage_qa.plugins.live_test import LiveTest

MERGING = Area("text/merging")

ENABLE_DOC = "Alibaba Cloud Linux, Huge Pages: enable"
QUALIFIES = f"{ENABLE_DOC}; include/linux/huge_mm.h, mm/khugepaged.c hugepage_vma_check() of ANCK 5.10"
ANONYMOUS = f"{ENABLE_DOC}; mm/huge_memory.c __transparent_hugepage_enabled() of ANCK 5.10"
PLACEMENT = "fs/binfmt_elf.c load_elf_binary(), mm/mmap.c of ANCK 5.10"
LISTED = "mm/memory.c do_read_fault(), mm/khugepaged.c khugepaged_enter() of ANCK 5.10"

_PR_SET_THP_DISABLE = 41


@MERGING.case(
    "mode 1 makes the whole huge pages of a new program's text huge, and not its head and tail",
    QUALIFIES,
    sizes=Sizes.DEFAULT,
)
def text_of_a_program(live: Live) -> None:
    _expect_text(live, Kind.PIE, 1)


@MERGING.case("mode 1 makes the text of a program at fixed addresses huge", QUALIFIES, sizes=Sizes.DEFAULT)
def text_at_fixed_addresses(live: Live) -> None:
    _expect_text(live, Kind.FIXED, 1)


@MERGING.case("mode 1 makes the text of a shared library huge that has an x bit", QUALIFIES, sizes=Sizes.DEFAULT)
def text_of_a_library(live: Live) -> None:
    _expect_text(live, Kind.LIBRARY, 1)


@MERGING.case("mode 3 makes file text and anonymous code huge", f"{QUALIFIES}; {ANONYMOUS}", sizes=Sizes.DEFAULT)
def both_kinds(live: Live) -> None:
    _expect_text(live, Kind.PIE, 3)
    _expect_code(live, huge=True)


@MERGING.case("mode 2 makes no file text huge", QUALIFIES, sizes=Sizes.DEFAULT)
def no_file_text_in_mode_2(live: Live) -> None:
    size = huge_page_of_text(live)
    switch(live, 2)
    # at addresses that huge pages fit
    expect_not_merged(live, _started(live, Recipe(size, kind=Kind.FIXED)))


@MERGING.case("mode 0 makes no text huge", QUALIFIES, sizes=Sizes.DEFAULT)
def nothing_in_mode_0(live: Live) -> None:
    size = huge_page_of_text(live)
    switch(live, 0)
    # at addresses that huge pages fit
    expect_not_merged(live, _started(live, Recipe(size, kind=Kind.FIXED)))
    _expect_code(live, huge=False)


@MERGING.case(
    "mode 2 gives anonymous memory for code huge pages at its first fault, counted in AnonHugePages only",
    ANONYMOUS,
    sizes=Sizes.DEFAULT,
)
def anonymous_code(live: Live) -> None:
    switch(live, 2)
    _expect_code(live, huge=True)


@MERGING.case("mode 1 gives anonymous memory for code no huge pages", ANONYMOUS, sizes=Sizes.DEFAULT)
def no_anonymous_code_in_mode_1(live: Live) -> None:
    switch(live, 1)
    _expect_code(live, huge=False)


@MERGING.case(
    "memory that is written first and made executable and read-only later does not merge",
    "mm/khugepaged.c __collapse_huge_page_isolate() of ANCK 5.10",
    sizes=Sizes.DEFAULT,
)
def code_that_was_data(live: Live) -> None:
    switch(live, 3)
    memory = map_code(live, 1, mmap.PROT_READ | mmap.PROT_WRITE)
    memory.fill()
    live.expect("AnonHugePages of data", 0, memory.smaps().anon_huge_pages)
    memory.protect(mmap.PROT_READ | mmap.PROT_EXEC)
    see_khugepaged_at_work(live)
    live.expect("AnonHugePages of code that was data", 0, memory.smaps().anon_huge_pages)
    memory.expect_filled()


@MERGING.case(
    "a process whose text is mapped when hugetext is switched on is not merged, until a new one has the file merged",
    LISTED,
    sizes=Sizes.DEFAULT,
)
def a_process_that_runs_already(live: Live) -> None:
    size = huge_page_of_text(live)
    switch(live, 0)
    # placed for huge pages, as it would be in mode 1
    running = _started(live, Recipe(size, kind=Kind.FIXED))
    live.host.write(ENABLED, "1")
    expect_not_merged(live, running)
    newer = start_again(live, running.built)
    newer.touch()
    expect_merged(live, newer, 1)
    running.touch()
    live.expect("FilePmdMapped of the process that ran before", newer.huge(), running.huge())


@MERGING.case(
    "hugetext does not depend on transparent_hugepage/enabled: text merges with never, too",
    f"{ENABLE_DOC}; mm/khugepaged.c khugepaged_enabled() of ANCK 5.10",
    sizes=Sizes.DEFAULT,
)
def thp_never(live: Live) -> None:
    size = huge_page_of_text(live)
    switch(live, 3, thp="never")
    expect_merged(live, _started(live, Recipe(size)), 3)
    _expect_code(live, huge=True)


@MERGING.case("text with MADV_NOHUGEPAGE stays small", QUALIFIES, sizes=Sizes.DEFAULT)
def advised_against(live: Live) -> None:
    size = huge_page_of_text(live)
    switch(live, 1)
    program = start_text(live, Recipe(size))
    program.advise(MADV_NOHUGEPAGE)
    program.touch()
    expect_not_merged(live, program)


@MERGING.case("text of a process with PR_SET_THP_DISABLE stays small", QUALIFIES, sizes=Sizes.DEFAULT)
def disabled_by_prctl(live: Live) -> None:
    size = huge_page_of_text(live)
    switch(live, 1)
    program = start_text(live, Recipe(size))
    program.actor.call("prctl", _PR_SET_THP_DISABLE, 1, 0, 0, 0)
    program.touch()
    expect_not_merged(live, program)


@MERGING.case(
    "a library that somebody has open for write stays small, and merges when it was closed",
    f"{QUALIFIES}, inode_is_open_for_write()",
    sizes=Sizes.DEFAULT,
)
def open_for_write(live: Live) -> None:
    size = huge_page_of_text(live)
    switch(live, 1)
    built = live.host.build_text(Recipe(size, kind=Kind.LIBRARY))
    writer = live.actor()
    descriptor = live.open(writer, built.file, os.O_RDWR)
    program = start_again(live, built)
    program.touch()
    expect_not_merged(live, program)
    writer.call("close", descriptor)
    later = start_again(live, built)
    later.touch()
    expect_merged(live, later, 1)


@MERGING.case(
    "a PIE and a library with an x bit are placed where huge pages fit, every time",
    PLACEMENT,
    sizes=Sizes.DEFAULT,
)
def placement(live: Live) -> None:
    size = huge_page_of_text(live)
    switch(live, 1)
    # linked for base pages: nobody but hugetext has a reason to place them so
    for recipe in (Recipe(size, whole=3, alignment=STEP, kind=kind) for kind in (Kind.PIE, Kind.LIBRARY)):
        for _start in range(4):
            program = start_text(live, recipe)
            live.expect("the kernel has to place it", True, is_placed_for_huge_pages(program.built.elf, 1, size))
            live.expect(f"{recipe.kind.value} is congruent", True, program.mapped()[0].is_congruent(size))


def _expect_text(live: Live, kind: Kind, mode: int) -> None:
    size = huge_page_of_text(live)
    switch(live, mode)
    # a tail, which has to stay small
    program = _started(live, Recipe(size, tail=size // 2, kind=kind))
    live.expect("text is congruent", True, program.mapped()[0].is_congruent(size))
    expect_merged(live, program, mode)
    live.expect("part of the text is huge", True, program.huge() > 0)


def _started(live: Live, recipe: Recipe) -> TextProgram:
    program = start_text(live, recipe)
    program.touch()
    return program


def _expect_code(live: Live, *, huge: bool) -> None:
    live.set_knob(f"{DIRECTORY}/defrag", "madvise")
    memory = map_code(live, 1, WRITABLE_CODE)
    memory.fill()
    mapping = memory.smaps()
    live.expect("AnonHugePages of code", pmd_size(live) if huge else 0, mapping.anon_huge_pages)
    live.expect("FilePmdMapped of code", 0, mapping.file_pmd_mapped)
    memory.expect_filled()


class HugetextMerging(LiveTest):
    """Which text becomes huge.

    :avocado: enable
    :avocado: tags=text,hugetext
    """

    timeout = 900

    def test_merging(self) -> None:
        """Every case, once for the machine."""
        self.run_area(MERGING)
