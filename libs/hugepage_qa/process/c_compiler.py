"""The machine's C compiler, which is not asked again for what it has made before, in this run or an earlier one."""

import gzip
import hashlib
import os
import shutil
import tempfile
import zlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from hugepage_qa.cache import cache_directory, write_atomically
from hugepage_qa.errors import InputError
from hugepage_qa.process.child import run_to_end

#: the programs of this room; one of several files is the directory that has them, and nothing else
PROGRAMS = Path(__file__).with_name("programs")
ACTOR = PROGRAMS / "actor"

#: before glibc 2.34 threads were in a library of their own
STRICT = ("-Wall", "-Wextra", "-Werror", "-pthread")
_SHOWN_LINES = 3
DIGITS = 16


def build_actor(directory: Path) -> Path:
    """Return the actor's program in ``directory``; an emulated machine would build it for half a minute, each time.

    The directory has to be the caller's own: whoever can write to it decides what runs.
    Raises InputError without a C compiler, or when it refuses the source.
    """
    return build_program(ACTOR, directory)


def _files(source: Path) -> list[Path]:
    if source.is_dir():
        return sorted(source.glob("*.[ch]"))
    header = source.with_suffix(".h")
    return [source, *([header] if header.is_file() else [])]


def digest_of(what: object, inputs: Sequence[Path]) -> str:
    """Return the digest of ``what`` and of all files of ``inputs``, each a file with its header or a directory."""
    digest = hashlib.sha256(repr(what).encode())
    for source in inputs:
        digest.update(b"".join(hashlib.sha256(file.read_bytes()).digest() for file in _files(source)))
    return digest.hexdigest()


def build_program(source: Path, directory: Path, others: Sequence[Path] = (), options: Sequence[str] = ()) -> Path:
    """Return the program of ``source``, a C file or a directory, and ``others``, under the same rules.

    The errors are the same. ``options`` are added to those that have every warning be an error.
    """
    inputs = [source, *others]
    program = directory / f"{source.stem}-{digest_of(list(options), inputs)[:DIGITS]}"
    if not program.exists():
        # made under another name: two runs may do so at the same time, and one that is killed leaves half a file
        with tempfile.TemporaryDirectory(dir=directory, prefix=".build-") as scratch:
            unfinished = Path(scratch, source.stem)
            compile_to(unfinished, inputs, [*STRICT, *options])
            unfinished.rename(program)
    return program


_RUNNABLE = 0o755


def compile_to(output: Path, inputs: Sequence[Path], options: Sequence[str], compiler: str | None = None) -> None:
    """Make ``output`` of ``inputs``, which no option may name, with ``options`` of the compiler, or of ``compiler``.

    An input is a file, or the directory of a program. For megabytes of code an emulated machine takes a minute: what
    was made is kept in the cache. Raises InputError without a C compiler, or when it refuses.
    """
    compiler = compiler or shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        raise InputError(
            f"no C compiler (cc) is installed, it builds {output.name}: install gcc and the headers of the C library"
        )
    kept = _kept(compiler, inputs, options)
    made = _unpacked(kept) if kept else b""
    if made:
        output.write_bytes(made)
        output.chmod(_RUNNABLE)
        return
    if refusal := link((compiler,), output, inputs, options):
        raise InputError(f"{compiler} makes no {output.name}: {refusal}")
    if kept:
        write_atomically(kept, gzip.compress(output.read_bytes(), compresslevel=1))


def _unpacked(kept: Path) -> bytes:
    """Return what is kept, nothing where it is not there or was cut off when the machine went down."""
    try:
        return gzip.decompress(kept.read_bytes())
    except (OSError, EOFError, zlib.error):
        return b""


def _kept(compiler: str, inputs: Sequence[Path], options: Sequence[str]) -> Path | None:
    """Return where the cache has, or will have, what comes of this; None where no directory can be trusted with it."""
    try:
        directory = cache_directory()
    except InputError:
        return None
    ingredients = (version_of((compiler,)), [path.name for path in inputs], list(options))
    return directory / KEPT / f"{digest_of(ingredients, inputs)}.gz"


#: below the cache
KEPT = "programs"


@cache
def version_of(command: tuple[str, ...]) -> tuple[str, ...]:
    """Return which compiler and which linker ``command`` is."""
    asked = (["--version"], ["-dumpmachine"], ["-Wl,--version"])
    return *command, *(run_to_end([*command, *options]).stdout for options in asked)


def link(command: Sequence[str], output: Path, inputs: Sequence[Path], options: Sequence[str]) -> str:
    """Have the compiler make ``output``; return what it says first, in one line, where it refuses, else nothing."""
    files = [str(file) for path in inputs for file in _files(path) if file.suffix != ".h"]
    done = run_to_end([*command, "-O1", "-o", output.name, *options, *files], directory=output.parent)
    return " ".join(done.stderr.splitlines()[:_SHOWN_LINES]) or "it failed" if done.returncode != 0 else ""


def which_file(compiler: str, name: str) -> Path | None:
    """Return the file of the C library that ``compiler`` links with, None without one of this ``name``."""
    found = Path(run_to_end([compiler, f"-print-file-name={name}"]).stdout.strip())
    return found if found.is_absolute() else None
