"""The machine's C compiler, which is not asked again for what it has made before, in this run or an earlier one."""

import gzip
import hashlib
import os
import shutil
import subprocess
import zlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from hugepage_qa.errors import InputError
from hugepage_qa.lab.cache import cache_directory, write_atomically

_SHOWN_LINES = 3
_RUNNABLE = 0o755


def compile_to(output: Path, inputs: Sequence[Path], options: Sequence[str]) -> None:
    """Make ``output`` of ``inputs``, which no option may name, with ``options`` of the compiler.

    For megabytes of code an emulated machine takes a minute: what was made is kept in the cache. Raises InputError
    without a C compiler, or when it refuses.
    """
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        raise InputError("no C compiler (cc) is installed, it builds the programs of tests/text: install gcc")
    kept = _kept(compiler, inputs, options)
    made = _unpacked(kept) if kept else b""
    if made:
        output.write_bytes(made)
        output.chmod(_RUNNABLE)
        return
    _compile(compiler, output, inputs, options)
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
    digest = hashlib.sha256(repr((_version(compiler), [path.name for path in inputs], list(options))).encode())
    for path in inputs:
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return directory / "programs" / f"{digest.hexdigest()}.gz"


@cache
def _version(compiler: str) -> tuple[str, ...]:
    """Return which compiler and which linker it is."""
    asked = (["--version"], ["-dumpmachine"], ["-Wl,--version"])
    return compiler, *(_run([compiler, *options], os.curdir).stdout for options in asked)


def _compile(compiler: str, output: Path, inputs: Sequence[Path], options: Sequence[str]) -> None:
    done = _run([compiler, "-O1", "-o", output.name, *options, *map(str, inputs)], output.parent)
    if done.returncode != 0:
        raise InputError(f"{compiler} makes no {output.name}: {' '.join(done.stderr.splitlines()[:_SHOWN_LINES])}")


def _run(command: Sequence[str], directory: str | Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, errors="replace", check=False)
