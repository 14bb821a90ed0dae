"""The areas of live cases: every Area that a file below tests/ defines."""

from collections.abc import Iterator
from pathlib import Path

from hugepage_qa.cases.area_files import read_areas as read_file
from hugepage_qa.cases.case import Area

TESTS = Path(__file__).resolve().parents[2]


def read_areas() -> Iterator[Area]:
    """Yield the areas in the order of their files."""
    for file in sorted(TESTS.glob("*/*.py")):
        if file.parent.name not in ("unit", "boot") and "Area(" in file.read_text(encoding="utf-8"):
            yield from read_file(file)
