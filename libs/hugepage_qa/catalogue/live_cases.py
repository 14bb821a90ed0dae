"""The cases that a file of tests on the running machine defines."""

from collections.abc import Iterator
from pathlib import Path

from hugepage_qa.cases.area_files import read_areas
from hugepage_qa.cases.case import Case, Sizes
from hugepage_qa.catalogue.entry import Entry


def live_cases(file: Path) -> Iterator[Entry]:
    """Yield the cases of all areas in ``file``, which is imported. Raises InputError when it cannot be."""
    for area in read_areas(file):
        for case in area.cases:
            yield Entry(f"{area.name}/{case.name}", case.rule.statement, case.rule.source, _where(case))


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
