"""The version of the cases: what was measured with another one may come out otherwise today."""

import hashlib
from pathlib import Path

from hugepage_qa.cases.area_files import LIVE, tests_directory

_LIBRARY = Path(__file__).resolve().parents[1]
#: what decides about a kernel: cases and what must be
_ROOMS = ("cases", "oracle")
#: cases of other machines than throwaway ones
_OTHERS = ("guest", "reboot", "upstream")
_SUFFIXES = (".py", ".yaml")
#: hexadecimal digits that tell versions apart
_DIGITS = 12


def case_version() -> str:
    """Return what the cases that a throwaway machine runs, and their oracle, are known by: it changes when they do.

    Raises InputError where there are no tests.
    """
    tests = tests_directory()
    rooms = [(_LIBRARY, room) for room in _ROOMS] + [(tests, folder) for folder in LIVE]
    digest = hashlib.sha256()
    for root, name in rooms:
        for file in sorted(path for path in (root / name).rglob("*") if path.suffix in _SUFFIXES):
            relative = file.relative_to(root)
            if not set(relative.parts) & set(_OTHERS):
                digest.update(f"{relative}\0".encode() + file.read_bytes() + b"\0")
    return digest.hexdigest()[:_DIGITS]
