"""Which text becomes huge in which mode of hugetext."""

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.changed_counters import expect_change
from hugepage_qa.cases.hugetext import (
    expect_code,
    expect_collapsed,
    expect_not_collapsed,
    huge_page_of_text,
    see_khugepaged_at_work,
    switch,
)
from hugepage_qa.cases.khugepaged_clock import pages_collapsed
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.text_program import (
    TextProgram,
    evict,
    start_again,
    start_text,
    start_used,
)
from hugepage_qa.kernel.smaps import read_smaps_rollup
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.oracle.program_text import Kind, is_placed_for_huge_pages
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.text_program_build import Recipe
from hugepage_qa.version import KernelVersion

MERGING = Area("text/merging", sizes=Sizes.ONCE)

ENABLE_DOC = "Alibaba Cloud Linux, Huge Pages: enable"
QUALIFIES = f"{ENABLE_DOC}; include/linux/huge_mm.h, mm/khugepaged.c hugepage_vma_check() of ANCK 5.10"
ANONYMOUS = f"{ENABLE_DOC}; include/linux/huge_mm.h __transparent_hugepage_enabled() of ANCK 5.10"
PLACEMENT = "fs/binfmt_elf.c load_elf_binary(), mm/mmap.c of ANCK 5.10"

#: commit 1854bc6e2420 of Linux 5.18: thp_get_unmapped_area() aligns mappings of all files
_ALL_FILES_ARE_PLACED = KernelVersion(5, 18)


@MERGING.case(
    "mode 1 makes the whole huge pages of a new program's text huge, and not its head and tail",
    QUALIFIES,
)
def text_of_a_program(live: Live) -> None:
    _expect_text(live, Kind.PIE, 1)


@MERGING.case("mode 1 makes the text of a program at fixed addresses huge", QUALIFIES)
def text_at_fixed_addresses(live: Live) -> None:
    _expect_text(live, Kind.FIXED, 1)


@MERGING.case("mode 1 makes the text of a shared library huge that has an x bit", QUALIFIES)
def text_of_a_library(live: Live) -> None:
    _expect_text(live, Kind.LIBRARY, 1)


@MERGING.case("mode 3 makes file text and anonymous code huge", f"{QUALIFIES}; {ANONYMOUS}")
def both_kinds(live: Live) -> None:
    _expect_text(live, Kind.PIE, 3)
    expect_code(live, huge=True)


@MERGING.case("mode 2 makes no file text huge", QUALIFIES)
def no_file_text_in_mode_2(live: Live) -> None:
    size = huge_page_of_text(live)
    switch(live, 2)
    # at addresses that huge pages fit
    expect_not_collapsed(live, start_used(live, Recipe(size, kind=Kind.FIXED)))


@MERGING.case("mode 0 makes no text huge", QUALIFIES)
def nothing_in_mode_0(live: Live) -> None:
    size = huge_page_of_text(live)
    switch(live, 0)
    # at addresses that huge pages fit
    expect_not_collapsed(live, start_used(live, Recipe(size, kind=Kind.FIXED)))
    expect_code(live, huge=False)


@MERGING.case(
    "hugetext does not depend on transparent_hugepage/enabled: text collapses with never, too",
    f"{ENABLE_DOC}; include/linux/khugepaged.h khugepaged_enabled() of ANCK 5.10",
)
def thp_never(live: Live) -> None:
    size = huge_page_of_text(live)
    switch(live, 3, thp="never")
    expect_collapsed(live, start_used(live, Recipe(size)), 3)
    expect_code(live, huge=True)


@MERGING.case("a segment that is only read stays small, beside text that collapses", QUALIFIES)
def constants(live: Live) -> None:
    size = huge_page_of_text(live)
    switch(live, 1)
    # at addresses that huge pages fit
    program = start_used(live, Recipe(size, kind=Kind.FIXED, constants=2 * size))
    program.read_constants()
    expect_collapsed(live, program, 1)
    see_khugepaged_at_work(live, program.actor)
    program.read_constants()
    live.expect("FilePmdMapped of the constants", 0, program.constants().file_pmd_mapped)


@MERGING.case(
    "huge text is counted for its process and the machine as long as it is mapped, in FileHugePages while it is cached",
    f"{ENABLE_DOC}; Documentation/filesystems/proc.rst FilePmdMapped, FileHugePages, smaps_rollup",
)
def counted(live: Live) -> None:
    size = huge_page_of_text(live)
    switch(live, 1)
    recipe = Recipe(size, kind=Kind.FIXED)
    started = [start_text(live, recipe)]
    # its own code fills one more than the recipe asks for
    huge = len(started[0].whole_blocks(size)) * size

    def evicted() -> None:
        for earlier in started:
            earlier.actor.end()
        evict(live, recipe)

    def start_collapsed() -> None:
        started.append(start_used(live, recipe))
        expect_collapsed(live, started[-1], 1)

    def collapsed() -> TextProgram:
        evicted()
        start_collapsed()
        return started[-1]

    # from before its start on: the block that it runs in collapses at once
    expect_change(live, {"FilePmdMapped": huge, "FileHugePages": huge}, evicted, lambda _nothing: start_collapsed())
    program = started[-1]
    rollup = read_smaps_rollup(ObservedTree(live.host), program.actor.pid)
    if rollup is not None:  # since Linux 4.14
        everywhere = sum(mapping.file_pmd_mapped for mapping in program.all_mappings())
        live.expect("FilePmdMapped of smaps_rollup", everywhere, rollup.get("FilePmdMapped"))
    expect_change(live, {"FilePmdMapped": -huge, "FileHugePages": 0}, collapsed, lambda mapped: mapped.actor.end())

    def unmapped() -> None:
        collapsed().actor.end()

    expect_change(live, {"FileHugePages": -huge}, unmapped, lambda _nothing: evict(live, recipe))


@MERGING.case(
    "a library without an x bit is not placed for huge pages",
    PLACEMENT,
)
def library_without_x_bit(live: Live) -> None:
    if live.kernel_version >= _ALL_FILES_ARE_PLACED:
        raise CannotRun("this kernel places what is mapped of any file where huge pages fit")
    size = huge_page_of_text(live)
    switch(live, 1)
    recipe = Recipe(size, whole=3, alignment=live.base_page, kind=Kind.LIBRARY, runnable=False)
    program = start_text(live, recipe)
    starts = [program, *(start_again(live, program.built) for _start in range(3))]
    live.expect("all starts are congruent", False, all(one.mapped()[0].is_congruent(size) for one in starts))


@MERGING.case(
    "a PIE and a library with an x bit are placed where huge pages fit, every time",
    PLACEMENT,
)
def placement(live: Live) -> None:
    size = huge_page_of_text(live)
    switch(live, 1)
    # linked for base pages: nobody but hugetext has a reason to place them so
    for recipe in (Recipe(size, whole=3, alignment=live.base_page, kind=kind) for kind in (Kind.PIE, Kind.LIBRARY)):
        for _start in range(4):
            program = start_text(live, recipe)
            live.expect("the kernel has to place it", True, is_placed_for_huge_pages(program.built.elf, 1, size))
            live.expect(f"{recipe.kind.value} is congruent", True, program.mapped()[0].is_congruent(size))


def _expect_text(live: Live, kind: Kind, mode: int) -> None:
    size = huge_page_of_text(live)
    switch(live, mode)
    before = pages_collapsed(live)
    # a tail, which has to stay small; linked for base pages, so that nobody but hugetext places it for huge ones
    alignment = 0 if kind is Kind.FIXED else live.base_page
    program = start_used(live, Recipe(size, whole=3, tail=size // 2, kind=kind, alignment=alignment))
    live.expect("text is congruent", True, program.mapped()[0].is_congruent(size))
    expect_collapsed(live, program, mode)
    live.expect("part of the text is huge", True, program.huge() > 0)
    made = pages_collapsed(live) - before
    live.expect("khugepaged has made all of these huge pages", True, made >= program.huge() // size)


class HugetextMerging(LiveTest):
    def test_merging(self) -> None:
        self.run_area(MERGING)
