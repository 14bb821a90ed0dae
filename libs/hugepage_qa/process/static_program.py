"""Programs for a throwaway machine of any architecture, which has no C library: linked statically.

The machine's own compiler serves for its own architecture, a cross compiler of the distribution or zig (PyPI's
``ziglang``, which needs no root) for the others.
"""

import hashlib
import importlib.util
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from hugepage_qa.cache import cache_directory, locked
from hugepage_qa.errors import InputError
from hugepage_qa.process.c_compiler import FLAGS, PROGRAMS, compiled, digest_of, first_lines
from hugepage_qa.process.child import run_to_end

AGENT = PROGRAMS / "agent"
BUSY_MEMORY = PROGRAMS / "busy_memory.c"

#: architecture -> what the cross compilers of distributions are named after, and zig's name of it
NAMES = {
    "x86_64": ("x86_64-linux-gnu", "x86_64-linux-musl"),
    "aarch64": ("aarch64-linux-gnu", "aarch64-linux-musl"),
    "ppc64le": ("powerpc64le-linux-gnu", "powerpc64le-linux-musl"),
    "s390x": ("s390x-linux-gnu", "s390x-linux-musl"),
}


@dataclass(frozen=True)
class Compiler:
    """A C compiler for ``architecture``: the words of its command. One with a C library to load makes libraries, too.

    Fedora's cross compilers have no C library at all: what they cannot link the next one may.
    """

    architecture: str
    command: tuple[str, ...]
    makes_libraries: bool


def compilers(architecture: str) -> Iterator[Compiler]:
    """Yield the compilers for ``architecture`` that are installed, the best first."""
    gnu, zig = NAMES[architecture]
    names = [f"{gnu}-gcc"]
    if architecture == platform.machine():
        names.insert(0, os.environ.get("CC", "cc"))
    for name in names:
        if path := shutil.which(name):
            yield Compiler(architecture, (path,), makes_libraries=True)
    if importlib.util.find_spec("ziglang"):
        yield Compiler(architecture, (sys.executable, "-m", "ziglang", "cc", "-target", zig), makes_libraries=False)


def build_static(source: Path, architecture: str) -> Path:
    """Return the program that ``source`` makes for ``architecture``; built once per content and compiler.

    ``source`` is a C file or the directory of a program. Raises InputError without a compiler for it, or when none
    links it.
    """
    refusals = [f"install {NAMES[architecture][0]}-gcc with its C library, or ziglang (pip)"]
    for compiler in compilers(architecture):
        program = _place(source, compiler)
        with locked(program.with_suffix(".lock")):
            if program.exists():
                return program
            refusal = _link(source, compiler, program)
            if refusal is None:
                return program
            refusals.append(f"{compiler.command[0]}: {refusal}")
    raise InputError(f"no C compiler makes a static {source.stem} for {architecture}: {'; '.join(refusals)}")


def _place(source: Path, compiler: Compiler) -> Path:
    digest = hashlib.sha256(repr((compiler.command, version(compiler.command), FLAGS)).encode())
    digest.update(digest_of(source))
    return cache_directory() / "programs" / f"{source.stem}-{compiler.architecture}-{digest.hexdigest()[:16]}"


@cache
def version(command: tuple[str, ...]) -> str:
    """Return which compiler ``command`` is."""
    return run_to_end([*command, "--version"]).stdout


def _link(source: Path, compiler: Compiler, program: Path) -> str | None:
    """Link ``program``; return why it cannot be, None when it is there."""
    with tempfile.TemporaryDirectory(dir=program.parent, prefix=".build-") as scratch:
        unfinished = Path(scratch, "program")
        command = [*compiler.command, *FLAGS, "-static", "-o", str(unfinished), *map(str, compiled(source))]
        done = run_to_end(command)
        if done.returncode != 0:
            return first_lines(done.stderr)
        unfinished.rename(program)
        return None
