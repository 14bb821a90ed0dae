"""Build what a recipe asks for with the machine's C compiler."""

import hashlib
import os
import shutil
import subprocess
import zlib
from pathlib import Path

from hugepage_qa.actor.build import SOURCE as ACTOR
from hugepage_qa.errors import InputError
from hugepage_qa.live.text_program.elf import read_elf, set_alignment
from hugepage_qa.live.text_program.recipe import BuiltText, Recipe
from hugepage_qa.live.text_program.source import STEP, pages_of_code
from hugepage_qa.model.text.padding import tail
from hugepage_qa.model.text.program import ElfFile, Kind

_KINDS = {
    Kind.PIE: ("-fPIE", "-pie"),
    Kind.FIXED: ("-fno-pie", "-no-pie"),
    Kind.STATIC_PIE: ("-fPIE", "-static-pie"),
    Kind.LIBRARY: ("-fPIC", "-shared"),
}
_MODE, _NOT_RUNNABLE = 0o755, 0o644
_SHOWN_LINES = 3
#: pages and checksum of the text when it was linked: later its page cache may be what the kernel damaged
_LINKED = "linked"


def build_text(recipe: Recipe, directory: Path) -> BuiltText:
    """Build a program below ``directory``, which has to be the caller's own, unless it has been built before.

    Its pages are on disk and no longer in the page cache. Raises InputError without a C compiler, or where what it
    links is not what the recipe asks for.
    """
    # as the kernel will print it
    place = directory.resolve() / f"text-{hashlib.sha256(repr(recipe).encode()).hexdigest()[:16]}"
    is_library = recipe.kind is Kind.LIBRARY
    file = place / ("libtext.so" if is_library else "text")
    program = place / "program" if is_library else file
    if not program.exists():
        place.mkdir(exist_ok=True)
        _build(recipe, file)
        if is_library:
            _compile("-fPIE", "-pie", "-o", str(program), str(ACTOR), *_linked_to(file))
    _write_back_and_evict(file)
    pages, checksum = (int(number) for number in (place / _LINKED).read_text(encoding="ascii").split())
    return BuiltText(str(program), str(file), read_elf(file, recipe.kind), pages, checksum)


def _build(recipe: Recipe, file: Path) -> None:
    count = recipe.whole * recipe.pmd // STEP
    objects = [_code(recipe, file.parent, 0, count)]
    _link(recipe, objects, file)
    missing = (recipe.tail - _tail(read_elf(file, recipe.kind), recipe)) % recipe.pmd // STEP
    if missing:
        objects.append(_code(recipe, file.parent, count, missing))
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
    (file.parent / _LINKED).write_text(f"{count + missing} {zlib.adler32(text)}", encoding="ascii")


def _linked_to(library: Path) -> tuple[str, ...]:
    # the actor refers to it weakly, which is no reason for the linker to keep it
    return "-Wl,--no-as-needed", str(library), f"-Wl,-rpath,{library.parent}"


def _tail(elf: ElfFile, recipe: Recipe) -> int:
    return tail(elf, elf.text, pmd=recipe.pmd, base_page=STEP)


def _code(recipe: Recipe, place: Path, first: int, count: int) -> str:
    source = place / f"pages-{first}.c"
    source.write_text(pages_of_code(first, count), encoding="ascii")
    target = str(source.with_suffix(".o"))
    # in the order of their numbers, and without tables that would move what comes behind the pages
    form = ("-fno-toplevel-reorder", "-fno-asynchronous-unwind-tables", _KINDS[recipe.kind][0])
    _compile(*form, "-c", "-o", target, str(source))
    return target


def _link(recipe: Recipe, objects: list[str], file: Path) -> None:
    alignment = recipe.alignment or recipe.pmd
    sizes = [f"-Wl,-z,max-page-size={alignment}", f"-Wl,-z,common-page-size={min(alignment, recipe.pmd)}"]
    actor = [] if recipe.kind is Kind.LIBRARY else [str(ACTOR)]
    # data that are made read-only at start would lie at the end of a huge page
    layout = ("-Wl,-z,noseparate-code", "-Wl,-z,norelro") if recipe.short else ("-Wl,-z,separate-code",)
    _compile(*_KINDS[recipe.kind], "-o", str(file), *actor, *objects, *sizes, *layout)


def _compile(*arguments: str) -> None:
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        raise InputError("no C compiler (cc) is installed, it builds the programs of tests/text: install gcc")
    done = subprocess.run([compiler, "-O1", *arguments], capture_output=True, text=True, errors="replace", check=False)
    if done.returncode != 0:
        raise InputError(f"{compiler} {' '.join(arguments)}: {' '.join(done.stderr.splitlines()[:_SHOWN_LINES])}")


def _write_back_and_evict(file: Path) -> None:
    """Write the pages of ``file`` back and evict them: huge pages begin in a page cache that has none of them."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
