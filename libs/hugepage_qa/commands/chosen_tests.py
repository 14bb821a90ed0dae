"""Which tests Avocado runs for the references and the selection of ``hugepage-qa run``."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from hugepage_qa.cases.area_files import areas_of, load_module
from hugepage_qa.cases.case import Area
from hugepage_qa.cases.selection import EVERYTHING, Selection
from hugepage_qa.errors import InputError


@dataclass(frozen=True)
class ChosenTests:
    """References for Avocado, and the files that the first of them stands for where it stands for several."""

    references: tuple[str, ...]
    files: tuple[str, ...] = ()


def choose_tests(references: Sequence[str], selection: Selection, sizes: Collection[int]) -> ChosenTests:
    """Return the tests that have cases of ``selection``; files of which nothing has to be apart become one test.

    ``sizes`` are those of the machine's pages. Raises InputError for a name or a page size that there is not.
    """
    if selection == EVERYTHING and len(references) == 1:
        return ChosenTests(tuple(references))
    read = {reference: _read(reference, selection) for reference in references}
    selection.require([area for areas, _ in read.values() for area in areas], sizes)
    chosen = [
        reference
        for reference, (areas, _) in read.items()
        if selection == EVERYTHING or any(selection.has(area, case, sizes) for area in areas for case in area.cases)
    ]
    together = [reference for reference in chosen if read[reference][1]]
    if len(together) < 2:  # noqa: PLR2004 - one is no crowd
        return ChosenTests(tuple(chosen))
    # it imports Avocado, as every file of tests does that was read above
    from hugepage_qa.plugins.many_files import REFERENCE  # noqa: PLC0415

    apart = [reference for reference in chosen if reference not in together]
    return ChosenTests((REFERENCE, *apart), tuple(str(Path(file).absolute()) for file in together))


def _read(reference: str, selection: Selection) -> tuple[list[Area], bool]:
    """Return the areas of the file in ``reference``, and whether it can be one test with others."""
    name, _, test = reference.partition(":")
    try:
        if not Path(name).is_file():
            raise InputError(f"{name}: no such file")
        module = load_module(Path(name))
        areas = areas_of(module)
        if not areas:
            raise InputError(f"{name}: has no cases to choose from")
    except InputError as error:
        if selection == EVERYTHING:
            # Avocado knows more references than files with cases, and tells what is wrong with one
            return [], False
        raise InputError(f"{error}; --case and --size expect files of cases, such as tests/pool/pool.py") from error
    from hugepage_qa.plugins.many_files import needs_only_areas  # noqa: PLC0415

    return areas, not test and needs_only_areas(module)
