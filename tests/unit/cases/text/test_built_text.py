"""Programs are built as their recipes want them, and a compiler that cannot is named."""

import mmap
import os
import zlib
from pathlib import Path

import pytest

from hugepage_qa.errors import InputError
from hugepage_qa.oracle.program_text import Kind, Unpadded, tail, why_unpadded
from hugepage_qa.process.actor import start_actor
from hugepage_qa.process.text_program_build import STEP, Recipe, build_text

#: a small stand-in for a huge page, which builds in less time
PMD = 1 << 16
HALF = Recipe(PMD, tail=PMD // 2)


@pytest.fixture(autouse=True)
def _compile_once(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have all tests share what is compiled, and leave the cache of who runs them alone."""
    monkeypatch.setenv("HUGEPAGE_QA_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


def reason(recipe: Recipe, directory: Path) -> Unpadded | None:
    elf = build_text(recipe, directory).elf
    return why_unpadded(elf, elf.text, mode=1, threshold=1, pmd=PMD, base_page=STEP)


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("size", [0, STEP, PMD // 2, PMD - STEP])
def test_text_has_the_tail_that_is_wanted(kind: Kind, size: int, tmp_path: Path) -> None:
    built = build_text(Recipe(PMD, tail=size, kind=kind), tmp_path)
    assert built.elf.kind is kind
    assert tail(built.elf, built.elf.text, pmd=PMD, base_page=STEP) == size
    assert built.elf.segments[built.elf.text].size > 2 * PMD


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        (HALF, None),
        (Recipe(PMD, tail=PMD // 2, text_alignment=STEP), Unpadded.ALIGNMENT),
        (Recipe(PMD, tail=PMD // 2, next_alignment=STEP), Unpadded.NEXT_ALIGNMENT),
        (Recipe(PMD, tail=PMD // 2, short=True), Unpadded.END_OF_FILE),
        (Recipe(PMD, tail=PMD // 2, short=True, appended=PMD), None),
        (Recipe(PMD, tail=PMD // 2, kind=Kind.LIBRARY), Unpadded.NOT_A_MAIN_PROGRAM),
        (Recipe(PMD), Unpadded.NO_TAIL),
        # the script alone leaves p_align at a base page
        (Recipe(PMD, tail=PMD // 2, alignment=STEP, scripted=True), Unpadded.ALIGNMENT),
    ],
)
def test_each_recipe_makes_the_file_that_its_case_is_about(
    recipe: Recipe, expected: Unpadded | None, tmp_path: Path
) -> None:
    assert reason(recipe, tmp_path) is expected


@pytest.mark.parametrize("kind", [Kind.PIE, Kind.FIXED, Kind.LIBRARY])
def test_a_linker_script_aligns_addresses_and_nothing_else(kind: Kind, tmp_path: Path) -> None:
    elf = build_text(Recipe(PMD, tail=PMD // 2, alignment=STEP, scripted=True, kind=kind), tmp_path).elf
    text = elf.segments[elf.text]
    assert text.address % PMD == 0
    assert (text.alignment, text.offset % PMD != 0) == (STEP, True)


def test_constants_have_a_segment_that_nobody_executes(tmp_path: Path) -> None:
    elf = build_text(Recipe(PMD, tail=PMD // 2, kind=Kind.FIXED, constants=2 * PMD), tmp_path).elf
    behind = elf.segments[elf.text + 1]
    assert behind.size > 2 * PMD
    assert (behind.executable, behind.alignment) == (False, PMD)


@pytest.mark.parametrize("kind", Kind)
def test_its_code_runs_and_wrong_code_is_noticed(kind: Kind, tmp_path: Path) -> None:
    built = build_text(Recipe(PMD, kind=kind), tmp_path)
    assert built.pages >= 2 * PMD // STEP
    with start_actor(Path(built.program)) as actor:
        code = actor.text()
        assert actor.run(code, built.pages, STEP) == 0
        assert actor.run(code + STEP, built.pages - 1, STEP) == built.pages - 1


@pytest.mark.parametrize("changed", [0, 100, PMD])
def test_every_byte_of_the_text_is_in_its_checksum(changed: int, tmp_path: Path) -> None:
    built = build_text(HALF, tmp_path)
    segment = built.elf.segments[built.elf.text]
    text = bytearray(Path(built.file).read_bytes()[segment.offset : segment.offset + segment.size])
    assert zlib.adler32(text) == built.checksum
    text[changed] ^= 1
    assert zlib.adler32(text) != built.checksum
    with start_actor(Path(built.program)) as actor:
        descriptor = actor.call("openat", -100, built.file, os.O_RDONLY, 0)
        address = actor.mmap(segment.size, mmap.PROT_READ, mmap.MAP_PRIVATE, descriptor, segment.offset // STEP * STEP)
        assert actor.sum(address + segment.offset % STEP, segment.size) == built.checksum


def test_a_library_without_an_x_bit(tmp_path: Path) -> None:
    assert not build_text(Recipe(PMD, kind=Kind.LIBRARY, runnable=False), tmp_path).elf.runnable


def test_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="install gcc"):
        build_text(HALF, tmp_path)
