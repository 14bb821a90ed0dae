"""Programs for a throwaway machine of any architecture, which has no C library: linked statically.

The machine's own compiler serves for its own architecture, a cross compiler of the distribution or zig (PyPI's
``ziglang``, which needs no root) for the others.
"""

import importlib.util
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hugepage_qa.cache import cache_directory, locked
from hugepage_qa.errors import InputError
from hugepage_qa.process.c_compiler import DIGITS, KEPT, PROGRAMS, STRICT, digest_of, link, version_of

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
        digest = digest_of((version_of(compiler.command), STRICT), [source])[:DIGITS]
        program = cache_directory() / KEPT / f"{source.stem}-{architecture}-{digest}"
        with (
            locked(program.with_suffix(".lock")),
            tempfile.TemporaryDirectory(dir=program.parent, prefix=".build-") as scratch,
        ):
            if program.exists():
                return program
            unfinished = Path(scratch, "program")
            refusal = link(compiler.command, unfinished, [source], [*STRICT, "-static"])
            if not refusal:
                return unfinished.rename(program)
        refusals.append(f"{compiler.command[0]}: {refusal}")
    raise InputError(f"no C compiler makes a static {source.stem} for {architecture}: {'; '.join(refusals)}")
