"""Build what a recipe asks for with the machine's C compiler."""

import hashlib
import os
import zlib
from pathlib import Path

from hugepage_qa.actor.build import SOURCE as ACTOR
from hugepage_qa.errors import InputError
from hugepage_qa.live.text_program.compiler import compile_to
from hugepage_qa.live.text_program.elf import read_elf, set_alignment
from hugepage_qa.live.text_program.recipe import BuiltText, Recipe
from hugepage_qa.live.text_program.source import STEP, aligned_by_script, constants, pages_of_code
from hugepage_qa.model.text.padding import tail
from hugepage_qa.model.text.program import ElfFile, Kind

_KINDS = {
    Kind.PIE: ("-fPIE", "-pie"),
    Kind.FIXED: ("-fno-pie", "-no-pie"),
    Kind.STATIC_PIE: ("-fPIE", "-static-pie"),
    Kind.LIBRARY: ("-fPIC", "-shared"),
}
_MODE, _NOT_RUNNABLE = 0o755, 0o644
#: pages and checksum of the text when it was linked: later its page cache may be what the kernel damaged
_LINKED = "linked"


def build_text(recipe: Recipe, directory: Path) -> BuiltText:
    """Build a program below ``directory``, which has to be the caller's own, unless it has been built there before.

    Its pages are on disk and no longer in the page cache. Raises InputError without a C compiler, or where what it
    links is not what the recipe asks for.
    """
    # as the kernel will print it
    place = directory.resolve() / f"text-{hashlib.sha256(repr(recipe).encode()).hexdigest()[:16]}"
    is_library = recipe.kind is Kind.LIBRARY
    file = place / ("libtext.so" if is_library else "text")
    program = place / "program" if is_library else file
    if not (place / _LINKED).exists():
        place.mkdir(exist_ok=True)
        linked = _build(recipe, file)
        if is_library:
            # the actor refers to it weakly, which is no reason for the linker to keep it
            needed = ("-fPIE", "-pie", "-Wl,--no-as-needed", "-Wl,-rpath,$ORIGIN")
            compile_to(program, [ACTOR, file], needed)
        (place / _LINKED).write_text(linked, encoding="ascii")
    _write_back_and_evict(file)
    pages, checksum = (int(number) for number in (place / _LINKED).read_text(encoding="ascii").split())
    return BuiltText(str(program), str(file), read_elf(file, recipe.kind), pages, checksum)


def _build(recipe: Recipe, file: Path) -> str:
    count = recipe.whole * recipe.pmd // STEP
    objects = [_code(file.parent, 0, count)]
    if recipe.constants:
        objects.append(_object(file.parent / "constants.c", constants(recipe.constants)))
    _link(recipe, objects, file)
    missing = (recipe.tail - _tail(read_elf(file, recipe.kind), recipe)) % recipe.pmd // STEP
    if missing:
        objects.append(_code(file.parent, count, missing))
        _link(recipe, objects, file)
    elf = read_elf(file, recipe.kind)
    if _tail(elf, recipe) != recipe.tail:
        raise InputError(f"the linker made a tail of {_tail(elf, recipe)} bytes, {recipe.tail} were wanted")
    for index, alignment in ((elf.text, recipe.text_alignment), (elf.text + 1, recipe.next_alignment)):
        if alignment:
            set_alignment(file, index, alignment)
    with file.open("ab") as stream:
        stream.write(bytes(recipe.appended))
    file.chmod(_MODE if recipe.runnable else _NOT_RUNNABLE)
    segment = elf.segments[elf.text]
    text = file.read_bytes()[segment.offset : segment.offset + segment.size]
    return f"{count + missing} {zlib.adler32(text)}"


def _tail(elf: ElfFile, recipe: Recipe) -> int:
    return tail(elf, elf.text, pmd=recipe.pmd, base_page=STEP)


def _code(place: Path, first: int, count: int) -> Path:
    return _object(place / f"pages-{first}-{count}.c", pages_of_code(first, count))


def _object(source: Path, text: str) -> Path:
    source.write_text(text, encoding="ascii")
    target = source.with_suffix(".o")
    # position-independent for every kind, so that one object serves all; in the order of their numbers, and without
    # tables that would move what comes behind the pages
    compile_to(target, [source], ["-c", "-fPIC", "-fno-toplevel-reorder", "-fno-asynchronous-unwind-tables"])
    return target


def _link(recipe: Recipe, objects: list[Path], file: Path) -> None:
    alignment = recipe.alignment or recipe.pmd
    sizes = [f"-Wl,-z,max-page-size={alignment}", f"-Wl,-z,common-page-size={min(alignment, recipe.pmd)}"]
    inputs = objects if recipe.kind is Kind.LIBRARY else [ACTOR, *objects]
    # data that are made read-only at start would lie at the end of a huge page
    layout = ["-Wl,-z,noseparate-code", "-Wl,-z,norelro"] if recipe.short else ["-Wl,-z,separate-code"]
    if recipe.scripted:
        script = file.with_name("aligned.ld")
        script.write_text(aligned_by_script(recipe.pmd), encoding="ascii")
        inputs = [*inputs, script]
    compile_to(file, inputs, [*_KINDS[recipe.kind], *sizes, *layout])


def _write_back_and_evict(file: Path) -> None:
    """Write the pages of ``file`` back and evict them: huge pages begin in a page cache that has none of them."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
