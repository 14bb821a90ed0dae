"""Static programs for machines of any architecture: which compiler is taken, and what is said when none is there."""

import importlib.util
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from hugepage_qa.errors import InputError
from hugepage_qa.process import c_compiler
from hugepage_qa.process.static_program import Compiler, build_static, compilers

#: writes what it was called with to a log, and the name it has to its output
COMPILER = """#!/bin/sh
echo "$(basename "$0") $*" >>"$LOG"
[ "$1" = --version ] && echo "$(basename "$0") 1.0" && exit
while [ $# -gt 1 ]; do [ "$1" = -o ] && echo "made by $(basename "$0")" >"$2"; shift; done
"""
CANNOT_LINK = """#!/bin/sh
echo "$(basename "$0") $*" >>"$LOG"
[ "$1" = --version ] && exit
echo "ld: cannot find -lc" >&2; exit 1
"""

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Return install(*names, script): nothing else is in the PATH, and there is no zig."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("sh", "basename"):
        (programs / name).symlink_to(f"/bin/{name}")
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("LOG", str(tmp_path / "log"))
    monkeypatch.setenv("HUGEPAGE_QA_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    c_compiler.version_of.cache_clear()

    def put(*names: str, script: str = COMPILER) -> None:
        for name in names:
            (programs / name).write_text(script)
            (programs / name).chmod(0o755)

    return put


@pytest.fixture
def source(tmp_path: Path) -> Path:
    file = tmp_path / "program.c"
    file.write_text("int main(void) { return 0; }")
    return file


def found(architecture: str) -> list[str]:
    return [Path(compiler.command[0]).name for compiler in compilers(architecture)]


def calls(tmp_path: Path) -> list[str]:
    """Return which compilers linked, or tried to."""
    lines = (tmp_path / "log").read_text().splitlines()
    return [line.split()[0] for line in lines if " -o " in line]


def test_compilers_are_found_in_their_order(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    assert found("x86_64") == found("s390x") == []
    install("cc", "x86_64-linux-gnu-gcc", "s390x-linux-gnu-gcc", "powerpc64le-linux-gnu-gcc", "mycc")
    assert found("x86_64") == ["cc", "x86_64-linux-gnu-gcc"]
    assert found("s390x") == ["s390x-linux-gnu-gcc"]
    assert found("ppc64le") == ["powerpc64le-linux-gnu-gcc"]
    assert found("aarch64") == []
    monkeypatch.setenv("CC", "mycc")
    assert found("x86_64") == ["mycc", "x86_64-linux-gnu-gcc"]
    assert found("s390x") == ["s390x-linux-gnu-gcc"], "it is that of this machine"


def test_zig_comes_last_and_makes_no_libraries(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if name == "ziglang" else None)
    install("aarch64-linux-gnu-gcc")
    gcc, zig = compilers("aarch64")
    assert (gcc.makes_libraries, zig.makes_libraries) == (True, False)
    assert zig.command == (sys.executable, "-m", "ziglang", "cc", "-target", "aarch64-linux-musl")


def test_the_first_one_links_it_statically(install: Install, source: Path, tmp_path: Path) -> None:
    install("cc", "x86_64-linux-gnu-gcc")
    program = build_static(source, "x86_64")
    assert program.read_text() == "made by cc\n"
    assert program.parent == tmp_path / "cache" / "programs"
    (line,) = [line for line in (tmp_path / "log").read_text().splitlines() if " -o " in line]
    assert " -static " in line and line.endswith(str(source))


def test_it_is_built_once_for_each_content_architecture_and_compiler(
    install: Install, source: Path, tmp_path: Path
) -> None:
    install("cc", "s390x-linux-gnu-gcc")
    first = build_static(source, "x86_64")
    assert build_static(source, "x86_64") == first
    assert calls(tmp_path) == ["cc"]
    other = build_static(source, "s390x")
    source.write_text("int main(void) { return 1; }")
    assert len({first, other, build_static(source, "x86_64")}) == 3
    assert calls(tmp_path) == ["cc", "s390x-linux-gnu-gcc", "cc"]
    install("cc", script=COMPILER.replace("1.0", "2.0"))
    c_compiler.version_of.cache_clear()
    build_static(source, "x86_64")
    assert calls(tmp_path)[3:] == ["cc"]


def test_what_one_cannot_link_the_next_one_does(install: Install, source: Path, tmp_path: Path) -> None:
    install("cc", script=CANNOT_LINK)
    install("x86_64-linux-gnu-gcc")
    assert build_static(source, "x86_64").read_text() == "made by x86_64-linux-gnu-gcc\n"
    assert calls(tmp_path) == ["cc", "x86_64-linux-gnu-gcc"]


@pytest.mark.usefixtures("install")
def test_without_a_compiler_it_is_said_what_to_install(source: Path) -> None:
    with pytest.raises(InputError) as caught:
        build_static(source, "ppc64le")
    assert str(caught.value) == (
        "no C compiler makes a static program for ppc64le:"
        " install powerpc64le-linux-gnu-gcc with its C library, or ziglang (pip)"
    )


def test_what_none_links_is_told_with_what_each_says(install: Install, source: Path, tmp_path: Path) -> None:
    install("cc", "x86_64-linux-gnu-gcc", script=CANNOT_LINK)
    with pytest.raises(InputError, match=r"install .*; .*/cc: ld: cannot find -lc; .*gcc: ld: cannot find -lc$"):
        build_static(source, "x86_64")
    left = [path for path in (tmp_path / "cache" / "programs").iterdir() if path.suffix != ".lock"]
    assert left == []


def test_the_compiler_of_this_machine_makes_a_program_that_runs(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HUGEPAGE_QA_CACHE", str(tmp_path / "cache"))
    program = build_static(source, platform.machine())
    assert subprocess.run([program], check=False).returncode == 0
    with program.open("rb") as stream:
        assert not list(ELFFile(stream).iter_segments("PT_INTERP"))


def test_a_compiler_is_its_whole_command(install: Install) -> None:
    install("cc")
    (one,) = compilers("x86_64")
    assert one == Compiler("x86_64", (str(Path(os.environ["PATH"], "cc")),), makes_libraries=True)
