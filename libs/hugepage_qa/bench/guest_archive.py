"""Programs of this machine in an archive that a guest boots with, each with its libraries, at the same paths."""

import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from hugepage_qa.bench.program import run_program
from hugepage_qa.errors import InputError
from hugepage_qa.lab.initramfs import Entry, pack

_LIBRARY = re.compile(r"(?:=> )?(?P<path>/[^ ]+) \(0x[0-9a-f]+\)")
_DEADLINE_SECONDS = 60.0
_DIRECTORY = stat.S_IFDIR | 0o755


def program_archive(
    programs: Iterable[Path], trees: Iterable[Path] = (), files: dict[str, bytes] | None = None
) -> bytes:
    """Return a newc archive of ``programs``, of what lies below the directories ``trees``, and of ``files``.

    The kernel unpacks it after another one that it stands behind. Raises InputError when a library is not found.
    """
    wanted = {path: path for path in programs}
    wanted |= {path: path for tree in trees for path in sorted(tree.rglob("*")) if path.is_file()}
    # modules bring libraries of their own
    binaries = [path for path in wanted if path.suffix == ".so" or os.access(path, os.X_OK)]
    wanted |= {path: path for binary in binaries for path in libraries_of(binary)}
    contents = {str(path).lstrip("/"): path.read_bytes() for path in wanted} | (files or {})
    modes = {str(path).lstrip("/"): stat.S_IFREG | (path.stat().st_mode & 0o777) for path in wanted}
    entries = [Entry(name, _DIRECTORY) for name in sorted(_parents(contents))]
    entries += [Entry(name, modes.get(name, stat.S_IFREG | 0o755), content) for name, content in contents.items()]
    return pack(entries)


def libraries_of(program: Path) -> list[Path]:
    """Return the libraries and the loader that ``program`` needs; none for one that is static, or is a script."""
    try:
        output = run_program(["ldd", program], deadline=_DEADLINE_SECONDS)
    except InputError:
        return []
    return parse_ldd(output, program)


def parse_ldd(output: str, program: Path) -> list[Path]:
    """Return the paths in what ldd prints. Raises InputError for a library that it does not find."""
    if "not found" in output:
        missing = next(line for line in output.splitlines() if "not found" in line)
        raise InputError(f"{program}: a library is missing ({missing.strip()})")
    return [Path(found["path"]) for found in _LIBRARY.finditer(output)]


def _parents(names: Iterable[str]) -> Iterator[str]:
    yield from {str(parent) for name in names for parent in PurePosixPath(name).parents if str(parent) != "."}
