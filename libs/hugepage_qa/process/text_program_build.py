"""Programs and libraries with text of a given size, tail and alignment: sources, compiler, program headers (ELF)."""

import hashlib
import os
import stat
import struct
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from elftools.elf.dynamic import DynamicSegment
from elftools.elf.elffile import ELFFile
from elftools.elf.segments import InterpSegment

from hugepage_qa.errors import InputError
from hugepage_qa.oracle.program_text import ElfFile, Kind, Segment, tail
from hugepage_qa.process.c_compiler import ACTOR, compile_to, which_file


@dataclass(frozen=True)
class Recipe:
    """A file whose text ends ``tail`` bytes behind a multiple of ``pmd``, with at least ``whole`` huge pages before it.

    ``alignment`` (bytes, 0 for ``pmd``) is what all segments are linked for; ``text_alignment`` and ``next_alignment``
    are then written over p_align of the text segment and of the one behind it, 0 leaves them. With ``short`` the data
    lie right behind the text: the file ends before its last huge page does. ``appended`` bytes are added to the file.
    With ``scripted`` a linker script puts text and data at multiples of ``pmd``. ``constants`` bytes that are only
    read are added to the segment behind the text.
    """

    pmd: int
    whole: int = 2
    tail: int = 0
    kind: Kind = Kind.PIE
    alignment: int = 0
    text_alignment: int = 0
    next_alignment: int = 0
    runnable: bool = True
    short: bool = False
    appended: int = 0
    scripted: bool = False
    constants: int = 0


@dataclass(frozen=True)
class BuiltText:
    """What came of a recipe: ``program`` is started, ``file`` holds the text and is ``elf``.

    ``pages`` is how many pages of its code can be executed, ``checksum`` the Adler-32 checksum of the text segment as
    it was linked.
    """

    program: str
    file: str
    elf: ElfFile
    pages: int
    checksum: int


def built_document(built: BuiltText) -> dict[str, Any]:
    """Return ``built`` as JSON holds it, without the kind, which its recipe tells."""
    places = {"program": built.program, "file": built.file, "pages": built.pages, "checksum": built.checksum}
    segments = [asdict(segment) for segment in built.elf.segments]
    return places | {"segments": segments, "size": built.elf.size, "runnable": built.elf.runnable}


#: bytes from one function to the next: the smallest base page
STEP = 4096
#: the one function whose name the linker shows
FIRST = "text_page_0"


def pages_of_code(first: int, count: int) -> str:
    """Return C with the functions of ``count`` pages from number ``first`` on."""
    section = f'section(".text.pages"), aligned({STEP})'
    functions = [
        f"{'' if number == 0 else 'static '}__attribute__(({section}, used, noinline))\n"
        f"unsigned long text_page_{number}(void) {{ return {number}UL; }}\n"
        for number in range(first, first + count)
    ]
    return f"unsigned long {FIRST}(void);\n" + "".join(functions)


def constants(size: int) -> str:
    """Return C with ``size`` bytes that are only read."""
    return f"__attribute__((used)) const unsigned char text_constants[{size}] = {{1}};\n"


def aligned_by_script(alignment: int) -> str:
    """Return a script for GNU ld that moves code and data to multiples of ``alignment``, and leaves all else to it."""
    return "".join(f"SECTIONS {{ . = ALIGN({alignment:#x}); }} INSERT BEFORE {name};\n" for name in (".init", ".data"))


_PF_X = 1
#: Elf64_Phdr: p_align is the last of its members
_ALIGNMENT_AT = 48
_ANY_X = stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH


def read_elf(path: Path, kind: Kind) -> ElfFile:
    """Return the loaded segments of ``path``."""
    with path.open("rb") as stream:
        loaded = list(ELFFile(stream).iter_segments("PT_LOAD"))
        segments = tuple(
            Segment(header.p_vaddr, header.p_offset, header.p_filesz, header.p_align, bool(header.p_flags & _PF_X))
            for header in (segment.header for segment in loaded)
        )
    status = path.stat()
    return ElfFile(kind, segments, status.st_size, bool(status.st_mode & _ANY_X))


def set_alignment(path: Path, index: int, alignment: int) -> None:
    """Write p_align of the loaded segment ``index``, which no linker would have chosen."""
    with path.open("r+b") as stream:
        elf = ELFFile(stream)
        headers = [number for number, segment in enumerate(elf.iter_segments()) if segment.header.p_type == "PT_LOAD"]
        at = elf.header.e_phoff + headers[index] * elf.header.e_phentsize + _ALIGNMENT_AT
        stream.seek(at)
        stream.write(struct.pack("<Q" if elf.little_endian else ">Q", alignment))


_KINDS = {
    Kind.PIE: ("-fPIE", "-pie"),
    Kind.FIXED: ("-fno-pie", "-no-pie"),
    Kind.STATIC_PIE: ("-fPIE", "-static-pie"),
    # a name without a path: the program finds it beside itself, wherever both are taken
    Kind.LIBRARY: ("-fPIC", "-shared", "-Wl,-soname,libtext.so"),
}
_MODE, _NOT_RUNNABLE = 0o755, 0o644
#: pages and checksum of the text when it was linked: later its page cache may be what the kernel damaged
_LINKED = "linked"


def build_text(recipe: Recipe, directory: Path, compiler: str | None = None) -> BuiltText:
    """Build a program below ``directory``, which has to be the caller's own, unless it has been built there before.

    ``compiler`` is that of another architecture. Its pages are on disk and no longer in the page cache. Raises
    InputError without a C compiler, or where what it links is not what the recipe asks for.
    """
    # as the kernel will print it
    place = directory.resolve() / f"text-{hashlib.sha256(repr(recipe).encode()).hexdigest()[:16]}"
    is_library = recipe.kind is Kind.LIBRARY
    file = place / ("libtext.so" if is_library else "text")
    program = place / "program" if is_library else file
    if not (place / _LINKED).exists():
        place.mkdir(exist_ok=True)
        linked = _build(recipe, file, compiler)
        if is_library:
            # the actor refers to it weakly, which is no reason for the linker to keep it
            needed = ("-fPIE", "-pie", "-Wl,--no-as-needed", "-Wl,-rpath,$ORIGIN")
            compile_to(program, [ACTOR, file], needed, compiler)
        (place / _LINKED).write_text(linked, encoding="ascii")
    _write_back_and_evict(file)
    pages, checksum = (int(number) for number in (place / _LINKED).read_text(encoding="ascii").split())
    return BuiltText(str(program), str(file), read_elf(file, recipe.kind), pages, checksum)


def _build(recipe: Recipe, file: Path, compiler: str | None) -> str:
    count = recipe.whole * recipe.pmd // STEP
    objects = [_code(file.parent, 0, count, compiler)]
    if recipe.constants:
        objects.append(_object(file.parent / "constants.c", constants(recipe.constants), compiler))
    _link(recipe, objects, file, compiler)
    missing = (recipe.tail - _tail(read_elf(file, recipe.kind), recipe)) % recipe.pmd // STEP
    if missing:
        objects.append(_code(file.parent, count, missing, compiler))
        _link(recipe, objects, file, compiler)
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


def _code(place: Path, first: int, count: int, compiler: str | None) -> Path:
    return _object(place / f"pages-{first}-{count}.c", pages_of_code(first, count), compiler)


def _object(source: Path, text: str, compiler: str | None) -> Path:
    source.write_text(text, encoding="ascii")
    target = source.with_suffix(".o")
    options = ["-c", "-fPIC", "-fno-toplevel-reorder", "-fno-asynchronous-unwind-tables"]
    # position-independent for every kind, so that one object serves all; in the order of their numbers, and without
    # tables that would move what comes behind the pages
    compile_to(target, [source], options, compiler)
    return target


def _link(recipe: Recipe, objects: list[Path], file: Path, compiler: str | None) -> None:
    alignment = recipe.alignment or recipe.pmd
    sizes = [f"-Wl,-z,max-page-size={alignment}", f"-Wl,-z,common-page-size={min(alignment, recipe.pmd)}"]
    inputs = objects if recipe.kind is Kind.LIBRARY else [ACTOR, *objects]
    # data that are made read-only at start would lie at the end of a huge page
    layout = ["-Wl,-z,noseparate-code", "-Wl,-z,norelro"] if recipe.short else ["-Wl,-z,separate-code"]
    if recipe.scripted:
        script = file.with_name("aligned.ld")
        script.write_text(aligned_by_script(recipe.pmd), encoding="ascii")
        inputs = [*inputs, script]
    compile_to(file, inputs, [*_KINDS[recipe.kind], *sizes, *layout], compiler)


def _write_back_and_evict(file: Path) -> None:
    """Write the pages of ``file`` back and evict them: huge pages begin in a page cache that has none of them."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def loaded_with(program: Path, compiler: str) -> dict[str, Path]:
    """Return what ``program`` is loaded by and with: where a machine has it -> the file of ``compiler`` that it is."""
    places = []
    with program.open("rb") as stream:
        for segment in ELFFile(stream).iter_segments():
            if isinstance(segment, InterpSegment):
                places.append(segment.get_interp_name())
            elif isinstance(segment, DynamicSegment):
                # which attributes a tag has is made at run time
                names = [tag.needed for tag in segment.iter_tags("DT_NEEDED")]  # type: ignore[attr-defined]
                places += [f"/lib/{name}" for name in names]
    files = {place: which_file(compiler, Path(place).name) for place in places}
    return {place: file for place, file in files.items() if file}
