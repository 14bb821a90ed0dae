"""The cases that a file of tests on the running machine defines."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from hugepage_qa.cases.case import Area, Case, Sizes
from hugepage_qa.catalogue.entry import Entry
from hugepage_qa.errors import InputError


def live_cases(file: Path) -> Iterator[Entry]:
    """Yield the cases of all areas in ``file``, which is imported. Raises InputError when it cannot be."""
    for area in load_areas(file):
        for case in area.cases:
            yield Entry(f"{area.name}/{case.name}", case.rule.statement, case.rule.source, _where(case))


def load_areas(file: Path) -> list[Area]:
    """Return the areas in ``file``, which is imported. Raises InputError when it cannot be."""
    return areas_of(load_module(file))


def load_module(file: Path) -> ModuleType:
    """Import ``file``. Raises InputError when it cannot be."""
    specification = importlib.util.spec_from_file_location(f"live_{file.parent.name}_{file.stem}", file)
    if specification is None or specification.loader is None:
        raise InputError(f"{file}: expected a Python file")
    module = importlib.util.module_from_spec(specification)
    try:
        specification.loader.exec_module(module)
    except Exception as error:  # whatever a file of tests does at its import
        raise InputError(f"{file}: cannot be imported: {type(error).__name__}: {error}") from error
    return module


def areas_of(module: ModuleType) -> list[Area]:
    """Return the areas that ``module`` defines; an area can have several names."""
    return list({id(value): value for value in vars(module).values() if isinstance(value, Area)}.values())


def _where(case: Case) -> str:
    # what every case does needs no words
    words = [] if case.sizes is Sizes.EACH else [case.sizes.value]
    if case.nodes > 1:
        words.append(f"{case.nodes} NUMA nodes")
    if case.rule.since:
        words.append(f"since Linux {case.rule.since}")
    if case.rule.until:
        words.append(f"before Linux {case.rule.until}")
    return ", ".join(words)
