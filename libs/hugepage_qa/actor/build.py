"""Build the suite's own small programs with the machine's C compiler."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from hugepage_qa.errors import InputError

SOURCE = Path(__file__).with_name("actor.c")

_FLAGS = ("-O1", "-Wall", "-Wextra", "-Werror")
_SHOWN_LINES = 3


def build_actor(directory: Path) -> Path:
    """Return the actor's program in ``directory``, built there unless its source has been built before.

    The directory has to be the caller's own: whoever can write to it decides what runs.
    Raises InputError without a C compiler, or when it refuses the source.
    """
    return build_program(SOURCE, directory)


def build_program(source: Path, directory: Path) -> Path:
    """Return the program that the C file ``source`` makes, under the same rules and with the same errors."""
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    program = directory / f"{source.stem}-{digest}"
    if not program.exists():
        _compile(source, program)
    return program


def _compile(source: Path, program: Path) -> None:
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        raise InputError(
            f"no C compiler (cc) is installed, it builds {source.name}: install gcc and the headers of the C library"
        )
    # built under another name: two runs may build at the same time, and one that is killed leaves half a file
    with tempfile.TemporaryDirectory(dir=program.parent, prefix=".build-") as scratch:
        unfinished = Path(scratch, "program")
        command = [compiler, *_FLAGS, "-o", str(unfinished), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode != 0:
            shown = " ".join(done.stderr.splitlines()[:_SHOWN_LINES])
            raise InputError(f"{compiler} does not build {source.name}: {shown}")
        unfinished.rename(program)
