"""Which text is padded to whole huge pages when a program starts."""

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.hugetext import (
    THRESHOLD,
    expect_collapsed,
    expect_not_collapsed,
    huge_page_of_text,
    require_padding,
    switch,
)
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.text_program import TextProgram, start_again, start_text
from hugepage_qa.errors import InputError
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.oracle.program_text import Kind, Unpadded, map_text, round_up, why_unpadded
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.text_program_build import Recipe

PADDING = Area("text/padding", sizes=Sizes.ONCE)

DOC = "Alibaba Cloud Linux, Padding; fs/binfmt_elf.c elf_map_pad(), load_elf_binary() of ANCK 5.10"
#: advised in the published document
_ADVISED = 4096


@PADDING.case(
    "text is padded when its tail is at least the threshold: equal pads, one byte more does not, 0 is off",
    DOC,
)
def thresholds_around_the_tail(live: Live) -> None:
    size = _huge_page(live)
    tail = size - size // 8 - live.base_page
    recipe = Recipe(size, tail=tail)
    for threshold in (1, _ADVISED, tail - 1, tail):
        _expect_padding(live, recipe, threshold, None)
    for threshold in (tail + 1, size - 1):
        _expect_padding(live, recipe, threshold, Unpadded.BELOW_THRESHOLD)
    _expect_padding(live, recipe, 0, Unpadded.SWITCHED_OFF)


@PADDING.case("text that ends with a whole huge page is not padded", DOC)
def no_tail(live: Live) -> None:
    _expect_padding(live, Recipe(_huge_page(live)), _ADVISED, Unpadded.NO_TAIL)


@PADDING.case("mode 3 pads as mode 1 does", DOC)
def mode_3(live: Live) -> None:
    size = _huge_page(live)
    _expect_padding(live, Recipe(size, tail=size // 2), _ADVISED, None, mode=3)


@PADDING.case("mode 2 alone pads nothing", DOC)
def mode_2(live: Live) -> None:
    size = _huge_page(live)
    _expect_padding(live, Recipe(size, tail=size // 2), _ADVISED, Unpadded.SWITCHED_OFF, mode=2)


@PADDING.case("text is padded only if its own segment and the next one are linked for huge pages", DOC)
def alignments(live: Live) -> None:
    size = _huge_page(live)
    tail = size // 2
    _expect_padding(live, Recipe(size, tail=tail, text_alignment=live.base_page), _ADVISED, Unpadded.ALIGNMENT)
    _expect_padding(live, Recipe(size, tail=tail, next_alignment=live.base_page), _ADVISED, Unpadded.NEXT_ALIGNMENT)
    _expect_padding(live, Recipe(size, tail=tail, alignment=live.base_page), _ADVISED, Unpadded.ALIGNMENT)


@PADDING.case(
    "a linker script that aligns text and data is not enough: p_align stays that of a base page, text neither pads nor"
    " collapses",
    f"{DOC}; GNU ld: file offsets agree with addresses in max-page-size only",
)
def linker_script(live: Live) -> None:
    size = _huge_page(live)
    for kind in (Kind.PIE, Kind.FIXED):
        recipe = Recipe(size, tail=size // 2, kind=kind, alignment=live.base_page, scripted=True)
        program = _expect_padding(live, recipe, _ADVISED, Unpadded.ALIGNMENT)
        expect_not_collapsed(live, program)


@PADDING.case("a segment that is only read is not padded, whatever it was linked for", DOC)
def constants(live: Live) -> None:
    size = _huge_page(live)
    switch(live, 1, threshold=_ADVISED)
    for kind in (Kind.PIE, Kind.FIXED):
        program = start_text(live, Recipe(size, tail=size // 2, kind=kind, constants=2 * size + size // 2))
        elf = program.built.elf
        rules = {"mode": 1, "threshold": _ADVISED, "pmd": size, "base_page": live.base_page, "bias": program.bias}
        live.expect("reason not to pad", Unpadded.NO_TEXT, why_unpadded(elf, elf.text + 1, **rules))
        mapped = program.constants()
        end = program.bias + elf.segments[elf.text + 1].address + elf.segments[elf.text + 1].size
        live.expect("end of the constants", round_up(end, live.base_page), mapped.end)


@PADDING.case("text is padded only as far as its file goes, and no byte beyond its end", DOC)
def end_of_file(live: Live) -> None:
    size = _huge_page(live)
    short = Recipe(size, tail=size // 2, short=True)
    _expect_padding(live, short, _ADVISED, Unpadded.END_OF_FILE)
    _expect_padding(live, Recipe(size, tail=size // 2, short=True, appended=size), _ADVISED, None)


@PADDING.case("a program at fixed addresses is padded as a PIE is", DOC)
def fixed_addresses(live: Live) -> None:
    size = _huge_page(live)
    _expect_padding(live, Recipe(size, tail=size // 2, kind=Kind.FIXED), _ADVISED, None)


@PADDING.case("libraries are never padded", DOC)
def libraries(live: Live) -> None:
    size = _huge_page(live)
    _expect_padding(live, Recipe(size, tail=size // 2, kind=Kind.LIBRARY), _ADVISED, Unpadded.NOT_A_MAIN_PROGRAM)


@PADDING.case("static PIE are never padded", DOC)
def static_pie(live: Live) -> None:
    size = _huge_page(live)
    recipe = Recipe(size, tail=size // 2, kind=Kind.STATIC_PIE)
    try:
        live.host.build_text(recipe)
    except InputError as error:
        raise CannotRun(f"no static C library: {error}") from error
    _expect_padding(live, recipe, _ADVISED, Unpadded.NOT_A_MAIN_PROGRAM)


@PADDING.case("a threshold that is written later changes no process that runs", DOC)
def processes_that_run(live: Live) -> None:
    size = _huge_page(live)
    switch(live, 1)
    program = start_text(live, Recipe(size, tail=size // 2))
    before = program.mapped()
    live.host.write(THRESHOLD, str(_ADVISED))
    live.expect("text mappings after the write", before, program.mapped())
    later = start_again(live, program.built)
    live.expect("what a program started later has more", size // 2, _length(later) - _length(program))


def _huge_page(live: Live) -> int:
    require_padding(live)
    return huge_page_of_text(live)


def _expect_padding(
    live: Live, recipe: Recipe, threshold: int, reason: Unpadded | None, *, mode: int = 1
) -> TextProgram:
    """Expect the text to be mapped, and to collapse, as the model says, which must give ``reason`` for it."""
    switch(live, mode, threshold=threshold)
    program = start_text(live, recipe)
    elf, bias = program.built.elf, program.bias
    rules = {"mode": mode, "threshold": threshold, "pmd": recipe.pmd, "base_page": live.base_page, "bias": bias}
    live.expect("reason not to pad", reason, why_unpadded(elf, elf.text, **rules))
    live.expect(f"text mappings with threshold {threshold}", map_text(elf, **rules), program.mapped())
    program.touch()
    expect_collapsed(live, program, mode)
    return program


def _length(program: TextProgram) -> int:
    return sum(mapping.length for mapping in program.mapped())


class HugetextPadding(LiveTest):
    def test_padding(self) -> None:
        self.run_area(PADDING)
