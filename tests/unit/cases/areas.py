"""The areas of live cases: every Area that a file below tests/ defines."""

from functools import cache
from pathlib import Path

from hugepage_qa.cases.area_files import read_areas as read_file
from hugepage_qa.cases.case import Area

TESTS = Path(__file__).resolve().parents[2]


@cache
def read_areas() -> tuple[Area, ...]:
    """Return the areas in the order of their files."""
    files = (file for file in sorted(TESTS.glob("*/*.py")) if file.parent.name not in ("unit", "boot"))
    return tuple(area for file in files if "Area(" in file.read_text(encoding="utf-8") for area in read_file(file))
