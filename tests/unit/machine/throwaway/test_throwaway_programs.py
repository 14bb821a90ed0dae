"""Programs with text are built here, put into a throwaway machine with what loads them, and started there."""

import os
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from hugepage_qa.machine import throwaway_machine
from hugepage_qa.machine.host import CannotRun, Host
from hugepage_qa.machine.throwaway_machine import ThrowawayMachine
from hugepage_qa.oracle.program_text import Kind
from hugepage_qa.process.static_program import Compiler
from hugepage_qa.process.text_program_build import Recipe
from hugepage_qa.sizes import MIB


@pytest.mark.parametrize("kind", [Kind.PIE, Kind.STATIC_PIE, Kind.LIBRARY])
def test_a_program_is_built_put_into_the_machine_and_started(disk: ThrowawayMachine, place: Path, kind: Kind) -> None:
    host = Host(disk)
    built = host.build_text(Recipe(2 * MIB, whole=1, kind=kind))
    assert {Path(built.program).parent.parent, Path(built.file).parent.parent} == {place / "disk"}
    assert (built.program == built.file) == (kind is not Kind.LIBRARY)
    assert os.access(built.program, os.X_OK)
    actor = host.start_program(built.program)
    address = actor.text()
    assert address
    assert actor.run(address, built.pages, 4096) == 0
    segment = built.elf.segments[built.elf.text]
    assert actor.sum(address - built_offset(built.file, segment.offset), segment.size) == built.checksum
    actor.end()


def built_offset(file: str, segment: int) -> int:
    """Return how far behind the begin of its segment the first page of code is."""
    with Path(file).open("rb") as stream:
        table = ELFFile(stream).get_section_by_name(".symtab")
        assert isinstance(table, SymbolTableSection)
        (symbol,) = table.get_symbol_by_name("text_page_0") or []
        return int(symbol.entry.st_value) - segment


def test_a_program_is_put_there_once_with_what_loads_it(disk: ThrowawayMachine, place: Path) -> None:
    host = Host(disk)
    built = host.build_text(Recipe(2 * MIB, whole=1))
    loaded = [path for path in place.rglob("*.so*") if path.is_file()]
    assert any(path.name.startswith("ld") for path in loaded)
    assert (place / "lib" / "libc.so.6").read_bytes()[:4] == b"\x7fELF"
    assert all(path.stat().st_mode & 0o777 == 0o755 for path in loaded)
    times = {path: path.stat().st_mtime_ns for path in [*loaded, Path(built.file)]}
    assert host.build_text(Recipe(2 * MIB, whole=1)) == built
    assert times == {path: path.stat().st_mtime_ns for path in times}


def test_a_program_lies_where_it_is_asked_for(machine: ThrowawayMachine, tmp_path: Path) -> None:
    built = Host(machine).build_text(Recipe(2 * MIB, whole=1, kind=Kind.STATIC_PIE), str(tmp_path))
    assert Path(built.file).parent.parent == tmp_path
    assert Path(built.file).stat().st_size == built.elf.size


def test_without_a_compiler_that_makes_libraries_it_is_a_skip(
    disk: ThrowawayMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    zig = Compiler("x86_64", ("zig",), makes_libraries=False)
    monkeypatch.setattr(throwaway_machine, "compilers", lambda _architecture: iter([zig]))
    with pytest.raises(CannotRun, match="no compiler with a C library to load"):
        Host(disk).build_text(Recipe(2 * MIB))
