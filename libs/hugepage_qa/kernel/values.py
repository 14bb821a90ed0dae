"""Single values in kernel files: numbers, sizes, names of per-size directories."""

import re
from typing import NoReturn

from hugepage_qa.errors import InputError
from hugepage_qa.kernel.tree import Tree
from hugepage_qa.sizes import KIB

# 20 digits hold every 64-bit number; more is no kernel output
_INTEGER = re.compile(r"-?[0-9]{1,20}")
_SIZE = re.compile(r"(?P<number>[0-9]{1,20})kB")
_SIZE_DIRECTORY = re.compile(r"hugepages-(?P<number>[0-9]{1,20})kB")


def malformed(path: str, line: int, text: str, expected: str) -> NoReturn:
    """Raise InputError: ``line`` (counted from 1) of ``path`` holds ``text`` and not what was expected."""
    raise InputError(f"/{path}, line {line}: {text[:120]!r}: expected {expected}")


def parse_integer(text: str, path: str, line: int = 1) -> int:
    """Return the decimal number ``text``, spaces around it allowed; InputError names ``path`` and ``line``."""
    if _INTEGER.fullmatch(text.strip()) is None:
        malformed(path, line, text, "a whole number")
    return int(text.strip())


def parse_number_or_size(text: str, path: str) -> int:
    """Return a plain number, or the bytes of a size such as ``2048kB`` (demote_size_show() in mm/hugetlb_sysfs.c)."""
    size = _SIZE.fullmatch(text.strip())
    return int(size["number"]) * KIB if size else parse_integer(text, path)


def read_integer(tree: Tree, path: str) -> int | None:
    """Return the number in the file ``path``, or None where there is no such file."""
    text = tree.read(path)
    return None if text is None else parse_integer(text, path)


def size_directories(tree: Tree, directory: str) -> dict[int, str]:
    """Return page size in bytes -> path, ascending, for each ``hugepages-<number>kB`` below ``directory``."""
    found = {}
    for name in tree.names(directory):
        if not name.startswith("hugepages-"):
            continue
        match = _SIZE_DIRECTORY.fullmatch(name)
        if match is None:
            raise InputError(f"/{directory}/{name}: expected a name such as hugepages-2048kB")
        found[int(match["number"]) * KIB] = f"{directory}/{name}"
    return dict(sorted(found.items()))


def size_name(size: int) -> str:
    """Return the kernel's name for what belongs to pages of ``size`` bytes, for example ``hugepages-2048kB``."""
    return f"hugepages-{size // KIB}kB"
