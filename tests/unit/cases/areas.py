"""The areas of live cases: every Area that a file below tests/ defines."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path

from hugepage_qa.cases.case import Area

TESTS = Path(__file__).resolve().parents[2]


def read_areas() -> Iterator[Area]:
    """Yield the areas in the order of their files."""
    for file in sorted(TESTS.glob("*/*.py")):
        if file.parent.name not in ("unit", "boot") and "Area(" in file.read_text(encoding="utf-8"):
            yield from _areas_of(file)


def _areas_of(file: Path) -> list[Area]:
    specification = importlib.util.spec_from_file_location(f"live_{file.parent.name}_{file.stem}", file)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return [value for value in vars(module).values() if isinstance(value, Area)]
